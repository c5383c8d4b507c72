//! Operations, with checks of everything on which ggml would abort.
//!
//! A [`Graph`] collects operations; nothing is computed until an executor runs it. Shapes in the documentation are in
//! ggml order, fastest dimension first. The processor's backend must support every node, since it computes all nodes
//! that other devices do not.

mod attention;
mod checks;
mod elementwise;
mod graph;
mod layout;
mod matrix;
mod norm;
mod paged_attention;
mod recurrent;
mod rope;
mod rows;
mod selection;

pub use attention::ScoreOptions;
pub use elementwise::{Glu, Unary};
pub use graph::Graph;
pub use paged_attention::{KvBlocks, Selected, WholeSpans};
pub use rope::{RopePairing, RopeParams};
pub use selection::Selector;

use super::error::fault;
use checks::is_matrix_type;
