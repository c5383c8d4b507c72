//! Two drawings compared: which kinds of layers, slots and parts belong together, and what differs.
//!
//! Kinds are matched by their labels and blocks, slots by their names, branches by their blocks.
//! What can differ is what the definition says: options, weights, wiring; that a weight follows from an
//! option is no difference of its own. A difference is reported once with all its places, and swapping the two
//! drawings swaps the sides of each difference and changes nothing else.

mod comparison;
mod finding;
mod markdown;
mod walk;

pub use comparison::{Comparison, Section};
pub use finding::{Finding, Level};
pub use markdown::summary;

use super::overlay::Home;
