//! The models of a server, and which of them are loaded.
//!
//! A model is loaded once, however many requests wait for it, and loading goes on if they are cancelled. A model that
//! is not loaded is described from its file, once. Not here: the answers to requests.

mod adapters;
mod card;
mod collection;
mod crash_history;
mod description;
mod engine;
mod eviction;
mod loading;
mod management;
mod names;
mod pull;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use axum::extract::FromRef;
use tokio::sync::watch;

use lab_base::util::clock::unix_seconds;
use lab_base::util::lock::lock;
use lab_core::arch::nearest;
use lab_core::artifacts::store::ArtifactStore;
use lab_core::artifacts::vectors::VectorStore;
use lab_core::engine::Failure;
use lab_core::models;
use lab_core::models::{FileStamp, ModelSource};

use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::page::policy::PagePolicy;
use crate::process::{EngineProcess, LoadError};
use crate::served::{DEFAULT_MODEL, ServedModel};
use crate::storage::batch_store::BatchStore;
use crate::storage::response_store::ResponseStore;

use crash_history::CrashHistory;

pub use adapters::NamedAdapter;
pub(super) use card::ModelCard;
pub use collection::{Collection, cached_source};
pub use description::{Description, DiagramView, Opener, UnloadedModel};
pub(super) use engine::LoadedEngine;
pub use engine::StartedEngine;
pub use eviction::LoadLimits;
pub(super) use loading::{Load, LoadProgress};
pub use loading::{LoadRequest, Loader};
pub(super) use names::LATEST;
pub use names::Strictness;
pub(crate) use pull::Pull;

/// How the models of a pool run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostMode {
    /// In this process.
    #[default]
    InProcess,
    /// Each in an engine process of its own.
    Server,
    /// This is an engine process. Its only model answers to every name.
    EngineProcess,
}

/// The settings of a pool.
#[derive(Default)]
pub struct PoolConfig {
    /// How the models run.
    pub mode: HostMode,
    /// Aliases, with the models' own names.
    pub aliases: BTreeMap<String, String>,
    /// The place whose models are served; none if one model is.
    pub collection: Option<Collection>,
    /// The folder whose adapters requests may load.
    pub lora_dir: Option<PathBuf>,
    /// Opens a model to describe or draw it; without it, models are described only once they are loaded.
    pub opener: Option<Opener>,
    /// Whether requests may load and unload models, and are told why one cannot be served.
    pub is_managed: bool,
    /// What is refused rather than served as well as possible.
    pub strictness: Strictness,
    /// The limits on loaded models.
    pub limits: LoadLimits,
    /// Maximum size of a request that uploads vectors, in bytes.
    pub upload_bytes: usize,
    /// Maximum size of the responses that `/v1/responses` stores, in bytes; 0 = none are stored.
    pub response_bytes: usize,
    /// The files and batches of clients.
    pub batches: Option<BatchStore>,
    /// The storage of results for later requests.
    pub artifacts: Option<ArtifactStore>,
    /// The vectors that requests may name.
    pub vectors: Arc<VectorStore>,
    /// What browsers let the chat page do.
    pub page: PagePolicy,
}

impl FromRef<Arc<Pool>> for PagePolicy {
    fn from_ref(pool: &Arc<Pool>) -> Self {
        pool.config.page.clone()
    }
}

enum LoadState {
    NotLoaded,
    /// The load, on whose end requests wait.
    Loading(Load),
    Loaded(LoadedEngine),
}

struct ModelEntry {
    name: String,
    source: ModelSource,
    state: Mutex<LoadState>,
    last_used: Mutex<Instant>,
    /// `None` until the model is described or loaded, and after its file was replaced.
    description: Mutex<Option<Result<Description, String>>>,
    /// The state of its file when it was described.
    stamp: Mutex<Option<FileStamp>>,
    n_loads: AtomicU64,
    n_failures: AtomicU64,
    crashes: Mutex<CrashHistory>,
    /// Progress of the latest load.
    progress: watch::Sender<LoadProgress>,
    /// Number of its engines that end once their requests are complete.
    n_ending: AtomicUsize,
    /// Idle time after which it is unloaded, if a request has set it.
    keep_alive: Mutex<Option<Duration>>,
    /// Scales of its adapters, if a request has set them.
    scales: Mutex<Option<Vec<(usize, f32)>>>,
    /// The adapters that requests have loaded.
    adapters: Mutex<Vec<NamedAdapter>>,
}

