//! For how many sequences commands that load nothing plan memory.

use clap::Args;

use lab_core::model::Options;
use lab_core::models::OpenedModel;

use super::Failure;
use super::options::{LoadDefaults, LoadOptions};
use super::serve::{CHECKPOINTS, shared_options};
use super::values::positive;

/// For how many sequences the memory is planned.
#[derive(Debug, Args)]
pub(super) struct ParallelOption {
    /// Number of sequences at the same time for which the memory is computed; above 1, as `bench serve` runs them
    #[arg(
        long,
        default_value = "1",
        value_name = "N",
        value_parser = positive,
        alias = "max-num-seqs"
    )]
    parallel: usize,
}

impl ParallelOption {
    /// The options with which the model runs: those of one local user, or those of a server.
    ///
    /// # Errors
    /// The model cannot run with the options.
    pub(super) fn resolve(
        &self,
        load: &LoadOptions,
        opened: &OpenedModel,
    ) -> Result<Options, Failure> {
        let defaults = LoadDefaults::LOCAL;
        match self.parallel {
            1 => load.resolve(opened, defaults),
            n => Ok(Options {
                n_checkpoints: CHECKPOINTS,
                ..shared_options(load, opened, defaults, n, None)?
            }),
        }
    }
}

/// The room of a model in words: the length of each sequence, their number, and what they share.
pub(super) fn room_text(options: &Options) -> String {
    let (each, n) = (options.n_ctx_seq, options.n_seqs);
    if n == 1 {
        return format!("a context of {each} tokens");
    }
    let text = format!("a context of {each} tokens for each of {n} sequences");
    match options.n_ctx {
        0 => format!("{text}, of which none is kept"),
        shared if shared < each.saturating_mul(n) => {
            format!("{text}, which share a cache of {shared} tokens")
        }
        _ => text,
    }
}
