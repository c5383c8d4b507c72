//! Requests to tokens: one thread that owns the model, and the handle through which other threads reach it.
//!
//! The engine thread is the only one that calls ggml. A request goes in over a queue that permits bound, its events come
//! back over its own channel. Dropping the receiver cancels the request within one step. One loop
//! (`engine_loop/mod.rs`) admits, runs, retries and ends requests. A strategy (`strategy.rs`) finds the tokens: autoregressive decoding with
//! draft tokens and constraints, contrastive search, text diffusion. Pooling, the fourth, reads texts and returns hidden
//! states. Nothing here knows HTTP.

mod adapters;
mod answer_stream;
mod autoregressive;
mod capabilities;
mod client;
mod compute;
mod constraint;
mod contrastive;
mod diffusion;
mod diffusion_options;
mod draft;
mod engine_loop;
mod event;
mod event_sender;
mod handle;
mod kv_events;
mod lab;
mod lab_result;
mod limits;
mod pooled_output;
mod pooling;
mod prefix_order;
mod prefix_store;
mod recorder;
mod rejected;
mod remasking;
mod request;
mod scheduler;
mod sequence;
mod slots;
mod start;
pub mod stats;
mod strategy;
mod submission;
#[cfg(test)]
mod tests;
mod thinking;

pub use adapters::{Adapters, EngineAdapter};
pub use capabilities::{Unsupported, can_answer, can_pool, can_roll_back, ends_in_vectors};
pub use client::Client;
pub use diffusion_options::{DiffusionOptions, FixedToken};
pub use draft::{DraftCounts, DraftLimits, DraftOptions, DraftTotals, DrafterKind, N_DRAFTERS};
pub use event::{
    AnswerToken, Event, Events, Failure, FinishReason, PromptProgress, StopMatch, Usage,
};
pub use handle::Handle;
pub use kv_events::{KvEventBatch, KvEventSender, kv_event_channel};
pub use lab::{
    Attribution, AttributionUnit, Capture, Edit, EditOp, EditVector, LabPlan, Lens,
    PositionSelector, Reduction,
};
pub use lab_result::{
    AttributionResult, CapturedPoint, LabResult, LensPoint, LensRow, MediumRow, MediumRowSource,
    MediumRows, OfMedium,
};
pub use limits::Limits;
pub use pooled_output::PooledOutput;
pub use pooling::Passage;
pub use prefix_order::SlotError;
pub use prefix_store::{PrefixStoreOptions, StoreCounts};
pub use rejected::Rejected;
pub use remasking::Remasking;
pub use request::{Request, StopConditions};
pub use slots::{SlotFailure, SlotFile};
pub use start::{LoadedModel, StartError, start};
pub use thinking::Thinking;

pub use lab_sampling::TokenLogprob;
