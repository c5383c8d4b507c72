//! A graph of operations, its inputs and its results.
//!
//! Invariant: the processor can run every node.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashSet;
use std::ptr::NonNull;
use std::rc::Rc;

use ggml_sys as sys;

use super::super::arena::{Arena, Tensor};
use super::super::device::Device;
use super::super::error::Error;
use super::super::movable::MovableView;
use super::super::scheduler::Scheduler;
use super::super::scope::Scopes;
use super::super::scratch::ScratchId;
use super::fault;
use crate::weights::TensorType;

/// A graph of operations on its own tensors and on tensors of other arenas.
///
/// An operation returns an error if shapes do not fit each other, or a type or layout is not supported; what else it
/// refuses is said where it is documented.
pub struct Graph {
    pub(super) arena: Arena,
    graph: NonNull<sys::ggml_cgraph>,
    cpu: Device,
    limit: usize,
    leaves: RefCell<HashSet<usize>>,
    max_leaves: usize,
    pub(super) scopes: Scopes,
    scratch: Cell<Option<ScratchId>>,
    /// The scheduler on which it is allocated, if it is its own.
    scheduler: OnceCell<Scheduler>,
    /// Values that pass from one device to another.
    pub(in crate::ggml) n_copies: Cell<u64>,
    /// The devices with inputs that another one reads too, a bit for each.
    pub(in crate::ggml) read_elsewhere: Cell<u64>,
    /// How often the executor had waited when the graph was launched last.
    pub(in crate::ggml) launched_in: Cell<Option<u64>>,
    /// The views that can be moved.
    pub(in crate::ggml) movable: RefCell<Vec<MovableView>>,
}

impl Graph {
    /// An empty graph with space for `n_tensors` own tensors and `n_leaves` tensors of other arenas.
    pub fn new(n_tensors: usize, n_leaves: usize) -> Result<Self, Error> {
        let limit = n_tensors + n_leaves;
        let arena = Arena::new(n_tensors, limit)?;
        // SAFETY: the arena has room for a graph of this size.
        let graph = unsafe { sys::ggml_new_graph_custom(arena.0.ctx.as_ptr(), limit, false) };
        let graph = NonNull::new(graph).ok_or(Error::Capacity { capacity: limit })?;
        Ok(Self {
            arena,
            graph,
            cpu: Device::cpu()?,
            limit,
            leaves: RefCell::default(),
            max_leaves: n_leaves,
            scopes: Scopes::default(),
            scratch: Cell::default(),
            scheduler: OnceCell::new(),
            n_copies: Cell::new(0),
            read_elsewhere: Cell::new(0),
            launched_in: Cell::new(None),
            movable: RefCell::default(),
        })
    }

    pub(in crate::ggml) fn as_ptr(&self) -> *mut sys::ggml_cgraph {
        self.graph.as_ptr()
    }

    pub(in crate::ggml) fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    pub(in crate::ggml) fn scratch(&self) -> &Cell<Option<ScratchId>> {
        &self.scratch
    }

    pub(in crate::ggml) fn scheduler(&self) -> &OnceCell<Scheduler> {
        &self.scheduler
    }

