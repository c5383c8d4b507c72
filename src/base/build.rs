//! Embeds the formats of tool calls.

mod embed;

fn main() {
    embed::embed("tools", &[(".tool.toml", "EMBEDDED_TOOLS")]);
}
