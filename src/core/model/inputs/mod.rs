//! The inputs of a pass. Each kind is a type that knows the shape and how to make and write the input.
//!
//! Inputs that the graph does not read have no memory and are not written.

mod attention;
mod data;
mod derived;
mod lab;
mod list;
mod pass_inputs;
mod rows;
mod visible;

pub(super) use data::PassData;
pub(super) use derived::DerivedTensors;
pub(super) use list::ListInputs;
pub(super) use pass_inputs::PassInputs;
pub(super) use rows::{AdapterScales, NextTokens, OutputRows};
pub(super) use visible::{VisibleKeys, apart};
