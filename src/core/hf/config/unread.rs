//! Keys of a configuration that are not read, and whether they matter.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::super::json::{convert, fields, is_off, is_same};
use super::Config;

/// Endings of the names of factors.
const FACTORS: [&str; 6] = [
    "_alpha",
    "_beta",
    "_factor",
    "_multiplier",
    "_scale",
    "_scaling",
];

#[derive(Debug, Default)]
pub(crate) struct UnreadKeys {
    /// Keys that have no effect.
    pub(crate) inert: Vec<String>,
    /// The other keys, with their values and meanings.
    pub(crate) refused: Vec<String>,
}

/// Keys that are read or ignored.
struct ReadKeys<'a> {
    read: &'a BTreeSet<String>,
    is_ignored: &'a dyn Fn(&str) -> bool,
}

impl Config<'_> {
    /// The keys that are not read, including keys within objects, except ignored ones.
    pub(crate) fn unread(&self, is_ignored: impl Fn(&str) -> bool) -> UnreadKeys {
        let mut unread = UnreadKeys::default();
        // Keys that only the expressions of defaults read do not count as read.
        let read = self.read.borrow().clone();
        let known = ReadKeys {
            read: &read,
            is_ignored: &is_ignored,
        };
        if self.map.is_part {
            let fields = self.nested().and_then(Json::as_object);
            for (key, value) in fields.into_iter().flatten() {
                self.note_unread(key, value, &known, &mut unread);
            }
            return unread;
        }
        let nested = self.map.nested_in(self.json).map(|(name, _)| name);
        for (key, value) in self.json.as_object().into_iter().flatten() {
            match value {
                Json::Object(inner) if nested == Some(key) => {
                    for (key, value) in inner {
                        self.note_unread(key, value, &known, &mut unread);
                    }
                }
                _ => self.note_unread(key, value, &known, &mut unread),
            }
        }
        unread
    }

    fn note_unread(&self, key: &str, value: &Json, known: &ReadKeys<'_>, unread: &mut UnreadKeys) {
        if known.read.contains(key) || (known.is_ignored)(key) {
            return;
        }
        let within = format!("{key}.");
        let is_partly_read = || known.read.iter().any(|name| name.starts_with(&within));
        match value {
            // If no key within the object was read, the object itself is reported.
            Json::Object(_) | Json::Array(_) if is_partly_read() => {
                for (field, value) in fields(value) {
                    self.note_unread(&format!("{within}{field}"), &value, known, unread);
                }
            }
            _ if self.is_inert(key, value) => unread.inert.push(key.to_owned()),
            _ => unread.refused.push(self.refusal(key, value)),
        }
    }

    /// Whether a key that is not read has no effect: its value is its default. Without a default, a value that means
    /// off is the same as an absent key, and so is a factor of one.
    fn is_inert(&self, key: &str, value: &Json) -> bool {
        let Some(fallback) = self.map.defaults.get(key) else {
            let is_factor = FACTORS.iter().any(|ending| key.ends_with(ending));
            return is_off(value) || is_factor && value.as_f64() == Some(1.0);
        };
        let default = fallback
            .absent
            .as_ref()
            .map(|expr| expr.evaluate(&self.plain()));
        match (default, convert(value)) {
            (Some(Ok(default)), Some(value)) => is_same(&default, &value),
            _ => value.is_null(),
        }
    }

    /// A key that is not read, for messages.
    fn refusal(&self, key: &str, value: &Json) -> String {
        let shown = match value {
            Json::Array(_) | Json::Object(_) => String::new(),
            value => format!(" = {value}"),
        };
        let own = key.rsplit('.').next().unwrap_or(key);
        let meanings = &self.map.meanings;
        let meaning = meanings.get(key).or_else(|| meanings.get(own));
        let meaning = meaning.map(|text| format!(" ({text})"));
        format!("{key}{shown}{}", meaning.unwrap_or_default())
    }
}
