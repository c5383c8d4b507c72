//! What has to do with no model: work on all cores, measurements, numbers and lists in words.

pub mod measure;
pub mod parallel;
pub(crate) mod wording;
