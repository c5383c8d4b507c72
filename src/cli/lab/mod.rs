//! `bench lab`: captures and edits of values from the command line.

mod collect;
mod direction;
mod pictures;
mod prompt_lines;
mod run;
mod runner;

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Subcommand};
use serde_json::json;

use lab_core::model::Options;
use lab_core::models::quantise::Mix;
use lab_core::models::{OpenedModel, tokenizer_of};
use lab_inspect::drift::{self, Drift};

use super::compare::{PathOption, parse_path_option};
use super::input_file::read_at_most;
use super::media_files::MediaFiles;
use super::options::{LoadDefaults, LoadOptions, TwoModels};
use super::values::{mix, some_tokens};
use super::{Failure, output};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show by how much the hidden state of each layer differs between two models, or between a model and itself with
    /// quantised weights, another cache or flash attention
    Drift(Box<DriftArgs>),
    /// Run a prompt; capture and edit values of the model as a lab plan says
    Run(Box<run::RunArgs>),
    /// Capture values of many prompts into the files of a folder; an interrupted run can be resumed
    Collect(Box<collect::CollectArgs>),
    /// Compute a steering vector for each layer from two sets of prompts, for edits and for llama.cpp
    Direction(Box<direction::DirectionArgs>),
    /// Show the most probable token after each layer at each position of a prompt (logit lens)
    Lens(Box<pictures::LensArgs>),
    /// Activation patching: show which values of a clean prompt restore its answer in runs of a corrupt one (causal tracing)
    Patch(Box<pictures::PatchArgs>),
    /// Show which experts each token of a prompt is routed to
    Routing(Box<pictures::RoutingArgs>),
    /// Show the attention weights of each head for a prompt
    Attention(Box<pictures::AttentionArgs>),
    /// Show how much the last token of a prompt attends to each part of its pictures
    AttentionMap(Box<pictures::AttentionMapArgs>),
    /// Show what layers, attention, MLP and heads add to the logit of a token (direct logit attribution)
    Attribution(Box<pictures::AttributionArgs>),
}

/// The text that a command reads.
#[derive(Debug, ClapArgs)]
struct PromptOptions {
    /// The prompt as text
    #[arg(long = "prompt", visible_alias = "text", value_name = "TEXT", conflicts_with_all = ["file", "tokens"])]
    text: Option<String>,
    /// File with the prompt as text
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    file: Option<PathBuf>,
    /// The prompt as token ids, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    tokens: Vec<u32>,
}

/// The text that a command reads, with pictures and sounds before it.
#[derive(Debug, ClapArgs)]
struct MediaPromptOptions {
    #[command(flatten)]
    text: PromptOptions,
    #[command(flatten)]
    media: MediaFiles,
}

/// The text that a command reads.
enum Prompt {
    Written(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Its tokens; `encode` encodes a text.
    fn tokens(
        self,
        encode: impl FnOnce(&str) -> Result<Vec<u32>, Failure>,
    ) -> Result<Vec<u32>, Failure> {
        match self {
            Self::Tokens(tokens) => Ok(tokens),
            Self::Written(text) => encode(&text),
        }
    }
}

impl PromptOptions {
    fn read(&self) -> Result<Prompt, Failure> {
        Ok(match (&self.text, &self.file) {
            (Some(text), _) => Prompt::Written(text.clone()),
            (None, Some(path)) => Prompt::Written(read_text(path)?),
            (None, None) if self.tokens.is_empty() => {
                anyhow::bail!("there is no text: --prompt, --file or --tokens gives one")
            }
            (None, None) => Prompt::Tokens(self.tokens.clone()),
        })
    }
}

/// The text of a file of prompts, of a lab plan or of a response.
fn read_text(path: &Path) -> Result<String, Failure> {
    read_at_most(path, 16 << 20)
}

#[derive(Debug, ClapArgs)]
pub(super) struct DriftArgs {
    /// The reference model; by default with an f32 KV cache and without flash attention; `--kv-type` and
    /// `--flash-attn` change A and B, `--path` only B; default: tiny-chat, which is built in
    #[arg(value_name = "A")]
    a: Option<PathBuf>,
    /// The model that is compared with it; default: A
    #[arg(value_name = "B")]
    b: Option<PathBuf>,
    #[command(flatten)]
    named: TwoModels,
    #[command(flatten)]
    text: PromptOptions,
    /// Maximum number of prompt tokens, 1 or more; the rest is cut off
    #[arg(long, default_value = "512", value_name = "N", value_parser = some_tokens)]
    max_tokens: usize,
    /// Type to which the weights of B are quantised while it is loaded, such as q4_k
    #[arg(long, value_name = "TYPE", value_parser = mix)]
    b_type: Option<Mix>,
    /// Execution path of B: `cache=TYPE` or `cache=KEYS/VALUES` (types of the KV cache), `flash` (flash attention),
    /// `devices` (only B has layers on other devices than the CPU), `plain` (float64 reference implementation of
    /// every operation, slow); several separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PATH", value_parser = parse_path_option)]
    path: Vec<PathOption>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Drift(args) => drift(args),
        Command::Run(args) => run::run(args),
        Command::Collect(args) => collect::run(args),
        Command::Direction(args) => direction::run(args),
        Command::Lens(args) => pictures::lens(args),
        Command::Patch(args) => pictures::patch(args),
        Command::Routing(args) => pictures::routing(args),
        Command::Attention(args) => pictures::attention(args),
        Command::AttentionMap(args) => pictures::attention_map(args),
        Command::Attribution(args) => pictures::attribution(args),
    }
}

