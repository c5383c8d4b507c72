//! Devices of other machines, by ggml's protocol over TCP, which has no encryption and no authentication.
//!
//! A relay between a worker and ggml checks the worker's answers (`relay`). After the first fault of a connection,
//! everything that is computed over it is an error until ggml connects again: when none of the worker's devices is in
//! use any more.

mod relay;
mod serve;
mod workers;

pub use relay::Worker;
pub use serve::serve;
pub use workers::{connect, workers_of};

use workers::fault;
