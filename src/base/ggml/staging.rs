//! Staging: host memory in which data is made before it is copied to a device whose memory the host does not address.
//!
//! A few slots of equal size, in memory that the device reads directly if it offers any (pinned memory). Where the
//! device copies while the host continues, a slot is reused when its last copy has ended. One thread at a time starts
//! copies.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, PoisonError};

use ggml_sys as sys;

use super::buffer::Buffer;
use super::device::Device;
use super::error::Error;
use super::host::host_memory;
use super::scheduler::{Backend, Event};
use crate::util::lock::lock;

pub(super) const MAX_SLOTS: usize = 16;

pub(super) struct Staging {
    pub(super) device: Device,
    /// Locked while a thread starts or awaits a copy. None where a copy ends before its call returns.
    queue: Mutex<Option<Queue>>,
    is_async: bool,
    first: NonNull<u8>,
    slot_bytes: usize,
    free: Mutex<VecDeque<usize>>,
    is_free: Condvar,
    /// Dropped last, since copies read it.
    _memory: Buffer,
}

// SAFETY: a slot's bytes are written by the thread that took the slot off the free ones.
unsafe impl Sync for Staging {}

// SAFETY: ggml binds a backend and its events to no thread.
unsafe impl Send for Queue {}

/// The copies that run while the host continues, and the end of the last copy of each slot. Events are dropped before
/// the queue in which they are recorded.
struct Queue {
    ends: Vec<Event>,
    backend: Backend,
}

impl Queue {
    fn new(device: Device, n_slots: usize) -> Result<Option<Self>, Error> {
        let ends: Option<Vec<Event>> = (0..n_slots).map(|_| Event::new(device)).collect();
        let Some(ends) = ends else { return Ok(None) };
        let backend = Backend::new(device)?;
        Ok(Some(Self { ends, backend }))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the backend is alive, and no other thread uses it: the staging is dropped.
        unsafe { sys::ggml_backend_synchronize(self.backend.0.as_ptr()) };
    }
}

impl Staging {
    /// At most [`MAX_SLOTS`] slots of `slot_bytes` bytes.
    pub(super) fn new(device: Device, n_slots: usize, slot_bytes: usize) -> Result<Self, Error> {
        let n_slots = n_slots.clamp(1, MAX_SLOTS);
        let bytes = n_slots.saturating_mul(slot_bytes);
        let (memory, first) = host_memory(device, bytes, "buffers for copies to it")?;
        // SAFETY: the device lives as long as the program.
        let queue = match unsafe { sys::shim_device_copies_async(device.as_ptr()) } {
            true => Queue::new(device, n_slots)?,
            false => None,
        };
        Ok(Self {
            device,
            is_async: queue.is_some(),
            queue: Mutex::new(queue),
            first,
            slot_bytes,
            free: Mutex::new((0..n_slots).collect()),
            is_free: Condvar::new(),
            _memory: memory,
        })
    }

    /// Takes a slot, after waiting until one is free.
    pub(super) fn slot(&self) -> Slot<'_> {
        let mut free = lock(&self.free);
        loop {
            match free.pop_front() {
                Some(at) => return Slot { staging: self, at },
                None => {
                    let waited = self.is_free.wait(free);
                    free = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// A slot that belongs to one thread.
pub(super) struct Slot<'s> {
    staging: &'s Staging,
    at: usize,
}

impl Slot<'_> {
    /// The first `n` bytes of the slot, once no copy reads them any more. Their content has no meaning.
    pub(super) fn bytes(&mut self, n: usize) -> &mut [u8] {
        let Staging { slot_bytes, .. } = self.staging;
        assert!(n <= *slot_bytes, "a piece fits its slot");
        if self.staging.is_async
            && let Some(queue) = &*lock(&self.staging.queue)
        {
            queue.ends[self.at].wait();
        }
        // SAFETY: the slot lies in the buffer, whose bytes are initialised, and is this thread's until it is
        // given back; no copy reads it.
        unsafe {
            let slot = self.staging.first.as_ptr().add(self.at * slot_bytes);
            std::slice::from_raw_parts_mut(slot, n)
        }
    }

    /// Copies the first `n` bytes to a tensor and returns the slot.
    ///
    /// # Safety
    /// The tensor has memory of the staging's device, which lives until the staging is dropped; the bytes lie within
    /// it, and nothing else reads or writes them before that.
    pub(super) unsafe fn send(self, tensor: *mut sys::ggml_tensor, offset: usize, n: usize) {
        assert!(n <= self.staging.slot_bytes, "a piece fits its slot");
        let queue = lock(&self.staging.queue);
        // SAFETY: the slot lies in the buffer; the caller vouches for the tensor; the slot is not written before the
        // event that is recorded after the copy.
        unsafe {
            let from = self.staging.first.as_ptr();
            let from = from.add(self.at * self.staging.slot_bytes).cast();
            match &*queue {
                Some(Queue { ends, backend }) => {
                    let to = backend.0.as_ptr();
                    sys::ggml_backend_tensor_set_async(to, tensor, from, offset, n);
                    ends[self.at].record(backend);
                }
                None => sys::ggml_backend_tensor_set(tensor, from, offset, n),
            }
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        lock(&self.staging.free).push_back(self.at);
        self.staging.is_free.notify_one();
    }
}
