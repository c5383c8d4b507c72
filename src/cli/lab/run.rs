//! `bench lab run`: the result of a lab plan for one prompt.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use serde_json::Map;

use lab_core::artifacts::arrays::ArrayFormat;

use crate::cli::Failure;
use crate::cli::options::{LoadOptions, ModelArg};
use crate::cli::output::{self, ForceOption, OutputFile, at};
use crate::cli::values::tokens;

use super::MediaPromptOptions;
use super::runner::{LabRunner, PlanOptions, plan};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct RunArgs {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    text: MediaPromptOptions,
    /// Lab plan file (not a plan of `bench plan`): the object `lab` of a request (docs/lab.md) as TOML, or as JSON if
    /// its name ends in .json; without it nothing is edited or captured
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Maximum number of completion tokens; 0 = only the prompt is read
    #[arg(short = 'n', long, default_value = "0", value_name = "N", value_parser = tokens)]
    max_tokens: usize,
    /// File for the captured values, NAME.safetensors or NAME.npz; without it they are printed as JSON
    #[arg(short, long, value_name = "FILE")]
    output: Option<OutputFile>,
    #[command(flatten)]
    force: ForceOption,
    #[command(flatten)]
    values: PlanOptions,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let file = args.output.as_ref().map(|path| {
        let format = ArrayFormat::of(path).ok_or_else(|| {
            let path = path.display();
            anyhow::anyhow!("{path}: expected a name that ends in .safetensors or .npz")
        });
        format.map(|format| (path, format))
    });
    let file = file.transpose()?;
    let text = args.text.text.read()?;
    let plan = args.plan.as_deref().map_or(Ok(Map::new()), plan)?;
    let values = (&args.values.bytes, args.values.lab_vectors.as_slice());
    let runner = LabRunner::start(&args.load, &args.model.source()?, plan, 1, values)?;
    let prompt = runner.prompt(text, &args.text.media)?;
    let n_prompt = prompt.tokens.len();
    let result = runner.one(prompt, args.max_tokens)?;
    let (request, served) = (&runner.request, &*runner.served);
    let mut shown = match file {
        None => request.json(&result, served),
        Some((path, format)) => request
            .write(args.force.target(path), format, &result, served)
            .map_err(|error| at(path, error))?,
    };
    shown["tokens"] = result.tokens.as_slice().into();
    shown["pieces"] = lab_server::lab_pieces(&result.tokens, served);
    let tokenizer = served.handle.tokenizer();
    let completion = result.tokens.get(n_prompt..).unwrap_or_default();
    let completion = match completion.split_last() {
        Some((last, text)) if tokenizer.is_end_of_generation(*last) => text,
        _ => completion,
    };
    shown["text"] = String::from_utf8_lossy(&tokenizer.decode(completion)).into();
    output::json(&shown)?;
    match result.n_not_finite() {
        0 => Ok(()),
        n => Err(anyhow::anyhow!(
            "{n} numbers of the result are not finite (null in JSON): the edits or the weights are too large"
        )),
    }
}
