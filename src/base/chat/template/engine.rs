//! The template engine, its limits, and the compiled instructions of a template.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use minijinja::machinery::{CompiledTemplate, Instructions, TemplateConfig};
use minijinja::{AutoEscape, Environment, Error, Value};

use super::bytecode_guard::guarded;
use super::error::fault;
use super::preprocess::syntax;
use super::{RenderError, budget, filters, globals, methods, operators, print};

/// Maximum number of instructions of one rendering: about thirty times those for a conversation of a thousand messages.
const FUEL: u64 = 5_000_000 / budget::DIVISOR;
/// Maximum depth of macro calls and nested scopes, in the engine's units (a macro call costs 4).
const MAX_RECURSION: usize = 400;
const NAME: &str = "chat template";

/// The instructions of a template, guarded by a budget.
#[derive(Debug)]
pub(super) struct GuardedCode<'s> {
    pub(super) instructions: Instructions<'s>,
    pub(super) blocks: BTreeMap<&'s str, Instructions<'s>>,
}

impl<'s> GuardedCode<'s> {
    pub(super) fn new(text: &'s str) -> Result<Self, Error> {
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
    pub(super) struct Compiled {
        owner: String,

        #[covariant]
        dependent: GuardedCode,
    }

    impl {Debug}
}

/// The engine of all templates. It has no templates that others could include.
pub(super) static ENGINE: LazyLock<Environment<'static>> = LazyLock::new(environment);

/// The engine with the settings that `apply_chat_template` uses for Jinja2.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(|out, state, value| {
        if *state.auto_escape() != AutoEscape::None {
            return Ok(out.write_str(&print::escaped(value)?)?);
        }
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
    globals::register(&mut env);
    operators::register(&mut env);
    env.add_function("raise_exception", raise_exception);
    env
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = RenderError::Raised(print::str(message)?);
    Err(fault("raised by the template").with_source(raised))
}
