//! Expressions: the values of a definition that depend on the model's numbers.
//!
//! `if(il < n_dense, "silu", "gelu")`, `n_head * d_head`, `has("ffn_gate_inp.weight")`. An expression is parsed and
//! checked when its definition is read, and evaluated when a model is planned, once per layer; nothing is evaluated
//! during inference. Pure: a [`Scope`] gives names their values.
//!
//! Numbers are integers or floats. `/` of integers is an integer when it divides exactly and a float otherwise; `//` is
//! the floor. A name bound to a per-layer array stands for the value of the current layer; `name[i]` gives the element
//! `i`. Where there is no current layer the name is the whole array, and arithmetic with a number applies to each element.

mod bind;
mod evaluate;
mod expression;
mod parse;
mod scope;
mod symbolic;
mod tree;
mod value;

pub use expression::Expr;
pub use scope::Scope;
pub use value::Value;

use tree::{Binary, FUNCTIONS, Function, Node, Unary, names};
