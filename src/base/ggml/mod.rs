//! Safe handles over ggml: tensors, graphs, devices, execution. Does not depend on models.
//!
//! ggml aborts the process when a contract is broken, so every call here checks its arguments first (shape, type,
//! layout, place) and returns an [`Error`] where ggml would abort. Lifetimes are by reference count: a tensor keeps its
//! arena alive, a graph keeps every arena it reads. In `src/`, `unsafe` is only in this folder and for mapping files.
//! Handles stay on the thread that made them.

mod ahead;
mod arena;
mod buffer;
mod build_info;
mod c_text;
mod caches;
mod device;
mod device_inputs;
mod error;
mod executor;
mod fill;
mod graph_ops;
mod host;
mod input_sums;
mod interleave;
mod library;
mod log;
mod memory;
mod movable;
mod ops;
mod placed;
mod plain;
mod process;
mod profile;
mod quantize;
pub mod rpc;
mod scheduler;
mod scope;
mod scratch;
mod staging;
mod support;
#[cfg(test)]
mod tests;

pub use ahead::Readback;
pub use arena::{Arena, Tensor};
pub use buffer::Buffer;
pub use build_info::{
    BuildInfo, MARCH_VARIABLE, build_info, machine_instruction_sets, missing_instruction_sets,
    set_program,
};
pub use c_text::version;
pub use caches::CACHE_TYPES;
pub use device::{Device, DeviceKind, devices};
pub use error::{Error, Result};
pub use executor::{Executor, ThreadPool, WorkCounts};
pub use graph_ops::{GraphOp, OpSource};
pub use host::HostNumbers;
pub use input_sums::{ColumnSums, InputSums};
pub use interleave::{InterleavedRows, RowsInFile};
pub use library::{FOLDER_VARIABLE, LibraryError, load_found, load_library};
pub use memory::{release_memory, report_bus_errors, return_large_memory};
pub use ops::{
    Glu, Graph, KvBlocks, RopePairing, RopeParams, ScoreOptions, Selected, Selector, Unary,
    WholeSpans,
};
pub use placed::MisplacedOp;
pub use process::end_process;
pub use profile::{Cost, PlaceCost, Profile};
pub use quantize::{
    IMPORTANCE_LIMIT, MADE_TYPES, dequantize, needs_importance, quantize, quantize_into,
};
pub use scope::Scope;
pub use support::KeptOp;
