//! `bench synth`: a random model of an architecture.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use lab_base::util::{atomic_file, wording};
use lab_base::weights::{self, TensorType};
use lab_core::models::synth::{self, SynthRequest};

use super::options::ArchOptions;
use super::output::{ForceOption, OutputFile};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The architecture
    name: String,
    /// The file to write
    #[arg(short, long, value_name = "FILE.gguf")]
    output: OutputFile,
    #[command(flatten)]
    force: ForceOption,
    /// Seed of the random weights
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Value of a parameter or metadata key: 4, 0.5, true, yarn or a list such as [1, 0, 1]; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Metadata key that the definition does not read but another engine requires, with a value as of --set; may be
    /// repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    meta: Vec<(String, String)>,
    /// Optional tensors to include, such as output,rope_freqs,attn_*.bias
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    with: Vec<String>,
    /// Element type of weight matrices
    #[arg(long = "type", default_value = "f32", value_name = "TYPE")]
    ty: TensorType,
    /// File whose vocabulary and chat template are copied; `--set vocab_size=N` pads the vocabulary to N
    #[arg(long, value_name = "FILE.gguf")]
    vocab: Option<PathBuf>,
    #[command(flatten)]
    archs: ArchOptions,
}

pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .ok_or_else(|| format!("expected KEY=VALUE, found `{text}`"))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (archs, drafters) = (args.archs.library()?, args.archs.drafters()?);
    let def = match archs.source(&args.name).is_err() && drafters.source(&args.name).is_ok() {
        true => drafters.get(&args.name)?,
        false => archs.get(&args.name)?,
    };
    let drafter = match &def.drafter {
        Some(name) => Some(drafters.of_target(&name.value, &def)?),
        None => None,
    };
    let vocabulary = match &args.vocab {
        Some(path) => Some(weights::open(path)?.metadata().clone()),
        None => None,
    };
    let request = SynthRequest {
        seed: args.seed,
        set: args.set.clone(),
        meta: args.meta.clone(),
        with: args.with.clone(),
        ty: args.ty,
        vocabulary,
        drafter,
    };
    let plan = synth::synth(&def, &request, args.force.target(&args.output))?;
    if atomic_file::is_stdout(&args.output) {
        return Ok(());
    }
    let bytes = std::fs::metadata(&args.output)?.len();
    output::line(format!(
        "{}: {} layers, {} weights, {}",
        args.output.display(),
        plan.layers.len(),
        plan.n_weights(),
        wording::bytes(bytes)
    ))
}
