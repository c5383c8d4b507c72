//! Special tokens that include the white space next to them, although no key of the file says so.
//!
//! The rules are data (`pretokenizers.toml`): the texts to look for in a key, and the affected tokens. Invariant: only
//! the first rule that applies counts.

use serde::Deserialize;

use crate::weights::Metadata;

use super::specials::SpecialTokens;

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    Left,
    Right,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StripRule {
    key: String,
    /// The rule applies if the lower-case value of the key contains one of these.
    contains: Vec<String>,
    strips: Side,
    /// The affected tokens; if absent, all but those in `all_but`.
    only: Option<Vec<String>>,
    #[serde(default)]
    all_but: Vec<String>,
}

/// Applies the first of `rules` that matches a file, if there is one.
pub(super) fn apply(rules: &[StripRule], metadata: &Metadata, specials: &mut SpecialTokens) {
    let Some(rule) = rules.iter().find(|rule| rule.applies(metadata)) else {
        return;
    };
    let has = |texts: &[String], text: &str| texts.iter().any(|other| other == text);
    let concerns = |text: &str| match &rule.only {
        Some(only) => has(only, text),
        None => !has(&rule.all_but, text),
    };
    match rule.strips {
        Side::Left => specials.strip_left(concerns),
        Side::Right => specials.strip_right(concerns),
    }
}

impl StripRule {
    fn applies(&self, metadata: &Metadata) -> bool {
        let value = metadata.str(&self.key).unwrap_or_default().to_lowercase();
        self.contains.iter().any(|part| value.contains(part))
    }
}
