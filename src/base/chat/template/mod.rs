//! Chat templates: render a conversation as the text that the model was trained on.
//!
//! Renders Jinja2 templates as Hugging Face's `apply_chat_template` does, on minijinja, with Python's printing, methods
//! and filters where the two differ. Not here: tokenizing the result, and finding the template in a file. Called by the
//! API and the command line. Invariants: the caller supplies the time; a rendering uses bounded fuel, creates and reads
//! a bounded amount of data and nests to a bounded depth, so that a hostile template from an untrusted file fails.

mod budget;
mod bytecode_guard;
mod callable;
mod chat_template;
mod clock;
mod dict;
mod engine;
mod error;
mod filters;
mod globals;
mod input;
mod long_integers;
mod macro_defaults;
mod methods;
mod operators;
mod preprocess;
mod print;
mod sorting;
mod template_choice;
#[cfg(test)]
mod tests;
mod value;

pub use chat_template::ChatTemplate;
pub use clock::{InvalidDateTime, Moment};
pub use error::{RenderError, TemplateError};
pub use input::RenderInput;
pub use long_integers::keep_long_integers;
pub use template_choice::{UnknownTemplate, choose_template, template_names};
