//! The output of commands, and their failures.
//!
//! Invariant: a file that is there already is replaced only with `--force`, an input never.

use std::any::TypeId;
use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args};

use lab_base::ggml::end_process;
use lab_base::util::atomic_file::{self, OutputPath};
use lab_base::util::inputs::{is_input, is_same_file};

/// An error message for the user.
pub type Failure = anyhow::Error;

/// The failure of a command whose output is valid as far as it goes, and not complete. It has an exit code of its own.
#[derive(Debug)]
pub(super) struct IncompleteOutput(pub(super) String);

impl std::fmt::Display for IncompleteOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for IncompleteOutput {}

/// The exit code of a failure.
pub fn exit_code(failure: &Failure) -> i32 {
    match failure.is::<IncompleteOutput>() {
        true => 3,
        false => 1,
    }
}

pub(super) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

pub(super) fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    let mut text = text.as_ref().to_owned();
    text.push('\n');
    bytes(text.as_bytes())
}

/// Prints a value to stdout as indented JSON.
pub(super) fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    line(serde_json::to_string_pretty(value)?)
}

/// Text that cannot control a terminal: control characters except newline and tab are escaped.
pub(super) fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Defines types of paths that a command writes. Other paths of a command line are inputs.
macro_rules! outputs {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(super) struct $name(PathBuf);

        impl From<OsString> for $name {
            fn from(path: OsString) -> Self {
                Self(path.into())
            }
        }

        impl Deref for $name {
            type Target = Path;

            fn deref(&self) -> &Path {
                &self.0
            }
        }

        impl AsRef<Path> for $name {
            fn as_ref(&self) -> &Path {
                self
            }
        }
    )*};
}

outputs! {
    /// A file that a command writes; `-` is stdout. [`check_outputs`] refuses one that is there already.
    OutputFile
    /// A folder that a command writes into, or a file or folder by its ending. The command checks what is there.
    OutputPlace
    /// A file to which a command appends.
    AppendedFile
}

/// Whether files that are there already are replaced.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ForceOption {
    /// Replace what is there already; an input is never replaced
    #[arg(long)]
    pub(super) force: bool,
}

impl ForceOption {
    pub(super) fn target<'p>(&self, path: &'p Path) -> OutputPath<'p> {
        let replaces = self.force;
        OutputPath { path, replaces }
    }
}

pub(super) fn at(path: &Path, error: impl std::fmt::Display) -> Failure {
    anyhow::anyhow!("{}: {error}", path.display())
}

/// Refuses the output files of a command line that are there already, inputs, or named twice: before the work.
pub(super) fn check_outputs(command: &clap::Command, matches: &ArgMatches) -> Result<(), Failure> {
    let (mut command, mut matches) = (command, matches);
    while let Some((name, of_it)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else {
            break;
        };
        (command, matches) = (found, of_it);
    }
    let given = |ty: TypeId| -> Vec<PathBuf> {
        let all = command.get_arguments();
        let own = all.filter(|arg| arg.get_value_parser().type_id() == ty);
        let raw = own.filter_map(|arg| matches.get_raw(arg.get_id().as_str()));
        raw.flatten().map(PathBuf::from).collect()
    };
    let inputs = given(TypeId::of::<PathBuf>());
    let refuse_input = |path: &Path| match inputs.iter().any(|input| is_same_file(input, path)) {
        true => Err(at(path, is_input())),
        false => Ok(()),
    };
    let replaces = matches!(matches.try_get_one::<bool>("force"), Ok(Some(true)));
    let outputs = given(TypeId::of::<OutputFile>());
    for (i, path) in outputs.iter().enumerate() {
        refuse_input(path)?;
        let is_same = |other: &PathBuf| other == path || is_same_file(other, path);
        if outputs[..i].iter().any(is_same) {
            anyhow::bail!("{}: two outputs have this name", path.display());
        }
        let checked = OutputPath { path, replaces }.check();
        checked.map_err(|error| at(path, error))?;
    }
    let appended = given(TypeId::of::<AppendedFile>());
    appended.iter().try_for_each(|path| refuse_input(path))
}

