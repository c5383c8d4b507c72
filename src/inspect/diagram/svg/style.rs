//! The style sheet: rules with named colours, each with a value on light and one on dark paper.
//!
//! A page takes the sheet as it is, whose colours follow `color-scheme`. A picture by itself gets the
//! values, light ones first, since many viewers know neither variables nor media queries.

use std::collections::HashMap;

use super::scene::Piece;

/// Fonts, lines and colours. The first rule is the table of colours.
pub const SHEET: &str = include_str!("style.css");

/// The rules for what occurs in a picture, with colours for light and for dark paper.
pub(super) fn rules(piece: &Piece) -> String {
    let classes = piece.classes();
    let is_used = |selector: &&str| {
        let mut names = selector.split(['.', ' ']).filter(|name| !name.is_empty());
        names.all(|name| ["text", "*"].contains(&name) || classes.contains(name))
    };
    let mut rules = SHEET.split('}').filter_map(|rule| rule.split_once('{'));
    let colours = colours(rules.next().map_or("", |(_, table)| table));
    let (mut light, mut dark) = (String::new(), String::new());
    for (selectors, body) in rules {
        let used: Vec<&str> = selectors.trim().split(',').filter(is_used).collect();
        if used.is_empty() {
            continue;
        }
        let selectors = used.join(",");
        light.push_str(&format!("{selectors}{{{}}}", with(body, &colours, 0)));
        let differing = body.split(';').filter(|line| line.contains("var("));
        let differing: Vec<&str> = differing.collect();
        if !differing.is_empty() {
            let body = with(&differing.join(";"), &colours, 1);
            dark.push_str(&format!("{selectors}{{{body}}}"));
        }
    }
    format!("{light}@media (prefers-color-scheme:dark){{{dark}}}")
}

/// The light rules of a sheet that [`rules`] made.
#[cfg(feature = "png")]
pub(crate) fn light(rules: &str) -> &str {
    rules.split_once("@media").map_or(rules, |(light, _)| light)
}

/// Names of colours with their values on light and on dark paper.
fn colours(table: &str) -> HashMap<&str, [&str; 2]> {
    let entries = table.split(';').filter_map(|entry| {
        let (name, value) = entry.trim().split_once(':')?;
        let values = value.strip_prefix("light-dark(")?.strip_suffix(')')?;
        let (light, dark) = values.split_once(',')?;
        Some((name, [light, dark]))
    });
    entries.collect()
}

/// Declarations with values for the names of colours.
fn with(body: &str, colours: &HashMap<&str, [&str; 2]>, scheme: usize) -> String {
    let value = |body: String, (name, values): (&&str, &[&str; 2])| {
        body.replace(&format!("var({name})"), values[scheme])
    };
    colours.iter().fold(body.to_owned(), value)
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

    #[test]
    fn each_scheme_has_its_value() {
        let colours = HashMap::from([("--a", ["#fff", "#000"])]);
        let body = "fill:var(--a);stroke-width:2;stroke:var(--a)";
        assert_eq!(
            with(body, &colours, 0),
            "fill:#fff;stroke-width:2;stroke:#fff"
        );
        assert_eq!(
            with(body, &colours, 1),
            "fill:#000;stroke-width:2;stroke:#000"
        );
    }
}