pub(super) struct ModelSnapshot {
    pub(super) name: String,
    pub(super) source: ModelSource,
    /// `loaded`, `loading`, `unloading`, `not loaded`, `not servable`, or `failed` after the death of its engine process.
    pub(super) state: &'static str,
    /// The engine of the model, if it is in this process.
    pub(super) served: Option<Arc<ServedModel>>,
    /// The engine process of the model, if it has one.
    pub(super) process: Option<Arc<EngineProcess>>,
    pub(super) description: Option<Description>,
    /// Progress of the load, while the model is being loaded.
    pub(super) progress: Option<LoadProgress>,
    pub(super) fault: Option<String>,
    /// The time since its last use.
    pub(super) idle_for: Duration,
    /// Idle time after which it is unloaded, if a request has set it.
    pub(super) keep_alive: Option<Duration>,
    /// Number of successful loads, and below of failed ones.
    pub(super) n_loads: u64,
    pub(super) n_failures: u64,
    pub(super) n_deaths: u64,
    /// The adapters that requests have loaded.
    pub(super) adapters: Vec<NamedAdapter>,
}

/// The models by name.
pub struct Pool {
    entries: RwLock<BTreeMap<String, Arc<ModelEntry>>>,
    loader: Loader,
    pub(super) config: PoolConfig,
    /// The thread that unloads idle models.
    idle_thread: OnceLock<Thread>,
    /// Held while a model is described: one at a time.
    describing: tokio::sync::Mutex<()>,
    /// Held while a picture is drawn: one at a time.
    pub(super) drawing: tokio::sync::Mutex<()>,
    /// Number of loads under way that count towards the limit of loaded models.
    admitted: Mutex<usize>,
    /// Number of engines that were taken out of the pool and have not ended.
    n_ending: Arc<AtomicUsize>,
    /// Has a copy for each download and its thread.
    pulls: Arc<()>,
    /// The start time of the server, in seconds since 1970.
    pub(super) created: u64,
    quits: watch::Sender<bool>,
    /// Held while adapter scales are set, so that the stored scales are those in effect.
    pub(super) scaling: tokio::sync::Mutex<()>,
    pub(super) responses: ResponseStore,
    /// Whether the models are loaded that are to be loaded before the server is ready.
    pub(super) is_ready: AtomicBool,
    /// Whether the server is about to end and new requests should go elsewhere.
    is_draining: AtomicBool,
}

impl ModelEntry {
    fn new(name: &str, source: ModelSource) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            source,
            state: Mutex::new(LoadState::NotLoaded),
            last_used: Mutex::new(Instant::now()),
            description: Mutex::default(),
            stamp: Mutex::default(),
            n_loads: AtomicU64::new(0),
            n_failures: AtomicU64::new(0),
            crashes: Mutex::default(),
            progress: watch::Sender::default(),
            n_ending: AtomicUsize::new(0),
            keep_alive: Mutex::default(),
            scales: Mutex::default(),
            adapters: Mutex::default(),
        })
    }

    fn info(&self, name: &str) -> ModelSnapshot {
        let (description, fault) = match lock(&self.description).clone() {
            None => (None, None),
            Some(Ok(description)) => (Some(description), None),
            Some(Err(fault)) => (None, Some(fault)),
        };
        let (n_deaths, death) = lock(&self.crashes).report();
        let (state, engine) = match &*lock(&self.state) {
            LoadState::NotLoaded if self.is_ending() => ("unloading", None),
            LoadState::NotLoaded if fault.is_some() => ("not servable", None),
            LoadState::NotLoaded if death.is_some() => ("failed", None),
            LoadState::NotLoaded => ("not loaded", None),
            LoadState::Loading(_) => ("loading", None),
            LoadState::Loaded(engine) => ("loaded", Some(engine.clone())),
        };
        let share = (state == "loading").then(|| *self.progress.borrow());
        let (served, process) = engine.map_or((None, None), LoadedEngine::parts);
        ModelSnapshot {
            name: name.to_owned(),
            source: self.source.clone(),
            idle_for: lock(&self.last_used).elapsed(),
            keep_alive: *lock(&self.keep_alive),
            state,
            served,
            process,
            description,
            progress: share,
            fault: fault.or(death),
            n_deaths,
            adapters: lock(&self.adapters).clone(),
            n_loads: self.n_loads.load(Ordering::Relaxed),
            n_failures: self.n_failures.load(Ordering::Relaxed),
        }
    }
}

