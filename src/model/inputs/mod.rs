//! The inputs of a pass: each kind is a type with its shape, how it is made and how it is written.
//!
//! Inputs that the graph does not read have no memory and are not written.

mod attention;
mod derived;
mod lab;
mod list;
mod of_pass;
mod rows;

pub(super) use attention::VisibleKeys;
pub(super) use derived::Derived;
pub(super) use list::ListInputs;
pub(super) use of_pass::{Inputs, PassData};
pub(super) use rows::{AdapterScales, OutputRows};
