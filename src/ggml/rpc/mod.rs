//! Devices of other machines, by ggml's protocol over TCP, which knows neither encryption nor
//! authentication.
//!
//! What a worker answers is checked by a relay between it and ggml (`relay`). The first fault of a connection makes
//! everything that is computed over it an error, until ggml connects anew: when nothing there is in use any more.

mod relay;
mod serve;
mod workers;

pub use relay::Worker;
pub use serve::serve;
pub use workers::{connect, workers_of};

use workers::fault;
