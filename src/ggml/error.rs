//! Errors of this layer.

/// Why ggml was not called, or what it reported.
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
        /// Its purpose.
        what: &'static str,
    },
    /// A backend or device does not exist or does not start.
    #[error("{0}")]
    Device(String),
    /// A worker of another machine is lost, or its answers are not to be believed.
    #[error("{0}")]
    Worker(String),
    /// The computation ended with an error.
    #[error("computation failed: {0}")]
    Computation(String),
}
