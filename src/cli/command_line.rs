//! The commands, and how a command line is parsed and run.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use super::{
    Failure, arch, chat, compare, config, convert, devices, diagram, doctor, engine, help, inspect,
    lab, log, logits, other_programs, output, perf, plan, points, serve, synth, template, tokenize,
};
use lab_base::ggml;
use lab_base::util::inputs;

/// An LLM inference server and lab bench: a model architecture is a TOML file, never code.
#[derive(Debug, Parser)]
#[command(name = "bench", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    log: log::LogOptions,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Complete a prompt and stream the completion
    Run(Box<super::run::Args>),
    /// Talk with a model in the terminal
    Chat(Box<chat::Args>),
    /// Serve models over HTTP
    Serve(Box<serve::Args>),
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
}

/// The definition of the command line.
pub(super) fn command() -> clap::Command {
    help::with_help(Cli::command())
}

/// The command line of the process, in which words of other programs stand for ours. For `bench serve`, configuration file and environment are merged in with lower
/// priority. Ends the process where clap does: on help and on invalid options.
///
/// # Errors
/// The configuration is invalid, or an output is refused.
pub fn parse() -> Result<Cli, Failure> {
    let line = other_programs::translated(std::env::args_os().collect());
    let line = line.unwrap_or_else(|error| error.exit());
    let mut command = command();
    let matches = command.try_get_matches_from_mut(&line);
    let matches = matches.unwrap_or_else(|error| other_programs::explained(error).exit());
    output::check_outputs(&command, &matches)?;
    match matches.subcommand_matches("serve") {
        Some(of_serve) => config::layered(&line, of_serve),
        None => Ok(Cli::from_arg_matches(&matches)?),
    }
}

/// Runs the command of a command line.
///
/// # Errors
/// The command failed; the error is one message.
pub fn run(cli: Cli) -> Result<(), Failure> {
    let of_whom = match &cli.command {
        Command::Serve(_) => log::LogProcess::Server,
        Command::Engine(args) => log::LogProcess::Engine {
            name: args.name.clone(),
            is_ansi: args.colour,
        },
        _ => log::LogProcess::Command,
    };
    log::start_log(&cli.log, of_whom)?;
    // A server reads and replaces files for as long as it runs.
    let is_server = matches!(cli.command, Command::Serve(_) | Command::Engine(_));
    inputs::remember_inputs(!is_server);
    // The server reports the signal that ended an engine process, so an engine process does not handle it.
    if !matches!(cli.command, Command::Engine(_)) {
        ggml::report_bus_errors();
    }
    if matches!(
        cli.command,
        Command::Arch(_)
            | Command::Convert(_)
            | Command::Diagram(_)
            | Command::Lab(_)
            | Command::Logits(_)
            | Command::Synth(_)
    ) {
        output::remove_on_signals()?;
    }
    match cli.command {
        Command::Run(args) => super::run::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Serve(args) => serve::run(*args),
        Command::Engine(args) => engine::run(*args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Detokenize(args) => tokenize::detokenize(&args),
        Command::Template(args) => template::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Arch(command) => arch::run(&command),
        Command::Plan(args) => plan::run(&args),
        Command::Points(args) => points::run(&args),
        Command::Lab(command) => lab::run(&command),
        Command::Diagram(args) => diagram::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::RpcWorker(args) => devices::lend(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "bench", &mut script);
            output::bytes(&script)
        }
    }
}
