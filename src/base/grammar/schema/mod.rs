//! JSON Schemas as grammars in Lark's form. The library's own reading of schemas is not used, because it computes
//! numbers in `f64`, reads patterns in another dialect, and lets names and strings be spelled in ways that escape their
//! conditions.
//!
//! A schema is read ([`read`]) into alternatives of one type each ([`alternatives`]). A value within another one has to fit a
//! set of schemas, whose alternatives are combined when the value is reached ([`reachable`]); so references may be circular.
//! Then the grammar is written ([`write`]).
//!
//! Invariant: what the grammar allows fits the schema; what cannot be enforced is an error with its place.

mod alternatives;
pub(super) mod char_classes;
mod conditions;
mod format;
mod number;
mod one_of;
mod options;
mod pattern;
mod reachable;
mod read;
mod resources;
mod strings;
mod write;

pub(super) use write::{object_to_lark, to_lark};
