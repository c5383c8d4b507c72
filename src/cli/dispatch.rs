//! Parses the command line of the process, and runs its command.

use clap::FromArgMatches;

use lab_base::ggml;
use lab_base::util::inputs;

use super::command_line::{Cli, Command, command};
use super::{
    Failure, arch, batch, chat, compare, config, convert, devices, diagram, doctor, engine,
    evaluate, hub, inspect, lab, launch, log, logits, other_programs, output, perf, plan, points,
    quantise, serve, synth, template, tokenize, version,
};

/// The command line of the process. Options of other programs become those of this one. For `bench serve`, environment
/// and configuration file are merged in with lower priority. Ends the process where clap does: on help and on invalid
/// options.
///
/// # Errors
/// The configuration is invalid, or an output is refused.
pub fn parse() -> Result<Cli, Failure> {
    version::register();
    let typed: Vec<_> = std::env::args_os().collect();
    let line = other_programs::translated(typed.clone());
    let line = line.unwrap_or_else(|error| error.exit());
    let mut command = command();
    let matches = command.try_get_matches_from_mut(&line);
    let matches = matches.unwrap_or_else(|error| other_programs::explained(error, &typed).exit());
    output::check_outputs(&command, &matches)?;
    match matches.subcommand_matches("serve") {
        Some(of_serve) => config::layered(&line, of_serve),
        None => Ok(Cli::from_arg_matches(&matches)?),
    }
}

/// Runs the command of a command line.
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
    version::check_machine()?;
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
            | Command::Quantise(_)
            | Command::Synth(_)
    ) {
        output::remove_on_signals()?;
    }
    let ran = match cli.command {
        Command::Run(args) => super::run::run(&args),
        Command::Batch(args) => batch::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Serve(args) => serve::run(*args),
        Command::Pull(args) => hub::pull(&args),
        Command::List(args) => hub::list(&args),
        Command::Remove(args) => hub::remove(&args),
        Command::Launch(args) => launch::run(&args),
        Command::Engine(args) => engine::run(*args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Detokenize(args) => tokenize::detokenize(&args),
        Command::Template(args) => template::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Quantise(args) => quantise::run(&args),
        Command::Eval(args) => evaluate::run(&args),
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
        Command::ManPages { folder, force } => {
            let write = || {
                std::fs::create_dir_all(&folder)?;
                if !force.force && std::fs::read_dir(&folder)?.next().is_some() {
                    return Err(std::io::Error::other(
                        "the folder has files; --force replaces them",
                    ));
                }
                clap_mangen::generate_to(command().disable_help_subcommand(true), &*folder)
            };
            write().map_err(|error| output::at(&folder, error))
        }
    };
    log::flush();
    ran
}
