//! Device memory that is freed with its handle.

use std::ptr::NonNull;

use ggml_sys as sys;

/// A piece of device memory.
pub struct Buffer(pub(super) NonNull<sys::ggml_backend_buffer>);

impl Buffer {
    /// Size of the buffer.
    pub fn bytes(&self) -> usize {
        // SAFETY: the buffer is alive until dropped.
        unsafe { sys::ggml_backend_buffer_get_size(self.0.as_ptr()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the arena that owns the buffer frees it once, when no tensor is left.
        unsafe { sys::ggml_backend_buffer_free(self.0.as_ptr()) };
    }
}
