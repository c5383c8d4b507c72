//! What does not depend on models: work on all cores, measurements, formatting of numbers and lists, files
//! that are read whole or written.

pub mod measure;
pub(crate) mod panics;
pub mod parallel;
pub(crate) mod reading;
pub(crate) mod wording;
pub(crate) mod writing;
