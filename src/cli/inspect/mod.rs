//! `bench inspect`: what a model is, what it takes and what it can do here.
//!
//! Nothing is loaded: everything follows from the header of the file, the plan, and the steps of loading
//! that take no memory. What cannot be found out is said, with the reason, and does not keep the rest from
//! being shown.

mod command;
mod findings;
mod gather;
mod json;
mod planning;
mod text;

pub(super) use command::{Args, run};
pub(super) use findings::{Findings, Planned};
pub(super) use gather::findings;
pub(super) use planning::cache_bytes;

use findings::Context;
use planning::CONTEXTS;
