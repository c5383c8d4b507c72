//! Statistics of repeated measurements, and the machine's memory bandwidth.
//!
//! Nothing here knows models or prints. Percentiles are measured values (nearest rank), never interpolated, so that
//! they can be traced to a run.

mod bandwidth;
mod clock;
mod summary;

pub use bandwidth::read_bandwidth;
pub use clock::thread_time;
pub use summary::Summary;