/// Whether a command failed only because the reader of its output has closed the pipe.
pub fn is_closed_pipe(failure: &Failure) -> bool {
    failure
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes files, by their names, into a folder, which is created if necessary: all of them, or none if one is refused.
/// Returns their paths.
pub(super) fn save(
    folder: &Path,
    files: &[(String, Vec<u8>)],
    force: ForceOption,
) -> Result<Vec<PathBuf>, Failure> {
    for (name, _) in files {
        let is_plain = Path::new(name)
            .file_name()
            .is_some_and(|own| own == &**name);
        if !is_plain || name.starts_with('.') || name.contains(char::is_control) {
            anyhow::bail!(
                "`{}` is not a name for a file in a folder; `--name NAME` gives another",
                name.escape_debug()
            );
        }
        let path = folder.join(name);
        let checked = force.target(&path).check();
        checked.map_err(|error| at(&path, error))?;
    }
    std::fs::create_dir_all(folder).map_err(|error| at(folder, error))?;
    let mut paths = Vec::new();
    for (name, bytes) in files {
        let path = folder.join(name);
        let written = atomic_file::write(force.target(&path), bytes);
        written.map_err(|error| at(&path, error))?;
        paths.push(path);
    }
    Ok(paths)
}

/// Installs handlers for SIGINT, SIGTERM and SIGHUP that remove incomplete files and end this process. For commands that
/// write for a long time.
#[cfg(unix)]
pub(super) fn remove_on_signals() -> io::Result<()> {
    use tokio::signal::unix::SignalKind;
    let ends = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    end_on_signals(&ends, &[], atomic_file::remove_incomplete)
}

/// Installs handlers for signals. The signals `ends` end this process, after `before`, with 128 plus the signal's number,
/// as shells report it. The signals `ignored` do nothing here.
#[cfg(unix)]
pub(super) fn end_on_signals<T>(
    ends: &[tokio::signal::unix::SignalKind],
    ignored: &[tokio::signal::unix::SignalKind],
    before: impl FnOnce() -> T + Send + 'static,
) -> io::Result<()> {
    use std::task::Poll;
    use tokio::signal::unix::{Signal, SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let entered = runtime.enter();
    let of = |kind: &SignalKind| Ok((*kind, signal(*kind)?));
    let mut signals = ends.iter().map(of).collect::<io::Result<Vec<_>>>()?;
    // Once installed, a handler stays.
    let _: Vec<_> = ignored.iter().map(of).collect::<io::Result<_>>()?;
    drop(entered);
    let wait = move || {
        let kind = runtime.block_on(std::future::poll_fn(|context| {
            let mut all = signals.iter_mut();
            let mut is_here =
                |(_, signal): &mut (SignalKind, Signal)| signal.poll_recv(context).is_ready();
            match all.find_map(|own| is_here(own).then_some(own.0)) {
                Some(kind) => Poll::Ready(kind),
                None => Poll::Pending,
            }
        }));
        let _held = before();
        end_process(128 + kind.as_raw_value());
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(wait).map(drop)
}

/// The stub for systems without these signals.
#[cfg(not(unix))]
pub(super) fn remove_on_signals() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    const INPUTS: &str = "a against api_key_file archs audio b backend cache_dir calibrate chat_template_file config dump file files from grammar image imatrix input json_schema kept keys lab_vectors lora_dir \
        draft_model media_dir media_values messages mix mmproj model model_path models negative overlay path plan positive prompts reference slot_save_path socket source \
        template text tls_cert tls_key tools vocab";
    /// The outputs: commands with their options and arguments.
    const OUTPUTS: &[&str] = &[
        "arch new: output",
        "convert: save_imatrix, target",
        "diagram: output",
        "lab attention-map: html, json, png, svg",
        "lab attention: html, json, png, svg",
        "lab attribution: html, json, png, svg",
        "lab collect: output",
        "lab direction: output",
        "lab lens: html, json, png, svg",
        "lab patch: html, json, png, svg",
        "lab routing: html, json, png, svg",
        "lab run: output",
        "logits: output",
        "man-pages: folder",
        "quantise: target",
        "synth: output",
    ];

    fn each(command: &clap::Command, words: &[&str], act: &mut dyn FnMut(&clap::Command, &[&str])) {
        if !command.has_subcommands() {
            return act(command, words);
        }
        for own in command.get_subcommands() {
            each(own, &[words, &[own.get_name()]].concat(), act);
        }
    }

    fn is(arg: &clap::Arg, ty: TypeId) -> bool {
        arg.get_value_parser().type_id() == ty
    }

    fn built() -> clap::Command {
        let mut command = Cli::command();
        command.build();
        command
    }

    #[test]
    fn every_path_of_a_command_is_an_input_or_an_output() {
        let mut found = Vec::new();
        each(&built(), &[], &mut |command, words| {
            let all = || command.get_arguments();
            for arg in all().filter(|arg| is(arg, TypeId::of::<PathBuf>())) {
                let id = arg.get_id().as_str();
                // An output has a type of its own: `OutputFile`, or `OutputPlace` if the command checks what is there.
                let is_input = INPUTS.split(' ').any(|input| input == id);
                assert!(is_input, "{words:?}: is `{id}` an input?");
            }
            let types = [TypeId::of::<OutputFile>(), TypeId::of::<OutputPlace>()];
            let outputs = all().filter(|arg| types.iter().any(|ty| is(arg, *ty)));
            let mut names: Vec<&str> = outputs.map(|arg| arg.get_id().as_str()).collect();
            names.sort_unstable();
            if !names.is_empty() {
                let has_force = all().any(|arg| arg.get_long() == Some("force"));
                assert!(has_force, "{words:?} has no --force");
                found.push(format!("{}: {}", words.join(" "), names.join(", ")));
            }
        });
        found.sort_unstable();
        assert_eq!(found, OUTPUTS, "tests/it/outputs.rs tries each of them");
    }
}
