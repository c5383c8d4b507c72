//! How the answers to a conversation are constrained and parsed: reasoning, tools, content.
//!
//! Joins the fields of a request with the model's dialect. Not here: the output of a template.

use serde_json::Value;

use crate::served::ServedModel;
use lab_base::chat::tool_calls::{ChatDialect, OutputParser};
use lab_base::grammar::{AnswerSpec, Constraint, ContentRule, ReasoningRule};
use lab_core::engine::Thinking;

use crate::request::messages::Messages;
use crate::request::response_format::ConstraintSpec;
use crate::request::tools::Tools;
use crate::response::completion_parser::CompletionParser;

pub(crate) struct OutputParsing<'a> {
    tools: &'a Tools,
    dialect: &'a ChatDialect,
    /// Whether the prompt has opened a block of reasoning.
    is_open: bool,
    may_reason: bool,
    parts_reasoning: bool,
    shows_reasoning: bool,
    budget: Option<usize>,
}

impl<'a> OutputParsing<'a> {
    /// The reading of answers to `messages`, whose prompt is `prompt`.
    pub(crate) fn new(
        messages: &Messages,
        tools: &'a Tools,
        dialect: &'a ChatDialect,
        prompt: &str,
    ) -> Self {
        let continued = messages.continued_text();
        let is_open = match continued {
            Some(answer) => dialect.leaves_open(answer),
            None => dialect.opens_reasoning(prompt),
        };
        let is_closed = dialect
            .reasoning
            .as_ref()
            .is_some_and(|marks| prompt.trim_end().ends_with(marks.close.as_str()));
        let has_marks = dialect.reasoning.is_some() || dialect.has_channels();
        Self {
            tools,
            dialect,
            is_open,
            may_reason: is_open
                || (has_marks && !is_closed && continued.is_none() && messages.allows_reasoning()),
            parts_reasoning: messages.separates_reasoning(),
            shows_reasoning: messages.shows_reasoning(),
            budget: messages.reasoning_budget(),
        }
    }

    fn has_tools(&self) -> bool {
        !self.tools.callable.is_empty()
    }

    /// The reader of the answers; `None` if they are plain content.
    pub(crate) fn reader(&self) -> Option<CompletionParser> {
        let marks = self.dialect.reasoning.clone();
        let marks = marks.filter(|_| self.parts_reasoning);
        let has_channels = self.dialect.has_channels();
        let format = self.dialect.format.clone();
        let format = format.filter(|_| self.has_tools() || has_channels);
        if format.is_none() && marks.is_none() {
            return None;
        }
        let is_open = self.is_open && marks.is_some();
        let parser = OutputParser::new(format, self.tools.callable.clone(), marks, is_open);
        Some(CompletionParser::new(
            parser,
            self.tools.many,
            self.shows_reasoning,
        ))
    }

    fn thought(&self) -> ReasoningRule {
        let marks = self.dialect.reasoning.clone();
        match (self.may_reason, self.is_open) {
            (false, _) => ReasoningRule::None,
            (true, true) => marks.map_or(ReasoningRule::None, ReasoningRule::Open),
            (true, false) => ReasoningRule::Optional(marks.unwrap_or_default()),
        }
    }

    /// The constraint of the answers, whose content must match `spec`.
    pub(crate) fn constraint(&self, spec: Option<ConstraintSpec>) -> Option<ConstraintSpec> {
        let Some(format) = self.dialect.format.clone() else {
            return spec;
        };
        let thought = self.thought();
        let must_call = self.has_tools() && self.tools.must_call();
        // In formats without marks around calls, only required calls can be enforced.
        let is_marked = !format.bare && !self.dialect.has_channels();
        let is_strict = self.has_tools() && self.tools.is_strict && is_marked;
        let content = match (&spec, must_call) {
            (_, true) => ContentRule::None,
            (Some(spec), false) => match &spec.constraint {
                fits @ (Constraint::JsonSchema(_) | Constraint::Regex(_)) => {
                    if !self.has_tools() && thought == ReasoningRule::None {
                        return Some(spec.clone());
                    }
                    ContentRule::Fits(Box::new(fits.clone()))
                }
                // A grammar defines the whole answer.
                _ if !self.has_tools() => return Some(spec.clone()),
                other => ContentRule::Fits(Box::new(other.clone())),
            },
            (None, false) if is_strict => ContentRule::Any,
            (None, false) => return None,
        };
        let answer = AnswerSpec {
            format,
            reasoning: thought,
            tools: self.tools.callable.to_vec(),
            parallel_calls: self.tools.many,
            content,
        };
        let param = match spec {
            Some(spec) if !must_call => spec.param,
            _ => "tools".into(),
        };
        Some(ConstraintSpec {
            param,
            constraint: Constraint::Answer(Box::new(answer)),
        })
    }

    /// The limit on reasoning, if the request sets one and the model has marks of reasoning.
    pub(crate) fn thinking(&self, served: &ServedModel) -> Option<Thinking> {
        let most = self.budget?;
        let channels = self
            .dialect
            .format
            .as_ref()
            .and_then(|f| f.channels.as_ref());
        let (open, close) = match (channels, &self.dialect.reasoning) {
            (Some(channels), _) => {
                let name = channels.reasoning.first()?;
                let open = format!("{}{name}{}", channels.channel, channels.message);
                (open, channels.ends.first()?.clone())
            }
            (None, Some(marks)) => (marks.open.clone(), marks.close.clone()),
            (None, None) => return None,
        };
        let closing = served.handle.tokenizer().encode(&close, false, true).ok()?;
        Some(Thinking {
            open: (!self.is_open).then(|| open.into_bytes()),
            close: close.into_bytes(),
            closing,
            most,
        })
    }
}

pub(crate) fn call_json(id: &str, name: &str, arguments: &str) -> Value {
    serde_json::json!({
        "id": id, "type": "function", "function": { "name": name, "arguments": arguments },
    })
}
