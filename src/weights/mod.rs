//! A weight file on disk as metadata and named tensors, whatever the format.
//!
//! [`Weights`] hides the file format from everything above it. Tensor data stays in the mapped file,
//! or is computed row by row when it is read ([`LazyTensor`]). Used by the planner (shapes, types),
//! the model (data) and `inspect`.
//!
//! Invariant: every returned range lies inside its mapped file. A file that would break this is
//! refused when it is opened.

mod check;
mod data;
mod entry;
mod error;
pub mod experts;
pub mod folder;
pub mod gguf;
mod json;
mod map;
mod metadata;
mod open;
pub mod safetensors;
mod space;
pub mod stranger;
mod tensor;
mod tensor_type;
mod weight_file;

pub use check::{Checked, NotFinite, check};
pub use data::{Bytes, Data, LazyTensor};
pub use entry::Entry;
pub use error::Error;
pub use map::MappedFile;
pub use metadata::{Array, Metadata, StringArray, Value};
pub use open::open;
pub use space::check_space;
pub use tensor::{MAX_DIMS, TensorInfo};
pub use tensor_type::TensorType;
pub use weight_file::Weights;

use data::Source;
