//! What commands print, and how they fail.

use std::io::{self, Write};

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

/// Whether a command failed only because nobody reads its output any more.
pub fn is_closed_pipe(failure: &Failure) -> bool {
    failure
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// A number of bytes for people.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}
