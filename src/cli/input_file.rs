//! Text and JSON that a command reads, from files and line by line from stdin. Sizes are limited.

use std::io::{self, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use lab_base::util::limited_read::{self, MAX_TEXT};

use super::Failure;
use super::output::at;

pub(super) fn read_text(path: &Path) -> Result<String, Failure> {
    read_at_most(path, MAX_TEXT)
}

/// The text of a file of at most `limit` bytes.
pub(super) fn read_at_most(path: &Path, limit: u64) -> Result<String, Failure> {
    limited_read::text(path, limit).map_err(|error| at(path, error))
}

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    serde_json::from_str(&read_text(path)?).map_err(|error| at(path, error))
}

/// Writes a line of JSON for each line of stdin that is not blank: the answer, or its failure as `error`.
pub(super) fn answer_lines(answer: impl Fn(&str) -> Result<Value, Failure>) -> Result<(), Failure> {
    let (mut out, mut lines) = (io::stdout().lock(), io::stdin().lock());
    while let Some(line) = limited_read::line(&mut lines, MAX_TEXT)? {
        if line.as_ref().is_ok_and(|line| line.trim().is_empty()) {
            continue;
        }
        let answer = line.map_err(Failure::msg).and_then(|line| answer(&line));
        let answer = answer.unwrap_or_else(|error| json!({ "error": error.to_string() }));
        writeln!(out, "{answer}")?;
    }
    out.flush()?;
    Ok(())
}
