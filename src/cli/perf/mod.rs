//! `bench perf`: the speeds of prefill and decode, measured separately, over prompt lengths, depths, sequences and
//! threads; the bandwidth of the machine's memory as their bound; and decoding through the engine.

mod args;
mod measure;
mod passes;
mod profile;
mod report;
mod requests;

pub(super) use args::Args;
pub(super) use measure::run;

use super::Failure;
