//! A plan with its weights on devices: placement, graphs, caches, the forward pass.
//!
//! [`Model::forward`] takes tokens with (sequence, position) pairs and the rows that want logits. A single sequence
//! takes the same path. A pass of a known shape reuses the built graph: inputs are written, nothing is built or
//! allocated. Called by the engine and by tools that read raw logits.

mod adapters;
mod batch;
mod buckets;
mod cache;
mod devices;
mod direct_logit;
mod draft;
mod draft_rows;
mod drafter;
mod error;
mod estimate;
mod find_points;
mod finite;
mod graph;
mod graph_cache;
mod graph_shape;
mod inputs;
mod isolation;
mod key_shape;
mod kv_events;
mod lab;
mod lifecycle;
mod load;
mod measure;
mod media;
mod media_towers;
mod memory;
mod memory_use;
mod named_value;
mod options;
mod padding;
mod pass;
mod placement;
mod points;
mod pool;
mod prefix_blocks;
mod prepare;
mod prepared;
mod prompt_media;
mod sequences;
mod source;
mod stage;
mod sub_batch;
mod support;
#[cfg(test)]
mod tests;
mod token_sources;
mod top_rows;
mod tower;
mod trace;
mod versioned;
mod warm_up;

pub use adapters::LoadedAdapter;
pub use batch::Batch;
pub use cache::states::STATE_PIECES;
pub use cache::{BlockAdapter, CacheMiss, CachedPrefix, KvEvent, SequenceId};
pub use direct_logit::{DirectHeads, DirectLogit, NormDivisor};
pub use draft::{Draft, DraftRequest};
pub use drafter::drafter_memory;
pub(crate) use error::Result;
pub use error::{Error, MemoryPurpose};
pub use estimate::Estimator;
pub use finite::{NotFinite, is_finite};
pub use lab::{CapturedRow, Lab, LabCapture, LabEdit, LabOp, Positions};
pub use lifecycle::{Model, PassCounts};
pub use load::ProgressFn;
pub use media::{FIRST_MEDIA_ID, MediaRows, MediaSpan, SequenceMedia};
pub use media_towers::{EncodedMedia, MediaTowers, TowerCapture, tower_cells, tower_points};
pub use memory_use::{DeviceUse, MemoryUse, TowerUse};
pub use named_value::NamedValue;
pub use options::{N_TOP, Options};
pub use pass::{NextPass, PassRow, PassSink, RowsCallback};
pub use placement::PlacementSearch;
pub use points::{HeadSum, LOGITS, Point, Points, TowerPoint, UnknownPoint};
pub use prefix_blocks::{BlockTensor, PrefixBlocks, PrefixLayout};
pub use tower::{Tower, TowerInput, TowerRows};
pub use trace::{trace, trace_tokens, trace_tower};
