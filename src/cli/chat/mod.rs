//! `bench chat`: a conversation in the terminal, or with the lines of stdin as input.
//!
//! Requests, their checks and the parsing of answers are those of the server (`api::reply`). This module reads lines,
//! runs commands and shows answers. Invariant: nothing that a model wrote reaches the terminal unescaped.

mod commands;
mod complete;
mod input;
mod screen;
mod session;
mod terminal;

use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args as ClapArgs;

use super::Failure;
use super::media_files::MediaFiles;
use super::output::is_closed_pipe;
use super::run::{CompletionArgs, start};
use input::{Input, InputEntry};
use lab_base::util::inputs::remember_inputs;
use screen::Screen;
use session::Session;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Neither read nor keep a history of inputs across conversations
    #[arg(long)]
    no_history: bool,
    /// The model, in place of `-m`
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    model_path: Option<PathBuf>,
    #[command(flatten)]
    with: CompletionArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let served = Arc::new(start(
        &args.with,
        args.model_path.as_deref(),
        &MediaFiles::default(),
        false,
    )?);
    let fields = args.with.fields(&served)?;
    if !served.has_template() {
        anyhow::bail!(
            "{}: the model has no chat template; `bench run --raw` continues a text",
            served.name
        );
    }
    let is_terminal = std::io::stdin().is_terminal();
    let mut session = Session::new(served, fields, is_terminal)?;
    session.set_system(args.with.system.as_deref())?;
    let mut input = Input::new(is_terminal, !args.no_history)?;
    // What `/load` reads, `/save --force` may replace.
    remember_inputs(false);
    if is_terminal {
        let name = session.served.name.clone();
        session
            .screen
            .note(&format!("{name}; /help lists the commands, Ctrl-D ends"))?;
    }
    let n_failed = talk(&mut session, &mut input)?;
    if n_failed > 0 && !is_terminal {
        anyhow::bail!("{n_failed} of the inputs failed");
    }
    Ok(())
}

/// Runs the loop until the end of the input. Returns the number of inputs that failed.
fn talk(session: &mut Session, input: &mut Input) -> Result<usize, Failure> {
    let mut n_failed = 0;
    loop {
        let next = |()| ControlFlow::Continue(());
        let done = match input.read(&session.prompt())? {
            InputEntry::End => return Ok(n_failed),
            InputEntry::Interrupted => session.screen.note("Ctrl-D ends").map(next),
            InputEntry::Fault(fault) => Err(Failure::msg(fault)),
            InputEntry::Text(text) => session.say(&text).map(next),
            InputEntry::Command(line) => commands::run(session, &line),
        };
        match done {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => return Ok(n_failed),
            Err(failure) if is_closed_pipe(&failure) => return Err(failure),
            Err(failure) => {
                n_failed += 1;
                Screen::error(&failure)?;
            }
        }
    }
}
