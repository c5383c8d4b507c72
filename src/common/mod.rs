//! What does not depend on models: work on all cores, measurements, formatting of numbers and lists, files
//! that are written.

pub mod measure;
pub mod parallel;
pub(crate) mod wording;
pub(crate) mod writing;
