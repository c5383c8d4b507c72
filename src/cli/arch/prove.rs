//! `bench arch prove`: a model against logits of another program, along every execution path.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;

use crate::cli::options::LoadOptions;
use crate::cli::{Failure, output};
use crate::files::models::Source;
use crate::files::npy;
use crate::inspect::prove::{self, Outcome};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Args {
    /// The model
    model: PathBuf,
    /// Logits as float32 [n_tokens, n_vocab] in NPY format, or an NPZ archive of `logits` and `tokens`
    #[arg(long = "ref", value_name = "FILE")]
    reference: PathBuf,
    /// Token ids, separated by commas; default: `tokens` of the NPZ archive
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    tokens: Vec<u32>,
    /// Maximum NMSE (normalised mean squared error) of paths that compute in f32; an f16 cache may cost 100 times as
    /// much
    #[arg(long, default_value_t = 1e-6, value_name = "NMSE")]
    tolerance: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
}

/// Logits of another program.
struct Reference {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Reference {
    fn read(path: &Path, tokens: &[u32]) -> Result<Self, Failure> {
        let at = |error: npy::Error| anyhow::anyhow!("{}: {error}", path.display());
        let is_archive = path.extension().is_some_and(|ending| ending == "npz");
        let (array, stored) = match is_archive {
            true => {
                let stored = npy::of_archive(path, "tokens").map_err(at)?;
                let array = npy::of_archive(path, "logits").map_err(at)?;
                let array = array
                    .ok_or_else(|| anyhow::anyhow!("{}: no array `logits`", path.display()))?;
                (array, stored)
            }
            false => (npy::read(path).map_err(at)?, None),
        };
        let stored = stored.into_iter().flat_map(|array| array.elements);
        let tokens = match tokens.is_empty() {
            true => stored.map(|id| id as u32).collect(),
            false => tokens.to_vec(),
        };
        let n = tokens.len();
        if n == 0 {
            anyhow::bail!(
                "{}: there are no token ids: --tokens IDS gives them",
                path.display()
            );
        }
        if array.shape.first() != Some(&(n as u64)) {
            anyhow::bail!(
                "{}: {n} token ids, found an array {:?}",
                path.display(),
                array.shape
            );
        }
        Ok(Self {
            tokens,
            logits: array.elements,
        })
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let Reference { tokens, logits } = &Reference::read(&args.reference, &args.tokens)?;
    let (tolerance, json, load) = (args.tolerance, args.json, &args.load);
    let opened = load.open(&Source::of(Some(&args.model)))?;
    let bounds = [tolerance, 100.0 * tolerance];
    let mut written = Ok(());
    let mut each = |outcome: &Outcome| {
        if !json && written.is_ok() {
            written = output::line(line(outcome));
        }
    };
    let threads = load.threads();
    let outcomes = prove::prove(&opened, tokens, logits, bounds, threads, &mut each)?;
    written?;
    let hints = prove::hints(&outcomes, tokens.len());
    if json {
        let paths: Vec<_> = outcomes.iter().map(to_json).collect();
        let report = serde_json::json!({ "paths": paths, "hints": hints });
        output::line(serde_json::to_string_pretty(&report)?)?;
    } else {
        for hint in hints {
            output::line(hint)?;
        }
    }
    let n_wrong = outcomes
        .iter()
        .filter(|outcome| !outcome.is_proven())
        .count();
    match n_wrong {
        0 => Ok(()),
        n => anyhow::bail!("{n} of {} paths differ from the reference", outcomes.len()),
    }
}

fn line(outcome: &Outcome) -> String {
    let Some(nmse) = outcome.nmse else {
        return format!("- {:28} does not apply", outcome.path);
    };
    let sign = if outcome.is_proven() { "=" } else { "≠" };
    let mut text = format!("{sign} {:28} {nmse:9.1e}", outcome.path);
    if let (false, Some((at, nmse))) = (outcome.is_proven(), outcome.first_wrong) {
        let other = outcome.n_other_best;
        text.push_str(&format!(
            "  first at position {at} ({nmse:.1e}); another best token at {other}"
        ));
    }
    text
}

fn to_json(outcome: &Outcome) -> serde_json::Value {
    let finite = |value: f64| value.is_finite().then_some(value);
    serde_json::json!({
        "path": outcome.path,
        "applies": outcome.nmse.is_some(),
        "nmse": outcome.nmse.and_then(finite),
        "bound": outcome.bound,
        "proven": outcome.is_proven(),
        "first_wrong_position": outcome.first_wrong.map(|(at, _)| at),
        "other_best_tokens": outcome.n_other_best,
    })
}
