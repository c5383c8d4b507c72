//! The inputs of graphs that one device alone reads: they lie together in a piece of its memory. What is written goes into a mirror in
//! the host's memory, which one copy sends to the device before the graph runs.
//!
//! Every graph uses the piece from its start, so the inputs of a graph are written before each run. Two mirrors take turns: the inputs
//! of a pass can be written while the device has not yet copied those of the pass before.

use std::ops::Range;
use std::ptr::NonNull;

use ggml_sys as sys;

use super::arena::{Arena, Tensor};
use super::buffer::Buffer;
use super::device::Device;
use super::error::{Error, fault};
use super::host::host_memory;
use super::scheduler::{Backend, Event};
use crate::weights::TensorType;

/// Alignment of inputs, in bytes: that of the devices with the largest.
const ALIGN: usize = 256;

pub(super) struct DeviceInputs {
    device: Device,
    block: Option<Block>,
    /// What was written since the last copy.
    written: Vec<Range<usize>>,
    /// End of what was written for the loaded graph.
    known: usize,
}

struct Block {
    /// A tensor over the whole piece.
    whole: Tensor,
    mirrors: [Mirror; 2],
    /// The mirror that is written.
    at: usize,
}

struct Mirror {
    first: NonNull<u8>,
    /// Where the last copy from it has ended; none if the device has no events.
    end: Option<Event>,
    _memory: Buffer,
}

impl DeviceInputs {
    pub(super) fn new(device: Device) -> Self {
        Self {
            device,
            block: None,
            written: Vec::new(),
            known: 0,
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
            (self.block, self.known) = (None, 0);
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
        self.written.clear();
        Ok(is_replaced)
    }

    /// Another graph is loaded, whose inputs are all written before it runs: nothing is taken over from earlier ones.
    pub(super) fn begin(&mut self) {
        self.known = 0;
        self.written.clear();
    }

    /// Whether a tensor is one of the inputs.
    pub(super) fn holds(&self, tensor: &Tensor) -> bool {
        let place = |block: &Block| block.place_of(tensor, tensor.bytes());
        self.block.as_ref().and_then(place).is_some()
    }

    /// Writes a tensor that is one of the inputs. Returns whether it is one.
    pub(super) fn write(&mut self, backend: &Backend, tensor: &Tensor, bytes: &[u8]) -> bool {
        let Some(block) = &mut self.block else {
            return false;
        };
        let Some(at) = block.place_of(tensor, bytes.len()) else {
            return false;
        };
        let end = at + bytes.len();
        if self.written.is_empty() {
            block.turn(backend);
        }
        // SAFETY: the mirror is as large as the piece, and no copy from it runs.
        unsafe {
            let to = block.mirrors[block.at].first.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.written.push(at..end);
        true
    }

    /// Begins to copy what was written to the device, after all that the backend was given before and before what it is given from now
    /// on. What the loaded graph had before and was not written again stays as it was, and so does an input that is `left_out`.
    pub(super) fn send(&mut self, backend: &Backend, left_out: Option<&Tensor>) {
        let Some(block) = self.block.as_mut().filter(|_| !self.written.is_empty()) else {
            return;
        };
        self.written.sort_unstable_by_key(|range| range.start);
        let mut at = 0;
        for range in self.written.drain(..) {
            block.take_over(at..range.start.min(self.known));
            at = at.max(range.end);
        }
        block.take_over(at..self.known);
        self.known = self.known.max(at);
        let place = |of: &Tensor| Some((block.place_of(of, of.bytes())?, of.bytes()));
        let (start, n) = left_out.and_then(place).unwrap_or((at, 0));
        let mirror = &block.mirrors[block.at];
        for part in [0..start.min(at), start + n..at] {
            if part.is_empty() {
                continue;
            }
            // SAFETY: the mirror has these bytes and stays as it is until the copy has ended.
            unsafe {
                let from = mirror.first.as_ptr().add(part.start).cast();
                let to = block.whole.as_ptr();
                let backend = backend.0.as_ptr();
                sys::ggml_backend_tensor_set_async(backend, to, from, part.start, part.len());
            }
        }
        if let Some(end) = &mirror.end {
            end.record(backend);
        }
    }
}

impl Block {
    fn new(device: Device, bytes: usize) -> Result<Self, Error> {
        let bytes = bytes.next_multiple_of(ALIGN);
        let arena = Arena::new(1, 0)?;
        let n = (bytes / size_of::<f32>()) as u64;
        let whole = arena.tensor("inputs", TensorType::F32, &[n])?;
        device.allocate_values(&arena, "inputs of graphs")?;
        let mirror = || {
            let (memory, first) = host_memory(device, bytes, "inputs of graphs")?;
            Ok::<_, Error>(Mirror {
                first,
                end: Event::new(device),
                _memory: memory,
            })
        };
        Ok(Self {
            whole,
            mirrors: [mirror()?, mirror()?],
            at: 0,
        })
    }

    /// Where a tensor of so many bytes lies in the piece, if it does.
    fn place_of(&self, tensor: &Tensor, bytes: usize) -> Option<usize> {
        // SAFETY: both tensors are alive.
        let (is_here, at) = unsafe {
            let is_here = sys::shim_tensor_buffer(tensor.as_ptr())
                == sys::shim_tensor_buffer(self.whole.as_ptr());
            let base = sys::shim_tensor_data(self.whole.as_ptr()) as usize;
            let at = (sys::shim_tensor_data(tensor.as_ptr()) as usize).wrapping_sub(base);
            (is_here, at)
        };
        (is_here && at.saturating_add(bytes) <= self.whole.bytes()).then_some(at)
    }

    /// Takes the other mirror, once no copy reads it any more.
    fn turn(&mut self, backend: &Backend) {
        self.at = 1 - self.at;
        match &self.mirrors[self.at].end {
            Some(end) => end.wait(),
            // SAFETY: the backend is alive.
            None => unsafe { sys::ggml_backend_synchronize(backend.0.as_ptr()) },
        }
    }

    /// Takes what the other mirror has in a range, if there is anything.
    fn take_over(&mut self, range: Range<usize>) {
        if range.start >= range.end {
            return;
        }
        let [to, from] = [self.at, 1 - self.at].map(|at| self.mirrors[at].first.as_ptr());
        // SAFETY: both mirrors are as large as the piece, in which the range lies, and no copy writes to them.
        unsafe {
            let (to, from) = (to.add(range.start), from.add(range.start));
            std::ptr::copy_nonoverlapping(from, to, range.len());
        }
    }
}
