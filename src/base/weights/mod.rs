//! Weight files of any format: metadata and named tensors.
//!
//! [`Weights`] hides the file format from all other modules. Tensor data stays in the mapped file, or is computed row
//! by row when it is read ([`LazyTensor`]). The planner (shapes, types), the model (data) and `inspect` use it.
//!
//! Invariant: every returned range is inside its mapped file. A file with another range is refused when it is opened.

mod check;
mod data;
mod entry;
mod error;
pub mod experts;
pub mod folder;
pub mod gguf;
mod gguf_fault;
mod json;
mod map;
mod metadata;
mod open;
pub mod safetensors;
mod sniff;
mod space;
mod tensor;
mod tensor_type;
mod weight_file;

pub use check::{FiniteCheck, check, check_rows};
pub use data::{LazyTensor, TensorData};
pub use entry::TensorEntry;
pub use error::{Error, NotFinite};
pub use map::{FileBytes, MappedFile};
pub use metadata::{Array, Metadata, StringArray, Value};
pub use open::open;
pub use space::check_space;
pub use tensor::{MAX_DIMS, TensorInfo};
pub use tensor_type::TensorType;
pub use weight_file::Weights;

use data::DataSource;
