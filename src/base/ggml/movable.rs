//! Views of rows that move between runs of a graph: one graph reads rows wherever they lie.
//!
//! A view stays within the tensor of which it is one. Devices that remember graphs are told of a move.

use ggml_sys as sys;

use super::arena::Tensor;
use super::error::{Error, fault};

/// A view of rows that can be moved, and the views of it.
pub(in crate::ggml) struct MovableView {
    /// The view first, then views of it; those are added when the graph is complete.
    tensors: Vec<*mut sys::ggml_tensor>,
    row_bytes: usize,
    id: (usize, usize),
    /// Bytes from the start of the view to the end of its last row.
    extent: usize,
    is_complete: bool,
}

impl MovableView {
    pub(super) fn new(view: &Tensor, row_bytes: usize, id: (usize, usize)) -> Self {
        let steps = view.shape().into_iter().zip(view.strides()).skip(1);
        let last: usize = steps.map(|(n, step)| (n as usize - 1) * step).sum();
        let row = view.ty().row_bytes(view.shape()[0]).unwrap_or(0) as usize;
        Self {
            tensors: vec![view.as_ptr()],
            row_bytes,
            id,
            extent: last + row,
            is_complete: false,
        }
    }

    pub(super) fn has_id(&self, id: (usize, usize)) -> bool {
        self.id == id
    }

    /// Adds the views of the view in a complete graph of so many nodes.
    ///
    /// # Safety
    /// The graph is alive, and holds the view.
    pub(super) unsafe fn complete(&mut self, graph: *mut sys::ggml_cgraph, n_nodes: usize) {
        if std::mem::replace(&mut self.is_complete, true) {
            return;
        }
        for i in 0..n_nodes {
            // SAFETY: the index is below the number of nodes, which are alive with the graph, and so are their sources.
            unsafe {
                let node = sys::ggml_graph_node(graph, i as i32);
                let is_view = !sys::shim_tensor_view_src(node).is_null();
                if is_view && self.tensors.contains(&sys::shim_tensor_src(node, 0)) {
                    self.tensors.push(node);
                }
            }
        }
    }

    /// Whether the view starts at a row.
    pub(super) fn starts_at(&self, first: usize) -> bool {
        // SAFETY: the tensors are alive with the graph.
        let offset = unsafe { sys::shim_view_offset(self.tensors[0]) };
        offset == self.row_bytes * first
    }

    /// Moves the view to start at a row. Returns whether it was elsewhere.
    pub(super) fn move_to(&self, first: usize) -> Result<bool, Error> {
        // SAFETY: the tensors are alive with the graph. The view stays inside the tensor of which it is one: its new end is
        // checked. Views of a view have the same strides or parts of its rows, so they stay inside too.
        unsafe {
            let view = self.tensors[0];
            let (from, to) = (sys::shim_view_offset(view), self.row_bytes * first);
            let whole = sys::ggml_nbytes(sys::shim_tensor_view_src(view));
            if to + self.extent > whole {
                return fault("move", format!("rows from {first} on do not fit"));
            }
            let by = to as i64 - from as i64;
            if by != 0 {
                self.tensors
                    .iter()
                    .for_each(|tensor| sys::shim_view_move(*tensor, by));
            }
            Ok(by != 0)
        }
    }
}
