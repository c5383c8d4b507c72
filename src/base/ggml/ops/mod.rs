//! Operations, with checks of everything on which ggml would abort.
//!
//! A [`Graph`] collects operations; nothing is computed until an executor runs it. Shapes in the documentation are in
//! ggml order, fastest dimension first. The processor's backend must support every node, since it computes all nodes
//! that other devices do not.

/// Appends the operation that a function of ggml makes of sources and further arguments. A `SAFETY` line before it says
/// why ggml does not abort on them.
macro_rules! append {
    ($graph:ident, $op:expr, $make:path, [$($source:ident),+] $(, $more:expr)* $(,)?) => {
        // SAFETY: the line before the use of this macro says it.
        $graph.build($op, [$($source),+], |ctx, [$($source),+]| unsafe { $make(ctx, $($source,)+ $($more),*) })
    };
}

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

use super::arena::Tensor;
use super::error::fault;
use checks::is_matrix_type;

/// The pointer of a source that may be missing: null.
fn pointer(source: Option<&Tensor>) -> *mut ggml_sys::ggml_tensor {
    source.map_or(std::ptr::null_mut(), Tensor::as_ptr)
}
