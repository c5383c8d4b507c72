//! Chat templates: a conversation to the text that the model was trained to see.
//!
//! Renders Jinja2 templates the way Hugging Face's `apply_chat_template` does, on minijinja, with
//! Python's printing, methods and filters where the two differ. Not here: tokenizing the result,
//! and finding the template in a file. Called by the API and the command line. Invariants: the
//! clock is the caller's; rendering spends bounded fuel, makes and reads a bounded amount of data and
//! nests to a bounded depth, so that a template from an untrusted file is refused, not obeyed.

mod budget;
mod call;
mod choice;
mod clock;
mod filters;
mod guard;
mod lists;
mod methods;
mod operators;
mod print;
mod source;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use minijinja::machinery::{
    CompiledTemplate, Instructions, TemplateConfig, eval, make_string_output,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use crate::common::panics::caught;
use crate::common::wording::json_kind;

use guard::guarded;
use source::{prepare, restored};

pub use choice::{UnknownTemplate, choose, names};
pub use clock::{Moment, NotAMoment};

/// Instructions that one rendering may execute: some thirty times what a conversation of a thousand
/// messages takes.
const FUEL: u64 = 5_000_000;
/// Calls of macros and nested scopes, in the engine's units (a macro call costs 4).
const MAX_RECURSION: usize = 400;
/// What follows the final message's content while finding where it ends; the trailing space shows
/// whether the template trims.
const CONTINUE_MARK: &str = "\u{fdd0}continue-final-message\u{fdd1} ";
/// Longest template, in bytes: those of models have up to about a hundred thousand.
const MAX_BYTES: usize = 1 << 20;
const NAME: &str = "chat template";
/// What is reported where the engine panics.
const FAILED: &str = "the template engine failed";

/// A template that cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chat template, line {line}: {message}")]
pub struct TemplateError {
    /// Line of the template, from 1.
    pub line: usize,
    /// What is wrong there.
    pub message: String,
}

/// A conversation that a template did not render.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template refused the conversation by `raise_exception`; the text is its own.
    #[error("{0}")]
    Raised(String),
    /// The conversation is not a list of messages.
    #[error("messages{at}: expected {expected}, found {found}")]
    Messages {
        /// Index of the message, as `[3]`; empty for the whole.
        at: String,
        /// What there should be.
        expected: &'static str,
        /// What there is.
        found: &'static str,
    },
    /// The template failed.
    #[error("chat template, line {line}: {message}")]
    Runtime {
        /// Line of the template, from 1; 0 where it is not known.
        line: usize,
        /// What went wrong there.
        message: String,
    },
    /// The template ran too long, nested too deep or wrote too much.
    #[error("chat template: {0}")]
    Limit(&'static str),
    /// `continue_final_message` cannot be done for this conversation.
    #[error("`continue_final_message`: {0}")]
    Continue(&'static str),
}

/// What a template is rendered with.
#[derive(Debug, Clone)]
pub struct RenderInput<'a> {
    /// The conversation: an array of messages.
    pub messages: &'a serde_json::Value,
    /// The tools on offer; none when absent or null.
    pub tools: Option<&'a serde_json::Value>,
    /// Documents for retrieval; none when absent or null (`kwargs` may hold them instead).
    pub documents: Option<&'a serde_json::Value>,
    /// Open an assistant turn at the end.
    pub add_generation_prompt: bool,
    /// Leave the last message open: cut what follows its content.
    pub continue_final_message: bool,
    /// Further variables, in order.
    pub kwargs: &'a serde_json::Map<String, serde_json::Value>,
    /// Text of the beginning-of-sequence token.
    pub bos_token: &'a str,
    /// Text of the end-of-sequence token.
    pub eos_token: &'a str,
    /// What `strftime_now` prints.
    pub now: Moment,
}

/// The instructions of a template, with their guards.
#[derive(Debug)]
struct Code<'s> {
    instructions: Instructions<'s>,
    blocks: BTreeMap<&'s str, Instructions<'s>>,
}

impl<'s> Code<'s> {
    /// Compiles the text of a template.
    fn new(text: &'s str) -> Result<Self, Error> {
        let config = TemplateConfig {
            syntax_config: syntax(),
            default_auto_escape: Arc::new(|_| AutoEscape::None),
        };
        let compiled = CompiledTemplate::new(NAME, text, &config)?;
        let blocks = compiled.blocks.iter();
        Ok(Self {
            instructions: guarded(&compiled.instructions),
            blocks: blocks
                .map(|(name, block)| (*name, guarded(block)))
                .collect(),
        })
    }
}

self_cell::self_cell! {
    /// The text of a template and its instructions, which borrow from it.
    struct Compiled {
        owner: String,

        #[covariant]
        dependent: Code,
    }

    impl {Debug}
}

/// The engine of all templates; those that include others find none here.
static ENGINE: LazyLock<Environment<'static>> = LazyLock::new(environment);

