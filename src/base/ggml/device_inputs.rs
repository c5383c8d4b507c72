//! The inputs of graphs that one device alone reads: they lie together in a piece of its memory. What is written goes into a mirror in
//! the host's memory, which one copy sends to the device before the graph runs.
//!
//! Every graph uses the piece from its start, so the inputs of a graph are written before each run.

use std::ptr::NonNull;

use ggml_sys as sys;

use super::arena::{Arena, Tensor};
use super::buffer::Buffer;
use super::device::Device;
use super::error::{Error, fault};
use super::host::host_memory;
use crate::weights::TensorType;

/// Alignment of inputs, in bytes: that of the devices with the largest.
const ALIGN: usize = 256;

pub(super) struct DeviceInputs {
    device: Device,
    block: Option<Block>,
    /// End of what was written since the last copy.
    written: usize,
}

struct Block {
    /// A tensor over the whole piece.
    whole: Tensor,
    /// The mirror.
    first: NonNull<u8>,
    _mirror: Buffer,
}

impl DeviceInputs {
    pub(super) fn new(device: Device) -> Self {
        Self {
            device,
            block: None,
            written: 0,
        }
    }

    /// Bytes that inputs need.
    pub(super) fn bytes(inputs: &[*mut sys::ggml_tensor]) -> usize {
        // SAFETY: the caller's tensors are alive.
        let bytes = |input: &*mut sys::ggml_tensor| unsafe { sys::ggml_nbytes(*input) };
        let padded = inputs
            .iter()
            .map(|input| bytes(input).next_multiple_of(ALIGN));
        padded.sum()
    }

    /// Gives inputs without memory their places. Returns whether the piece was replaced: graphs that were placed before are then
    /// without memory.
    pub(super) fn place(&mut self, inputs: &[*mut sys::ggml_tensor]) -> Result<bool, Error> {
        let bytes = Self::bytes(inputs);
        let capacity = self.block.as_ref().map_or(0, |block| block.whole.bytes());
        let is_replaced = bytes > capacity;
        if is_replaced {
            self.block = None;
            self.block = Some(Block::new(self.device, bytes)?);
        }
        let Some(block) = &self.block else {
            return Ok(false);
        };
        let mut at = 0;
        for input in inputs {
            // SAFETY: the piece has room for all inputs; they are alive and have no memory.
            let (status, size) = unsafe {
                let base = sys::shim_tensor_data(block.whole.as_ptr()).cast::<u8>();
                let place = base.add(at).cast();
                let buffer = sys::shim_tensor_buffer(block.whole.as_ptr());
                let status = sys::ggml_backend_tensor_alloc(buffer, *input, place);
                (status, sys::ggml_nbytes(*input))
            };
            if status != sys::GGML_STATUS_SUCCESS {
                return fault("place", format!("an input: ggml answered {status}"));
            }
            at += size.next_multiple_of(ALIGN);
        }
        self.written = 0;
        Ok(is_replaced)
    }

    /// Writes a tensor that is one of the inputs. Returns whether it is one.
    pub(super) fn write(&mut self, tensor: &Tensor, bytes: &[u8]) -> bool {
        let Some(block) = &self.block else {
            return false;
        };
        // SAFETY: both tensors are alive.
        let (is_here, at) = unsafe {
            let is_here = sys::shim_tensor_buffer(tensor.as_ptr())
                == sys::shim_tensor_buffer(block.whole.as_ptr());
            let base = sys::shim_tensor_data(block.whole.as_ptr()) as usize;
            (
                is_here,
                (sys::shim_tensor_data(tensor.as_ptr()) as usize).wrapping_sub(base),
            )
        };
        let end = at.saturating_add(bytes.len());
        if !is_here || end > block.whole.bytes() {
            return false;
        }
        // SAFETY: the mirror is as large as the piece, and no copy from it runs (see `send`).
        unsafe {
            let to = block.first.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.written = self.written.max(end);
        true
    }

    /// Begins to copy what was written to the device, before anything that the backend computes from now on. Nothing may be written
    /// until the backend was waited for. Returns the number of bytes.
    pub(super) fn send(&mut self, backend: sys::ggml_backend_t) -> usize {
        let n = std::mem::take(&mut self.written);
        if let Some(block) = self.block.as_ref().filter(|_| n > 0) {
            // SAFETY: the mirror has these bytes and stays as it is until the copy has ended.
            unsafe {
                let from = block.first.as_ptr().cast();
                sys::ggml_backend_tensor_set_async(backend, block.whole.as_ptr(), from, 0, n);
            }
        }
        n
    }
}

impl Block {
    fn new(device: Device, bytes: usize) -> Result<Self, Error> {
        let bytes = bytes.next_multiple_of(ALIGN);
        let arena = Arena::new(1, 0)?;
        let n = (bytes / size_of::<f32>()) as u64;
        let whole = arena.tensor("inputs", TensorType::F32, &[n])?;
        device.allocate_values(&arena, "inputs of graphs")?;
        let (mirror, first) = host_memory(device, bytes, "inputs of graphs")?;
        Ok(Self {
            whole,
            first,
            _mirror: mirror,
        })
    }
}
