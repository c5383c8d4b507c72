//! Tools that do not depend on models: work on all cores, measurements, locks, moments and distances of rows of numbers,
//! random numbers, threads in the background, formatting of numbers and lists, files that are read whole or written, the clock.

pub mod appended_lines;
pub mod atomic_file;
pub mod background;
pub mod clock;
pub mod directions;
pub mod distances;
pub mod granted_memory;
pub mod inputs;
pub mod limited_read;
pub mod lock;
pub mod measure;
pub mod moments;
pub mod panics;
pub mod parallel;
pub mod random;
#[cfg(test)]
pub(crate) mod test_rows;
pub mod wording;
