//! `bench perf`: the speeds of prefill and decode, measured separately, over prompt lengths, depths, sequences and
//! threads; the bandwidth of the machine's memory as their bound; and decoding through the engine, with draft tokens and without.

mod passes;
mod profile;
mod report;
mod requests;

use clap::Args as ClapArgs;

use lab_base::util::measure::read_bandwidth;
use lab_core::engine::{Limits, PrefixStoreOptions};
use lab_core::model::Options;
use lab_core::models::OpenedModel;
use lab_server::served::ServedModel;

use super::options::{LoadDefaults, LoadOptions, ModelArg, local_limits, positions};
use super::values::{positive, some_tokens, tokens};
use super::{Failure, output};
use passes::{DecodeCase, DecodeMeasurement, PrefillCase, PrefillMeasurement};
use report::{PerfReport, ThreadMeasurements};
use requests::{DraftMeasurement, RequestMeasurement};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
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
    prompt: Vec<usize>,
    /// Prefill: numbers of prompts that are read together, 1 or more
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,...", value_parser = positive)]
    prompts: Vec<usize>,
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
    depth: Vec<usize>,
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
    thread_counts: Vec<usize>,
    /// Number of measured repetitions, 1 or more; one more runs first to warm up
    #[arg(short, long, default_value = "3", value_name = "N", value_parser = positive)]
    repeat: usize,
    /// Also time every operation by itself, on one thread, and report the time of each block
    #[arg(long)]
    profile: bool,
    /// Also measure the serving engine: one greedy request for each sequence, with sampler and detokeniser, without
    /// HTTP
    #[arg(long)]
    requests: bool,
    /// Also measure draft tokens, at most so many of a sequence per step, through the serving engine: completions of random tokens,
    /// of the most probable ones, and of one token over and over, with drafts and without
    #[arg(long, value_name = "N", value_parser = positive)]
    draft: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
}

impl Args {
    fn decode(&self) -> impl Iterator<Item = DecodeCase> {
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

    fn prefill(&self) -> impl Iterator<Item = PrefillCase> {
        let of_length = move |&n: &usize| {
            let case = move |&prompts: &usize| PrefillCase { prompts, n };
            self.prompts.iter().map(case)
        };
        self.prompt.iter().flat_map(of_length)
    }

    /// Number of positions of the longest sequence.
    fn longest(&self) -> usize {
        let deepest = self.depth.iter().max().copied().unwrap_or(0);
        let prompt = self.prompt.iter().max().copied().unwrap_or(1);
        prompt.max(deepest.max(1).saturating_add(self.n))
    }

    fn most_sequences(&self) -> usize {
        let counts = self.sequences.iter().chain(&self.prompts);
        counts.max().copied().unwrap_or(1)
    }
}

/// Number of source tokens of every sequence, if the model reads a source.
const N_SOURCE: usize = 64;

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut report = PerfReport::default();
    let counts = match args.thread_counts.as_slice() {
        [] => vec![None],
        counts => counts.iter().copied().map(Some).collect(),
    };
    for count in counts {
        measure(args, count, &mut report)?;
    }
    if args.json {
        return output::json(&report.to_json());
    }
    output::bytes(report.to_text().as_bytes())
}

