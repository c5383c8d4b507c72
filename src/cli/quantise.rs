//! `bench quantise`: finds the types of least divergence within a number of bits per weight, and writes the model in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use lab_base::util::atomic_file;
use lab_core::models::convert::to_gguf;
use lab_core::models::quantise::{Importance, Mix};
use lab_core::models::{ModelSource, OpenedModel};
use lab_inspect::calibrate::calibrate;
use lab_inspect::evaluate::{Evaluation, ScoredLogits, evaluate};
use lab_inspect::mix_search::{MixSearch, SearchedMix, bits_per_weight};

use super::convert::with_vocabulary;
use super::evaluate::measured;
use super::hub::model_source;
use super::options::{LoadOptions, progress_bar, shown_by};
use super::output::{ForceOption, OutputPlace, at};
use super::text_windows::{self, TextOptions, check_predicts, read_windows, window_size};
use super::values::positive;
use super::{Failure, output};

/// Most bytes of logits that are kept.
const MAX_LOGITS: u64 = 1 << 30;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The model, best in f16 or f32
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// What to write: NAME.gguf, or the rules alone as NAME.toml for `bench convert --mix`
    #[arg(value_name = "DST")]
    target: OutputPlace,
    /// Bits per weight of all tensors together, such as 4.2
    #[arg(long, value_name = "BITS", value_parser = bits)]
    budget: f64,
    /// File with the text on which importance and sensitivities are measured
    #[arg(long, value_name = "FILE")]
    calibrate: PathBuf,
    /// File with another text, on which the result is evaluated; default: none
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Importance matrix to use in place of one that is measured
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Maximum number of windows of `--ctx` tokens (default 512) on which sensitivities are measured
    #[arg(long, value_name = "N", default_value = "8", value_parser = positive)]
    windows: usize,
    /// Times that sensitivities are measured again around the types found so far
    #[arg(long, value_name = "N", default_value_t = 2)]
    rounds: usize,
    /// Evaluate llama-quantize's mixes on the text of `--text` too
    #[arg(long, requires = "text")]
    named_mixes: bool,
    #[command(flatten)]
    texts: TextOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    force: ForceOption,
    #[command(flatten)]
    load: LoadOptions,
}

fn bits(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|bits| (0.5..=32.0).contains(bits));
    found.ok_or_else(|| format!("expected a number of bits from 0.5 to 32, found `{text}`"))
}

/// A model that can be opened and loaded again and again.
struct Source<'a> {
    source: ModelSource,
    load: &'a LoadOptions,
    size: usize,
}

impl Source<'_> {
    fn open(&self) -> Result<OpenedModel, Failure> {
        let mut opened = self.load.open(&self.source)?;
        opened.drafter = None;
        Ok(opened)
    }

    /// The model in a mix, evaluated against the stored one.
    fn evaluate(
        &self,
        mix: &Mix,
        windows: &[Vec<u32>],
        against: &ScoredLogits,
    ) -> Result<Evaluation, Failure> {
        let opened = self.open()?.quantised(mix)?;
        let mut model = text_windows::load(self.load, opened, self.size)?;
        Ok(evaluate(&mut model, windows, Some(against))?)
    }
}

