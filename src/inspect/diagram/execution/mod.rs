//! What happens when a model runs, as a few scenes: its passes, what layers keep and see, what is read.
//!
//! Only scenes that are true for the model occur, and everything in them follows from the plan, from the
//! traced graph, or from a constant of the program that runs it. They are data without coordinates;
//! numbers of bytes are there only with a file: weights are those that the operations of a pass of one token
//! read, keys and values are 16-bit, states are f32.

mod picture;
mod scene;
mod scenes;

pub use picture::{Held, Loan, MASK, Picture, SMALL, View, WINDOW};
pub use scene::Scene;
pub(crate) use scenes::scenes;
