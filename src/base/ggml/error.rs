//! Errors of the module.

/// A result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why ggml was not called, or the error that it reported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments of an operation do not fit each other.
    #[error("{op}: {message}")]
    Arguments { op: &'static str, message: String },
    #[error("the graph needs more than {capacity} tensors")]
    Capacity { capacity: usize },
    #[error("{device}: could not allocate {bytes} bytes for {what}")]
    OutOfMemory {
        device: String,
        bytes: usize,
        what: &'static str,
    },
    /// A backend or device does not exist or does not start.
    #[error("{0}")]
    Device(String),
    /// A worker of another machine is lost, or its answers are wrong.
    #[error("{0}")]
    Worker(String),
    #[error("computation failed: {0}")]
    Computation(String),
}

pub(super) fn fault<T>(op: &'static str, message: impl Into<String>) -> Result<T, Error> {
    let message = message.into();
    Err(Error::Arguments { op, message })
}
