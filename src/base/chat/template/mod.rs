//! Chat templates: render a conversation as the text that the model was trained on.
//!
//! Renders Jinja2 templates as Hugging Face's `apply_chat_template` does, on minijinja, with Python's printing, methods
//! and filters where the two differ. Not here: tokenizing the result, and finding the template in a file. Called by the
//! API and the command line. Invariants: the caller supplies the time; a rendering uses bounded fuel, creates and reads
//! a bounded amount of data and nests to a bounded depth, so that a hostile template from an untrusted file fails.

mod budget;
mod call;
mod chat_template;
mod choice;
mod clock;
mod defaults;
mod digits;
mod engine;
mod error;
mod filters;
mod globals;
mod guard;
mod input;
mod lists;
mod methods;
mod operators;
mod print;
mod source;
#[cfg(test)]
mod tests;
mod value;

pub use chat_template::ChatTemplate;
pub use choice::{UnknownTemplate, choose, names};
pub use clock::{Moment, NotAMoment};
pub use digits::keep_digits;
pub use error::{RenderError, TemplateError};
pub use input::RenderInput;

use engine::syntax;
