//! Tensors, and the arenas that hold their descriptions.
//!
//! An [`Arena`] holds tensor descriptions, not tensor data. Data is in device buffers that the arena owns, or in the
//! executor's scratch memory for the tensors of a graph. A [`Tensor`] is a counted reference into an arena.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use ggml_sys as sys;

use super::buffer::Buffer;
use super::error::Error;
use super::interleave::InterleavedRows;
use crate::weights::{FileBytes, TensorType};

/// Descriptions of tensors, with the buffers that hold their data.
#[derive(Clone)]
pub struct Arena(pub(super) Rc<ArenaInner>);

pub(super) struct ArenaInner {
    pub(super) ctx: NonNull<sys::ggml_context>,
    capacity: usize,
    used: Cell<usize>,
    pub(super) bounds: RefCell<HashMap<usize, u64>>,
    buffers: RefCell<Vec<Buffer>>,
    /// Host memory that buffers point into.
    hosts: RefCell<Vec<FileBytes>>,
    reads: RefCell<Vec<Arena>>,
    /// Interleaved rows that tensors use.
    interleaved: RefCell<Vec<InterleavedRows>>,
    /// Whether the tensors have places without memory ([`super::Device::stand_in`]).
    stands_in: Cell<bool>,
}

impl Drop for ArenaInner {
    fn drop(&mut self) {
        // SAFETY: the context was made by `Arena::new` and every tensor handle holds this value,
        // so nothing refers to it any more.
        unsafe { sys::ggml_free(self.ctx.as_ptr()) };
    }
}

impl Arena {
    /// An arena for `capacity` tensors and, if `graph` is not 0, a graph of that many nodes.
    pub fn new(capacity: usize, graph: usize) -> Result<Self, Error> {
        // SAFETY: the two functions compute sizes from their arguments alone.
        let bytes = unsafe {
            sys::ggml_tensor_overhead() * (capacity + 1)
                + if graph > 0 {
                    sys::ggml_graph_overhead_custom(graph, false)
                } else {
                    0
                }
        };
        // SAFETY: the size is positive; ggml allocates and returns null on failure.
        let ctx = unsafe { sys::shim_context_new(bytes) };
        let ctx = NonNull::new(ctx).ok_or(Error::OutOfMemory {
            device: "host".into(),
            bytes,
            what: "tensor descriptions",
        })?;
        Ok(Self(Rc::new(ArenaInner {
            ctx,
            capacity,
            used: Cell::new(0),
            bounds: RefCell::default(),
            buffers: RefCell::default(),
            hosts: RefCell::default(),
            reads: RefCell::default(),
            interleaved: RefCell::default(),
            stands_in: Cell::new(false),
        })))
    }

    pub(super) fn reserve(&self) -> Result<*mut sys::ggml_context, Error> {
        let used = self.0.used.get();
        if used >= self.0.capacity {
            return Err(Error::Capacity {
                capacity: self.0.capacity,
            });
        }
        self.0.used.set(used + 1);
        Ok(self.0.ctx.as_ptr())
    }

    /// Keeps another arena alive at least as long as this one.
    pub(super) fn keep(&self, other: &Tensor) {
        if Rc::ptr_eq(&self.0, &other.arena.0) {
            return;
        }
        let mut reads = self.0.reads.borrow_mut();
        if !reads
            .iter()
            .any(|arena| Rc::ptr_eq(&arena.0, &other.arena.0))
        {
            reads.push(other.arena.clone());
        }
    }

    pub(super) fn keep_rows(&self, rows: InterleavedRows) {
        self.0.interleaved.borrow_mut().push(rows);
    }

    pub(super) fn mark_stand_in(&self) {
        self.0.stands_in.set(true);
    }

    pub(super) fn stands_in(&self) -> bool {
        self.0.stands_in.get() || self.0.reads.borrow().iter().any(Self::stands_in)
    }

    pub(super) fn wrap(
        &self,
        op: &'static str,
        ptr: *mut sys::ggml_tensor,
    ) -> Result<Tensor, Error> {
        match NonNull::new(ptr) {
            Some(ptr) => {
                // SAFETY: ggml just made the tensor; what it is a view of is alive with the graph.
                unsafe { sys::shim_view_in_buffer(ptr.as_ptr()) };
                Ok(Tensor {
                    ptr,
                    arena: self.clone(),
                })
            }
            None => Err(Error::Arguments {
                op,
                message: "ggml returned nothing".into(),
            }),
        }
    }

    /// Describes a tensor. `shape` is in ggml order, 1 to 4 positive dimensions.
    ///
    /// # Errors
    /// The shape is bad, a row is not a whole number of blocks, or there is no room.
    pub fn tensor(&self, name: &str, ty: TensorType, shape: &[u64]) -> Result<Tensor, Error> {
        let fault = |message: String| Error::Arguments {
            op: "tensor",
            message,
        };
        if shape.is_empty() || shape.len() > 4 || shape.contains(&0) {
            return Err(fault(format!(
                "`{name}`: {shape:?} is not a shape of 1 to 4 positive dimensions"
            )));
        }
        // Strides are 64-bit signed in ggml; a margin keeps sums of offsets in range too.
        if ty.tensor_bytes(shape).is_none_or(|bytes| bytes > 1 << 60) {
            return Err(fault(format!(
                "`{name}`: {shape:?} of {ty} is not a whole number of blocks, or is too large"
            )));
        }
        let ne: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
        let ctx = self.reserve()?;
        // SAFETY: the context has room (`reserve`), the shape is positive and its size fits.
        let ptr = unsafe { sys::ggml_new_tensor(ctx, ty.id(), ne.len() as i32, ne.as_ptr()) };
        let tensor = self.wrap("tensor", ptr)?;
        tensor.set_name(name);
        Ok(tensor)
    }

