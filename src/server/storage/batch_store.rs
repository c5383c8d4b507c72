//! The batches of a server: their objects in OpenAI's shape, as files beside those that they read and write.
//!
//! Invariant: the number of batches is bounded; the oldest that are over go first.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use lab_base::util::atomic_file::{self, OutputPath};
use lab_base::util::lock::lock;

use super::file_store::{FileStore, documents};

/// Maximum number of batches, and of those among them that are not over.
const MAX_BATCHES: usize = 1000;
const MAX_OPEN: usize = 100;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredBatch {
    owner: String,
    pub(crate) batch: Value,
}

impl StoredBatch {
    fn is_over(&self) -> bool {
        let status = self.batch["status"].as_str().unwrap_or_default();
        ["completed", "failed", "cancelled"].contains(&status)
    }
}

/// The batches in the folder of a file store.
#[derive(Debug)]
pub struct BatchStore {
    pub(crate) files: FileStore,
    folder: PathBuf,
    batches: Mutex<BTreeMap<String, StoredBatch>>,
    /// Tells the work of each batch whether it is cancelled.
    running: Mutex<BTreeMap<String, watch::Sender<bool>>>,
    /// The lines of all batches that run at a time.
    pub(crate) turns: Arc<Semaphore>,
    pub(crate) n_turns: usize,
}

impl BatchStore {
    /// The batches beside these files, of which at most `n_turns` lines run at a time.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn open(files: FileStore, n_turns: usize) -> io::Result<Self> {
        let folder = files.folder().to_owned();
        let all = documents::<StoredBatch>(&folder, "batch_")?.into_iter();
        let all = all.filter_map(|one| Some((one.batch["id"].as_str()?.to_owned(), one)));
        Ok(Self {
            batches: Mutex::new(all.collect()),
            running: Mutex::default(),
            turns: Arc::new(Semaphore::new(n_turns)),
            n_turns,
            files,
            folder,
        })
    }

    /// Stores a batch, new or changed. A failure to write it is logged: what is in memory holds.
    pub(crate) fn save(&self, owner: &str, batch: &Value) {
        let id = batch["id"].as_str().unwrap_or_default().to_owned();
        let stored = StoredBatch {
            owner: owner.to_owned(),
            batch: batch.clone(),
        };
        let path = |id: &str| self.folder.join(format!("{id}.json"));
        let mut batches = lock(&self.batches);
        let written = serde_json::to_vec(&stored).map_err(io::Error::other);
        if let Err(error) =
            written.and_then(|text| atomic_file::write(OutputPath::replacing(&path(&id)), &text))
        {
            tracing::error!(%error, id, "a batch could not be written");
        }
        batches.insert(id, stored);
        if batches.len() > MAX_BATCHES
            && let Some(oldest) = batches.iter().find(|(_, one)| one.is_over())
        {
            let oldest = oldest.0.clone();
            batches.remove(&oldest);
            let _ = fs::remove_file(path(&oldest));
        }
    }

    /// Changes a batch in memory only: what its results say need not be written with each of them.
    pub(crate) fn update(&self, owner: &str, batch: &Value) {
        let id = batch["id"].as_str().unwrap_or_default();
        let mut batches = lock(&self.batches);
        if let Some(stored) = batches.get_mut(id).filter(|one| one.owner == owner) {
            stored.batch.clone_from(batch);
        }
    }

    /// Whether as many batches as may be are not over.
    pub(crate) fn limit_reached(&self) -> Option<usize> {
        let batches = lock(&self.batches);
        let n = batches.values().filter(|one| !one.is_over()).count();
        (n >= MAX_OPEN).then_some(MAX_OPEN)
    }

    pub(crate) fn get(&self, owner: &str, id: &str) -> Option<Value> {
        let batches = lock(&self.batches);
        let found = batches.get(id).filter(|one| one.owner == owner)?;
        Some(found.batch.clone())
    }

    /// The batches of a client, the oldest first.
    pub(crate) fn list(&self, owner: &str) -> Vec<Value> {
        let batches = lock(&self.batches);
        let own = batches.values().filter(|one| one.owner == owner);
        own.map(|one| one.batch.clone()).collect()
    }

    /// The batches that are not over, with their owners.
    pub(crate) fn open_ones(&self) -> Vec<(String, Value)> {
        let batches = lock(&self.batches);
        let open = batches.values().filter(|one| !one.is_over());
        open.map(|one| (one.owner.clone(), one.batch.clone()))
            .collect()
    }

    /// Notes that the work on a batch starts. The receiver is told when it is cancelled.
    pub(crate) fn start(&self, id: &str) -> watch::Receiver<bool> {
        let (sender, cancelled) = watch::channel(false);
        lock(&self.running).insert(id.to_owned(), sender);
        cancelled
    }

    pub(crate) fn end(&self, id: &str) {
        lock(&self.running).remove(id);
    }

    pub(crate) fn cancel(&self, id: &str) {
        if let Some(sender) = lock(&self.running).get(id) {
            sender.send_replace(true);
        }
    }
}
