//! Embeds the definitions of architectures and the maps of Hugging Face folders.

#[path = "../base/embed.rs"]
mod embed;

fn main() {
    embed::embed("archs", ".arch.toml", "EMBEDDED_ARCHS");
    embed::embed("stmaps", ".arch.stmap.toml", "EMBEDDED_STMAPS");
}
