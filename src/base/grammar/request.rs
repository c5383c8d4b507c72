//! A constraint as a request states it.

use serde_json::Value;

use super::{Answer, gbnf};

/// The constraint on a completion.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// JSON that matches a JSON Schema.
    JsonSchema(Value),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// Text that matches a grammar in the variant of Lark that llguidance reads.
    Lark(String),
    /// Text that matches a grammar in llama.cpp's GBNF.
    Gbnf(String),
    /// A whole answer: reasoning, then content or tool calls.
    Answer(Box<Answer>),
}

impl Constraint {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(serde_json::json!({ "type": "object" }))
    }

    /// A grammar. Its first rule determines the notation: GBNF has `name ::=`, Lark has `name:`.
    pub fn grammar(text: &str) -> Self {
        if gbnf::is_gbnf(text) {
            Self::Gbnf(text.to_owned())
        } else {
            Self::Lark(text.to_owned())
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::JsonSchema(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => text.len(),
            Self::Answer(answer) => answer.bytes(),
        }
    }
}