    pub(in crate::ggml) fn size_limit(&self) -> usize {
        self.limit
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    pub fn n_nodes(&self) -> usize {
        // SAFETY: the graph is alive.
        unsafe { sys::ggml_graph_n_nodes(self.as_ptr()) as usize }
    }

    /// The names of the operation and of the result of each node, in the order of execution.
    pub fn nodes(&self) -> impl Iterator<Item = (String, String)> {
        (0..self.n_nodes()).map(|i| {
            // SAFETY: the index is below the number of nodes; names and operations are alive with
            // the graph.
            unsafe {
                let node = sys::ggml_graph_node(self.as_ptr(), i as i32);
                let op = sys::shim_tensor_op(node) as sys::ggml_op;
                (
                    super::super::c_text::text(sys::ggml_op_name(op)),
                    super::super::c_text::text(sys::ggml_get_name(node)),
                )
            }
        })
    }

    /// An input. Its memory is not reused while the graph is loaded.
    pub fn input(&self, name: &str, ty: TensorType, shape: &[u64]) -> Result<Tensor, Error> {
        let tensor = self.arena.tensor(name, ty, shape)?;
        // SAFETY: the tensor was just made.
        unsafe { sys::ggml_set_input(tensor.as_ptr()) };
        Ok(tensor)
    }

    /// An input of indices below `bound`.
    pub fn index_input(
        &self,
        name: &str,
        ty: TensorType,
        shape: &[u64],
        bound: u64,
    ) -> Result<Tensor, Error> {
        let tensor = self.arena.indices(name, ty, shape, bound)?;
        // SAFETY: the tensor was just made.
        unsafe { sys::ggml_set_input(tensor.as_ptr()) };
        Ok(tensor)
    }

    /// Adds a tensor and all its dependencies to the computation.
    pub fn expand(&self, tensor: &Tensor) -> Result<(), Error> {
        if !Rc::ptr_eq(&tensor.arena.0, &self.arena.0) {
            return fault(
                "expand",
                format!("`{}` belongs to another graph", tensor.name()),
            );
        }
        // SAFETY: nodes and leaves are tensors of the arena and those that `leaf` counted, together
        // at most `limit`.
        unsafe { sys::ggml_build_forward_expand(self.as_ptr(), tensor.as_ptr()) };
        Ok(())
    }

    /// Adds a result that can be read after the graph has run.
    pub fn output(&mut self, tensor: &Tensor) -> Result<(), Error> {
        // SAFETY: the tensor is alive.
        unsafe { sys::ggml_set_output(tensor.as_ptr()) };
        self.expand(tensor)
    }

    /// Appends an operation. `make` calls ggml with the context and the sources, on which it does not abort.
    pub(super) fn build<const N: usize>(
        &self,
        op: &'static str,
        sources: [&Tensor; N],
        make: impl FnOnce(*mut sys::ggml_context, [*mut sys::ggml_tensor; N]) -> *mut sys::ggml_tensor,
    ) -> Result<Tensor, Error> {
        let ptr = make(self.arena.reserve()?, sources.map(Tensor::as_ptr));
        self.node(op, ptr, &sources.map(Some))
    }

    /// Wraps a new node: keeps its sources alive and checks whether the processor can run it.
    pub(super) fn node(
        &self,
        op: &'static str,
        ptr: *mut sys::ggml_tensor,
        sources: &[Option<&Tensor>],
    ) -> Result<Tensor, Error> {
        let node = self.arena.wrap(op, ptr)?;
        self.scopes.note(&node);
        let sources = || sources.iter().copied().flatten();
        for source in sources() {
            self.leaf(op, source)?;
        }
        // SAFETY: node and device are alive.
        let runs = unsafe { sys::ggml_backend_dev_supports_op(self.cpu.as_ptr(), node.as_ptr()) };
        if !runs {
            let shown: Vec<String> = sources().map(|s| format!("{s:?}")).collect();
            return fault(op, format!("not supported for {}", shown.join(", ")));
        }
        Ok(node)
    }

    fn leaf(&self, op: &'static str, source: &Tensor) -> Result<(), Error> {
        if Rc::ptr_eq(&source.arena.0, &self.arena.0) {
            return Ok(());
        }
        // SAFETY: the tensor is alive.
        if unsafe { sys::shim_tensor_op(source.as_ptr()) } as sys::ggml_op != sys::GGML_OP_NONE {
            return fault(op, format!("{source:?} is a result of another graph"));
        }
        let mut leaves = self.leaves.borrow_mut();
        leaves.insert(source.key());
        if leaves.len() > self.max_leaves {
            return Err(Error::Capacity {
                capacity: self.max_leaves,
            });
        }
        self.arena.keep(source);
        Ok(())
    }

    pub(super) fn is_result(&self, tensor: &Tensor) -> bool {
        // SAFETY: the tensor is alive.
        let op = unsafe { sys::shim_tensor_op(tensor.as_ptr()) } as sys::ggml_op;
        Rc::ptr_eq(&tensor.arena.0, &self.arena.0) && op != sys::GGML_OP_NONE
    }

    /// Whether a tensor, or the tensor that it is a view of, is scratch memory that this graph computes: no other
    /// operation writes to it before its last reader.
    pub fn is_scratch(&self, tensor: &Tensor) -> bool {
        // SAFETY: the tensor is alive, and keeps what it is a view of alive.
        let op = unsafe {
            let ptr = tensor.as_ptr();
            let viewed = sys::shim_tensor_view_src(ptr);
            sys::shim_tensor_op(if viewed.is_null() { ptr } else { viewed })
        };
        Rc::ptr_eq(&tensor.arena.0, &self.arena.0) && op as sys::ggml_op != sys::GGML_OP_NONE
    }

    /// Refuses anything but f32 with dense rows.
    pub(super) fn float(
        &self,
        op: &'static str,
        a: &Tensor,
        contiguous: bool,
    ) -> Result<(), Error> {
        if a.ty() != TensorType::F32 || !a.has_dense_rows() || (contiguous && !a.is_contiguous()) {
            return fault(
                op,
                format!(
                    "{a:?}: expected {}f32",
                    if contiguous { "contiguous " } else { "" }
                ),
            );
        }
        Ok(())
    }
}
