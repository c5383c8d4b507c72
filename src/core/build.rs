//! Embeds the definitions of architectures and the maps and processor files of Hugging Face folders.

#[path = "../base/embed.rs"]
mod embed;

fn main() {
    embed::embed("archs", ".arch.toml", "EMBEDDED_ARCHS");
    embed::embed("stmaps", ".arch.stmap.toml", "EMBEDDED_STMAPS");
    embed::embed("stmaps", ".processor.toml", "EMBEDDED_PROCESSORS");
}
