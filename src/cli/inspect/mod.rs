//! `bench inspect`: what a model is, which resources it needs and what it can do on this machine.
//!
//! Nothing is loaded: everything follows from the header of the file, the plan, and the steps of loading that need no
//! memory. A finding that is not possible is reported with the reason, and does not suppress the others.

mod findings;
mod json;
mod text;

use clap::Args as ClapArgs;

use super::options::{LoadOptions, ModelArg};
use super::sequences::ParallelOption;
use super::{Failure, output};

pub(super) use findings::{
    Findings, PlanFindings, TensorSizes, cache_bytes, cache_types_text, findings, tokenizer_text,
};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show every key of the metadata and every tensor
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    sequences: ParallelOption,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let found = findings(&args.model.source()?, &args.sequences, &args.load)?;
    match args.json {
        true => output::json(&json::of(&found))?,
        false => output::bytes(text::of(&found, args.all).as_bytes())?,
    }
    if !args.load.model.opening.definitions()?.strict {
        return Ok(());
    }
    let planned = found.planned.as_ref();
    let planned = planned.map_err(|error| anyhow::anyhow!("{error}"))?;
    let unread = [found.unread.as_slice(), &planned.plan.unclaimed].concat();
    if !unread.is_empty() {
        let (arch, names) = (&planned.plan.arch, unread.join(", "));
        anyhow::bail!("the definition `{arch}` does not read {names}");
    }
    Ok(())
}