    /// Describes a tensor of indices below `bound`, such as token ids or cache rows. Operations that take rows by index
    /// accept only such tensors, and writing checks the values.
    ///
    /// # Errors
    /// The errors of [`Self::tensor`], or the type is neither i32 nor i64.
    pub fn indices(
        &self,
        name: &str,
        ty: TensorType,
        shape: &[u64],
        bound: u64,
    ) -> Result<Tensor, Error> {
        if !matches!(ty, TensorType::I32 | TensorType::I64) {
            return Err(Error::Arguments {
                op: "indices",
                message: format!("`{name}`: {ty} is not an index type"),
            });
        }
        let tensor = self.tensor(name, ty, shape)?;
        self.0.bounds.borrow_mut().insert(tensor.key(), bound);
        Ok(tensor)
    }

    /// Makes the arena the owner of a buffer, and of the host memory to which the buffer points.
    pub(super) fn own(&self, buffer: Buffer, host: Option<FileBytes>) {
        self.0.buffers.borrow_mut().push(buffer);
        self.0.hosts.borrow_mut().extend(host);
    }

    /// Whether the arena's data is in host memory that must not be written.
    pub(super) fn is_host_memory(&self) -> bool {
        !self.0.hosts.borrow().is_empty()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Arena({} of {} tensors)",
            self.0.used.get(),
            self.0.capacity
        )
    }
}

/// A tensor: a counted reference to its description.
#[derive(Clone)]
pub struct Tensor {
    pub(super) ptr: NonNull<sys::ggml_tensor>,
    pub(super) arena: Arena,
}

impl Tensor {
    pub(super) fn as_ptr(&self) -> *mut sys::ggml_tensor {
        self.ptr.as_ptr()
    }

    pub(super) fn key(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    /// Dimensions in ggml order, padded with ones.
    pub fn shape(&self) -> [u64; 4] {
        // SAFETY: the description lives as long as the arena, which this handle holds.
        std::array::from_fn(|dim| unsafe { sys::shim_tensor_ne(self.as_ptr(), dim as i32) } as u64)
    }

    /// Bytes from one element of each dimension to the next.
    pub fn strides(&self) -> [usize; 4] {
        // SAFETY: as in `shape`.
        std::array::from_fn(|dim| unsafe { sys::shim_tensor_nb(self.as_ptr(), dim as i32) })
    }

    pub fn ty(&self) -> TensorType {
        // SAFETY: as in `shape`.
        let id = unsafe { sys::shim_tensor_type(self.as_ptr()) } as u32;
        TensorType::from_id(id).expect("tensors are made with a `TensorType`")
    }

    pub fn elements(&self) -> u64 {
        self.shape().iter().product()
    }

    /// Bytes from the start of the first element to the end of the last one.
    pub fn bytes(&self) -> usize {
        // SAFETY: as in `shape`.
        unsafe { sys::ggml_nbytes(self.as_ptr()) }
    }

    /// Whether all elements lie one after another in the order of the dimensions.
    pub fn is_contiguous(&self) -> bool {
        let (shape, strides, whole) = (self.shape(), self.strides(), self.whole_strides());
        (0..4).all(|dim| shape[dim] == 1 || strides[dim] == whole[dim])
    }

    /// Whether the strides are those of contiguous elements, in dimensions of one element too.
    pub(super) fn has_whole_strides(&self) -> bool {
        self.strides() == self.whole_strides()
    }

    /// The strides of a tensor of this shape whose elements lie one after another.
    fn whole_strides(&self) -> [usize; 4] {
        let (shape, ty) = (self.shape(), self.ty());
        let mut next = ty.block_bytes() as usize;
        std::array::from_fn(|dim| {
            let n = if dim == 0 {
                shape[0] / ty.block_len()
            } else {
                shape[dim]
            };
            let stride = next;
            next = next.saturating_mul(n as usize);
            stride
        })
    }

    /// Whether the elements of each row lie one after another.
    pub fn has_dense_rows(&self) -> bool {
        self.shape()[0] == 1 || self.strides()[0] == self.ty().block_bytes() as usize
    }

    pub fn name(&self) -> String {
        // SAFETY: the name is a NUL-terminated array inside the description.
        unsafe { super::c_text::text(sys::ggml_get_name(self.as_ptr())) }
    }

    /// Names the tensor; ggml stores the first 63 bytes.
    pub fn set_name(&self, name: &str) {
        let clean: Vec<u8> = name.bytes().filter(|b| *b != 0).collect();
        let name = CString::new(clean).expect("zero bytes were removed");
        // SAFETY: ggml copies the name into its own array and cuts it to fit.
        unsafe { sys::ggml_set_name(self.as_ptr(), name.as_ptr()) };
    }

    /// Whether memory for the data is assigned.
    pub fn is_allocated(&self) -> bool {
        // SAFETY: as in `shape`.
        unsafe { sys::shim_tensor_is_allocated(self.as_ptr()) }
    }

    pub(super) fn has_memory(&self) -> bool {
        self.is_allocated() && !self.arena.stands_in()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.name(), self.ty(), self.shape())
    }
}
