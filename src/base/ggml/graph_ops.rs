//! A graph as data: its operations in the order of execution, for drawing and counting.

use std::collections::{HashMap, HashSet};

use ggml_sys as sys;

use super::arena::Tensor;
use super::c_text::text;
use super::ops::Graph;
use super::profile::{is_view, weight_bytes};
use super::scope::OUTSIDE;
use crate::weights::TensorType;

const N_PARAMS: usize = 6;

#[derive(Clone, Debug, PartialEq)]
pub struct GraphOp {
    /// The operation, by ggml's name; activations have their own names.
    pub op: String,
    /// The kind of block for which it was built.
    pub kind: &'static str,
    /// The path of the unit or place for which it was built; empty if none was named.
    pub path: String,
    /// The number of this use of both in the graph, counted from 0.
    pub nth: u32,
    /// Name of the result, if it has one.
    pub name: String,
    /// Dimensions of the result, in ggml order.
    pub shape: [u64; 4],
    /// Element type of the result.
    pub ty: TensorType,
    /// The parameters as floats; those that are not floats have no meaning.
    pub params: [f32; N_PARAMS],
    pub sources: Vec<OpSource>,
    /// Whether the operation only describes memory, so that nothing is computed.
    pub is_view: bool,
    /// Bytes of weights that it reads. Tables count with the rows that are looked up, experts with at most as many as
    /// are selected.
    pub weight_bytes: u64,
}

impl GraphOp {
    /// The operation in a list with `n` more operations before it: the places of its sources grow by `n`.
    #[must_use]
    pub fn after(mut self, n: usize) -> Self {
        for source in &mut self.sources {
            if let OpSource::Op(at) = source {
                *at += n;
            }
        }
        self
    }
}

/// A source of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum OpSource {
    /// The result of an earlier operation, by its place in the list.
    Op(usize),
    /// A weight, by its place in the list that [`Graph::walk`] was given.
    Weight(usize),
    /// An input, or a tensor that is stored between passes, by its name.
    Leaf(String),
}

impl Graph {
    /// Every operation, in the order of execution. `weights` get their own kind of origin.
    pub fn walk(&self, weights: &[Tensor]) -> Vec<GraphOp> {
        let weights: HashMap<usize, usize> = (0..)
            .zip(weights)
            .map(|(at, weight)| (weight.key(), at))
            .collect();
        let nodes: Vec<*mut sys::ggml_tensor> = (0..self.n_nodes())
            // SAFETY: the index is below the number of nodes.
            .map(|i| unsafe { sys::ggml_graph_node(self.as_ptr(), i as i32) })
            .collect();
        let places: HashMap<usize, usize> = (0..)
            .zip(&nodes)
            .map(|(at, node)| (*node as usize, at))
            .collect();
        let origin = |source: *mut sys::ggml_tensor| {
            let key = source as usize;
            match (places.get(&key), weights.get(&key)) {
                (Some(at), _) => OpSource::Op(*at),
                (None, Some(at)) => OpSource::Weight(*at),
                // SAFETY: a source that is not null is alive with the graph.
                (None, None) => OpSource::Leaf(unsafe { text(sys::ggml_get_name(source)) }),
            }
        };
        let keys: HashSet<usize> = weights.keys().copied().collect();
        let steps = nodes.iter().map(|node| GraphOp {
            // SAFETY: nodes of the graph are alive with it, and so are their sources.
            weight_bytes: unsafe { weight_bytes(*node, &keys) },
            ..self.step(*node, &origin)
        });
        steps.collect()
    }

    fn step(
        &self,
        node: *mut sys::ggml_tensor,
        origin: &dyn Fn(*mut sys::ggml_tensor) -> OpSource,
    ) -> GraphOp {
        let place = self.scopes().place(node as usize);
        let (kind, path, nth) = place.map_or((OUTSIDE, String::new(), 0), |place| {
            (place.kind, place.path.to_string(), place.nth)
        });
        // SAFETY: the node belongs to the graph, which is alive; dimensions, sources and parameters
        // are requested below their numbers, and ggml has a description for every operation.
        unsafe {
            let op = sys::shim_tensor_op(node) as sys::ggml_op;
            let sources = (0..sys::shim_max_src())
                .map(|i| sys::shim_tensor_src(node, i))
                .filter(|source| !source.is_null())
                .map(origin);
            let ty = sys::shim_tensor_type(node) as u32;
            GraphOp {
                op: text(sys::shim_tensor_op_name(node)),
                kind,
                path,
                nth,
                name: text(sys::ggml_get_name(node)),
                shape: std::array::from_fn(|dim| sys::shim_tensor_ne(node, dim as i32) as u64),
                ty: TensorType::from_id(ty).expect("tensors are made with a `TensorType`"),
                params: std::array::from_fn(|i| sys::shim_tensor_op_param(node, i as i32)),
                sources: sources.collect(),
                is_view: is_view(op),
                weight_bytes: 0,
            }
        }
    }
}
