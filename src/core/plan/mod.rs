//! Plans a model: a definition and the numbers of a model file become a Plan with every layer's slots, blocks, tensor
//! names, shapes, caches and bytes.
//!
//! A plan is inert data that can be printed and compared. The same plan is executed (`model`), measured (memory), drawn
//! (`diagram`) and filled with random weights (`synth`), so these cannot disagree. Planning reads metadata and tensor
//! shapes, never tensor data. All problems are returned together.

mod adapters;
mod assemble;
mod cache_plan;
mod error;
mod facts;
pub mod fill;
mod key_checks;
mod layer_plan;
mod mixes;
mod model_plan;
mod parameters;
mod placement;
mod planner;
mod rows;
mod source;
mod tensor_set;
mod unclaimed;
mod unit;
mod unit_plan;

pub use cache_plan::{
    BLOCK_LEN, CacheCapacity, CachePlan, HOME_STEP, KeyTokens, RowLayout, SlotLayout,
};
pub use error::Error;
pub use layer_plan::{
    BranchPlan, DraftBlock, HeadPlan, LayerPlan, NormUse, SlotPlan, SourcePlan, TargetPlan,
};
pub use model_plan::{DiffusionPlan, Media, MediaAttention, MediaPositions, Plan, Pooling};
pub use parameters::parameters;
pub use placement::{DeviceOverride, DeviceShare, PROCESSOR};
pub use tensor_set::TensorSet;
pub use unit_plan::{
    AdapterUpdatePlan, ContractRef, KeyValuePlan, PooledPlan, StatePart, StatePlan, TensorPlan,
    Unit,
};

use error::SHOWN;

/// Maximum number of layers, so that a hostile file cannot exhaust memory.
const MAX_LAYERS: u64 = 4096;
