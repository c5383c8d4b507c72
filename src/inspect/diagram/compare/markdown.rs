//! Formats a comparison as Markdown.

use std::fmt::Write;

use super::Comparison;
use crate::common::wording::escaped;

/// The comparison as Markdown, with texts of files escaped.
pub fn summary(comparison: &Comparison) -> String {
    let text = |text: &str| escaped(text).replace('|', "\\|");
    let [a, b] = comparison.names().map(|name| text(&name));
    let mut out = format!("# {a} and {b}\n\n| | {a} | {b} |\n|---|---|---|\n");
    let [of_a, of_b] = comparison.drawings.each_ref();
    let mut row = |name: &str, values: [&str; 2]| {
        let [name, a, b] = [name, values[0], values[1]].map(text);
        let _ = writeln!(out, "| {name} | {a} | {b} |");
    };
    row("architecture", [&of_a.arch, &of_b.arch]);
    for (name, value) in &of_a.facts {
        let other = of_b.facts.iter().find(|(other, _)| other == name);
        row(name, [value, other.map_or("", |(_, value)| value)]);
    }
    for (title, lines) in comparison.sections() {
        let _ = write!(out, "\n## {title}\n\n");
        for (n, line) in lines {
            let n = n.map(|n| format!("{n}. ")).unwrap_or_default();
            let _ = writeln!(out, "{n}{}", escaped(&line));
        }
    }
    out
}
