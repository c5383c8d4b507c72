//! `bench batch`: answers the requests of a file, many at a time, and adds the results to another one.
//!
//! Lines have the form of OpenAI's batches; each request takes the way of one over HTTP. Invariant: the output has whole
//! lines, and a request whose result it has is not answered again.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args as ClapArgs;
use futures_util::stream::{self, StreamExt};
use serde_json::Value;

use lab_base::util::appended_lines::cut_partial_line;
use lab_core::models::ModelSource;
use lab_server::served::ServedModel;
use lab_server::{BatchRequest, Pool, Strictness, checked_lines, local_client};

use super::Failure;
use super::hub::model_source;
use super::options::{LoadDefaults, LoadOptions, count_bar, local_limits, start_engine};
use super::output::{AppendedFile, at};
use super::serve::{n_ctx_of, shared_options};
use super::values::{byte_count, positive};

/// Number of fields without effect that are named.
const SHOWN: usize = 20;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// File with requests, one per line: objects with `custom_id`, `method`, `url` and `body`, as in OpenAI's batches
    #[arg(value_name = "IN.jsonl")]
    input: PathBuf,
    /// File to which the results are added as they come, one per line; requests whose results it has are not answered
    /// again
    #[arg(value_name = "OUT.jsonl", required_unless_present = "out")]
    output: Option<AppendedFile>,
    /// The file for the results, in place of the second argument
    #[arg(
        short,
        long = "output",
        value_name = "OUT.jsonl",
        conflicts_with = "output"
    )]
    out: Option<AppendedFile>,
    /// The model: a file, a folder, a name OWNER/REPO[:QUANT][@REVISION] of the Hugging Face Hub, tiny-chat or
    /// tiny-diffusion; default: tiny-chat, which is built in
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Maximum number of sequences in a batch, 1 or more; each has the full context length (`--ctx`)
    #[arg(
        long,
        default_value = "8",
        value_name = "N",
        value_parser = positive,
        alias = "max-num-seqs"
    )]
    parallel: usize,
    /// Size of the KV cache that all requests share, in bytes, such as 512M or 4G; default: a whole context for each
    /// sequence, as far as memory allows
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    cache: Option<u64>,
    /// Print errors only: neither progress nor the number of results
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    load: LoadOptions,
}

/// What became of the requests that were answered.
#[derive(Default)]
struct Outcome {
    n_failed: usize,
    /// The fields of their bodies without effect.
    ignored: BTreeSet<String>,
}

/// The names of fields without effect, at most [`SHOWN`] of them, as the end of a line.
fn without_effect(names: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    match (shown.join(", "), names.len().saturating_sub(SHOWN)) {
        (shown, _) if shown.is_empty() => shown,
        (shown, 0) => format!("; fields without effect: {shown}"),
        (shown, n) => format!("; fields without effect: {shown}, and {n} more"),
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let output_path = args.out.as_ref().or(args.output.as_ref());
    let output_path: &Path = output_path.context("OUT.jsonl is missing")?;
    let open = || File::open(&args.input).map(BufReader::new);
    let requests = checked_lines(open);
    let mut requests = requests.map_err(|error| at(&args.input, Failure::msg(error)))?;
    let n_all = requests.len();
    let (mut output, known) = results(output_path).map_err(|error| at(output_path, error))?;
    requests.retain(|request| !known.0.contains(&request.custom_id));
    let n_new = requests.len();
    let mut outcome = Outcome::default();
    if n_new > 0 {
        let source = model_source(args.model.as_deref())?;
        let served = start(args, &source)?;
        let n_parallel = served.handle.limits().n_parallel;
        let pool = Arc::new(Pool::of_engine(served, source, Strictness::default()));
        outcome = answer(args.quiet, pool, requests, n_parallel, |line| {
            let written = output.write_all(format!("{line}\n").as_bytes());
            written.map_err(|error| at(output_path, error))
        })?;
    }
    let n_failed = known.1 + outcome.n_failed;
    if !args.quiet {
        let n_known = n_all - n_new;
        let line = format!(
            "[{n_all} requests: {n_new} answered now, {n_known} before, {n_failed} failed{}]",
            without_effect(&outcome.ignored)
        );
        writeln!(io::stderr().lock(), "{line}")?;
    }
    match n_failed {
        0 => Ok(()),
        n => Err(anyhow::anyhow!(
            "{n} of {n_all} requests failed; {} says why",
            output_path.display()
        )),
    }
}

/// The file of results, the ids that it has, and how many of them are failures. A line that is not whole is cut off.
fn results(path: &Path) -> Result<(File, (HashSet<String>, usize)), Failure> {
    let options = File::options().read(true).append(true).create(true).clone();
    let mut file = options.open(path)?;
    cut_partial_line(&mut file)?;
    let (mut ids, mut n_failed) = (HashSet::new(), 0);
    for (i, line) in BufReader::new(File::open(path)?).lines().enumerate() {
        let line = line?;
        let result: Option<Value> = serde_json::from_str(&line).ok();
        let id = result
            .as_ref()
            .and_then(|result| result["custom_id"].as_str());
        let Some((id, result)) = id.zip(result.as_ref()) else {
            anyhow::bail!("line {}: expected a result with `custom_id`", i + 1);
        };
        if ids.insert(id.to_owned()) && result["response"]["status_code"] != 200 {
            n_failed += 1;
        }
    }
    Ok((file, (ids, n_failed)))
}

fn start(args: &Args, source: &ModelSource) -> Result<ServedModel, Failure> {
    let mut opened = args.load.open(source)?;
    let (defaults, load) = (LoadDefaults::LOCAL, &args.load);
    let options = shared_options(load, &opened, defaults, args.parallel, args.cache)?;
    let mut limits = local_limits(&options, options.n_seqs);
    limits.n_ctx = n_ctx_of(&options);
    args.load.place(&mut opened, &options)?;
    start_engine(opened, options, limits, args.quiet)
}

/// Answers requests, and gives their results to `write`, one line each.
fn answer(
    is_quiet: bool,
    pool: Arc<Pool>,
    requests: Vec<BatchRequest>,
    n_parallel: usize,
    mut write: impl FnMut(&Value) -> Result<(), Failure>,
) -> Result<Outcome, Failure> {
    let runtime = tokio::runtime::Runtime::new()?;
    let client = local_client(pool)?;
    let bar = count_bar(requests.len() as u64, is_quiet);
    let mut outcome = Outcome::default();
    runtime.block_on(async {
        let answered = |request: BatchRequest| request.answered(&client, "");
        let mut results =
            stream::iter(requests.into_iter().map(answered)).buffer_unordered(n_parallel);
        while let Some(result) = results.next().await {
            outcome.n_failed += usize::from(!result.is_ok);
            let names = result.ignored.iter().flat_map(|names| names.split(", "));
            outcome.ignored.extend(names.map(str::to_owned));
            write(&result.line)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(outcome)
    })
}
