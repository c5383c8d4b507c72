//! The pre-tokenizers, by their names in `tokenizer.ggml.pre`.
//!
//! How a text is split into words, and everything else that a name implies, is data (`pretokenizers.toml`); the only
//! name here is [`DEFAULT`]. Invariant: the table parses, its patterns compile, and no name occurs twice.

use std::sync::LazyLock;

use serde::Deserialize;

use super::splitter::SplitRule;
use super::strip_rules::StripRule;

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum VocabularySpelling {
    /// Tokens are spelled in the byte-level alphabet.
    #[default]
    ByteLevel,
    /// Tokens are spelled as UTF-8 text.
    Plain,
}

/// The preparation of text for a byte-pair vocabulary.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PreTokenizer {
    /// Its names, the most common one first.
    names: Vec<String>,
    pub(super) steps: Vec<SplitRule>,
    /// Whether a word that is a token is kept whole.
    pub(super) ignore_merges: bool,
    /// Whether a word of line feeds that is a token is kept whole.
    pub(super) keeps_line_feeds: bool,
    /// How token texts are spelled.
    pub(super) spelling: VocabularySpelling,
    /// Whether spaces are written as U+2581.
    pub(super) escapes_spaces: bool,
    /// Whether every line starts with an escaped space.
    pub(super) prefixes_lines: bool,
    /// Whether white space separates words and is dropped.
    pub(super) drops_white_space: bool,
    /// Whether a text starts with the BOS token, if the file does not say.
    pub(super) adds_bos: bool,
    /// Whether a text starts with the BOS token, whatever the file says.
    pub(super) always_adds_bos: bool,
    /// Whether the file may lack merges.
    pub(super) optional_merges: bool,
    /// Whether folders whose merges cross words get this pre-tokenizer.
    is_of_lines: bool,
}

/// The name that is assumed if `tokenizer.ggml.pre` is missing.
pub(super) const DEFAULT: &str = "default";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Named parts of patterns; a part may use those before it.
    #[serde(default)]
    parts: toml::map::Map<String, toml::Value>,
    #[serde(default)]
    row: Vec<PreTokenizer>,
    #[serde(default)]
    rule: Vec<StripRule>,
}

impl Table {
    fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let mut table: Self = toml::from_str(text)?;
        let mut parts: Vec<(String, String)> = Vec::new();
        let filled = |pattern: &str, parts: &[(String, String)]| {
            let mut pattern = pattern.to_owned();
            for (name, part) in parts {
                pattern = pattern.replace(name, part);
            }
            pattern
        };
        for (name, part) in &table.parts {
            let part = filled(part.as_str().unwrap_or_default(), &parts);
            parts.push((format!("%{{{name}}}"), part));
        }
        for step in table.row.iter_mut().flat_map(|row| &mut row.steps) {
            if let Some(pattern) = step.pattern_mut() {
                *pattern = filled(pattern, &parts);
            }
        }
        Ok(table)
    }

    fn named(&self, name: &str) -> Option<&PreTokenizer> {
        let has_name = |row: &&PreTokenizer| row.names.iter().any(|other| other == name);
        self.row.iter().find(has_name)
    }
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| Table::parse(include_str!("pretokenizers.toml")).expect("pretokenizers.toml"));

pub(super) fn rows() -> impl Iterator<Item = &'static PreTokenizer> {
    TABLE.row.iter()
}

pub(super) fn named(name: &str) -> Option<&'static PreTokenizer> {
    TABLE.named(name)
}

/// The name of the pre-tokenizer that splits at line feeds only, spells tokens as text and escapes spaces.
pub(super) fn of_lines() -> &'static str {
    let row = rows().find(|row| row.is_of_lines);
    row.map_or(DEFAULT, PreTokenizer::usual_name)
}

pub(super) fn rules() -> &'static [StripRule] {
    &TABLE.rule
}

impl PreTokenizer {
    pub(super) fn usual_name(&self) -> &str {
        self.names.first().map_or(DEFAULT, String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::super::splitter::Splitter;
    use super::*;

    #[test]
    fn the_table_parses_and_every_pattern_matches_something() {
        let table = Table::parse(include_str!("pretokenizers.toml"));
        let table = table.unwrap_or_else(|error| panic!("{error}"));
        for row in &table.row {
            let splitter = Splitter::new(&row.steps);
            let splitter = splitter.unwrap_or_else(|e| panic!("{:?}: {e}", row.names));
            assert!(!splitter.matches_nothing(), "{:?}", row.names);
            let text = format!("{:?}", row.steps);
            assert!(!text.contains("%{"), "{text}: a part that is not there");
        }
        assert!(!table.rule.is_empty());
        assert!(named(DEFAULT).is_some());
        assert_eq!(rows().filter(|row| row.is_of_lines).count(), 1);
    }

    #[test]
    fn every_name_occurs_once() {
        let mut names: Vec<_> = rows().flat_map(|row| &row.names).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn a_new_pre_tokenizer_needs_one_row() {
        let table = Table::parse(
            r#"
            [parts]
            digit = '[0-9]'
            number = '%{digit}+'
            [[row]]
            names = ["toy", "plaything"]
            steps = [{ cut = 'x%{number}' }, "group_numbers", { cut_spaces = ' ?\p{L}+' }]
            escapes_spaces = true
            "#,
        );
        let table = table.expect("the row is valid");
        let row = table.named("plaything").expect("the row is there");
        assert_eq!(row.usual_name(), "toy");
        assert!(
            row.escapes_spaces && !row.adds_bos && row.spelling == VocabularySpelling::ByteLevel
        );
        let splitter = Splitter::new(&row.steps).expect("the patterns compile");
        let text = "ab  cx1234 1234";
        let words: Vec<&str> = splitter.split(text).into_iter().map(|w| &text[w]).collect();
        assert_eq!(words, ["ab", " ", " c", "x", "1", "234", " ", "1", "234"]);
    }

    #[test]
    fn a_row_with_an_unknown_key_is_refused() {
        let row = |key: &str| format!("[[row]]\nnames = []\nsteps = []\n{key} = true");
        assert!(Table::parse(&row("adds_bos")).is_ok());
        assert!(Table::parse(&row("adds_boss")).is_err());
    }
}