fn measure(args: &Args, n_threads: Option<usize>, report: &mut PerfReport) -> Result<(), Failure> {
    let opened = args.load.open(&args.model.source()?)?;
    report.model.clone_from(&opened.name);
    report.weight_bytes = opened.plan.weight_bytes();
    let mut options = resolve(args, &opened)?;
    if let Some(n) = n_threads {
        options.n_threads = n;
    }
    let n_threads = options.n_threads;
    // Measured before the model is loaded, so that the process's peak memory is the model's.
    let bandwidth = read_bandwidth(n_threads);
    let mut model = args.load.load(opened, options)?;
    if model.reads_source() {
        model.set_default_source(&[0; N_SOURCE])?;
    }
    let (mut prefill, mut decode, mut profiles) = (Vec::new(), Vec::new(), Vec::new());
    for case in args.prefill() {
        prefill.push(PrefillMeasurement::measure(&mut model, case, args.repeat)?);
    }
    for case in args.decode() {
        decode.push(DecodeMeasurement::measure(&mut model, case, args.repeat)?);
    }
    let longest = args.prompt.iter().max().copied();
    if let Some(longest) = longest.filter(|_| args.profile) {
        profiles.push(profile::prefill(&mut model, longest)?);
        let deepest = args.depth.iter().max().copied();
        for case in args.decode().filter(|case| Some(case.depth) == deepest) {
            profiles.push(profile::decode(&mut model, case)?);
        }
    }
    let memory = model.memory();
    report.cache_bytes = memory.cache;
    report.compute_bytes = memory.compute;
    report.resident_bytes = resident_bytes();
    drop(model);
    let (requests, drafts) = through_engine(args, n_threads)?;
    report.threads.push(ThreadMeasurements {
        n_threads,
        bandwidth,
        prefill,
        decode,
        requests,
        drafts,
        profiles,
    });
    Ok(())
}

/// Measures decoding through the engine, with a model that is loaded for it.
fn through_engine(
    args: &Args,
    n_threads: usize,
) -> Result<(Vec<RequestMeasurement>, Vec<DraftMeasurement>), Failure> {
    let (mut requests, mut drafts) = (Vec::new(), Vec::new());
    if !args.requests && args.draft.is_none() {
        return Ok((requests, drafts));
    }
    let mut opened = args.load.open(&args.model.source()?)?;
    let mut options = resolve(args, &opened)?;
    options.n_threads = n_threads;
    args.load.place(&mut opened, &options)?;
    let limits = Limits {
        n_ctx: options.n_ctx_seq,
        n_prefill: options.n_ctx_seq,
        ..local_limits(&options, options.n_seqs)
    };
    let served = ServedModel::start(
        opened,
        options,
        limits,
        PrefixStoreOptions::default(),
        Box::new(|_, _| {}),
    )?;
    for case in args.decode() {
        if args.requests {
            requests.push(RequestMeasurement::measure(&served, case, args.repeat)?);
        }
        if let Some(n) = args.draft {
            drafts.extend(DraftMeasurement::measure_all(
                &served,
                case,
                args.repeat,
                n,
            )?);
        }
    }
    Ok((requests, drafts))
}

/// The options of the model, with capacity for the largest case.
fn resolve(args: &Args, opened: &OpenedModel) -> Result<Options, Failure> {
    let (longest, sequences) = (args.longest(), args.most_sequences());
    let n_source = opened.plan.source.as_ref().map_or(0, |_| N_SOURCE);
    let each = longest.saturating_add(1 + n_source);
    let needed = each.saturating_mul(sequences).checked_next_multiple_of(256);
    let needed = needed.unwrap_or(usize::MAX);
    let widest = args.prompt.iter().chain(&args.depth).copied().max();
    let most = |most: usize| {
        widest
            .unwrap_or(1)
            .clamp(1, most)
            .max(sequences)
            .max(n_source)
    };
    let defaults = LoadDefaults {
        max_ctx: Some(needed),
        n_batch: most(Options::N_BATCH),
        n_batch_on_devices: most(Options::N_BATCH_ON_DEVICES),
        ..LoadDefaults::LOCAL
    };
    if let Some(most) = positions(&opened.plan).filter(|most| longest > *most) {
        anyhow::bail!(
            "sequences of {longest} tokens (-p, -n, -d): `{}` has a table of {most} positions; expected at most {most}",
            opened.name
        );
    }
    let mut options = args.load.resolve(opened, defaults)?;
    options.n_ctx = args.load.context(&opened.plan).unwrap_or(needed);
    options.n_ctx_seq = each;
    options.n_seqs = sequences;
    Ok(options)
}

/// Resident bytes of the process; `None` if the system does not report them.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let n = line.trim().strip_suffix("kB")?.trim();
    n.parse::<u64>().ok()?.checked_mul(1024)
}
