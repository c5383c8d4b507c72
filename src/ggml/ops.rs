//! Operations, each with the checks that ggml would abort on.
//!
//! A [`Graph`] collects operations; nothing is computed until an executor runs it. Shapes in the
//! documentation are in ggml order, fastest first. Every node is also shown to the processor's
//! backend, which must support it: it is the last resort of every schedule.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ptr::NonNull;
use std::rc::Rc;

use ggml_sys as sys;

use super::arena::{Arena, Tensor};
use super::device::Device;
use super::{Error, type_id};
use crate::weights::TensorType;

/// Activations of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `x * sigmoid(x)`.
    Silu,
    /// Tanh approximation of `x * Phi(x)`.
    Gelu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
}

/// Which elements a rope pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (2j, 2j + 1).
    Norm,
    /// (j, j + dims / 2).
    Neox,
}

/// Numbers of a rotary embedding, as ggml takes them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are ggml's own")]
pub struct RopeParams {
    pub pairing: RopePairing,
    pub dims: u64,
    pub orig_ctx: u64,
    pub base: f32,
    pub freq_scale: f32,
    pub ext_factor: f32,
    pub attn_factor: f32,
    pub beta_fast: f32,
    pub beta_slow: f32,
}

/// A graph of operations on tensors of its own arena and of others.
pub struct Graph {
    arena: Arena,
    graph: NonNull<sys::ggml_cgraph>,
    cpu: Device,
    limit: usize,
    /// Tensors of other arenas that the graph reads, and how many it may.
    leaves: RefCell<HashSet<usize>>,
    max_leaves: usize,
}

fn fault<T>(op: &'static str, message: String) -> Result<T, Error> {
    Err(Error::Arguments { op, message })
}

/// Types that hold weights a matrix product can read.
fn is_matrix_type(ty: TensorType) -> bool {
    !matches!(
        ty,
        TensorType::I8
            | TensorType::I16
            | TensorType::I32
            | TensorType::I64
            | TensorType::F64
            | TensorType::Q8_1
            | TensorType::Q8_K
    )
}

impl Graph {
    /// An empty graph with room for `n_tensors` tensors of its own beside `n_leaves` tensors of
    /// other arenas.
    ///
    /// # Errors
    /// No memory for the descriptions.
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
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ggml_cgraph {
        self.graph.as_ptr()
    }

    pub(super) fn size_limit(&self) -> usize {
        self.limit
    }

    /// The arena of the graph's own tensors.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Number of operations.
    pub fn n_nodes(&self) -> usize {
        // SAFETY: the graph is alive.
        unsafe { sys::ggml_graph_n_nodes(self.as_ptr()) as usize }
    }

    /// Operation and result of every node, in the order of execution.
    pub fn nodes(&self) -> impl Iterator<Item = (String, String)> {
        (0..self.n_nodes()).map(|i| {
            // SAFETY: the index is below the number of nodes; names and operations are alive with
            // the graph.
            unsafe {
                let node = sys::ggml_graph_node(self.as_ptr(), i as i32);
                let op = sys::shim_tensor_op(node) as sys::ggml_op;
                (
                    super::text(sys::ggml_op_name(op)),
                    super::text(sys::ggml_get_name(node)),
                )
            }
        })
    }

    /// An input: its memory is not reused while the graph is loaded.
    ///
    /// # Errors
    /// As [`Arena::tensor`].
    pub fn input(&self, name: &str, ty: TensorType, shape: &[u64]) -> Result<Tensor, Error> {
        let tensor = self.arena.tensor(name, ty, shape)?;
        // SAFETY: the tensor was just made.
        unsafe { sys::ggml_set_input(tensor.as_ptr()) };
        Ok(tensor)
    }

    /// An input of indices below `bound`.
    ///
    /// # Errors
    /// As [`Arena::indices`].
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

