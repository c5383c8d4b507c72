//! The prompts of a file of `bench lab collect`: one on each line, as JSON.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::cli::Failure;
use crate::cli::output::at;
use lab_base::util::limited_read;

use super::runner::LabRunner;

/// Maximum size of a line of prompts, in bytes.
const MAX_LINE: u64 = 16 << 20;

/// The prompts of a file, read one by one.
pub(super) struct PromptLines {
    path: PathBuf,
    file: BufReader<File>,
    at: usize,
    /// The hash of the lines so far, if one is wanted.
    pub(super) hash: Option<Sha256>,
}

impl PromptLines {
    pub(super) fn open(path: &Path, is_hashed: bool) -> Result<Self, Failure> {
        let file = limited_read::open(path).map_err(|error| at(path, error))?;
        Ok(Self {
            path: path.to_owned(),
            file: BufReader::with_capacity(1 << 20, file),
            at: 0,
            hash: is_hashed.then(Sha256::new),
        })
    }

    /// The next line that is not empty.
    pub(super) fn line(&mut self) -> Result<Option<String>, Failure> {
        loop {
            self.at += 1;
            let mut line = Vec::new();
            let place = |what: &str| anyhow::anyhow!("{}:{}: {what}", self.path.display(), self.at);
            let n = (&mut self.file).take(MAX_LINE).read_until(b'\n', &mut line);
            let n = n.map_err(|error| place(&error.to_string()))?;
            if n as u64 == MAX_LINE {
                return Err(place(&format!("expected lines below {MAX_LINE} bytes")));
            }
            if let Some(hash) = &mut self.hash {
                hash.update(&line);
            }
            if n == 0 {
                return Ok(None);
            }
            let line = String::from_utf8(line).map_err(|_| place("expected UTF-8"))?;
            if !line.trim().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    pub(super) fn tokens(&mut self, runner: &LabRunner) -> Result<Option<Vec<u32>>, Failure> {
        let Some(line) = self.line()? else {
            return Ok(None);
        };
        let place = |what: String| anyhow::anyhow!("{}:{}: {what}", self.path.display(), self.at);
        let value: Value = serde_json::from_str(&line).map_err(|e| {
            place(format!(
                "each line is JSON, and a text is in quotation marks: {e}"
            ))
        })?;
        let prompt = match value {
            Value::Object(mut object) => object.remove("prompt").unwrap_or_default(),
            other => other,
        };
        let tokens = match prompt {
            Value::String(text) => runner.encode(&text).map_err(|e| place(e.to_string()))?,
            other => serde_json::from_value::<Vec<u32>>(other).map_err(|_| {
                place("expected a string, token ids, or an object with either as `prompt`".into())
            })?,
        };
        let n_vocab = runner.served.handle.tokenizer().vocab_len();
        match tokens.iter().find(|id| **id as usize >= n_vocab) {
            Some(id) => Err(place(format!("{id} is not a token id below {n_vocab}"))),
            None => Ok(Some(tokens)),
        }
    }
}
