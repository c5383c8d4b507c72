//! `bench lab direction`: directions of hidden states that separate two sets of prompts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::json;

use crate::cli::Failure;
use crate::cli::options::{LoadOptions, ModelArg};
use crate::cli::output::{self, ForceOption, OutputFile};
use crate::cli::values::positive;
use lab_base::util::atomic_file;
use lab_base::util::directions::{Mean, principal};
use lab_core::artifacts::vectors;
use lab_inspect::pictures::layer_of;

use super::read_text;
use super::runner::{BytesOption, LabRunner};

/// How directions are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Method {
    /// Difference of the means of both sets.
    Mean,
    /// First principal component of the differences of pairs, of length 1.
    Pca,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PromptRow {
    /// The hidden state of its last token.
    Last,
    /// The mean of those of all its tokens.
    Mean,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct DirectionArgs {
    #[command(flatten)]
    model: ModelArg,
    /// File with the positive prompts, one on each line, as text or as a JSON string; the vectors point towards them
    #[arg(long, value_name = "FILE")]
    positive: PathBuf,
    /// File with the negative prompts, one on each line; with `--method pca` line N pairs with line N of `--positive`
    #[arg(long, value_name = "FILE")]
    negative: PathBuf,
    /// Difference of the means, or first principal component of the differences of pairs
    #[arg(long, default_value = "mean", value_name = "mean|pca")]
    method: Method,
    /// Hidden state of a prompt: that of its last token, or the mean of all tokens
    #[arg(long, default_value = "last", value_name = "last|mean")]
    row: PromptRow,
    /// File to write: NAME.gguf (a control vector, also for llama.cpp) or NAME.safetensors
    #[arg(short, long, value_name = "FILE")]
    output: OutputFile,
    #[command(flatten)]
    force: ForceOption,
    /// Maximum number of prompts per batch, 1 or more
    #[arg(long, default_value = "16", value_name = "N", value_parser = positive)]
    parallel: usize,
    #[command(flatten)]
    bytes: BytesOption,
    #[command(flatten)]
    load: LoadOptions,
}

fn prompts(path: &Path) -> Result<Vec<String>, Failure> {
    let text = read_text(path)?;
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let prompt = |(at, line): (usize, &str)| match line.starts_with('"') {
        true => serde_json::from_str(line)
            .map_err(|error| anyhow::anyhow!("{}:{}: {error}", path.display(), at + 1)),
        false => Ok(line.to_owned()),
    };
    let all: Vec<String> = lines.map(prompt).collect::<Result<_, _>>()?;
    match all.is_empty() {
        true => Err(anyhow::anyhow!("{}: there are no prompts", path.display())),
        false => Ok(all),
    }
}

pub(super) fn run(args: &DirectionArgs) -> Result<(), Failure> {
    let ends_in = |own: &str| args.output.extension().is_some_and(|ending| ending == own);
    let is_gguf = ends_in(vectors::GGUF);
    if !is_gguf && !ends_in("safetensors") {
        let path = args.output.display();
        anyhow::bail!("{path}: expected a name that ends in .gguf or .safetensors");
    }
    let (positive, negative) = (prompts(&args.positive)?, prompts(&args.negative)?);
    if args.method == Method::Pca && positive.len() != negative.len() {
        let (n, m) = (positive.len(), negative.len());
        anyhow::bail!("--method pca: {n} positive and {m} negative prompts are not pairs");
    }
    let mut capture = json!({ "point": "layers.*.out", "positions": "last" });
    if let PromptRow::Mean = args.row {
        capture["positions"] = "prompt".into();
        capture["reduce"] = "mean".into();
    }
    let plan = serde_json::Map::from_iter([("captures".to_owned(), json!([capture]))]);
    let (n, values) = (args.parallel, (&args.bytes, &[][..]));
    let runner = LabRunner::start(&args.load, &args.model.source()?, plan, n, values)?;
    let points = runner.served.handle.points();
    let widths = points.find("layers.*.out").unwrap_or_default();
    let width: u64 = widths.iter().map(|at| points.all[*at].width()).sum();
    if args.method == Method::Pca {
        let bytes = 2 * 4 * width.saturating_mul(positive.len() as u64);
        if bytes > args.bytes.lab_bytes {
            let limit = args.bytes.lab_bytes;
            anyhow::bail!(
                "the hidden states of all pairs take {bytes} bytes, the limit is {limit} (--lab-bytes)"
            );
        }
    }
    // Means and rows by layer, for each set.
    let mut means: [BTreeMap<u64, Mean>; 2] = Default::default();
    let mut rows: [BTreeMap<u64, Vec<Vec<f32>>>; 2] = Default::default();
    for ((side, means), rows) in [&positive, &negative]
        .into_iter()
        .zip(&mut means)
        .zip(&mut rows)
    {
        let tokens = side.iter().map(|prompt| runner.encode(prompt));
        runner.each(0, tokens, 0, |result| {
            for captured in result.captures {
                let Some(layer) = layer_of(&captured.point) else {
                    continue;
                };
                means.entry(layer).or_default().add(&captured.elements);
                if args.method == Method::Pca {
                    rows.entry(layer).or_default().push(captured.elements);
                }
            }
            Ok(())
        })?;
    }
    let [positive_rows, negative_rows] = &rows;
    let direction = |layer: &u64| match args.method {
        Method::Mean => means[0][layer].less(&means[1][layer]),
        Method::Pca => {
            let pairs = positive_rows[layer].iter().zip(&negative_rows[layer]);
            let less =
                |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| a - b).collect();
            principal(&pairs.map(less).collect::<Vec<Vec<f32>>>())
        }
    };
    let by_layer = means[0].keys().map(|layer| (*layer, direction(layer)));
    let by_layer: BTreeMap<u64, Vec<f32>> = by_layer.collect();
    vectors::write(
        args.force.target(&args.output),
        &runner.served.info.arch,
        &by_layer,
    )?;
    if atomic_file::is_stdout(&args.output) {
        return Ok(());
    }
    let n = by_layer.len() - usize::from(is_gguf && by_layer.contains_key(&0));
    let (path, a, b) = (args.output.display(), positive.len(), negative.len());
    output::line(format!(
        "{path}: directions of {n} layers from {a} and {b} prompts"
    ))
}
