//! Scenes of the execution of a model: its passes, what layers keep and attend to, and what is read.
//!
//! A model has only the scenes that are true for it, and everything in them follows from the plan, from the traced
//! graph, or from a constant of the program. Scenes are data without coordinates. They have numbers of bytes only with
//! a file: weights are those that the operations of a pass of one token read, keys and values are 16-bit, states are
//! f32.

mod scene;
mod scenes;

pub use scene::{
    BytesHeld, BytesRead, MASK_TOKENS, SMALL_WINDOW, Scene, ScenePicture, TEXT_TOKENS,
};
