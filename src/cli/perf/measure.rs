//! Measures all cases, for each number of threads.

use super::super::options::{LoadDefaults, local_limits, positions};
use super::super::{Failure, output};
use super::args::Args;
use super::passes::{DecodeMeasurement, PrefillMeasurement};
use super::profile;
use super::report::{PerfReport, ThreadMeasurements};
use super::requests::RequestMeasurement;
use lab_base::util::measure::read_bandwidth;
use lab_core::engine::Limits;
use lab_core::model::Options;
use lab_server::served::ServedModel;

/// Number of source tokens of every sequence, if the model reads a source.
const N_SOURCE: usize = 64;

pub(in crate::cli) fn run(args: &Args) -> Result<(), Failure> {
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
    let mut row = ThreadMeasurements {
        n_threads,
        bandwidth,
        prefill: Vec::new(),
        decode: Vec::new(),
        requests: Vec::new(),
        profiles: Vec::new(),
    };
    for &n in &args.prompt {
        row.prefill
            .push(PrefillMeasurement::measure(&mut model, n, args.repeat)?);
    }
    for case in args.decode() {
        row.decode
            .push(DecodeMeasurement::measure(&mut model, case, args.repeat)?);
    }
    let longest = args.prompt.iter().max().copied();
    if let Some(longest) = longest.filter(|_| args.profile) {
        row.profiles.push(profile::prefill(&mut model, longest)?);
        let deepest = args.depth.iter().max().copied();
        for case in args.decode().filter(|case| Some(case.depth) == deepest) {
            row.profiles.push(profile::decode(&mut model, case)?);
        }
    }
    let memory = model.memory();
    report.cache_bytes = memory.cache;
    report.compute_bytes = memory.compute;
    report.resident_bytes = resident_bytes();
    drop(model);
    if args.requests {
        row.requests = through_engine(args, n_threads)?;
    }
    report.threads.push(row);
    Ok(())
}

/// Measures decoding through the engine, with a model that is loaded for it.
fn through_engine(args: &Args, n_threads: usize) -> Result<Vec<RequestMeasurement>, Failure> {
    let mut opened = args.load.open(&args.model.source()?)?;
    let mut options = resolve(args, &opened)?;
    options.n_threads = n_threads;
    args.load.place(&mut opened, &options)?;
    let limits = Limits {
        n_ctx: options.n_ctx_seq,
        n_prefill: options.n_ctx_seq,
        ..local_limits(&options, options.n_seqs)
    };
    let served = ServedModel::start(opened, options, limits, Box::new(|_, _| {}))?;
    args.decode()
        .map(|case| RequestMeasurement::measure(&served, case, args.repeat))
        .collect()
}

/// The options of the model, with capacity for the largest case.
fn resolve(args: &Args, opened: &lab_core::models::OpenedModel) -> Result<Options, Failure> {
    let (longest, sequences) = (args.longest(), args.most_sequences());
    let n_source = if opened.plan.source.is_some() {
        N_SOURCE
    } else {
        0
    };
    let each = longest.saturating_add(1 + n_source);
    let needed = each
        .saturating_mul(sequences)
        .checked_next_multiple_of(256)
        .unwrap_or(usize::MAX);
    let widest = args.prompt.iter().copied().chain(args.depth.clone());
    let n_batch = widest
        .max()
        .unwrap_or(1)
        .clamp(1, Options::N_BATCH)
        .max(sequences)
        .max(n_source);
    let defaults = LoadDefaults {
        max_ctx: Some(needed),
        n_batch,
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
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}
