//! `bench compare`: finds the first value in which two models, two execution paths, or a model and
//! values that another engine computed differ.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::json;

use lab_base::weights::TensorType;
use lab_core::model::NamedValue;
use lab_core::models::ModelSource;
use lab_inspect::compare::{
    PassOptions, ValueComparison, ValueDifference, compare_values, divergence, read_dump,
    record_values,
};

use super::options::{LoadDefaults, LoadOptions, SourceTokens, TwoModels};
use super::values::cache_type;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Model A, computed in one pass; by default with an f32 KV cache and without flash attention; default: tiny-chat,
    /// which is built in
    #[arg(value_name = "A")]
    a: Option<PathBuf>,
    /// Model B; default: A, for another path or definition
    #[arg(value_name = "B")]
    b: Option<PathBuf>,
    #[command(flatten)]
    named: TwoModels,
    /// Token ids, separated by commas
    #[arg(long, value_delimiter = ',', required = true, value_name = "IDS")]
    tokens: Vec<u32>,
    /// Definition with which B is computed, whatever architecture the file names: a name or a file (NAME.arch.toml);
    /// given twice, those of A and B
    #[arg(long, value_name = "DEF")]
    arch: Vec<String>,
    #[command(flatten)]
    source: SourceTokens,
    /// Execution path of B: `chunk=N` tokens per pass, `stateless` (no cache), `flash` (flash attention),
    /// `cache=TYPE` or `cache=KEYS/VALUES` (types of the KV cache), `devices` (only B has layers on other devices
    /// than the CPU), `plain` (float64 reference implementation of every operation, slow); several separated by
    /// commas
    #[arg(long, value_delimiter = ',', value_name = "PATH", value_parser = parse_path_option)]
    path: Vec<PathOption>,
    /// Folder of float32 arrays NAME.npy to use as B, named by value paths (layers.3.attn.q) or llama.cpp's names
    #[arg(long, value_name = "DIR", conflicts_with_all = ["b", "path"])]
    dump: Option<PathBuf>,
    /// Maximum NMSE (normalised mean squared error) that counts as equal, 0 or more; 0 = equal numbers only
    #[arg(long, default_value_t = 1e-6, value_name = "NMSE")]
    tolerance: f64,
    /// Report only the KL divergence of B's next-token distributions from A's, in nats
    #[arg(long, conflicts_with_all = ["all", "tolerance"])]
    kl: bool,
    /// Show every value instead of stopping at the first that differs
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PathOption {
    Chunk(usize),
    Stateless,
    Flash,
    /// Types of keys and values in the KV cache.
    Cache(TensorType, TensorType),
    /// Layers of B are on other devices; those of A are all on the CPU.
    Devices,
    /// The reference implementation by plain loops computes.
    Plain,
}