/// A compiled chat template. Cheap to render from several threads at once.
#[derive(Debug)]
pub struct ChatTemplate(Compiled);

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let fault = |message: String| TemplateError { line: 1, message };
        if source.len() > MAX_BYTES {
            let n = source.len();
            return Err(fault(format!("{n} bytes, expected at most {MAX_BYTES}")));
        }
        let compile = || -> Result<Compiled, TemplateError> {
            let code = Compiled::try_new(prepare(source)?, |text| Code::new(text));
            code.map_err(|error| TemplateError {
                line: error.line().unwrap_or(1),
                message: message_of(&error),
            })
        };
        let compiled = caught(compile).unwrap_or_else(|| Err(fault(FAILED.into())));
        compiled.map(Self)
    }

    /// Whether this word is in its text.
    pub fn mentions(&self, word: &str) -> bool {
        self.0.borrow_owner().contains(word)
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// Messages that are none, or what the template or a limit refuses.
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
        let Code {
            instructions,
            blocks,
        } = self.0.borrow_dependent();
        let mut text = String::new();
        budget::start();
        let variables = context(input, messages);
        // The engine panics on some templates, such as one with `loop.cycle()`.
        let render = || {
            let mut output = make_string_output(&mut text);
            let (env, none) = (&*ENGINE, AutoEscape::None);
            eval(env, instructions, variables, blocks, &mut output, none).map(|_| ())
        };
        let rendered = caught(render).unwrap_or_else(|| Err(value::fault(FAILED)));
        rendered.map_err(|error| render_error(&error))?;
        Ok(text)
    }
}

/// Refuses what is not a list of objects.
fn check_messages(messages: &serde_json::Value) -> Result<(), RenderError> {
    let Some(all) = messages.as_array() else {
        return Err(RenderError::Messages {
            at: String::new(),
            expected: "a list of messages",
            found: json_kind(messages),
        });
    };
    match all.iter().position(|message| !message.is_object()) {
        None => Ok(()),
        Some(at) => Err(RenderError::Messages {
            found: json_kind(&all[at]),
            at: format!("[{at}]"),
            expected: "an object",
        }),
    }
}

/// The variables of a rendering. Variables given by `kwargs` come over the tokens, as with
/// Hugging Face, but never over the conversation itself.
fn context(input: &RenderInput<'_>, messages: &serde_json::Value) -> Value {
    let now = input.now;
    let strftime = move |format: &str| {
        // No directive writes more than this many times its own length.
        budget::made(format.len().saturating_mul(12))?;
        Ok::<_, Error>(now.strftime(format))
    };
    let mut variables = vec![
        ("bos_token", input.bos_token.into()),
        ("eos_token", input.eos_token.into()),
        ("strftime_now", Value::from_function(strftime)),
        ("documents", ().into()),
    ];
    let kwargs = input.kwargs.iter();
    variables.extend(kwargs.map(|(name, json)| (name.as_str(), value::from_json(json))));
    let documents = input.documents.map(value::from_json);
    variables.extend(documents.map(|documents| ("documents", documents)));
    variables.extend([
        ("messages", value::from_json(messages)),
        ("tools", input.tools.map_or(().into(), value::from_json)),
        ("add_generation_prompt", input.add_generation_prompt.into()),
    ]);
    Value::from_pairs(variables)
}

/// The text that `continue_final_message` continues: the last message's content, or the last part
/// of it that has a text.
fn final_text(messages: &mut serde_json::Value) -> Option<&mut String> {
    match messages.as_array_mut()?.last_mut()?.get_mut("content")? {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Array(parts) => {
            let texts = parts
                .iter_mut()
                .rev()
                .filter_map(|part| part.get_mut("text"));
            let mut texts = texts.filter_map(|text| match text {
                serde_json::Value::String(text) => Some(text),
                _ => None,
            });
            texts.next()
        }
        _ => None,
    }
}

fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the default delimiters are valid")
}

/// The engine, set up as `apply_chat_template` sets up Jinja2.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(|out, _, value| {
        if let Some(text) = value.as_str() {
            budget::made(text.len())?;
            return Ok(out.write_str(text)?);
        }
        Ok(out.write_str(&print::str(value)?)?)
    });
    env.set_unknown_method_callback(methods::call);
    env.set_debug(true);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(MAX_RECURSION);
    filters::register(&mut env);
    operators::register(&mut env);
    env.add_function("raise_exception", raise_exception);
    env
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = RenderError::Raised(print::str(message)?);
    Err(value::fault("raised by the template").with_source(raised))
}

/// What an engine's error means: what is on its way out through it, or its own message.
fn render_error(error: &Error) -> RenderError {
    let first: &dyn std::error::Error = error;
    let mut causes = std::iter::successors(Some(first), |cause| cause.source());
    if let Some(known) = causes.find_map(|cause| cause.downcast_ref::<RenderError>()) {
        return known.clone();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => RenderError::Limit("ran for too long"),
        _ if error.detail() == Some("recursion limit exceeded") => {
            RenderError::Limit("nested too deep")
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
