//! Compiled chat templates, their rendering, and the meaning of the engine's errors.

use minijinja::machinery::{eval, make_string_output};
use minijinja::{AutoEscape, Error, ErrorKind};

use super::engine::{Compiled, ENGINE, GuardedCode};
use super::error::fault;
use super::input::{check_messages, context, final_text};
use super::macro_defaults::with_moved_defaults;
use super::preprocess::{prepare, restored};
use super::{RenderError, RenderInput, TemplateError, budget, methods};
use crate::util::panics::caught;

/// The mark after the final message's content, by which the end of the content is found. Its trailing space shows
/// whether the template trims.
const CONTINUE_MARK: &str = "\u{fdd0}continue-final-message\u{fdd1} ";
/// Maximum size of a template, in bytes: those of models have up to about a hundred thousand.
pub(super) const MAX_BYTES: usize = 1 << 20;
const FAILED: &str = "the template engine failed";

/// A compiled chat template. Several threads can render it at once.
#[derive(Debug)]
pub struct ChatTemplate(Compiled);

impl ChatTemplate {
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let fault = |message: String| TemplateError { line: 1, message };
        if source.len() > MAX_BYTES {
            let n = source.len();
            return Err(fault(format!("{n} bytes, expected at most {MAX_BYTES}")));
        }
        let compile = || -> Result<Compiled, TemplateError> {
            let code = Compiled::try_new(with_moved_defaults(prepare(source)?), |text| {
                GuardedCode::new(text)
            });
            code.map_err(|error| TemplateError {
                line: error.line().unwrap_or(1),
                message: message_of(&error),
            })
        };
        let compiled = caught(compile).unwrap_or_else(|| Err(fault(FAILED.into())));
        compiled.map(Self)
    }

    /// Whether the text of the template contains this word.
    pub fn mentions(&self, word: &str) -> bool {
        self.0.borrow_owner().contains(word)
    }

    /// Renders a conversation.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String, RenderError> {
        check_messages(input.messages)?;
        if !input.continue_final_message {
            return self.render_messages(input, input.messages);
        }
        if input.add_generation_prompt {
            return Err(RenderError::Continue(
                "cannot be combined with `add_generation_prompt`",
            ));
        }
        let mut messages = input.messages.clone();
        let content = final_text(&mut messages).ok_or(RenderError::Continue(
            "the final message has no text to continue",
        ))?;
        let end = content.trim().to_owned();
        content.push_str(CONTINUE_MARK);
        let text = self.render_messages(input, &messages)?;

        let mark = text.rfind(CONTINUE_MARK.trim_end());
        let mark = mark.filter(|_| text.contains(&end));
        let (head, tail) = text.split_at(mark.ok_or(RenderError::Continue(
            "the template does not show the final message as it is",
        ))?);
        Ok(match tail.starts_with(CONTINUE_MARK) {
            true => head.to_owned(),
            false => head.trim_end_matches(methods::is_space).to_owned(),
        })
    }

    fn render_messages(
        &self,
        input: &RenderInput<'_>,
        messages: &serde_json::Value,
    ) -> Result<String, RenderError> {
        let GuardedCode {
            instructions,
            blocks,
        } = self.0.borrow_dependent();
        let mut text = String::new();
        budget::start();
        let variables = context(input, messages);
        // The engine panics on some templates, such as templates with `loop.cycle()`.
        let render = || {
            let mut output = make_string_output(&mut text);
            let (env, none) = (&*ENGINE, AutoEscape::None);
            eval(env, instructions, variables, blocks, &mut output, none).map(|_| ())
        };
        let rendered = caught(render).unwrap_or_else(|| Err(fault(FAILED)));
        rendered.map_err(|error| render_error(&error))?;
        Ok(text)
    }
}

/// The meaning of an engine error: an error of this module that it carries, or its own message.
fn render_error(error: &Error) -> RenderError {
    let first: &dyn std::error::Error = error;
    let mut causes = std::iter::successors(Some(first), |cause| cause.source());
    if let Some(known) = causes.find_map(|cause| cause.downcast_ref::<RenderError>()) {
        return known.clone();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => RenderError::Limit("exceeded the limit of instructions"),
        _ if error.detail() == Some("recursion limit exceeded") => {
            RenderError::Limit("exceeded the nesting limit")
        }
        _ => RenderError::Runtime {
            line: error.line().unwrap_or(0),
            message: message_of(error),
        },
    }
}

fn message_of(error: &Error) -> String {
    let detail = error.detail();
    detail.map_or_else(|| error.kind().to_string(), restored)
}
