//! How calls of tools are written: the files of `tools/`.
//!
//! White space at the ends of marks is for writing (a grammar spells it); reading accepts any.

use std::sync::{Arc, LazyLock};

use serde::Deserialize;

include!(concat!(env!("OUT_DIR"), "/embedded_tools.rs"));

/// A mark before and one after.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Marks {
    /// The mark before.
    pub open: String,
    /// The mark after; empty if there is none.
    pub close: String,
}

/// How name and arguments of a call are written.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Body {
    /// A JSON object with the name and the arguments.
    Object,
    /// A JSON object from the name to the arguments.
    Map,
    /// The name, then a JSON object.
    Named,
    /// The name, then marks around each parameter.
    Parameters,
    /// The name, then the arguments in a notation of their own.
    Notation,
    /// A message whose header names the tool.
    Channels,
}

/// Marks of a parameter.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ParameterMarks {
    /// Before the name.
    pub open: String,
    /// Between name and value.
    pub key_end: String,
    /// After the value.
    pub close: String,
    /// Ends the name where something more follows it; empty if nothing does.
    #[serde(default)]
    pub key_stop: String,
    /// What follows the name of a parameter that is a string.
    #[serde(default)]
    pub string_mark: String,
    /// What follows the name of any other parameter.
    #[serde(default)]
    pub other_mark: String,
}

/// A notation for values other than JSON.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Notation {
    /// Before the arguments.
    pub open: String,
    /// After them.
    pub close: String,
    /// Between name and value of an argument.
    pub assign: String,
    /// Marks around strings.
    pub quotes: Vec<String>,
    /// Whether a backslash escapes the next character of a string.
    #[serde(default)]
    pub escapes: bool,
}

/// Messages within an answer, each with a header.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Channels {
    /// Before the header.
    pub start: String,
    /// Before the channel's name.
    pub channel: String,
    /// Before the name of the tool that is called.
    pub recipient: String,
    /// Between header and text.
    pub message: String,
    /// After the text.
    pub ends: Vec<String>,
    /// Other marks of headers.
    pub others: Vec<String>,
    /// Channels of reasoning.
    pub reasoning: Vec<String>,
    /// How the header of a call is written.
    pub call: String,
    /// How the header of an answer is written.
    pub answer: String,
}

/// A way in which calls of tools are written.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// The file's name.
    #[serde(skip)]
    pub name: String,
    /// What it is, and which models are known to write it.
    pub title: String,
    /// How a call is written.
    pub body: Body,
    /// Around all calls that follow each other.
    #[serde(default)]
    pub section: Marks,
    /// Whether each call has such marks around it, for writing.
    #[serde(default)]
    pub own_sections: bool,
    /// Whether the calls are the elements of a list.
    #[serde(default)]
    pub list: bool,
    /// Before a call; the first one is for writing.
    #[serde(default)]
    pub opens: Vec<String>,
    /// After a call.
    #[serde(default)]
    pub close: String,
    /// Whether calls may come without a mark at the start of the answer.
    #[serde(default)]
    pub bare: bool,
    /// Between calls, for writing.
    #[serde(default)]
    pub separator: String,
    /// Keys of the name in an object.
    #[serde(default)]
    pub name_keys: Vec<String>,
    /// Keys of the arguments in an object.
    #[serde(default)]
    pub arguments_keys: Vec<String>,
    /// Key of the id in an object.
    #[serde(default)]
    pub id_key: String,
    /// Key of the call's number in an object.
    #[serde(default)]
    pub index_key: String,
    /// Before the name.
    #[serde(default)]
    pub name_prefix: String,
    /// After the name.
    #[serde(default)]
    pub name_ends: Vec<String>,
    /// Between name and id.
    #[serde(default)]
    pub id_mark: String,
    /// Between name and number; the whole is the id.
    #[serde(default)]
    pub number_mark: String,
    /// Marks of parameters.
    pub parameter: Option<ParameterMarks>,
    /// How arguments are written.
    pub notation: Option<Notation>,
    /// Messages with headers.
    pub channels: Option<Channels>,
    /// Marks that are not part of the text.
    #[serde(default)]
    pub silent: Vec<String>,
    /// Whether it is for templates that show no calls.
    #[serde(default)]
    pub is_fallback: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Common {
    reasoning: Vec<Marks>,
}

impl Format {
    /// Marks with which calls begin.
    pub(super) fn starts(&self) -> impl Iterator<Item = &str> {
        let section = std::iter::once(self.section.open.trim());
        let all = section.chain(self.opens.iter().map(|open| open.trim()));
        all.filter(|mark| !mark.is_empty())
    }

    /// What may stand after a call and between calls.
    pub(super) fn closers(&self) -> impl Iterator<Item = &str> {
        let own = [self.close.trim(), self.section.close.trim()];
        let list: &[&str] = if self.list { &["]"] } else { &[] };
        let all = own
            .into_iter()
            .chain([",", ";"])
            .chain(list.iter().copied());
        all.filter(|mark| !mark.is_empty())
    }
}

fn parsed(name: &str, text: &str) -> Option<Arc<Format>> {
    match toml::from_str::<Format>(text) {
        Ok(format) => Some(Arc::new(Format {
            name: name.into(),
            ..format
        })),
        Err(error) => {
            tracing::error!(name, %error, "a format of tool calls is malformed");
            None
        }
    }
}

/// All formats.
pub fn formats() -> &'static [Arc<Format>] {
    static ALL: LazyLock<Vec<Arc<Format>>> = LazyLock::new(|| {
        let all = EMBEDDED_TOOLS.iter();
        all.filter_map(|(name, text)| parsed(name, text)).collect()
    });
    &ALL
}

/// Marks that models are known to put around their reasoning.
pub fn reasoning_marks() -> &'static [Marks] {
    static ALL: LazyLock<Vec<Marks>> = LazyLock::new(|| {
        toml::from_str::<Common>(EMBEDDED_COMMON)
            .map(|common| common.reasoning)
            .inspect_err(|error| tracing::error!(%error, "tools/common.toml is malformed"))
            .unwrap_or_default()
    });
    &ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_well_formed() {
        assert_eq!(formats().len(), EMBEDDED_TOOLS.len());
        assert!(!reasoning_marks().is_empty());
        for format in formats() {
            let has = |body| format.body == body;
            assert_eq!(
                has(Body::Parameters),
                format.parameter.is_some(),
                "{}",
                format.name
            );
            assert_eq!(
                has(Body::Notation),
                format.notation.is_some(),
                "{}",
                format.name
            );
            assert_eq!(
                has(Body::Channels),
                format.channels.is_some(),
                "{}",
                format.name
            );
            assert_eq!(
                has(Body::Object),
                !format.name_keys.is_empty(),
                "{}",
                format.name
            );
            assert!(
                format.bare || format.starts().next().is_some(),
                "{}",
                format.name
            );
        }
        assert_eq!(formats().iter().filter(|f| f.is_fallback).count(), 1);
    }
}
