//! The command `bench inspect`: its options and its output.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::super::options::LoadOptions;
use super::super::{Failure, output};
use super::{findings, json, text};
use crate::files::models::Source;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Args {
    /// The model: a file or folder; default: tiny-chat, which is built in
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show every key of the metadata and every tensor
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    load: LoadOptions,
}

pub(in crate::cli) fn run(args: &Args) -> Result<(), Failure> {
    let found = findings(&Source::of(args.file.as_deref()), &args.load)?;
    match args.json {
        true => output::line(serde_json::to_string_pretty(&json::of(&found))?)?,
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
