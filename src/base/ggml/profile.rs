//! The times of a graph's operations, by the block for which they were built.
//!
//! A profiled graph runs one operation at a time, on one thread: with several, each operation would end with a wait of
//! the threads for each other, which takes longer than most operations. So its times are larger than those of a plain
//! run on several threads, and their shares are those of the work.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_void;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ggml_sys as sys;

use super::arena::Tensor;
use super::c_text::text;
use super::input_sums::InputSums;
use super::ops::Graph;
use super::scope::{OUTSIDE, Scope, ScopePlace};

impl From<ScopePlace> for PlaceCost {
    fn from(place: ScopePlace) -> Self {
        Self {
            kind: place.kind,
            path: place.path.to_string(),
            nth: place.nth,
            ops: Vec::new(),
        }
    }
}

impl Graph {
    /// Assigns operations that are added until the result is dropped to a use of `kind` at `path`.
    pub fn scope(&self, kind: &'static str, path: &str) -> Scope<'_> {
        self.scopes().enter_block(kind, path, None)
    }

    /// [`Self::scope`] for a unit that is placed on the plan's device number `device`.
    pub fn scope_on(&self, kind: &'static str, path: &str, device: usize) -> Scope<'_> {
        self.scopes().enter_block(kind, path, Some(device))
    }

    /// Assigns operations that are added until the result is dropped to `path` within the enclosing scope.
    pub fn wiring(&self, path: &str) -> Scope<'_> {
        self.scopes().enter(OUTSIDE, path)
    }

    /// Assigns operations that are added until the result is dropped to no unit, on the plan's device number `device`.
    pub fn wiring_on(&self, device: usize) -> Scope<'_> {
        self.scopes().enter_on(OUTSIDE, "", Some(device))
    }

