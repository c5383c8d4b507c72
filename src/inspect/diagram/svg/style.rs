//! The style sheet: rules with named colours, each with a value for light and for dark backgrounds.
//!
//! A page uses the sheet unchanged; its colours follow `color-scheme`. A standalone picture gets the light values,
//! because many viewers support neither variables nor media queries.

use std::collections::{BTreeSet, HashMap};

/// Fonts, lines and colours. The first rule is the table of colours.
pub const SHEET: &str = include_str!("style.css");

/// The rules for the classes that occur in a picture, with the light colours.
pub(super) fn rules(classes: &BTreeSet<&str>) -> String {
    let is_used = |selector: &&str| {
        let mut names = selector.split(['.', ' ']).filter(|name| !name.is_empty());
        names.all(|name| ["text", "*"].contains(&name) || classes.contains(name))
    };
    let mut rules = SHEET.split('}').filter_map(|rule| rule.split_once('{'));
    let colours = colours(rules.next().map_or("", |(_, table)| table));
    let mut out = String::new();
    for (selectors, body) in rules {
        let used: Vec<&str> = selectors.trim().split(',').filter(is_used).collect();
        if used.is_empty() {
            continue;
        }
        let selectors = used.join(",");
        let value = |body: String, (name, value): (&&str, &&str)| {
            body.replace(&format!("var({name})"), value)
        };
        let body = colours.iter().fold(body.to_owned(), value);
        out.push_str(&format!("{selectors}{{{body}}}"));
    }
    out
}

/// The names of the colours, with their light values.
fn colours(table: &str) -> HashMap<&str, &str> {
    let entries = table.split(';').filter_map(|entry| {
        let (name, value) = entry.trim().split_once(':')?;
        let (light, _) = value.strip_prefix("light-dark(")?.split_once(',')?;
        Some((name, light))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_is_defined_and_used() {
        let (table, rules) = SHEET.split_once('}').expect("a table");
        let colours = colours(table.trim_start_matches(":root{"));
        let named = |text: &str| -> Vec<String> {
            let parts = text.split("var(").skip(1);
            let names = parts.filter_map(|part| part.split(')').next());
            names.map(str::to_owned).collect()
        };
        assert!(colours.len() > 20);
        for name in named(rules) {
            assert!(colours.contains_key(name.as_str()), "{name}");
        }
        for name in colours.keys() {
            assert!(rules.contains(&format!("var({name})")), "{name}");
        }
    }
}