/// The windows whose logits are kept.
fn kept(mut windows: Vec<Vec<u32>>, n_vocab: u64) -> Vec<Vec<u32>> {
    let n_all = windows.len();
    while windows.len() > 1 && ScoredLogits::bytes_for(&windows, n_vocab) > MAX_LOGITS {
        windows.pop();
    }
    if windows.len() < n_all {
        tracing::warn!(
            "{} of {n_all} windows are read: the logits of more exceed {} MiB",
            windows.len(),
            MAX_LOGITS >> 20
        );
    }
    windows
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let source = model_source(Some(&args.source))?;
    let mut opened = args.load.open(&source)?;
    check_predicts(&opened)?;
    let size = window_size(&opened, args.load.context(&opened.plan));
    let n_vocab = opened.plan.n_vocab;
    let all = read_windows(&mut opened, &args.calibrate, size, (usize::MAX, args.texts))?;
    let source = Source {
        source,
        load: &args.load,
        size,
    };
    let held_out = match &args.text {
        Some(path) => {
            let windows = read_windows(&mut source.open()?, path, size, (usize::MAX, args.texts))?;
            kept(windows, n_vocab)
        }
        None => Vec::new(),
    };
    let mut model = text_windows::load(&args.load, opened, size)?;
    let importance = match &args.imatrix {
        Some(path) => Importance::read(path)?,
        None => {
            let bar = progress_bar("calibrating", "");
            let name = args.calibrate.display().to_string();
            let found = calibrate(&mut model, &all, &name, &mut shown_by(&bar));
            bar.finish_and_clear();
            found?
        }
    };
    let importance = Arc::new(importance);
    let mut windows = all;
    windows.truncate(args.windows);
    let windows = kept(windows, n_vocab);
    let rows = ScoredLogits::of(&mut model, &windows)?;
    let rows_held_out = ScoredLogits::of(&mut model, &held_out)?;
    drop(model);

    let opened = source.open()?;
    let mut search = MixSearch::new(&opened, &importance, args.budget)?;
    let bar = progress_bar("measuring", "");
    let found = search.run(args.rounds, &mut shown_by(&bar), &mut |mix| {
        let found = source.evaluate(mix, &windows, &rows)?;
        Ok::<_, Failure>(found.against.map_or(0.0, |against| against.kl_mean.value))
    });
    bar.finish_and_clear();
    let found = found?;
    write(args, &opened, &found)?;

    let on_text = |mix: &Mix| source.evaluate(mix, &held_out, &rows_held_out);
    let evaluated = match held_out.is_empty() {
        true => None,
        false => Some(on_text(&found.mix)?),
    };
    let mut named = Vec::new();
    if args.named_mixes {
        for name in Mix::names() {
            let mix: Mix = name.parse().map_err(Failure::msg)?;
            if mix.base().is_plain() {
                continue;
            }
            let mix = mix.with_importance(Some(importance.clone()));
            let bits = match opened.quantised_types(&mix) {
                Ok(types) => bits_per_weight(&opened.weights, &types),
                Err(error) => {
                    tracing::warn!("{name}: {error}");
                    continue;
                }
            };
            match on_text(&mix) {
                Ok(evaluation) => named.push((name, bits, evaluation)),
                Err(error) => tracing::warn!("{name}: {error}"),
            }
        }
        named.sort_by(|a, b| a.1.total_cmp(&b.1));
    }
    match args.json {
        true => output::json(&to_json(&found, evaluated.as_ref(), &named)),
        false => output::line(to_text(&found, evaluated.as_ref(), &named)),
    }
}

fn write(args: &Args, opened: &OpenedModel, found: &SearchedMix) -> Result<(), Failure> {
    let target: &Path = &args.target;
    if target
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("toml"))
    {
        let text = found.rules();
        let written = atomic_file::write(args.force.target(target), text.as_bytes());
        return written.map_err(|error| at(target, error));
    }
    let bar = progress_bar("writing", &opened.name);
    let mut model = args.load.open(&model_source(Some(&args.source))?)?;
    with_vocabulary(&mut model)?;
    let progress = &mut shown_by(&bar);
    let written = to_gguf(&model, Some(&found.mix), target, args.force.force, progress);
    bar.finish_and_clear();
    Ok(written?)
}

type Named<'a> = [(&'a str, f64, Evaluation)];

fn to_json(found: &SearchedMix, evaluated: Option<&Evaluation>, named: &Named<'_>) -> Value {
    let layers = found.layers.iter().map(|layer| {
        json!({ "layer": layer.name, "bits_per_weight": layer.bits, "cost": layer.cost, "types": layer.types })
    });
    let named = named.iter().map(|(name, bits, evaluation)| {
        json!({ "mix": name, "bits_per_weight": bits, "evaluation": evaluation })
    });
    let types: BTreeMap<_, _> = found
        .types
        .iter()
        .map(|(name, ty)| (name, ty.name()))
        .collect();
    json!({
        "bits_per_weight": found.bits,
        "kl_mean": found.kl,
        "evaluation": evaluated,
        "layers": layers.collect::<Value>(),
        "types": types,
        "named_mixes": named.collect::<Value>(),
    })
}

fn to_text(found: &SearchedMix, evaluated: Option<&Evaluation>, named: &Named<'_>) -> String {
    let mut text = format!("{:12} {:>6} {:>10}  types\n", "layer", "bits", "KL");
    for layer in &found.layers {
        let types: Vec<String> = layer
            .types
            .iter()
            .map(|(ty, n)| format!("{n} {ty}"))
            .collect();
        text.push_str(&format!(
            "{:12} {:6.2} {:10.2e}  {}\n",
            layer.name,
            layer.bits,
            layer.cost,
            types.join(", ")
        ));
    }
    text.push_str(&format!(
        "{:.3} bits per weight, mean KL divergence {:.6} on the calibration text",
        found.bits, found.kl
    ));
    let divergence = |evaluation: &Evaluation| {
        evaluation
            .against
            .as_ref()
            .map_or_else(String::new, |against| {
                let (mean, high) = (measured(&against.kl_mean), measured(&against.kl_99));
                format!("{mean}, 99th percentile {high}")
            })
    };
    if let Some(evaluation) = evaluated {
        text.push_str(&format!(
            "\non the held-out text {}",
            divergence(evaluation)
        ));
    }
    for (name, bits, evaluation) in named {
        text.push_str(&format!(
            "\n{name:10} {bits:6.3} bits  {}",
            divergence(evaluation)
        ));
    }
    text
}
