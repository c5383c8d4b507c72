//! `bench perf`: prefill and decode speed, apart, with the machine's memory bandwidth beside them.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args as ClapArgs;
use serde_json::json;

use crate::model::{Batch, Model};
use crate::models::Source;
use crate::weights::TensorType;

use super::options::{Defaults, LoadOptions};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The model; default: the one built in
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Prompt lengths
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "128,512",
        value_name = "N,..."
    )]
    prompt: Vec<usize>,
    /// Tokens decoded one by one
    #[arg(short, default_value_t = 32, value_name = "N")]
    n: usize,
    /// Repetitions; the fastest counts
    #[arg(short, long, default_value_t = 3, value_name = "N")]
    repeat: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let opened = args.load.open(&Source::of(args.model.as_deref()))?;
    let (name, weight_bytes) = (opened.name.clone(), opened.plan.weight_bytes());
    let longest = args.prompt.iter().copied().max().unwrap_or(1).max(1);
    let needed = (longest.max(args.n) + 1).next_multiple_of(256);
    let defaults = Defaults {
        kv_type: TensorType::F16,
        flash_attn: true,
        max_ctx: needed,
        n_batch: longest.min(512),
    };
    let mut options = args.load.resolve(&opened, defaults);
    options.n_ctx = args.load.ctx.unwrap_or(needed);
    let (n_threads, n_batch) = (options.n_threads, options.n_batch);
    // Before the model is there, so that the peak of the process is the model's.
    let bandwidth = memory_bandwidth(n_threads);
    let mut model = args.load.load(opened, options)?;
    let repeat = args.repeat.max(1);

    let mut prefill = Vec::new();
    for &n in &args.prompt {
        let seconds = best(repeat, || pass(&mut model, n.max(1), n_batch))?;
        prefill.push((n, n as f64 / seconds));
    }
    let seconds = best(repeat, || pass(&mut model, args.n.max(1), 1))?;
    let decode = args.n.max(1) as f64 / seconds;
    let memory = model.memory();
    let resident = resident_bytes();

    if args.json {
        let prefill: Vec<_> = prefill
            .iter()
            .map(|(n, speed)| json!({ "tokens": n, "tokens_per_second": speed }))
            .collect();
        return output::line(serde_json::to_string_pretty(&json!({
            "model": name,
            "threads": n_threads,
            "prefill": prefill,
            "decode": { "tokens": args.n, "tokens_per_second": decode },
            "weight_bytes": weight_bytes,
            "bandwidth_bytes_per_second": bandwidth,
            "decode_share_of_bandwidth": decode * weight_bytes as f64 / bandwidth,
            "cache_bytes": memory.cache,
            "compute_bytes": memory.compute,
            "resident_bytes": resident,
        }))?);
    }
    let mut text = format!("{name}, {n_threads} threads\n");
    for (n, speed) in prefill {
        text.push_str(&format!("prefill {n:5} tokens: {speed:9.2} tokens/s\n"));
    }
    text.push_str(&format!(
        "decode  {:5} tokens: {decode:9.2} tokens/s\n",
        args.n
    ));
    text.push_str(&format!(
        "memory bandwidth {}/s, of which decoding reads weights at {:.0} %\n",
        output::size(bandwidth as u64),
        100.0 * decode * weight_bytes as f64 / bandwidth
    ));
    text.push_str(&format!(
        "cache {}, scratch {}, resident {}\n",
        output::size(memory.cache),
        output::size(memory.compute),
        resident.map_or("unknown".into(), output::size)
    ));
    output::bytes(text.as_bytes())
}

/// Seconds of the fastest of `repeat` runs, after one that warms up.
fn best(repeat: usize, mut run: impl FnMut() -> Result<f64, Failure>) -> Result<f64, Failure> {
    run()?;
    let mut fastest = f64::INFINITY;
    for _ in 0..repeat {
        fastest = fastest.min(run()?);
    }
    Ok(fastest)
}

/// Seconds for `n` tokens from an empty cache, `at_once` in a pass, logits for the last of each.
fn pass(model: &mut Model, n: usize, at_once: usize) -> Result<f64, Failure> {
    model.forget(0, 0);
    let n_vocab = model.plan().n_vocab as usize;
    let mut batch = Batch::default();
    let start = Instant::now();
    for first in (0..n).step_by(at_once) {
        let end = (first + at_once).min(n);
        batch.clear();
        for i in first..end {
            batch.push((i * 7 % n_vocab) as u32, 0, i as u32, i + 1 == end);
        }
        model.forward(&batch)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Bytes per second that `n_threads` threads read from memory, all together.
fn memory_bandwidth(n_threads: usize) -> f64 {
    const WORDS: usize = 1 << 23; // 64 MiB for each thread, beyond any cache
    let data: Vec<Vec<u64>> = (0..n_threads).map(|i| vec![i as u64; WORDS]).collect();
    let mut fastest = f64::INFINITY;
    for _ in 0..4 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in &data {
                scope.spawn(|| {
                    let sum = part.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
                    std::hint::black_box(sum);
                });
            }
        });
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    (n_threads * WORDS * size_of::<u64>()) as f64 / fastest
}

/// Bytes of memory that the process holds; `None` where the system does not say.
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
