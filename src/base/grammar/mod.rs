//! Constrained decoding: JSON Schema, regular expressions, context-free grammars.
//!
//! A [`Constraint`] is text from a request. A [`Compiler`], one for each model, compiles it into a [`CompiledConstraint`], or
//! reports what is wrong with it and where. Each completion gets its own [`Matcher`], which computes the token mask and
//! the forced tokens. GBNF is translated to Lark in `gbnf`; everything else is done by the library llguidance, under
//! limits of time and memory that a hostile request cannot exceed. Not here: models, logits, and when a mask is
//! computed (the engine).
//!
//! Invariant: the tokens that a matcher allows form a prefix of a text that fits the constraint.

mod answer;
mod compiler;
mod deadline;
mod error;
mod gbnf;
mod lark_regex;
mod limits;
mod matcher;
mod properties;
mod request;
mod schema;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use compiler::{CompiledConstraint, Compiler};
pub use error::Error;
pub use limits::{MAX_AT_ONCE, MAX_BYTES, MAX_WAITING};
pub use matcher::Matcher;
pub use request::{AnswerSpec, Constraint, ContentRule, ReasoningRule};
