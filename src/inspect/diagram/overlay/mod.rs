//! Numbers of a model's values and places on its drawing: each box gets a colour and the number itself.
//!
//! [`Overlay::read`] knows five formats: the profiles of `bench perf --profile --json`, the reports of `bench
//! compare --json`, `bench lab drift --json` and `bench plan --json`, and an object of paths with numbers.
//! [`Overlay::put`] finds the box of each number and notes there, and in all that contains it, what it comes to: times add up, of other
//! quantities the largest stands for all and says its layer. Nothing is measured here and nothing has
//! coordinates. Every number of the file is in one box or named in the legend as outside.

mod notes;
mod numbers;
mod place;
mod put;
mod read;
mod scale;

pub use numbers::{First, LARGEST, Number, Operation, Overlay, Problem, Rule};
pub(super) use place::annotate;
pub use place::{Home, Place};
pub(super) use scale::digits;
