//! Safe handles over ggml: tensors, graphs, devices, execution. Knows no models.
//!
//! ggml aborts the process when a contract is broken, so every call here checks its arguments
//! first (shape, type, layout, place) and returns an [`Error`] where ggml would abort. Lifetimes
//! are by reference count: a tensor keeps its arena alive, a graph keeps every arena it reads.
//! The only `unsafe` of `src/` is in this folder. Handles stay on the thread that made them.

mod arena;
mod device;
mod executor;
mod fill;
mod log;
mod matmul;
mod ops;
mod profile;
mod quantize;
#[cfg(test)]
mod tests;
mod walk;

pub use arena::{Arena, Tensor};
pub use device::{Buffer, Device, DeviceKind, devices, load_backend};
pub use executor::{Executor, ThreadPool};
pub use log::install as install_log;
pub use matmul::set_batch_invariant;
pub use ops::{Glu, Graph, Pages, RopePairing, RopeParams, Scores, Unary};
pub use profile::{Cost, PlaceCost, Profile, Scope};
pub use quantize::{dequantize, quantize, quantize_into};
pub use walk::{Origin, Step};

use crate::weights::TensorType;

/// Why ggml was not called, or what it answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments of an operation do not go together.
    #[error("{op}: {message}")]
    Arguments {
        /// The operation.
        op: &'static str,
        /// What was found and expected.
        message: String,
    },
    /// More tensors or nodes than were planned for.
    #[error("the graph needs more than {capacity} tensors")]
    Capacity {
        /// The limit.
        capacity: usize,
    },
    /// Memory could not be had.
    #[error("{device}: could not allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// Where.
        device: String,
        /// How much.
        bytes: usize,
        /// What for.
        what: &'static str,
    },
    /// A backend or device does not exist or does not start.
    #[error("{0}")]
    Device(String),
    /// The computation ended with an error.
    #[error("computation failed: {0}")]
    Compute(String),
}

/// The version of ggml that is built in.
pub fn version() -> String {
    // SAFETY: the function takes nothing and returns a static string.
    unsafe { text(ggml_sys::ggml_version()) }
}

/// A C string of ggml's as text.
///
/// # Safety
/// `ptr` is null or a NUL-terminated string that lives during the call.
unsafe fn text(ptr: *const std::ffi::c_char) -> String {
    if ptr.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for the string.
    unsafe { std::ffi::CStr::from_ptr(ptr) }
        .to_string_lossy()
        .into_owned()
}

/// The type as ggml numbers it.
fn type_id(ty: TensorType) -> ggml_sys::ggml_type {
    ty.id()
}
