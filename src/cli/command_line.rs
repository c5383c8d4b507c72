//! The command line as types: the commands with their options.

use clap::{CommandFactory, Parser, Subcommand};

use lab_base::ggml::build_info;

use super::{
    arch, batch, chat, compare, convert, devices, diagram, doctor, engine, evaluate, help, hub,
    inspect, lab, launch, log, logits, perf, plan, points, quantise, serve, synth, template,
    tokenize, version,
};

/// An LLM inference server and lab bench: a model architecture is a TOML file, never code.
#[derive(Debug, Parser)]
#[command(name = "bench", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    pub(super) log: log::LogOptions,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Complete a prompt and stream the completion
    Run(Box<super::run::Args>),
    /// Answer the requests of a file, many at a time
    Batch(Box<batch::Args>),
    /// Talk with a model in the terminal
    Chat(Box<chat::Args>),
    /// Serve models over HTTP
    Serve(Box<serve::Args>),
    /// Download a model of the Hugging Face Hub, or its newest state, into the cache of huggingface_hub
    Pull(hub::PullArgs),
    /// List the models in the cache
    #[command(visible_alias = "ls")]
    List(hub::ListArgs),
    /// Remove models from the cache
    #[command(name = "rm")]
    Remove(hub::RemoveArgs),
    /// Start a coding agent with a running server: claude, codex, opencode or aider
    Launch(launch::Args),
    /// Load one model and serve it to the server that started this process
    #[command(hide = true)]
    Engine(Box<engine::EngineArgs>),
    /// Encode text as token ids
    Tokenize(tokenize::Args),
    /// Decode token ids to text
    Detokenize(tokenize::DetokenizeArgs),
    /// Render a conversation with a chat template
    Template(template::Args),
    /// Write the raw logits of every position, or an embedding, as NPY
    Logits(logits::Args),
    /// Find the first value in which two models or two execution paths differ
    Compare(compare::Args),
    /// Convert or quantise a model: to GGUF, or to a folder of safetensors
    Convert(convert::Args),
    /// Quantise a model to a number of bits per weight, with the types of least divergence for it
    Quantise(Box<quantise::Args>),
    /// Measure how well a model predicts a text, and how far it is from another one
    Eval(Box<evaluate::Args>),
    /// Show a model file: metadata, tensors, architecture, memory
    Inspect(inspect::Args),
    /// Report in ten lines whether a model runs here, for what, and what is missing
    Doctor(doctor::Args),
    /// List, check and show architecture definitions
    #[command(subcommand)]
    Arch(arch::Command),
    /// Show the resolved plan of a model
    Plan(plan::Args),
    /// List the values of a model that can be read and changed (docs/lab.md)
    Points(points::Args),
    /// Capture, edit and draw values of models: logit lens, patching, attribution, attention, routing (docs/lab.md)
    #[command(subcommand)]
    Lab(lab::Command),
    /// Draw a model or an architecture definition as SVG, from its plan
    Diagram(diagram::Args),
    /// Write a model of an architecture with random weights
    Synth(synth::Args),
    /// Measure prefill and decode speed in tokens per second
    Perf(perf::Args),
    /// List the devices that can compute: CPU, GPUs, RPC workers
    Devices(devices::Args),
    /// Lend this machine's devices to other machines (llama.cpp's RPC protocol)
    RpcWorker(devices::WorkerArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands into a folder
    #[command(hide = true)]
    ManPages {
        /// A folder, which is made where it is missing
        folder: super::output::OutputPlace,
        #[command(flatten)]
        force: super::output::ForceOption,
    },
}

pub(super) fn command() -> clap::Command {
    // Programs have one version for as long as they run.
    let kept = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let command = Cli::command().version(kept(build_info().version_text()));
    help::with_help(command.long_version(kept(version::long())))
}
