//! Embeds the definitions of architectures and towers, and the maps and processor files of Hugging Face folders.

#[path = "../base/embed.rs"]
mod embed;

fn main() {
    embed::embed(
        "archs",
        &[
            (".arch.toml", "EMBEDDED_ARCHS"),
            (".tower.toml", "EMBEDDED_TOWERS"),
            (".drafter.toml", "EMBEDDED_DRAFTERS"),
        ],
    );
    embed::embed(
        "stmaps",
        &[
            (".arch.stmap.toml", "EMBEDDED_STMAPS"),
            (".tower.stmap.toml", "EMBEDDED_TOWER_STMAPS"),
            (".drafter.stmap.toml", "EMBEDDED_DRAFTER_STMAPS"),
            (".mmproj.stmap.toml", "EMBEDDED_MMPROJ_STMAPS"),
        ],
    );
    embed::embed("stmaps", &[(".processor.toml", "EMBEDDED_PROCESSORS")]);
}
