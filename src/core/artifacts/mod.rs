//! Arrays and vectors as files, and the results of lab requests that are stored for a while.

pub mod arrays;
pub mod npy;
pub mod owner;
pub mod packed;
pub mod store;
pub mod vectors;
