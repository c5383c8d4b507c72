//! Operations, each with the checks that ggml would abort on.
//!
//! A [`Graph`] collects operations; nothing is computed until an executor runs it. Shapes in the
//! documentation are in ggml order, fastest first. Every node is also shown to the processor's
//! backend, which must support it: it is the last resort of every schedule.

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

pub use attention::Scores;
pub use elementwise::{Glu, Unary};
pub use graph::Graph;
pub use paged_attention::{KvBlocks, Selected, WholeSpans};
pub use rope::{RopePairing, RopeParams};
pub use selection::Selector;

use checks::{fault, is_matrix_type};