impl Pool {
    /// A pool of these models, none of them loaded.
    ///
    /// # Errors
    /// An alias names a model that does not exist.
    pub fn new(
        sources: Vec<ModelSource>,
        loader: Loader,
        config: PoolConfig,
    ) -> Result<Self, String> {
        let sources = models::by_name(sources);
        for (alias, name) in &config.aliases {
            if !sources.contains_key(name) {
                let near = nearest(name, sources.keys().map(String::as_str));
                let hint =
                    near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
                return Err(format!(
                    "the alias `{alias}` names the model `{name}`, which is not served{hint}"
                ));
            }
        }
        let entries = sources.into_iter().map(|(name, source)| {
            let entry = ModelEntry::new(&name, source);
            (name, entry)
        });
        Ok(Self::of(entries.collect(), loader, config))
    }

    fn of(entries: BTreeMap<String, Arc<ModelEntry>>, loader: Loader, config: PoolConfig) -> Self {
        Self {
            responses: ResponseStore::new(config.response_bytes),
            is_ready: AtomicBool::new(true),
            is_draining: AtomicBool::new(false),
            entries: RwLock::new(entries),
            loader,
            config,
            idle_thread: OnceLock::new(),
            describing: tokio::sync::Mutex::default(),
            drawing: tokio::sync::Mutex::default(),
            admitted: Mutex::default(),
            n_ending: Arc::default(),
            pulls: Arc::default(),
            created: unix_seconds(),
            quits: watch::Sender::default(),
            scaling: tokio::sync::Mutex::default(),
        }
    }

    /// The pool of an engine process. Its model is loaded and answers to every name.
    pub fn of_engine(served: ServedModel, source: ModelSource, strictness: Strictness) -> Self {
        let loader: Loader = Arc::new(|_| Err(LoadError::new("the model is loaded")));
        let config = PoolConfig {
            mode: HostMode::EngineProcess,
            strictness,
            ..PoolConfig::default()
        };
        let name = served.name.clone();
        let entry = ModelEntry::new(&name, source);
        entry.set_loaded(&LoadedEngine::new(served.into(), &name));
        Self::of(BTreeMap::from([(name, entry)]), loader, config)
    }

    fn all(&self) -> Vec<(String, Arc<ModelEntry>)> {
        let places = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let all = places.iter();
        all.map(|(name, place)| (name.clone(), Arc::clone(place)))
            .collect()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.all().into_iter().map(|(name, _)| name).collect()
    }

    pub(super) fn infos(&self) -> Vec<ModelSnapshot> {
        let all = self.all().into_iter();
        all.map(|(name, place)| place.info(&name)).collect()
    }

    /// A snapshot of each model. Models without a description are described from their files.
    pub(super) async fn described(&self) -> Vec<ModelSnapshot> {
        let mut infos = Vec::new();
        let client = RequestContext::current().client();
        let permitted = self.all().into_iter();
        for (name, place) in permitted.filter(|(name, _)| client.may_use(name)) {
            self.describe(&place).await;
            infos.push(place.info(&name));
        }
        infos
    }