    /// Bytes of `weights` that a run reads. Tables count with the rows that are looked up, experts with at most as many
    /// as are selected.
    pub fn bytes_read(&self, weights: &[Tensor]) -> u64 {
        let weights: HashSet<usize> = weights.iter().map(Tensor::key).collect();
        (0..self.n_nodes())
            .map(|i| {
                // SAFETY: the index is below the number of nodes.
                let node = unsafe { sys::ggml_graph_node(self.as_ptr(), i as i32) };
                // SAFETY: nodes of the graph are alive with it, and so are their sources.
                unsafe { weight_bytes(node, &weights) }
            })
            .sum()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub calls: u64,
    /// Time from the start to the end.
    pub time: Duration,
    pub weight_bytes: u64,
}

impl Cost {
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.time += other.time;
        self.weight_bytes += other.weight_bytes;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceCost {
    pub kind: &'static str,
    /// The path of the unit or place; empty if none was named.
    pub path: String,
    /// The number of this use of kind and path in a graph, counted from 0.
    pub nth: u32,
    /// The operations in the order of execution, each with its name as in [`super::GraphOp`] and its cost.
    pub ops: Vec<(String, Cost)>,
}

/// The costs of profiled graphs.
#[derive(Default)]
pub struct Profile {
    weights: HashSet<usize>,
    places: Vec<PlaceCost>,
    place_of: HashMap<PlaceKey, usize>,
    costs: BTreeMap<(&'static str, sys::ggml_op), Cost>,
    uses: BTreeMap<&'static str, u64>,
    n_graphs: u64,
    /// Sums over what weights are multiplied with, if they are wanted.
    inputs: Option<InputSums>,
}

/// Kind, path, use, and the operations: graphs of other shapes may have other operations.
type PlaceKey = (&'static str, String, u32, Vec<String>);

impl Profile {
    /// An empty profile that counts the bytes read of `weights`.
    pub fn new(weights: &[Tensor]) -> Self {
        Self {
            weights: weights.iter().map(Tensor::key).collect(),
            ..Self::default()
        }
    }

    /// The same profile, which also sums the squares of the values that weights are multiplied with.
    #[must_use]
    pub fn with_inputs(mut self) -> Self {
        self.inputs = Some(InputSums::new(self.weights.clone()));
        self
    }

    pub fn inputs(&self) -> Option<&InputSums> {
        self.inputs.as_ref()
    }

    pub fn n_graphs(&self) -> u64 {
        self.n_graphs
    }

    /// Number of uses, by the kind of block.
    pub fn uses(&self) -> &BTreeMap<&'static str, u64> {
        &self.uses
    }

    /// Costs by kind and operation.
    pub fn costs(&self) -> impl Iterator<Item = (&'static str, String, Cost)> {
        self.costs.iter().map(|((kind, op), cost)| {
            // SAFETY: the operation came from a node; ggml has a static name for each.
            (*kind, unsafe { text(sys::ggml_op_name(*op)) }, *cost)
        })
    }

    /// Costs by the use for which operations were built, in the order of their first run. A use whose operations differ
    /// between graphs occurs once for each list of operations.
    pub fn places(&self) -> &[PlaceCost] {
        &self.places
    }

    fn add_place(&mut self, place: PlaceCost) {
        let names = place.ops.iter().map(|(name, _)| name.clone()).collect();
        let key = (place.kind, place.path.clone(), place.nth, names);
        match self.place_of.get(&key) {
            Some(at) => {
                let known = self.places[*at].ops.iter_mut().zip(&place.ops);
                known.for_each(|((_, sum), (_, cost))| sum.add(cost));
            }
            None => {
                self.place_of.insert(key, self.places.len());
                self.places.push(place);
            }
        }
    }

    /// Runs a graph one operation at a time.
    ///
    /// # Safety
    /// The graph is allocated on the scheduler, and both are alive.
    pub(super) unsafe fn run(
        &mut self,
        scheduler: sys::ggml_backend_sched_t,
        graph: &Graph,
    ) -> sys::ggml_status {
        let mut clock = Clock {
            started: Instant::now(),
            times: Vec::with_capacity(graph.n_nodes()),
            inputs: self.inputs.as_mut(),
        };
        let data: *mut Clock<'_> = &mut clock;
        // SAFETY: the caller vouches for scheduler and graph; the clock outlives the computation,
        // after which the callback is removed.
        let status = unsafe {
            sys::ggml_backend_sched_set_eval_callback(scheduler, Some(observe), data.cast());
            let status = sys::ggml_backend_sched_graph_compute(scheduler, graph.as_ptr());
            sys::ggml_backend_sched_set_eval_callback(scheduler, None, std::ptr::null_mut());
            status
        };
        let times = clock.times;
        let mut places: Vec<PlaceCost> = Vec::new();
        let mut known: HashMap<(&'static str, Rc<str>, u32), usize> = HashMap::new();
        for (node, time) in times {
            let place = graph.scopes().place(node as usize);
            let place = place.unwrap_or_else(ScopePlace::outside);
            let kind = place.kind;
            // SAFETY: ggml showed this node of the graph, which is alive.
            let (op, bytes, name) = unsafe {
                let op = sys::shim_tensor_op(node) as sys::ggml_op;
                let name = text(sys::shim_tensor_op_name(node));
                (op, weight_bytes(node, &self.weights), name)
            };
            let own = Cost {
                calls: 1,
                time,
                weight_bytes: bytes,
            };
            self.costs.entry((kind, op)).or_default().add(&own);
            let key = (kind, place.path.clone(), place.nth);
            let at = *known.entry(key).or_insert_with(|| {
                places.push(place.into());
                places.len() - 1
            });
            places[at].ops.push((name, own));
        }
        places.into_iter().for_each(|place| self.add_place(place));
        for (kind, uses) in graph.scopes().uses.borrow().iter() {
            *self.uses.entry(kind).or_default() += uses;
        }
        self.n_graphs += 1;
        status
    }
}

struct Clock<'p> {
    started: Instant,
    times: Vec<(*mut sys::ggml_tensor, Duration)>,
    inputs: Option<&'p mut InputSums>,
}

/// ggml calls this before each node, to ask whether its result is wanted, and after it. Nodes that only describe memory
/// run together with the next one.
unsafe extern "C" fn observe(node: *mut sys::ggml_tensor, ask: bool, data: *mut c_void) -> bool {
    // SAFETY: `data` is the state that `Profile::run` owns while the graph runs, and ggml calls
    // from the thread that runs it.
    let clock = unsafe { &mut *data.cast::<Clock<'_>>() };
    if !ask {
        clock.times.push((node, clock.started.elapsed()));
        if let Some(inputs) = &mut clock.inputs {
            // SAFETY: the node has just been computed, so its sources are alive and hold their values.
            unsafe { inputs.add(node) };
        }
        return true;
    }
    // SAFETY: ggml shows a live node.
    let op = unsafe { sys::shim_tensor_op(node) } as sys::ggml_op;
    clock.started = Instant::now();
    !is_view(op)
}

pub(super) fn is_view(op: sys::ggml_op) -> bool {
    matches!(
        op,
        sys::GGML_OP_NONE
            | sys::GGML_OP_RESHAPE
            | sys::GGML_OP_VIEW
            | sys::GGML_OP_PERMUTE
            | sys::GGML_OP_TRANSPOSE
    )
}

/// Bytes of `weights` that a node reads.
///
/// # Safety
/// The node and its sources are alive.
pub(super) unsafe fn weight_bytes(node: *mut sys::ggml_tensor, weights: &HashSet<usize>) -> u64 {
    // SAFETY: the caller vouches for the node; indices are below ggml's number of sources, and
    // sources that are not there are null and never followed.
    unsafe {
        let op = sys::shim_tensor_op(node) as sys::ggml_op;
        if is_view(op) {
            return 0;
        }
        let elements = |t: *mut sys::ggml_tensor| -> u64 {
            if t.is_null() {
                return 0;
            }
            (0..4).map(|d| sys::shim_tensor_ne(t, d) as u64).product()
        };
        let read = |i: i32| -> u64 {
            let source = sys::shim_tensor_src(node, i);
            if source.is_null() {
                return 0;
            }
            let view_of = sys::shim_tensor_view_src(source);
            let root = if view_of.is_null() { source } else { view_of };
            if !weights.contains(&(root as usize)) {
                return 0;
            }
            let bytes = sys::ggml_nbytes(source) as u64;
            // Rows and experts are selected by index: at most one is read for each index.
            let (parts, asked) = match (op, i) {
                (sys::GGML_OP_GET_ROWS, 0) => (
                    sys::shim_tensor_ne(source, 1) as u64,
                    elements(sys::shim_tensor_src(node, 1)),
                ),
                (sys::GGML_OP_MUL_MAT_ID, 0) => (
                    sys::shim_tensor_ne(source, 2) as u64,
                    elements(sys::shim_tensor_src(node, 2)),
                ),
                _ => (1, 1),
            };
            bytes / parts.max(1) * asked.min(parts)
        };
        (0..sys::shim_max_src()).map(read).sum()
    }
}
