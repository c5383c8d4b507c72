//! `bench eval`: how well a model predicts a text, and how far its predictions are from those of another model.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::json;

use lab_inspect::evaluate::{Evaluation, Measured, evaluate, evaluate_beside};

use super::hub::model_source;
use super::options::{LoadOptions, ModelArg};
use super::text_windows::{self, TextOptions, check_predicts, read_windows, window_size};
use super::values::positive;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// File with the text, which is read in windows of `--ctx` tokens (default 512); the second half of each is scored
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Another model with the same vocabulary, such as the one in f16 that this one was quantised from: its predictions are the
    /// reference
    #[arg(long, value_name = "MODEL")]
    against: Option<PathBuf>,
    /// Maximum number of windows, 1 or more; default: all of the text
    #[arg(long, value_name = "N", value_parser = positive)]
    windows: Option<usize>,
    #[command(flatten)]
    texts: TextOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut opened = args.load.open(&args.model.source()?)?;
    check_predicts(&opened)?;
    let size = window_size(&opened, args.load.context(&opened.plan));
    let most = args.windows.unwrap_or(usize::MAX);
    let windows = read_windows(&mut opened, &args.text, size, (most, args.texts))?;
    let n_vocab = opened.plan.n_vocab;
    let mut model = text_windows::load(&args.load, opened, size)?;
    let found = match &args.against {
        None => evaluate(&mut model, &windows, None)?,
        Some(path) => {
            // `--type` is for the model that is evaluated.
            let other = args.load.open_as_stored(&model_source(Some(path))?)?;
            check_predicts(&other)?;
            if other.plan.n_vocab != n_vocab {
                anyhow::bail!(
                    "--against {}: {} tokens in the vocabulary, expected {n_vocab}",
                    path.display(),
                    other.plan.n_vocab
                );
            }
            let mut other = text_windows::load(&args.load, other, size)?;
            evaluate_beside(&mut model, &mut other, &windows)?
        }
    };
    match args.json {
        true => output::json(&to_json(&found, &windows, size)),
        false => output::line(to_text(&found)),
    }
}

fn to_json(found: &Evaluation, windows: &[Vec<u32>], size: usize) -> serde_json::Value {
    let mut all = json!(found);
    all["windows"] = json!(windows.len());
    all["window"] = json!(size);
    all
}

/// A number and its standard error, to the digits that the error leaves.
pub(super) fn measured(found: &Measured) -> String {
    let digits = match found.error > 0.0 {
        true => (2.0 - found.error.log10().ceil()).clamp(0.0, 9.0) as usize,
        false => 6,
    };
    format!("{:.digits$} ± {:.digits$}", found.value, found.error)
}

fn to_text(found: &Evaluation) -> String {
    let mut text = format!(
        "{} scored tokens\nperplexity         {}",
        found.tokens,
        measured(&found.perplexity)
    );
    if let Some(against) = &found.against {
        let percent = |share: &Measured| {
            measured(&Measured {
                value: 100.0 * share.value,
                error: 100.0 * share.error,
            })
        };
        text.push_str(&format!(
            "\nof the other model {}\nKL divergence      {}, 99th percentile {}, maximum {:.6}\nsame top token     {} %",
            measured(&against.perplexity),
            measured(&against.kl_mean),
            measured(&against.kl_99),
            against.kl_max,
            percent(&against.same_top)
        ));
    }
    text
}
