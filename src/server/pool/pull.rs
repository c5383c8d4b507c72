//! Downloads of models by their names, into the cache of the Hub.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use lab_core::models;
use lab_hub::{CachedModel, Hub, HubError, ModelName, Settings};

use super::{LoadProgress, ModelEntry, Pool, cached_source};
use crate::http::error::Error;

/// Downloads at a time; further ones are refused.
const MAX_PULLS: usize = 4;

/// The progress of a download as its threads report it.
struct PullProgress {
    received: AtomicU64,
    shared: watch::Sender<LoadProgress>,
    is_cancelled: Arc<AtomicBool>,
}

impl PullProgress {
    fn report(&self, received: u64) {
        self.shared.send_modify(|share| share.loaded = received);
    }
}

impl lab_hub::Progress for PullProgress {
    fn start(&self, total: u64, present: u64) {
        self.received.store(present, Ordering::Relaxed);
        self.shared.send_modify(|share| share.total = total);
        self.report(present);
    }

    fn advance(&self, bytes: i64) {
        let add = |received: u64| Some(received.saturating_add_signed(bytes));
        let order = Ordering::Relaxed;
        if let Ok(before) = self.received.fetch_update(order, order, add) {
            self.report(before.saturating_add_signed(bytes));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

/// A download under way. It ends when this is dropped; what was received is kept for the next one.
pub(crate) struct Pull {
    progress: watch::Receiver<LoadProgress>,
    task: JoinHandle<Result<CachedModel, HubError>>,
    is_cancelled: Arc<AtomicBool>,
    _permit: Arc<()>,
}

impl Drop for Pull {
    fn drop(&mut self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
}

impl Pull {
    /// The progress so far; 0 of 0 until the size is known.
    pub(crate) fn progress(&self) -> LoadProgress {
        *self.progress.borrow()
    }

    /// Waits for the end of the download.
    pub(crate) async fn ended(&mut self) -> Result<CachedModel, Error> {
        match (&mut self.task).await {
            Ok(Ok(model)) => Ok(model),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(Error::Engine {
                detail: error.to_string(),
            }),
        }
    }
}

impl From<HubError> for Error {
    fn from(error: HubError) -> Self {
        let message = error.to_string();
        match error {
            HubError::Name { .. }
            | HubError::NoModel { .. }
            | HubError::RepoNotFound { .. }
            | HubError::RevisionNotFound { .. }
            | HubError::FileNotFound { .. } => Self::invalid_value("model", message),
            HubError::Gated { .. } | HubError::Unauthorized { .. } | HubError::Offline { .. } => {
                Self::Forbidden {
                    code: "download_not_allowed",
                    message,
                }
            }
            _ => Self::DownloadFailed(message),
        }
    }
}

impl Pool {
    /// Starts the download of a model, or of its newest state.
    pub(crate) fn start_pull(&self, name: &str) -> Result<Pull, Error> {
        let name: ModelName = name.parse()?;
        let permit = Arc::clone(&self.pulls);
        if Arc::strong_count(&permit) > MAX_PULLS + 1 {
            return Err(Error::Busy { limit: MAX_PULLS });
        }
        let shared = watch::Sender::default();
        let progress = shared.subscribe();
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let reported = PullProgress {
            received: AtomicU64::new(0),
            shared,
            is_cancelled: Arc::clone(&is_cancelled),
        };
        let of_task = Arc::clone(&permit);
        let task = tokio::task::spawn_blocking(move || {
            let _permit = of_task;
            Hub::new(Settings::from_env()).pull(&name, &reported)
        });
        Ok(Pull {
            progress,
            task,
            is_cancelled,
            _permit: permit,
        })
    }

    /// Adds a downloaded model, if the server serves the models of a folder or of the cache. Returns the name under which
    /// it is served.
    pub(crate) fn add_pulled(&self, model: CachedModel) -> Option<String> {
        self.config.collection.as_ref()?;
        let source = cached_source(model);
        if !models::is_servable(&source) {
            return None;
        }
        let name = source.name();
        let mut entries = self
            .entries
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_same = |entry: &Arc<ModelEntry>| entry.source == source;
        if !entries.get(&name).is_some_and(is_same) {
            // A newer state: the old one completes its requests.
            if let Some(old) = entries.insert(name.clone(), ModelEntry::new(&name, source)) {
                drop(self.end_when_free(&name, &old));
            }
        }
        Some(name)
    }
}
