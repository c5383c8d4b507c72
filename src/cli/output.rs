//! What commands print, and how they fail.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::common::writing;

/// One message for the person at the terminal.
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

/// A text that cannot control a terminal: control characters but newline and tab are escaped.
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

/// Whether a command failed only because nobody reads its output any more.
pub fn is_closed_pipe(failure: &Failure) -> bool {
    failure
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes a file into a folder, which is made if it is not there; gives its path.
///
/// # Errors
/// A name that is hidden or leads elsewhere; a folder or file that cannot be written, with its path.
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

/// From now on a signal to end (those of Ctrl-C, of service managers and of closed terminals) removes what is incomplete,
/// and ends this process with 128 and the signal's number, as shells report it. For commands that write for long.
///
/// # Errors
/// The operating system takes no handler or has no thread.
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
        #[expect(clippy::exit, reason = "the main thread is at work and is not asked")]
        std::process::exit(128 + kind.as_raw_value());
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(wait).map(drop)
}

/// The same where there are no such signals.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub(super) fn remove_on_signals() -> io::Result<()> {
    Ok(())
}
