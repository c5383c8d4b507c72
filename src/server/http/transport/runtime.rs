//! What all connections share: their threads, the limit of a body, the wait after a failed accept.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// Maximum size of a request body in bytes: a long conversation with some pictures.
pub const MAX_BODY_BYTES: usize = 64 << 20;

pub(super) async fn not_accepted(error: &io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    // Usually the process is out of file descriptors: other connections have to end first.
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// The threads that serve connections: few, since models compute on the cores. With two where one is enough, each token
/// of a stream would wake both.
///
/// # Errors
/// The operating system cannot start a thread.
pub fn runtime() -> io::Result<Runtime> {
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads((n_cores / 4).clamp(1, 4))
        .enable_all()
        .build()
}