    /// A snapshot of one model, described as in `described`.
    pub(super) async fn info(&self, name: &str) -> Result<ModelSnapshot, Error> {
        let (name, place) = self.entry(&self.own_name(name)?)?;
        self.describe(&place).await;
        Ok(place.info(&name))
    }

    /// A model that is served in this process; it is loaded if necessary. Where the name is that of an adapter, the
    /// record of the request says so.
    pub(super) async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<ServedModel>, Error> {
        let own = self.serving_name(name)?;
        if self.config.mode == HostMode::Server {
            return Err(Error::ForEngineProcess);
        }
        let engine = self.engine(&own).await?;
        let served = engine.parts().0.ok_or(Error::ForEngineProcess)?;
        for name in [Some(name), name.strip_suffix(LATEST)]
            .into_iter()
            .flatten()
        {
            if let Some(id) = served.handle.adapters().id_of(name)? {
                RequestContext::current().set_adapter(id);
                break;
            }
        }
        Ok(served)
    }

    /// As `get`; without a name, the only model.
    pub(super) async fn get_or_default(
        self: &Arc<Self>,
        name: Option<&str>,
    ) -> Result<Arc<ServedModel>, Error> {
        self.get(name.unwrap_or(DEFAULT_MODEL)).await
    }

    /// The engine process of a model, if it is running. Does not count as use of the model.
    pub(super) fn process(&self, name: &str) -> Option<Arc<EngineProcess>> {
        let (_, place) = self.entry(name).ok()?;
        match &*lock(&place.state) {
            LoadState::Loaded(engine) => engine.clone().parts().1,
            _ => None,
        }
    }

    /// Stores the adapter scales that a request has set for a model; every later load uses them.
    pub(super) fn keep_scales(&self, name: &str, scales: Vec<(usize, f32)>) {
        if let Ok((_, place)) = self.entry(name) {
            *lock(&place.scales) = Some(scales);
        }
    }

    /// Checks that the files and RPC workers that the models of this process use are unchanged.
    ///
    /// # Errors
    /// Says that the server is about to end, so that load balancers send new requests elsewhere.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    /// Why new requests should go elsewhere; none if they may come.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        match (&self.is_draining, &self.is_ready) {
            (draining, _) if draining.load(Ordering::Acquire) => Some("draining"),
            (_, ready) if !ready.load(Ordering::Acquire) => Some("loading"),
            _ => None,
        }
    }

    /// As [`Served::check`], for the first model that has to be loaded again.
    pub fn check(&self) -> Result<(), Failure> {
        let all = self.all();
        all.iter().try_for_each(|(_, place)| place.check())
    }

    pub(super) fn is_loaded(&self, name: &str) -> bool {
        let place = self.entry(name);
        place.is_ok_and(|(_, place)| matches!(*lock(&place.state), LoadState::Loaded(_)))
    }

    pub(super) fn loading(&self, name: &str) -> Option<Load> {
        let (_, place) = self.entry(name).ok()?;
        match &*lock(&place.state) {
            LoadState::Loading(load) => Some(load.clone()),
            _ => None,
        }
    }

    pub(super) fn has_unloaded_model(&self) -> bool {
        let places = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let is_loaded =
            |place: &Arc<ModelEntry>| matches!(*lock(&place.state), LoadState::Loaded(_));
        !places.values().all(is_loaded)
    }

    pub(super) fn ask_to_quit(&self) {
        self.quits.send_replace(true);
    }

    /// Waits until a request asks the server to shut down.
    pub async fn quit(&self) {
        let mut quits = self.quits.subscribe();
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = quits.wait_for(|quits| *quits).await;
    }

    /// Ends the engine processes. Their last lines are in the log afterwards.
    pub fn end(&self) {
        for (_, place) in self.all() {
            match place.take() {
                Some(LoadedEngine::Process(process)) => process.end(),
                Some(LoadedEngine::InProcess(served)) => served.handle.flush(),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
