//! Slots whose prefixes clients save to files and get back, as llama-server's API has them.
//!
//! Sequences have no slots of their own here: a slot is the number under which the last prefix of a request is remembered. What a
//! file has comes into the prefix cache, where every request finds it. Files are checked as those of the prefix cache are.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use super::handle::Handle;
use super::prefix_order::{KnownPrefix, PrefixOrder, SlotError};
use super::prefix_store;
use super::submission::Order;

/// Number of segments that are in memory at a time, besides the one that is written.
const N_SEGMENTS: usize = 2;
/// Maximum time for writing the rest of the prefix cache.
const FLUSH_TIME: Duration = Duration::from_secs(20);
/// Maximum length of a file's name, in bytes.
const MAX_NAME: usize = 200;

/// Why a slot was not saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum SlotFailure {
    /// Nothing was set up for it.
    #[error("the server was started without --slot-save-path")]
    NoFolder,
    #[error("{0}")]
    Slot(#[from] SlotError),
    /// The name is not that of a file in the folder.
    #[error(
        "a file name of letters, digits and `.-_ `, of at most {MAX_NAME} bytes, with no `.` at its start"
    )]
    Name,
    #[error("{0}")]
    File(String),
    /// The engine has ended.
    #[error("the engine has ended")]
    Ended,
}

/// What was saved or restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotFile {
    pub n_tokens: usize,
    pub bytes: u64,
}

impl Handle {
    fn ask<T>(&self, order: impl FnOnce(mpsc::Sender<T>) -> PrefixOrder) -> Result<T, SlotFailure> {
        let (answer, answered) = mpsc::channel();
        let order = Order::Prefix(order(answer));
        self.queue.send(order).map_err(|_| SlotFailure::Ended)?;
        answered.recv().map_err(|_| SlotFailure::Ended)
    }

    /// The file of this name in the folder for slots.
    fn file_of_slot(&self, name: &str) -> Result<PathBuf, SlotFailure> {
        let (folder, _) = self.slots.as_ref().ok_or(SlotFailure::NoFolder)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_ ".contains(c);
        let is_name = !name.is_empty()
            && name.len() <= MAX_NAME
            && !name.starts_with('.')
            && name.chars().all(is_plain);
        match is_name {
            true => Ok(folder.join(name)),
            false => Err(SlotFailure::Name),
        }
    }

    /// Refuses another file where those of the folder have taken its bytes.
    fn check_slot_bytes(&self, path: &Path) -> Result<(), SlotFailure> {
        let limit = self.slots.as_ref().map_or(0, |(_, limit)| *limit);
        let folder = path.parent().map(Path::read_dir);
        let entries = folder.and_then(Result::ok).into_iter().flatten().flatten();
        // The file is replaced.
        let others = entries.filter(|entry| entry.path() != path);
        let sizes = others.filter_map(|entry| Some(entry.metadata().ok()?.len()));
        let found: u64 = sizes.sum();
        match found < limit {
            true => Ok(()),
            false => Err(SlotFailure::File(format!(
                "the files of --slot-save-path have {found} bytes, and --cache-disk is {limit}"
            ))),
        }
    }

    /// Writes the last prefix of a slot to a file. Blocks.
    ///
    /// # Errors
    /// The name is refused, the slot has nothing, or the file cannot be written.
    pub fn save_slot(&self, slot: usize, name: &str) -> Result<SlotFile, SlotFailure> {
        let path = self.file_of_slot(name)?;
        let layout = self.ask(|answer| PrefixOrder::Info(Vec::new(), answer))?;
        let (layout, _) = layout.ok_or(SlotError::NotShared)?;
        self.check_slot_bytes(&path)?;
        let (send, blocks) = mpsc::sync_channel(N_SEGMENTS);
        let (seed, n_tokens) = self.ask(|answer| PrefixOrder::Save(slot, send, answer))??;
        let mut n_written = 0;
        let segments = blocks
            .into_iter()
            .inspect(|of: &crate::model::PrefixBlocks| {
                n_written += of.tokens.len();
            });
        let bytes = prefix_store::write_file(&path, &layout, &seed, segments);
        let bytes = bytes.map_err(|error| SlotFailure::File(error.to_string()))?;
        if n_written < n_tokens {
            let _ = std::fs::remove_file(&path);
            let message = "a part of the prefix was evicted meanwhile";
            return Err(SlotFailure::File(message.into()));
        }
        Ok(SlotFile { n_tokens, bytes })
    }

    /// Puts the prefix of a file into the prefix cache, as that of a slot. Blocks.
    ///
    /// # Errors
    /// The name is refused, there is no such slot, or the file does not fit the model and its settings.
    pub fn restore_slot(&self, slot: usize, name: &str) -> Result<SlotFile, SlotFailure> {
        let path = self.file_of_slot(name)?;
        let scales = self.adapters.of(None).map_err(|_| SlotFailure::Ended)?;
        let info = self.ask(|answer| PrefixOrder::Info(scales.clone(), answer))?;
        let (layout, seed) = info.ok_or(SlotError::NotShared)?;
        if slot >= self.limits.n_parallel {
            return Err(SlotError::Unknown.into());
        }
        let mut tokens: Vec<u32> = Vec::new();
        let read = prefix_store::read_file(&path, &layout, &seed, |blocks| {
            let of = KnownPrefix {
                scales: scales.clone(),
                seed,
                tokens: tokens.clone(),
            };
            tokens.extend_from_slice(&blocks.tokens);
            let put = self.ask(|answer| PrefixOrder::Restore(slot, of, blocks, answer));
            put.map_err(|error| error.to_string())?
        });
        let bytes = read.map_err(SlotFailure::File)?;
        let n_tokens = tokens.len();
        Ok(SlotFile { n_tokens, bytes })
    }

    /// Removes the last prefix of a slot from the prefix cache, except for what other sequences use. Returns its number of tokens.
    ///
    /// # Errors
    /// There is no such slot.
    pub fn erase_slot(&self, slot: usize) -> Result<usize, SlotFailure> {
        Ok(self.ask(|answer| PrefixOrder::Erase(slot, answer))??)
    }

    /// Writes what the prefix cache has to its folder, as far as that is possible within some seconds, and announces that it is
    /// gone. Blocks. To be called when the engine ends.
    pub fn flush(&self) {
        if self.stats.store().is_none() && !self.is_announced {
            return;
        }
        let (answer, answered) = mpsc::channel();
        let order = Order::Prefix(PrefixOrder::Flush(answer));
        // An engine that has ended has written it. One that hangs does not hold up the end.
        if self.queue.send(order).is_ok() {
            let _ = answered.recv_timeout(FLUSH_TIME);
        }
    }
}
