//! Errors of the module.

/// The reason why ggml was not called, or the error that it reported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments of an operation do not fit each other.
    #[error("{op}: {message}")]
    Arguments {
        /// The operation.
        op: &'static str,
        /// The found and the expected value.
        message: String,
    },
    /// A graph needs more tensors or nodes than were planned.
    #[error("the graph needs more than {capacity} tensors")]
    Capacity {
        /// The limit.
        capacity: usize,
    },
    /// Memory could not be allocated.
    #[error("{device}: could not allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// The number of bytes.
        bytes: usize,
        /// The purpose of the memory.
        what: &'static str,
    },
    /// A backend or device does not exist or does not start.
    #[error("{0}")]
    Device(String),
    /// A worker of another machine is lost, or its answers are wrong.
    #[error("{0}")]
    Worker(String),
    /// The computation ended with an error.
    #[error("computation failed: {0}")]
    Computation(String),
}
