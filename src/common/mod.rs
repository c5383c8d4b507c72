//! What does not depend on models: work on all cores, measurements, random numbers, formatting of numbers and lists, files
//! that are read whole or written.

pub mod measure;
pub mod panics;
pub mod parallel;
pub mod random;
pub mod reading;
pub mod wording;
pub mod writing;