/// The tokens that both models read.
fn tokens(args: &DriftArgs, opened: &mut OpenedModel) -> Result<Vec<u32>, Failure> {
    args.text.read()?.tokens(|text| {
        let tokenizer = tokenizer_of(opened.vocabulary.take(), &opened.weights)?;
        Ok(tokenizer.encode(text, true, false)?)
    })
}

fn options(args: &DriftArgs, opened: &OpenedModel, n: usize) -> Result<Options, Failure> {
    let defaults = LoadDefaults::exact(n);
    Ok(Options {
        n_ctx: n.next_multiple_of(256),
        n_ctx_seq: args.load.context(&opened.plan).unwrap_or(n),
        n_batch: n,
        n_outputs: n,
        ..args.load.resolve(opened, defaults)?
    })
}

fn drift(args: &DriftArgs) -> Result<(), Failure> {
    let (a, b) = args.named.of([args.a.as_ref(), args.b.as_ref()])?;
    let mut opened = args.load.open(&a)?;
    let mut tokens = tokens(args, &mut opened)?;
    tokens.truncate(args.max_tokens);
    if tokens.is_empty() {
        anyhow::bail!("the text has no tokens");
    }
    let is_placed = !args
        .path
        .iter()
        .any(|step| matches!(step, PathOption::Devices));
    let options_of_a = options(args, &opened, tokens.len())?;
    let reference = {
        let mut model = match is_placed {
            true => args.load.load(opened, options_of_a)?,
            false => LoadOptions::load_placed(opened, options_of_a)?,
        };
        drift::layer_states(&mut model, &tokens)?
    };
    let opened = args.load.open(b.as_ref().unwrap_or(&a))?;
    let opened = match &args.b_type {
        Some(mix) => opened.quantised(mix)?,
        None => opened,
    };
    let mut options = options(args, &opened, tokens.len())?;
    for step in &args.path {
        match step {
            PathOption::Flash => options.flash_attn = true,
            PathOption::Cache(k, v) => (options.k_type, options.v_type) = (*k, *v),
            PathOption::Plain => options.plain = true,
            PathOption::Devices => {}
            PathOption::Chunk(_) | PathOption::Stateless => {
                anyhow::bail!(
                    "--path: the text is read in one pass: expected flash, cache=TYPE, devices or plain"
                )
            }
        }
    }
    let mut model = args.load.load(opened, options)?;
    let found = drift::drift(&mut model, &tokens, &reference)?;
    match args.json {
        true => output::json(&to_json(&found, tokens.len())),
        false => output::line(to_text(&found)),
    }
}

fn to_text(found: &Drift) -> String {
    let mut text = format!("{:32} {:>9} {:>9}\n", "value", "NMSE", "own");
    // A layer is marked if it adds more than four times the median error.
    let mut owns: Vec<f64> = found.layers.iter().filter_map(|layer| layer.own).collect();
    owns.sort_by(f64::total_cmp);
    let large = owns
        .get(owns.len() / 2)
        .map_or(f64::INFINITY, |middle| 4.0 * middle);
    for layer in &found.layers {
        let own = layer.own.map_or("-".to_owned(), |own| format!("{own:.1e}"));
        let mark = match layer.own.is_some_and(|own| own > large && own > 0.0) {
            true => "  more than four times the median",
            false => "",
        };
        text.push_str(&format!(
            "{:32} {:9.1e} {own:>9}{mark}\n",
            layer.path, layer.nmse
        ));
    }
    text.push_str(&format!("{:32} {:9.1e}", "logits", found.logits));
    if let Some(kl) = &found.divergence {
        text.push_str(&format!("\n{kl}"));
    }
    text.push_str("\nown: the error of the layer alone, given A's input");
    text
}

fn to_json(found: &Drift, n_tokens: usize) -> serde_json::Value {
    let layers = found.layers.iter().enumerate().map(|(at, layer)| {
        json!({ "layer": at, "path": layer.path, "nmse": layer.nmse, "own_nmse": layer.own })
    });
    json!({
        "tokens": n_tokens,
        "layers": layers.collect::<Vec<_>>(),
        "logits_nmse": found.logits,
        "kl": found.divergence,
    })
}
