//! A plan with its weights on devices: placement, graphs, caches, the forward pass.
//!
//! [`Model::forward`] takes tokens with (sequence, position) pairs and the rows that want logits. A single sequence
//! takes the same path. A pass of a known shape reuses the built graph: inputs are written, nothing is built or
//! allocated. Called by the engine and by tools that read raw logits.

mod adapters;
mod batch;
mod cache;
mod devices;
mod direct;
mod error;
mod estimate;
mod find_points;
mod finite;
mod fit;
mod graph;
mod graphs;
mod inputs;
mod key_shape;
mod lab;
mod lifecycle;
mod load;
mod measure;
mod memory;
mod memory_use;
mod options;
mod pass;
mod points;
mod pool;
mod results;
mod sequences;
mod shape;
mod sound;
mod source;
mod split;
mod stage;
mod support;
mod token_sources;
mod trace;

pub use adapters::LoadedAdapter;
pub use batch::Batch;
pub use cache::states::STATE_PIECES;
pub use cache::{Miss, Resumed, SequenceId};
pub use direct::{DirectHeads, DirectLogit, Divisor};
pub use error::{Error, Purpose};
pub use estimate::Estimator;
pub use finite::{NotFinite, is_finite};
pub use fit::Placing;
pub use lab::{CapturedRow, Lab, LabCapture, LabEdit, LabOp, Positions};
pub use lifecycle::Model;
pub use load::Progress;
pub use memory::available as available_memory;
pub use memory_use::{DeviceUse, MemoryUse};
pub use options::Options;
pub use pass::EachRows;
pub use points::{HeadSum, LOGITS, Point, Points, UnknownPoint};
pub use results::Value;
pub use trace::{trace, trace_tokens};