    /// Adds a tensor and all it depends on to the computation.
    ///
    /// # Errors
    /// The tensor is not one of this graph's.
    pub fn expand(&mut self, tensor: &Tensor) -> Result<(), Error> {
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

    /// Adds a result that can be read after running.
    ///
    /// # Errors
    /// As [`Self::expand`].
    pub fn output(&mut self, tensor: &Tensor) -> Result<(), Error> {
        // SAFETY: the tensor is alive.
        unsafe { sys::ggml_set_output(tensor.as_ptr()) };
        self.expand(tensor)
    }

    /// Wraps a new node: keeps its sources alive and asks the processor whether it can run it.
    fn node(
        &self,
        op: &'static str,
        ptr: *mut sys::ggml_tensor,
        sources: &[&Tensor],
    ) -> Result<Tensor, Error> {
        let node = self.arena.wrap(op, ptr)?;
        for source in sources {
            self.leaf(op, source)?;
        }
        // SAFETY: node and device are alive.
        let runs = unsafe { sys::ggml_backend_dev_supports_op(self.cpu.as_ptr(), node.as_ptr()) };
        if !runs {
            let shown: Vec<String> = sources.iter().map(|s| format!("{s:?}")).collect();
            return fault(op, format!("not supported for {}", shown.join(", ")));
        }
        Ok(node)
    }

    /// Lets the graph read a tensor of another arena, which must be data, not a computation.
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

    /// `a [k, n, ..] . b [k, m, ..] -> [n, m, ..]`, f32. Batches of `b` may be multiples of `a`'s.
    ///
    /// # Errors
    /// Shapes that do not go together, types that are not numbers.
    pub fn mul_mat(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        let (sa, sb, nb) = (a.shape(), b.shape(), a.strides());
        if sa[0] != sb[0] || sb[2] % sa[2] != 0 || sb[3] % sa[3] != 0 {
            return fault("mul_mat", format!("{a:?} does not multiply {b:?}"));
        }
        let typed = is_matrix_type(a.ty()) && matches!(b.ty(), TensorType::F32);
        if !typed || nb[0] > nb[1] || !a.has_dense_rows() || !b.has_dense_rows() {
            return fault(
                "mul_mat",
                format!("{a:?} and {b:?}: expected dense rows of numbers, the second f32"),
            );
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked above.
        let ptr = unsafe { sys::ggml_mul_mat(ctx, a.as_ptr(), b.as_ptr()) };
        self.node("mul_mat", ptr, &[a, b])
    }

    /// Rows of `table [n, rows]` named by `ids [m]` -> `[n, m]`, f32.
    ///
    /// # Errors
    /// Ids that are not an index tensor bounded by the number of rows.
    pub fn get_rows(&self, table: &Tensor, ids: &Tensor) -> Result<Tensor, Error> {
        let (st, si) = (table.shape(), ids.shape());
        if st[2] != 1
            || st[3] != 1
            || si[1] != 1
            || si[2] != 1
            || si[3] != 1
            || !table.has_dense_rows()
        {
            return fault(
                "get_rows",
                format!("{table:?} by {ids:?}: expected a matrix and a vector"),
            );
        }
        if ids.ty() != TensorType::I32 || !(is_matrix_type(table.ty())) {
            return fault(
                "get_rows",
                format!("{table:?} by {ids:?}: expected numbers by i32"),
            );
        }
        self.bounded("get_rows", ids, st[1])?;
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes and types were checked; the values of `ids` are bounded when written.
        let ptr = unsafe { sys::ggml_get_rows(ctx, table.as_ptr(), ids.as_ptr()) };
        self.node("get_rows", ptr, &[table, ids])
    }

    /// Writes rows `values [n, m]` (f32) into `target [n, rows]` at `ids [m]` (i64); the result is
    /// the target after writing.
    ///
    /// # Errors
    /// Ids that are not an index tensor bounded by the number of rows; a target of the host's
    /// read-only memory is never f32 state, so only tensors of an arena that was allocated qualify.
    pub fn set_rows(
        &self,
        target: &Tensor,
        values: &Tensor,
        ids: &Tensor,
    ) -> Result<Tensor, Error> {
        let (st, sv, si) = (target.shape(), values.shape(), ids.shape());
        let flat = st[2] == 1 && st[3] == 1 && sv[2] == 1 && sv[3] == 1 && si[1..] == [1, 1, 1];
        if !flat
            || st[0] != sv[0]
            || sv[1] != si[0]
            || !target.has_dense_rows()
            || !values.has_dense_rows()
        {
            return fault("set_rows", format!("{values:?} into {target:?} at {ids:?}"));
        }
        let stored = matches!(
            target.ty(),
            TensorType::F32
                | TensorType::F16
                | TensorType::BF16
                | TensorType::Q8_0
                | TensorType::Q4_0
                | TensorType::Q4_1
                | TensorType::Q5_0
                | TensorType::Q5_1
                | TensorType::IQ4_NL
        );
        if values.ty() != TensorType::F32 || ids.ty() != TensorType::I64 || !stored {
            return fault(
                "set_rows",
                format!("{values:?} into {target:?} at {ids:?}: unsupported types"),
            );
        }
        if target.arena.is_host_memory() {
            return fault("set_rows", format!("{target:?} is read-only"));
        }
        self.bounded("set_rows", ids, st[1])?;
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked; the values of `ids` are bounded when
        // written, and the target's memory is our own.
        let ptr =
            unsafe { sys::ggml_set_rows(ctx, target.as_ptr(), values.as_ptr(), ids.as_ptr()) };
        self.node("set_rows", ptr, &[target, values, ids])
    }

    fn bounded(&self, op: &'static str, ids: &Tensor, rows: u64) -> Result<(), Error> {
        match ids.arena.0.bounds.borrow().get(&ids.key()) {
            Some(&bound) if bound <= rows => Ok(()),
            Some(&bound) => fault(
                op,
                format!("`{}` goes up to {bound}, there are {rows} rows", ids.name()),
            ),
            None => fault(op, format!("`{}` is not an index tensor", ids.name())),
        }
    }

    fn binary(
        &self,
        op: &'static str,
        f: unsafe extern "C" fn(
            *mut sys::ggml_context,
            *mut sys::ggml_tensor,
            *mut sys::ggml_tensor,
        ) -> *mut sys::ggml_tensor,
        a: &Tensor,
        b: &Tensor,
    ) -> Result<Tensor, Error> {
        let (sa, sb) = (a.shape(), b.shape());
        if (0..4).any(|dim| !sa[dim].is_multiple_of(sb[dim])) {
            return fault(op, format!("{b:?} does not repeat to {a:?}"));
        }
        let float = a.ty() == TensorType::F32 && b.ty() == TensorType::F32;
        if !float || !a.has_dense_rows() || !b.has_dense_rows() {
            return fault(op, format!("{a:?} and {b:?}: expected dense rows of f32"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: `f` is one of ggml's element-wise operations; shapes and types were checked.
        let ptr = unsafe { f(ctx, a.as_ptr(), b.as_ptr()) };
        self.node(op, ptr, &[a, b])
    }

    /// `a + b`, `b` repeated to the shape of `a`; f32.
    ///
    /// # Errors
    /// Shapes that do not repeat, other types.
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("add", sys::ggml_add, a, b)
    }

    /// `a * b` by elements, `b` repeated to the shape of `a`; f32.
    ///
    /// # Errors
    /// Shapes that do not repeat, other types.
    pub fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.binary("mul", sys::ggml_mul, a, b)
    }

    fn float(&self, op: &'static str, a: &Tensor, contiguous: bool) -> Result<(), Error> {
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

    /// `a * factor`; contiguous f32.
    ///
    /// # Errors
    /// Other types or layouts.
    pub fn scale(&self, a: &Tensor, factor: f32) -> Result<Tensor, Error> {
        self.float("scale", a, true)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe { sys::ggml_scale(ctx, a.as_ptr(), factor) };
        self.node("scale", ptr, &[a])
    }

    /// Rows divided by their root mean square; f32.
    ///
    /// # Errors
    /// Other types, a negative eps.
    pub fn rms_norm(&self, a: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.norm_op("rms_norm", sys::ggml_rms_norm, a, eps)
    }

    /// Rows minus their mean, divided by their standard deviation; f32.
    ///
    /// # Errors
    /// Other types, a negative eps.
    pub fn layer_norm(&self, a: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.norm_op("norm", sys::ggml_norm, a, eps)
    }

    fn norm_op(
        &self,
        op: &'static str,
        f: unsafe extern "C" fn(
            *mut sys::ggml_context,
            *mut sys::ggml_tensor,
            f32,
        ) -> *mut sys::ggml_tensor,
        a: &Tensor,
        eps: f32,
    ) -> Result<Tensor, Error> {
        self.float(op, a, false)?;
        if eps.is_nan() || eps < 0.0 {
            return fault(op, format!("eps is {eps}"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: type, layout and eps were checked.
        let ptr = unsafe { f(ctx, a.as_ptr(), eps) };
        self.node(op, ptr, &[a])
    }

    /// An activation; contiguous f32.
    ///
    /// # Errors
    /// Other types or layouts.
    pub fn unary(&self, a: &Tensor, kind: Unary) -> Result<Tensor, Error> {
        self.float("unary", a, true)?;
        let ctx = self.arena.reserve()?;
        // SAFETY: type and layout were checked.
        let ptr = unsafe {
            match kind {
                Unary::Silu => sys::ggml_silu(ctx, a.as_ptr()),
                Unary::Gelu => sys::ggml_gelu(ctx, a.as_ptr()),
                Unary::Sigmoid => sys::ggml_sigmoid(ctx, a.as_ptr()),
                Unary::Tanh => sys::ggml_tanh(ctx, a.as_ptr()),
            }
        };
        self.node("unary", ptr, &[a])
    }

    /// `silu(gate) * up`, same shapes, contiguous f32.
    ///
    /// # Errors
    /// Shapes that differ, other types.
    pub fn swiglu(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor, Error> {
        self.float("swiglu", gate, true)?;
        self.float("swiglu", up, true)?;
        if gate.shape() != up.shape() {
            return fault("swiglu", format!("{gate:?} and {up:?} differ"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: types, shapes and layout were checked.
        let ptr = unsafe { sys::ggml_swiglu_split(ctx, gate.as_ptr(), up.as_ptr()) };
        self.node("swiglu", ptr, &[gate, up])
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// A tensor that is not contiguous, or another number of elements.
    pub fn reshape(&self, a: &Tensor, shape: [u64; 4]) -> Result<Tensor, Error> {
        let elements = shape.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim));
        if elements != Some(a.elements())
            || !a.is_contiguous()
            || a.ty().row_bytes(shape[0]).is_none()
        {
            return fault("reshape", format!("{a:?} to {shape:?}"));
        }
        let ctx = self.arena.reserve()?;
        let n = shape.map(|dim| dim as i64);
        // SAFETY: contiguity and the number of elements were checked.
        let ptr = unsafe { sys::ggml_reshape_4d(ctx, a.as_ptr(), n[0], n[1], n[2], n[3]) };
        self.node("reshape", ptr, &[a])
    }

    /// A window: `shape` elements, steps of `strides` bytes for dimensions 1 to 3, from `offset`
    /// bytes on.
    ///
    /// # Errors
    /// A window that reaches beyond the tensor or cuts a block.
    pub fn view(
        &self,
        a: &Tensor,
        shape: [u64; 4],
        strides: [usize; 3],
        offset: usize,
    ) -> Result<Tensor, Error> {
        let block = a.ty().block_bytes() as usize;
        let end = a.ty().row_bytes(shape[0]).and_then(|row| {
            (1..4).try_fold(row, |end, dim| {
                end.checked_add((strides[dim - 1] as u64).checked_mul(shape[dim].checked_sub(1)?)?)
            })
        });
        let inside = end
            .and_then(|end| end.checked_add(offset as u64))
            .is_some_and(|end| end <= a.bytes() as u64);
        let whole = a.has_dense_rows()
            && offset.is_multiple_of(block)
            && strides.iter().all(|s| s.is_multiple_of(block));
        if shape.contains(&0) || !inside || !whole {
            return fault(
                "view",
                format!("{a:?}: {shape:?} by {strides:?} from byte {offset}"),
            );
        }
        let ctx = self.arena.reserve()?;
        let n = shape.map(|dim| dim as i64);
        // SAFETY: the window lies inside the tensor's bytes (checked above).
        let ptr = unsafe {
            sys::ggml_view_4d(
                ctx,
                a.as_ptr(),
                n[0],
                n[1],
                n[2],
                n[3],
                strides[0],
                strides[1],
                strides[2],
                offset,
            )
        };
        self.node("view", ptr, &[a])
    }

    /// Dimension `i` of the tensor becomes dimension `axes[i]` of the result; nothing moves.
    ///
    /// # Errors
    /// Axes that are no permutation.
    pub fn permute(&self, a: &Tensor, axes: [usize; 4]) -> Result<Tensor, Error> {
        let mut sorted = axes;
        sorted.sort_unstable();
        if sorted != [0, 1, 2, 3] {
            return fault("permute", format!("{axes:?} is no permutation"));
        }
        let ctx = self.arena.reserve()?;
        let x = axes.map(|axis| axis as i32);
        // SAFETY: the axes are a permutation of the four dimensions.
        let ptr = unsafe { sys::ggml_permute(ctx, a.as_ptr(), x[0], x[1], x[2], x[3]) };
        self.node("permute", ptr, &[a])
    }

    /// A contiguous copy.
    ///
    /// # Errors
    /// A quantised tensor that is permuted.
    pub fn cont(&self, a: &Tensor) -> Result<Tensor, Error> {
        if !a.ty().is_plain() && !a.has_dense_rows() {
            return fault(
                "cont",
                format!("{a:?} has rows of blocks that are not dense"),
            );
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: any tensor of plain elements or dense rows can be copied.
        let ptr = unsafe { sys::ggml_cont(ctx, a.as_ptr()) };
        self.node("cont", ptr, &[a])
    }

    /// A contiguous copy of another type.
    ///
    /// # Errors
    /// A pair of types that ggml does not convert.
    pub fn cast(&self, a: &Tensor, ty: TensorType) -> Result<Tensor, Error> {
        let from = is_matrix_type(a.ty()) && a.has_dense_rows();
        let to = matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16);
        // Quantised rows only become f32.
        if !from || !to || (!a.ty().is_plain() && ty != TensorType::F32) {
            return fault("cast", format!("{a:?} to {ty}"));
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: the pair of types was checked.
        let ptr = unsafe { sys::ggml_cast(ctx, a.as_ptr(), type_id(ty)) };
        self.node("cast", ptr, &[a])
    }

    /// `softmax(a * scale + mask)` over rows: `a [n_kv, n_q, heads]`, `mask [n_kv, >= n_q]`; f32.
    ///
    /// # Errors
    /// Shapes that do not go together, other types.
    pub fn soft_max(&self, a: &Tensor, mask: Option<&Tensor>, scale: f32) -> Result<Tensor, Error> {
        self.float("soft_max", a, true)?;
        if let Some(mask) = mask {
            let (sa, sm) = (a.shape(), mask.shape());
            let fits = sm[0] == sa[0] && sm[1] >= sa[1] && sa[2] % sm[2] == 0 && sa[3] % sm[3] == 0;
            let typed =
                matches!(mask.ty(), TensorType::F32 | TensorType::F16) && mask.is_contiguous();
            if !fits || !typed {
                return fault("soft_max", format!("{a:?} with the mask {mask:?}"));
            }
        }
        let ctx = self.arena.reserve()?;
        let mask_ptr = mask.map_or(std::ptr::null_mut(), Tensor::as_ptr);
        // SAFETY: types, shapes and layout were checked; no mask is null.
        let ptr = unsafe { sys::ggml_soft_max_ext(ctx, a.as_ptr(), mask_ptr, scale, 0.0) };
        match mask {
            Some(mask) => self.node("soft_max", ptr, &[a, mask]),
            None => self.node("soft_max", ptr, &[a]),
        }
    }

    /// `softmax(q . k * scale + mask) . v` without keeping the scores:
    /// `q [dk, n_q, heads]`, `k [dk, n_kv, kv_heads]`, `v [dv, n_kv, kv_heads]`,
    /// `mask [n_kv, n_q]` f16 -> `[dv, heads, n_q]` f32.
    ///
    /// # Errors
    /// Shapes that do not go together, other types.
    pub fn flash_attn(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        scale: f32,
    ) -> Result<Tensor, Error> {
        let (sq, sk, sv) = (q.shape(), k.shape(), v.shape());
        let shapes = sq[0] == sk[0]
            && sk[1] == sv[1]
            && sk[2] == sv[2]
            && sq[2] % sk[2] == 0
            && [sq[3], sk[3], sv[3]] == [1, 1, 1];
        let rows = q.has_dense_rows() && k.has_dense_rows() && v.has_dense_rows();
        let types = q.ty() == TensorType::F32 && is_matrix_type(k.ty()) && is_matrix_type(v.ty());
        if !shapes || !rows || !types {
            return fault("flash_attn", format!("{q:?}, {k:?}, {v:?}"));
        }
        if let Some(mask) = mask {
            let sm = mask.shape();
            let fits = sm[0] == sk[1] && sm[1] >= sq[1] && sm[2] == 1 && sm[3] == 1;
            if !fits || mask.ty() != TensorType::F16 || !mask.is_contiguous() {
                return fault("flash_attn", format!("{q:?}, {k:?} with the mask {mask:?}"));
            }
        }
        let ctx = self.arena.reserve()?;
        let mask_ptr = mask.map_or(std::ptr::null_mut(), Tensor::as_ptr);
        // SAFETY: types, shapes and layout were checked; no mask is null.
        let ptr = unsafe {
            let ptr = sys::ggml_flash_attn_ext(
                ctx,
                q.as_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                mask_ptr,
                scale,
                0.0,
                0.0,
            );
            sys::ggml_flash_attn_ext_set_prec(ptr, sys::GGML_PREC_F32);
            ptr
        };
        match mask {
            Some(mask) => self.node("flash_attn", ptr, &[q, k, v, mask]),
            None => self.node("flash_attn", ptr, &[q, k, v]),
        }
    }

    /// Asks for f32 accumulation in a matrix product, which some devices otherwise do in f16.
    ///
    /// # Errors
    /// The tensor is no matrix product.
    pub fn exact(&self, product: &Tensor) -> Result<(), Error> {
        // SAFETY: the tensor is alive.
        if unsafe { sys::shim_tensor_op(product.as_ptr()) } as sys::ggml_op != sys::GGML_OP_MUL_MAT
        {
            return fault("exact", format!("{product:?} is no matrix product"));
        }
        // SAFETY: the node is a matrix product.
        unsafe { sys::ggml_mul_mat_set_prec(product.as_ptr(), sys::GGML_PREC_F32) };
        Ok(())
    }

    /// Rotates `a [d, heads, n]` by the positions `pos [n]` (i32), with an optional divisor of each
    /// frequency `factors [dims / 2]` (f32).
    ///
    /// # Errors
    /// Shapes that do not go together, other types.
    pub fn rope(
        &self,
        a: &Tensor,
        pos: &Tensor,
        factors: Option<&Tensor>,
        params: &RopeParams,
    ) -> Result<Tensor, Error> {
        let (sa, sp) = (a.shape(), pos.shape());
        let positions = sp[0] == sa[2] && sp[1..] == [1, 1, 1] && pos.ty() == TensorType::I32;
        let dims = params.dims.is_multiple_of(2) && params.dims > 0 && params.dims <= sa[0];
        self.float("rope", a, false)?;
        if !positions || !dims {
            return fault(
                "rope",
                format!("{a:?} at {pos:?}, {} dimensions", params.dims),
            );
        }
        if let Some(factors) = factors
            && (factors.ty() != TensorType::F32
                || factors.shape()[0] < params.dims / 2
                || !factors.has_dense_rows())
        {
            return fault(
                "rope",
                format!("factors {factors:?} for {} dimensions", params.dims),
            );
        }
        let ctx = self.arena.reserve()?;
        let mode = match params.pairing {
            RopePairing::Norm => 0,
            RopePairing::Neox => sys_rope_neox(),
        };
        let factors_ptr = factors.map_or(std::ptr::null_mut(), Tensor::as_ptr);
        // SAFETY: types and shapes were checked; no factors are null.
        let ptr = unsafe {
            sys::ggml_rope_ext(
                ctx,
                a.as_ptr(),
                pos.as_ptr(),
                factors_ptr,
                params.dims as i32,
                mode,
                params.orig_ctx.min(i32::MAX as u64) as i32,
                params.base,
                params.freq_scale,
                params.ext_factor,
                params.attn_factor,
                params.beta_fast,
                params.beta_slow,
            )
        };
        match factors {
            Some(factors) => self.node("rope", ptr, &[a, pos, factors]),
            None => self.node("rope", ptr, &[a, pos]),
        }
    }
}

/// ggml's number for pairs half apart (a macro there, so not part of the bindings).
const fn sys_rope_neox() -> i32 {
    2
}
