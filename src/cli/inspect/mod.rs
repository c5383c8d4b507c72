//! `bench inspect`: what a model is, which resources it needs and what it can do on this machine.
//!
//! Nothing is loaded: everything follows from the header of the file, the plan, and the steps of loading that need no
//! memory. A finding that is not possible is reported with the reason, and does not suppress the others.

mod command;
mod findings;
mod json;
mod text;

pub(super) use command::{Args, run};
pub(super) use findings::{
    Findings, ParallelOption, PlanFindings, TensorSizes, cache_bytes, cache_types_text, findings,
    tokenizer_text,
};

use findings::{CONTEXTS, ContextMemory};
