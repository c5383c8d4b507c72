//! Host memory that a device copies from and to by itself, where it offers any (pinned memory).

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use ggml_sys as sys;

use super::buffer::Buffer;
use super::device::Device;
use super::error::Error;

/// Host memory for copies to and from a device, initialised: pinned, or of any kind where the device offers none or has
/// none left.
pub(super) fn host_memory(
    device: Device,
    bytes: usize,
    what: &'static str,
) -> Result<(Buffer, NonNull<u8>), Error> {
    // SAFETY: buffer types and devices live as long as the program; the base of a buffer of host memory is asked of a
    // live buffer.
    let (memory, first) = unsafe {
        let pinned = sys::ggml_backend_dev_host_buffer_type(device.as_ptr());
        let types = [pinned, sys::ggml_backend_cpu_buffer_type()].into_iter();
        let mut taken = types
            .filter(|ty| !ty.is_null())
            .map(|ty| NonNull::new(sys::ggml_backend_buft_alloc_buffer(ty, bytes.max(1))));
        let memory = taken.find_map(|buffer| buffer.map(Buffer));
        let base = |memory: &Buffer| sys::ggml_backend_buffer_get_base(memory.0.as_ptr());
        let first = memory.as_ref().map_or(std::ptr::null_mut(), base);
        memory.zip(NonNull::new(first.cast::<u8>()))
    }
    .ok_or_else(|| Error::OutOfMemory {
        device: device.name(),
        bytes,
        what,
    })?;
    // SAFETY: the buffer was just made; after this all of its bytes are initialised.
    unsafe { sys::ggml_backend_buffer_clear(memory.0.as_ptr(), 0) };
    Ok((memory, first))
}

/// Numbers that are copied from a device: host memory as in [`host_memory`], which grows and does not shrink.
pub struct HostNumbers {
    device: Device,
    memory: Option<(Buffer, NonNull<f32>)>,
    capacity: usize,
    len: usize,
}

impl HostNumbers {
    /// No numbers yet, of a device.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            memory: None,
            capacity: 0,
            len: 0,
        }
    }

    /// Makes these `len` numbers, whose values have no meaning before they are written.
    pub fn resize(&mut self, len: usize) -> Result<(), Error> {
        if len > self.capacity {
            (self.memory, self.capacity, self.len) = (None, 0, 0);
            let bytes = len.saturating_mul(size_of::<f32>());
            let (memory, first) = host_memory(self.device, bytes, "results")?;
            self.memory = Some((memory, first.cast()));
            self.capacity = len;
        }
        self.len = len;
        Ok(())
    }

    /// Whether the device copies to them by itself.
    pub(super) fn are_pinned(&self) -> bool {
        let Some((memory, _)) = &self.memory else {
            return false;
        };
        // SAFETY: the buffer is alive, and the device lives as long as the program.
        unsafe {
            let pinned = sys::ggml_backend_dev_host_buffer_type(self.device.as_ptr());
            !pinned.is_null() && sys::ggml_backend_buffer_get_type(memory.0.as_ptr()) == pinned
        }
    }
}

impl Deref for HostNumbers {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.memory {
            // SAFETY: the memory has room for at least `len` numbers, is initialised and aligned as ggml's buffers are.
            Some((_, first)) => unsafe { std::slice::from_raw_parts(first.as_ptr(), self.len) },
            None => &[],
        }
    }
}

impl DerefMut for HostNumbers {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &self.memory {
            // SAFETY: as above; the memory is borrowed with its owner.
            Some((_, first)) => unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), self.len) },
            None => &mut [],
        }
    }
}
