//! The device on which an operation is computed: operations that a device lacks, and those that the scheduler put on
//! another device than that of their unit.
//!
//! Views are on no device. Operations outside of units follow their sources and have no expected device.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ggml_sys as sys;

use super::c_text::text;
use super::device::Device;
use super::error::Error;
use super::executor::Executor;
use super::ops::Graph;
use super::profile::is_view;
use super::scope::ScopePlace;
use crate::weights::TensorType;

/// An operation that the device of its unit does not compute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MisplacedOp {
    /// The operation, by ggml's name; activations have their own names.
    pub op: String,
    /// The kind of block for which it was built.
    pub kind: &'static str,
    /// The path of the unit for which it was built.
    pub path: String,
    /// Element types of the result, then of the sources.
    pub types: Vec<&'static str>,
    /// Dimensions of the result, in ggml order.
    pub shape: [u64; 4],
    /// Dimensions of the first source.
    pub of: [u64; 4],
}

impl MisplacedOp {
    /// # Safety
    /// The node is alive, and so are its sources.
    unsafe fn new(node: *mut sys::ggml_tensor, place: &ScopePlace) -> Self {
        // SAFETY: the caller vouches for the node; dimensions and sources are asked below their numbers.
        unsafe {
            let shape = |t: *mut sys::ggml_tensor| {
                std::array::from_fn(|dim| sys::shim_tensor_ne(t, dim as i32) as u64)
            };
            let ty = |t: *mut sys::ggml_tensor| {
                TensorType::from_id(sys::shim_tensor_type(t) as u32).map_or("?", TensorType::name)
            };
            let sources: Vec<_> = (0..sys::shim_max_src())
                .map(|i| sys::shim_tensor_src(node, i))
                .filter(|source| !source.is_null())
                .collect();
            Self {
                op: text(sys::shim_tensor_op_name(node)),
                kind: place.kind,
                path: place.path.to_string(),
                types: [node].iter().chain(&sources).map(|t| ty(*t)).collect(),
                shape: shape(node),
                of: sources.first().map_or([0; 4], |first| shape(*first)),
            }
        }
    }
}

impl Graph {
    fn placed(&self) -> impl Iterator<Item = (*mut sys::ggml_tensor, ScopePlace, usize)> {
        (0..self.n_nodes()).filter_map(|i| {
            // SAFETY: the index is below the number of nodes, which are alive with the graph.
            let (node, op) = unsafe {
                let node = sys::ggml_graph_node(self.as_ptr(), i as i32);
                (node, sys::shim_tensor_op(node) as sys::ggml_op)
            };
            let place = self.scopes().place(node as usize)?;
            let device = place.device.filter(|_| !is_view(op))?;
            Some((node, place, device))
        })
    }

    /// The operations of units on the plan's device number `at` that `device` cannot compute.
    pub fn lacking(&self, device: Device, at: usize) -> Vec<MisplacedOp> {
        let here = self.placed().filter(|(.., place)| *place == at);
        let lacking = here.filter(|(node, ..)| {
            // SAFETY: the device lives as long as the program, the node as the graph.
            !unsafe { sys::ggml_backend_dev_supports_op(device.as_ptr(), *node) }
        });
        // SAFETY: as above.
        lacking
            .map(|(node, place, _)| unsafe { MisplacedOp::new(node, &place) })
            .collect()
    }
}

impl Graph {
    /// Number of operations that are no views.
    pub(super) fn n_ops(&self) -> usize {
        let is_op = |i: &usize| {
            // SAFETY: the index is below the number of nodes, which are alive with the graph.
            let op = unsafe {
                sys::shim_tensor_op(sys::ggml_graph_node(self.as_ptr(), *i as i32)) as sys::ggml_op
            };
            !is_view(op)
        };
        (0..self.n_nodes()).filter(is_op).count()
    }

    /// The addresses of all sources of nodes.
    pub(super) fn sources(&self) -> HashSet<usize> {
        let mut sources = HashSet::new();
        for i in 0..self.n_nodes() {
            // SAFETY: the index is below the number of nodes, which are alive with the graph.
            unsafe {
                let node = sys::ggml_graph_node(self.as_ptr(), i as i32);
                let of_node = (0..sys::shim_max_src()).map(|i| sys::shim_tensor_src(node, i));
                sources.extend(of_node.map(|source| source as usize));
            }
        }
        sources
    }

