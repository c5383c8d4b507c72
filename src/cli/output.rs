//! The output of commands, and their failures.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::common::writing;
use crate::ggml::end_process;

/// An error message for the user.
pub type Failure = anyhow::Error;

/// Prints bytes to stdout.
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// Prints a line to stdout.
pub(super) fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    let mut text = text.as_ref().to_owned();
    text.push('\n');
    bytes(text.as_bytes())
}

/// Text that cannot control a terminal: control characters except newline and tab are escaped.
pub(super) fn shown(text: &str) -> String {
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

/// Whether a command failed only because the reader of its output has closed the pipe.
pub fn is_closed_pipe(failure: &Failure) -> bool {
    failure
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes a file into a folder, which is created if necessary. Returns the path.
///
/// # Errors
/// The name is hidden or leads out of the folder, or the folder or file cannot be written; the error has the path.
pub(super) fn save(folder: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, Failure> {
    let is_plain = Path::new(name).file_name().is_some_and(|own| own == name);
    if !is_plain || name.starts_with('.') || name.contains(char::is_control) {
        anyhow::bail!(
            "`{}` is not a name for a file in a folder; `--name NAME` gives another",
            name.escape_debug()
        );
    }
    let at = |path: &Path, error: std::io::Error| anyhow::anyhow!("{}: {error}", path.display());
    std::fs::create_dir_all(folder).map_err(|error| at(folder, error))?;
    let path = folder.join(name);
    writing::write(&path, bytes).map_err(|error| at(&path, error))?;
    Ok(path)
}

/// Installs handlers for SIGINT, SIGTERM and SIGHUP that remove incomplete files and end this process with 128 plus the
/// signal's number, as shells report it. For commands that write for a long time.
///
/// # Errors
/// The operating system cannot install a handler or start a thread.
#[cfg(unix)]
pub(super) fn remove_on_signals() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(entered);
    let wait = move || {
        let kind = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
                _ = hangup.recv() => SignalKind::hangup(),
            }
        });
        let _removed = writing::remove_incomplete();
        end_process(128 + kind.as_raw_value());
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(wait).map(drop)
}

/// The stub for systems without these signals.
///
/// # Errors
/// Never.
#[cfg(not(unix))]
pub(super) fn remove_on_signals() -> io::Result<()> {
    Ok(())
}