pub(super) fn parse_path_option(text: &str) -> Result<PathOption, String> {
    match text.split_once('=') {
        None if text == "stateless" => Ok(PathOption::Stateless),
        None if text == "flash" => Ok(PathOption::Flash),
        None if text == "devices" => Ok(PathOption::Devices),
        None if text == "plain" => Ok(PathOption::Plain),
        Some(("chunk", n)) => match n.parse() {
            Ok(n) if n > 0 => Ok(PathOption::Chunk(n)),
            _ => Err(format!("`{n}` is not a number of tokens")),
        },
        Some(("cache", types)) => {
            let (k, v) = types.split_once('/').unwrap_or((types, types));
            Ok(PathOption::Cache(cache_type(k)?, cache_type(v)?))
        }
        _ => Err(
            "expected chunk=N, stateless, flash, cache=TYPE, cache=KEYS/VALUES, devices or plain"
                .into(),
        ),
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut steps = args.path.iter();
    let is_reference = steps.any(|step| matches!(step, PathOption::Devices));
    let (arch_a, arch_b) = match args.arch.as_slice() {
        [] => (None, None),
        [b] if args.dump.is_none() => (None, Some(b)),
        [a] => (Some(a), None),
        [a, b] if args.dump.is_none() => (Some(a), Some(b)),
        _ => anyhow::bail!("--arch: expected a definition for each of A and B that is computed"),
    };
    let (model_a, model_b) = args.named.of([args.a.as_ref(), args.b.as_ref()])?;
    if args.dump.is_some() && model_b.is_some() {
        anyhow::bail!("--dump: it is B, and there is a second model");
    }
    let a = values(args, (&model_a, arch_a), &[], !is_reference)?;
    let b = match &args.dump {
        Some(folder) => read_dump(folder)?,
        None => {
            let model = model_b.as_ref().unwrap_or(&model_a);
            values(args, (model, arch_b), &args.path, true)?
        }
    };
    if args.kl {
        return kl(args, &a, &b);
    }
    let report = compare_values(&a, &b, args.tolerance);
    if report.values.is_empty() {
        anyhow::bail!("A and B have no value in common");
    }
    if args.json {
        output::json(&to_json(&report, args.tolerance))?;
    } else {
        output::line(to_text(&report, args))?;
    }
    match report.divergence(args.tolerance) {
        Some(found) => anyhow::bail!(
            "A and B differ; the first value that differs is `{}`",
            found.path
        ),
        None => Ok(()),
    }
}

/// Reports the KL divergence of B's next-token distributions from A's.
fn kl(args: &Args, a: &[NamedValue], b: &[NamedValue]) -> Result<(), Failure> {
    let Some(found) = divergence(a, b) else {
        anyhow::bail!("A and B have no logits in common");
    };
    // JSON has no infinity: such a number is null.
    match args.json {
        true => output::json(&found),
        false => output::line(found.to_string()),
    }
}

/// The values of a model, under its own or the given definition, on an execution path, with or without layers on other
/// devices.
fn values(
    args: &Args,
    (source, arch): (&ModelSource, Option<&String>),
    path: &[PathOption],
    is_placed: bool,
) -> Result<Vec<NamedValue>, Failure> {
    let mut definitions = args.load.model.opening.definitions()?;
    if let Some(arch) = arch {
        definitions.archs = definitions.archs.only(arch)?;
    }
    let opened = args.load.open_with(source, &definitions)?;
    args.load.model.check(&opened)?;
    let n = args.tokens.len();
    let defaults = LoadDefaults::exact(args.source.n_batch(n));
    let mut options = args.load.resolve(&opened, defaults)?;
    let (chunk, stateless) = (n, false);
    let mut passes = PassOptions { chunk, stateless };
    options.n_ctx = (args.source.len() + n).next_multiple_of(256);
    if args.load.context(&opened.plan).is_none() {
        options.n_ctx_seq = n;
    }
    options.capture = true;
    for step in path {
        match step {
            PathOption::Chunk(chunk) => passes.chunk = *chunk,
            PathOption::Stateless => passes.stateless = true,
            PathOption::Flash => options.flash_attn = true,
            PathOption::Cache(k, v) => (options.k_type, options.v_type) = (*k, *v),
            PathOption::Devices => {}
            PathOption::Plain => options.plain = true,
        }
    }
    if passes.stateless {
        options.n_ctx = 0;
    }
    let mut model = match is_placed {
        true => args.load.load(opened, options)?,
        false => LoadOptions::load_placed(opened, options)?,
    };
    args.source.set(&mut model)?;
    Ok(record_values(&mut model, &args.tokens, passes)?)
}

fn line(value: &ValueDifference, tolerance: f64) -> String {
    let shape: Vec<String> = value.shape.iter().map(u64::to_string).collect();
    let mut text = format!(
        "{} {:40} {:9.1e}  [{}]",
        if value.nmse > tolerance { "≠" } else { "=" },
        value.path,
        value.nmse,
        shape.join(", ")
    );
    if let (true, Some((at, a, b))) = (value.nmse > tolerance, value.first) {
        let place = index(at, &value.shape);
        text.push_str(&format!("  element {place}: {a} and {b}"));
    }
    text
}

/// The indices of an element, fastest dimension first.
pub(super) fn index(mut at: usize, shape: &[u64]) -> String {
    let mut indices = Vec::with_capacity(shape.len());
    for n in shape {
        indices.push((at % *n as usize).to_string());
        at /= *n as usize;
    }
    format!("[{}]", indices.join(", "))
}

fn to_text(report: &ValueComparison, args: &Args) -> String {
    let mut text = String::new();
    for value in &report.values {
        text.push_str(&line(value, args.tolerance));
        text.push('\n');
        if value.nmse > args.tolerance && !args.all {
            break;
        }
    }
    let worst = report.values.iter().map(|v| v.nmse).fold(0.0, f64::max);
    text.push_str(&format!(
        "{} values compared, {} only on one side; largest NMSE {worst:.1e}",
        report.values.len(),
        report.left_out.len()
    ));
    if args.all {
        for (side, name) in &report.left_out {
            text.push_str(&format!("\nonly in {side}, or in another shape: {name}"));
        }
    }
    text
}

fn to_json(report: &ValueComparison, tolerance: f64) -> serde_json::Value {
    let values = report.values.iter().map(|v| {
        json!({
            "path": v.path, "shape": v.shape, "nmse": v.nmse, "equal": v.nmse <= tolerance,
            "rms_a": v.rms[0], "rms_b": v.rms[1],
        })
    });
    let left_out = report.left_out.iter();
    let left_out = left_out.map(|(side, name)| json!({ "side": side, "name": name }));
    json!({
        "tolerance": tolerance,
        "first_divergence": report.divergence(tolerance).map(|v| v.path.as_str()),
        "values": values.collect::<serde_json::Value>(),
        "left_out": left_out.collect::<serde_json::Value>(),
    })
}