    /// The inputs without memory that operations on one device of the plan alone read, by the number of that device; not those of the
    /// processor.
    pub(super) fn inputs_of_devices(&self) -> BTreeMap<usize, Vec<*mut sys::ggml_tensor>> {
        // Each input and view of one, with the input.
        let mut roots: HashMap<usize, usize> = HashMap::new();
        let mut order: Vec<*mut sys::ggml_tensor> = Vec::new();
        let mut readers: HashMap<usize, BTreeSet<usize>> = HashMap::new();
        for i in 0..self.n_nodes() {
            // SAFETY: the index is below the number of nodes, which are alive with the graph, and so are their sources.
            unsafe {
                let node = sys::ggml_graph_node(self.as_ptr(), i as i32);
                let op = sys::shim_tensor_op(node) as sys::ggml_op;
                for source in (0..sys::shim_max_src()).map(|i| sys::shim_tensor_src(node, i)) {
                    if source.is_null() {
                        continue;
                    }
                    if sys::shim_tensor_is_input(source)
                        && sys::shim_tensor_buffer(source).is_null()
                    {
                        roots.entry(source as usize).or_insert_with(|| {
                            order.push(source);
                            source as usize
                        });
                    }
                    let Some(root) = roots.get(&(source as usize)).copied() else {
                        continue;
                    };
                    if is_view(op) {
                        roots.insert(node as usize, root);
                        continue;
                    }
                    let place = self.scopes().place(node as usize);
                    let device = place.and_then(|place| place.device).unwrap_or(0);
                    readers.entry(root).or_default().insert(device);
                }
            }
        }
        let mut by_device: BTreeMap<usize, Vec<*mut sys::ggml_tensor>> = BTreeMap::new();
        for input in order {
            let readers = readers.get(&(input as usize));
            let only = readers.filter(|readers| readers.len() == 1);
            let device = only.and_then(|readers| readers.first()).copied();
            if let Some(device) = device.filter(|device| *device > 0) {
                by_device.entry(device).or_default().push(input);
            }
        }
        by_device
    }
}

impl Executor {
    /// Refuses a graph with an operation on memory of a device that cannot compute it: that memory cannot be used
    /// elsewhere, and ggml's scheduler would end the process.
    pub(super) fn check_kept(&self, graph: &Graph) -> Result<(), Error> {
        for i in 0..graph.n_nodes() {
            // SAFETY: the index is below the number of nodes, which are alive with the graph, and so are
            // their sources.
            unsafe {
                let node = sys::ggml_graph_node(graph.as_ptr(), i as i32);
                self.check_tensor(node)?;
                for source in (0..sys::shim_max_src()).map(|i| sys::shim_tensor_src(node, i)) {
                    if !source.is_null()
                        && sys::shim_tensor_op(source) as sys::ggml_op == sys::GGML_OP_NONE
                    {
                        self.check_tensor(source)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// The tensor is alive.
    unsafe fn check_tensor(&self, tensor: *mut sys::ggml_tensor) -> Result<(), Error> {
        // SAFETY: the caller vouches for the tensor, a buffer is alive with it, devices with the program.
        unsafe {
            let buffer = sys::shim_tensor_buffer(tensor);
            if buffer.is_null() {
                return Ok(());
            }
            let ty = sys::ggml_backend_buffer_get_type(buffer);
            let runs = |device: &Device| {
                sys::ggml_backend_dev_supports_buft(device.as_ptr(), ty)
                    && sys::ggml_backend_dev_supports_op(device.as_ptr(), tensor)
            };
            if self.devices.iter().any(runs) {
                return Ok(());
            }
            Err(Error::Device(format!(
                "{} cannot compute {} of `{}` ({}), which is kept there; keep its layer on another device",
                text(sys::ggml_backend_buft_name(ty)),
                text(sys::shim_tensor_op_name(tensor)),
                text(sys::ggml_get_name(tensor)),
                text(sys::ggml_type_name(
                    sys::shim_tensor_type(tensor) as sys::ggml_type
                )),
            )))
        }
    }

    /// The operations of the loaded graph that the scheduler put on another device than that of their unit. The plan's
    /// device 0 is the processor; the others follow in their order. Operations of units on the processor are omitted:
    /// the scheduler may lend the products of a long prompt to a GPU.
    pub fn misplaced(&self) -> Vec<MisplacedOp> {
        let Some(graph) = self.graph() else {
            return Vec::new();
        };
        let elsewhere = graph.placed().filter(|(node, _, device)| {
            let Some(expected) = device.checked_sub(1) else {
                return false;
            };
            self.backend_of(*node) != self.backend(expected)
        });
        // SAFETY: the nodes are alive with the graph.
        elsewhere
            .map(|(node, place, _)| unsafe { MisplacedOp::new(node, &place) })
            .collect()
    }
}
