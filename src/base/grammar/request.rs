//! A constraint as a request states it.

use std::sync::Arc;

use serde_json::Value;

use super::gbnf;
use crate::chat::tool_calls::{CallFormat, MarkPair, Tool};

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
    Answer(Box<AnswerSpec>),
}

impl Constraint {
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

/// Whether an answer begins with reasoning.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ReasoningRule {
    /// There is no reasoning.
    #[default]
    None,
    /// The model decides whether it reasons.
    Optional(MarkPair),
    /// The prompt has opened the block of reasoning.
    Open(MarkPair),
}

/// The content that may take the place of calls.
#[derive(Clone, Debug, PartialEq)]
pub enum ContentRule {
    /// None: a tool must be called.
    None,
    /// Any text.
    Any,
    /// Text that fits another constraint: a schema or a regular expression.
    Fits(Box<Constraint>),
}

/// The parts of an answer that a grammar describes.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerSpec {
    /// The format in which the model writes calls.
    pub format: Arc<CallFormat>,
    /// The reasoning before the answer.
    pub reasoning: ReasoningRule,
    /// The tools that may be called; without tools there are no calls.
    pub tools: Vec<Tool>,
    pub parallel_calls: bool,
    /// The content that may take the place of calls.
    pub content: ContentRule,
}

impl AnswerSpec {
    /// The total size of the texts of its parts, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let tools = self.tools.iter();
        let tools: usize = tools
            .map(|tool| tool.name.len() + tool.parameters.to_string().len())
            .sum();
        tools
            + match &self.content {
                ContentRule::Fits(constraint) => constraint.bytes(),
                _ => 0,
            }
    }
}
