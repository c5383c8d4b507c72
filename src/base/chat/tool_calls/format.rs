//! The formats of tool calls: the files of `tools/`.
//!
//! White space at the ends of marks matters only for writing (grammars produce it); parsing accepts any.

use std::sync::{Arc, LazyLock};

use serde::Deserialize;

include!(concat!(env!("OUT_DIR"), "/embedded_tools.rs"));

/// An opening and a closing mark.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct MarkPair {
    /// The opening mark.
    pub open: String,
    /// The closing mark; may be empty.
    pub close: String,
}

/// The form of a call's name and arguments.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum CallBody {
    /// A JSON object with the name and the arguments.
    Object,
    /// A JSON object whose key is the name and whose value is the arguments.
    Map,
    /// The name, then a JSON object with the arguments.
    Named,
    /// The name, then marks around each parameter.
    Parameters,
    /// The name, then the arguments in a notation other than JSON.
    Notation,
    /// A message whose header names the tool.
    Channels,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ParameterMarks {
    /// The mark before the name.
    pub open: String,
    /// The mark between name and value.
    pub key_end: String,
    /// The mark after the value.
    pub close: String,
    /// The mark that ends the name if a type mark follows it; empty if there is none.
    #[serde(default)]
    pub key_stop: String,
    /// The type mark after the name of a parameter that is a string.
    #[serde(default)]
    pub string_mark: String,
    /// The type mark after the name of any other parameter.
    #[serde(default)]
    pub other_mark: String,
}

/// A notation of arguments other than JSON.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Notation {
    pub open: String,
    pub close: String,
    /// The mark between name and value of an argument.
    pub assign: String,
    /// The marks around strings.
    pub quotes: Vec<String>,
    /// Whether values are literals of Python.
    #[serde(default)]
    pub is_python: bool,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ChannelMarks {
    /// The mark before a header.
    pub start: String,
    /// The mark before the name of the channel.
    pub channel: String,
    /// The mark before the name of the called tool.
    pub recipient: String,
    /// The mark between header and text.
    pub message: String,
    /// The marks after the text.
    pub ends: Vec<String>,
    /// Further marks in headers.
    pub others: Vec<String>,
    /// The names of the channels for reasoning.
    pub reasoning: Vec<String>,
    /// The header of a call, for writing.
    pub call: String,
    /// The header of an answer, for writing.
    pub answer: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct CallFormat {
    #[serde(skip)]
    pub name: String,
    /// A title, with the models that are known to write the format.
    pub title: String,
    pub body: CallBody,
    /// Marks around all consecutive calls.
    #[serde(default)]
    pub section: MarkPair,
    /// Whether each call is written within section marks of its own.
    #[serde(default)]
    pub own_sections: bool,
    /// Whether the calls are elements of a JSON list.
    #[serde(default)]
    pub list: bool,
    /// Marks before a call. The first one is used for writing.
    #[serde(default)]
    pub opens: Vec<String>,
    /// The mark after a call.
    #[serde(default)]
    pub close: String,
    /// Whether a call without marks is accepted at the start of the answer.
    #[serde(default)]
    pub bare: bool,
    /// The separator between calls, for writing.
    #[serde(default)]
    pub separator: String,
    /// The keys for the name in an object.
    #[serde(default)]
    pub name_keys: Vec<String>,
    /// The keys for the arguments in an object.
    #[serde(default)]
    pub arguments_keys: Vec<String>,
    /// The key for the id in an object.
    #[serde(default)]
    pub id_key: String,
    /// The key for the call's number in an object.
    #[serde(default)]
    pub index_key: String,
    #[serde(default)]
    pub name_prefix: String,
    /// Marks that end the name.
    #[serde(default)]
    pub name_ends: Vec<String>,
    /// The mark between name and id.
    #[serde(default)]
    pub id_mark: String,
    /// The mark between name and number; name, mark and number together are the id.
    #[serde(default)]
    pub number_mark: String,
    pub parameter: Option<ParameterMarks>,
    pub notation: Option<Notation>,
    /// The marks of messages with headers.
    pub channels: Option<ChannelMarks>,
    /// Marks that are removed from the text.
    #[serde(default)]
    pub silent: Vec<String>,
    /// Whether the format is used for templates that show no calls.
    #[serde(default)]
    pub is_fallback: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommonMarks {
    reasoning: Vec<MarkPair>,
}

impl CallFormat {
    /// The marks that begin calls.
    pub(super) fn starts(&self) -> impl Iterator<Item = &str> {
        let section = std::iter::once(self.section.open.trim());
        let all = section.chain(self.opens.iter().map(|open| open.trim()));
        all.filter(|mark| !mark.is_empty())
    }

    /// The marks that may follow a call or separate calls.
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

pub fn call_formats() -> &'static [Arc<CallFormat>] {
    static ALL: LazyLock<Vec<Arc<CallFormat>>> = LazyLock::new(|| {
        let parsed = |(name, text): &(&str, &str)| {
            let format: CallFormat =
                toml::from_str(text).unwrap_or_else(|error| panic!("tools/{name}: {error}"));
            Arc::new(CallFormat {
                name: (*name).into(),
                ..format
            })
        };
        EMBEDDED_TOOLS.iter().map(parsed).collect()
    });
    &ALL
}

/// Marks that models are known to write around their reasoning.
pub fn reasoning_marks() -> &'static [MarkPair] {
    static ALL: LazyLock<Vec<MarkPair>> = LazyLock::new(|| {
        let common: CommonMarks = toml::from_str(EMBEDDED_COMMON).expect("tools/common.toml");
        common.reasoning
    });
    &ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_well_formed() {
        assert!(!reasoning_marks().is_empty());
        for format in call_formats() {
            for (body, has_its_marks) in [
                (CallBody::Parameters, format.parameter.is_some()),
                (CallBody::Notation, format.notation.is_some()),
                (CallBody::Channels, format.channels.is_some()),
                (CallBody::Object, !format.name_keys.is_empty()),
            ] {
                assert_eq!(
                    format.body == body,
                    has_its_marks,
                    "{}: {body:?}",
                    format.name
                );
            }
            assert!(
                format.bare || format.starts().next().is_some(),
                "{}",
                format.name
            );
        }
        assert_eq!(call_formats().iter().filter(|f| f.is_fallback).count(), 1);
    }
}
