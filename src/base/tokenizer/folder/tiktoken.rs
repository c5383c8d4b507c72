//! Vocabularies of tiktoken: the bytes of each token; tokens are joined in the order of their ids.
//!
//! tiktoken joins any two neighbours that together are a token, the lowest id first. As merges, this is every split of
//! a token into two others, by the id of the token. Invariant: no bytes and no id occur twice, and every single byte is
//! a token, so that any text can be encoded.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value as Json, json};

use super::super::byte_level;
use super::Error;
use super::base64::decode;
use super::files::FolderFiles;
use super::tokenizer_json::{SpecialToken, byte_level as byte_level_json};

/// Maximum number of bytes of a token: four times the longest known one.
const LONGEST: usize = 1024;
/// Maximum number of bytes of all merges, per byte of the file; known vocabularies have less than 4.
const MOST_MERGED: usize = 16;

#[derive(Debug, Default)]
pub(super) struct TiktokenRanks {
    ids: FxHashMap<Vec<u8>, u32>,
    tokens: std::collections::BTreeMap<u32, Vec<u8>>,
}

/// Whether a file is a SentencePiece model: it starts with the tag of a piece, a line feed, which is not a digit of
/// base64.
pub(super) fn is_model(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'\n')
}

impl TiktokenRanks {
    /// Parses lines of a base64 text and a number.
    pub(super) fn read(files: &FolderFiles) -> Result<Self, Error> {
        let mut this = Self::default();
        let lines = files.vocabulary.bytes.split(|byte| *byte == b'\n');
        for (number, line) in (1..).zip(lines) {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let entry = || {
                let (bytes, id) = std::str::from_utf8(line).ok()?.split_once(' ')?;
                Some((decode(bytes)?, id.trim().parse().ok()?))
            };
            let (bytes, id) = entry().ok_or_else(|| {
                files.damaged(format!(
                    "line {number} is not a token in base64 with its rank, and the file is not a SentencePiece model"
                ))
            })?;
            this.add(files, bytes, id)?;
        }
        Ok(this)
    }

    pub(super) fn add(
        &mut self,
        files: &FolderFiles,
        bytes: Vec<u8>,
        id: u32,
    ) -> Result<(), Error> {
        if bytes.is_empty() || bytes.len() > LONGEST {
            let len = bytes.len();
            return Err(files.damaged(format!(
                "token {id} has {len} bytes, expected 1 to {LONGEST}"
            )));
        }
        if let Some(other) = self.ids.insert(bytes.clone(), id) {
            return Err(files.damaged(format!("tokens {other} and {id} have the same bytes")));
        }
        if self.tokens.insert(id, bytes).is_some() {
            return Err(files.damaged(format!("two tokens have the rank {id}")));
        }
        Ok(())
    }

    /// The first id after all tokens.
    pub(super) fn end(&self) -> u32 {
        let last = self.tokens.last_key_value();
        last.map_or(0, |(id, _)| id.saturating_add(1))
    }

    pub(super) fn describe(
        &self,
        files: &FolderFiles,
        pattern: &str,
        normal_form: Option<&str>,
        specials: &[SpecialToken],
    ) -> Result<Vec<u8>, Error> {
        let missing = (0..=u8::MAX).find(|byte| !self.ids.contains_key(&[*byte][..]));
        if let Some(byte) = missing {
            return Err(files.damaged(format!("no token for the single byte {byte:#04x}")));
        }
        let merges = self.merges(files)?;
        let mut vocab = Map::new();
        for (id, bytes) in &self.tokens {
            vocab.insert(spelled(bytes), (*id).into());
        }
        for SpecialToken { id, token } in specials {
            let text = &token.content;
            if let Some(other) = vocab.insert(text.clone(), (*id).into())
                && other != *id
            {
                return Err(files.damaged(format!("token `{text}` has the ids {other} and {id}")));
            }
            if let Some(bytes) = self.tokens.get(id).filter(|bytes| spelled(bytes) != *text) {
                return Err(Error::DoubledId {
                    path: files.tokenizer_path(),
                    id: *id,
                    first: spelled(bytes),
                    second: text.clone(),
                });
            }
        }
        let model = json!({"type": "BPE", "ignore_merges": true, "vocab": vocab, "merges": merges});
        Ok(byte_level_json(pattern, normal_form, specials, &model))
    }

    /// Every split of a token into two others; for each token, the splits with the lowest parts first.
    fn merges(&self, files: &FolderFiles) -> Result<Vec<Json>, Error> {
        let all: usize = self.tokens.values().map(Vec::len).sum();
        let mut budget = all.saturating_mul(MOST_MERGED);
        let mut parts = Vec::new();
        for bytes in self.tokens.values() {
            let mut ways: Vec<(u32, u32, usize)> = (1..bytes.len())
                .filter_map(|at| {
                    let (left, right) = bytes.split_at(at);
                    Some((*self.ids.get(left)?, *self.ids.get(right)?, at))
                })
                .collect();
            ways.sort_unstable();
            let left = budget.checked_sub(ways.len() * bytes.len());
            budget = left.ok_or_else(|| {
                files.damaged("far more ways to join tokens than in any vocabulary")
            })?;
            parts.extend(ways.into_iter().map(|(.., at)| bytes.split_at(at)));
        }
        let merge = |(left, right)| json!([spelled(left), spelled(right)]);
        Ok(parts.into_iter().map(merge).collect())
    }
}

static LETTERS: LazyLock<Vec<char>> =
    LazyLock::new(|| (0..=u8::MAX).map(byte_level::letter_of).collect());

fn spelled(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| LETTERS[usize::from(*byte)])
        .collect()
}
