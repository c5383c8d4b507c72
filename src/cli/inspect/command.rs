//! The command `bench inspect`: its options and its output.

use clap::Args as ClapArgs;

use super::super::model::ModelArg;
use super::super::options::LoadOptions;
use super::super::{Failure, output};
use super::{ParallelOption, findings, json, text};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Args {
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

pub(in crate::cli) fn run(args: &Args) -> Result<(), Failure> {
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
