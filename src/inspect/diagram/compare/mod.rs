//! Compares two drawings: matches their kinds of layers, slots and parts, and finds the differences.
//!
//! Kinds are matched by their labels and blocks, slots by their names, branches by their blocks. Only properties in the
//! definition are compared: options, weights, wiring. A weight that follows from an option is not a difference of its
//! own. A difference is reported once with all its places. Swapping the two drawings swaps the sides of each difference
//! and changes nothing else.

mod comparer;
mod comparison;
mod difference;

pub use comparison::{Comparison, SummarySection, summary};
pub use difference::{DifferenceLevel, DrawingDifference};
