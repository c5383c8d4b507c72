//! The options of the command, and the cases that they define.

use clap::Args as ClapArgs;

use super::super::model::ModelArg;
use super::super::options::LoadOptions;
use super::super::values::{positive, some_tokens, tokens};
use super::passes::DecodeCase;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    pub(super) model: ModelArg,
    /// Prefill: prompt lengths in tokens, 1 or more
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "128,512",
        value_parser = some_tokens,
        value_name = "N,...",
        visible_alias = "n-prompt"
    )]
    pub(super) prompt: Vec<usize>,
    /// Decode: number of tokens per sequence, 1 or more
    #[arg(short, long = "n-gen", default_value = "32", value_name = "N", value_parser = some_tokens)]
    n: usize,
    /// Decode: numbers of tokens in the KV cache before decoding starts, 0 or more
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "0",
        value_parser = tokens,
        value_name = "N,..."
    )]
    pub(super) depth: Vec<usize>,
    /// Decode: numbers of sequences in a batch, 1 or more
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "1",
        value_parser = positive,
        value_name = "N,..."
    )]
    sequences: Vec<usize>,
    /// Numbers of threads to measure one after another, 1 or more; default: that of --threads
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = positive)]
    pub(super) thread_counts: Vec<usize>,
    /// Number of measured repetitions, 1 or more; one more runs first to warm up
    #[arg(short, long, default_value = "3", value_name = "N", value_parser = positive)]
    pub(super) repeat: usize,
    /// Also time every operation by itself, on one thread, and report the time of each block
    #[arg(long)]
    pub(super) profile: bool,
    /// Also measure the serving engine: one greedy request for each sequence, with sampler and detokeniser, without
    /// HTTP
    #[arg(long)]
    pub(super) requests: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) load: LoadOptions,
}

impl Args {
    pub(super) fn decode(&self) -> impl Iterator<Item = DecodeCase> {
        let of_depth = move |&depth: &usize| {
            let case = move |&sequences: &usize| DecodeCase {
                depth,
                sequences,
                n: self.n,
            };
            self.sequences.iter().map(case)
        };
        self.depth.iter().flat_map(of_depth)
    }

    /// Number of positions of the longest sequence.
    pub(super) fn longest(&self) -> usize {
        let deepest = self.depth.iter().max().copied().unwrap_or(0);
        let prompt = self.prompt.iter().max().copied().unwrap_or(1);
        prompt.max(deepest.max(1).saturating_add(self.n))
    }

    pub(super) fn most_sequences(&self) -> usize {
        self.sequences.iter().max().copied().unwrap_or(1)
    }
}
