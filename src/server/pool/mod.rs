//! The models of a server, and which of them are loaded.
//!
//! A model is loaded once, however many requests wait for it, and loading goes on if they are cancelled. A model that
//! is not loaded is described from its file, once. Not here: the answers to requests.

mod crash_history;
mod engine;
mod eviction;
mod loading;
mod management;
mod names;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use lab_base::util::lock::lock;

use tokio::sync::watch;

use lab_core::arch::nearest;
use lab_core::artifacts::store::ArtifactStore;
use lab_core::artifacts::vectors::VectorStore;
use lab_core::engine::Failure;
use lab_core::engine::serving;
use lab_core::engine::serving::{ModelInfo, ServedModel};
use lab_core::models;
use lab_core::models::{FileStamp, ModelSource};

use super::process::EngineProcess;
use crate::endpoints::diagram::DiagramView;
use crate::endpoints::lab::Painter;
use crate::http::error::Error;
use crate::response::item_store::ItemStore;

use crash_history::CrashHistory;

pub(super) use engine::LoadedEngine;
pub use engine::StartedEngine;
pub use eviction::LoadLimits;
pub(super) use loading::{Load, LoadProgress};
pub use loading::{LoadError, LoadRequest, Loader};
pub use names::Strictness;

/// Describes a model under its served name without loading it; the error says why it cannot be served.
pub type Describer = Arc<dyn Fn(&str, &ModelSource) -> Result<Description, String> + Send + Sync>;
/// Finds the models that exist now.
pub type Finder = Arc<dyn Fn() -> Result<Vec<ModelSource>, String> + Send + Sync>;

/// Draws a model under its served name as SVG without loading it; the error says why that is impossible.
pub type Drawer =
    Arc<dyn Fn(&str, &ModelSource, DiagramView) -> Result<String, String> + Send + Sync>;

/// The properties of a model that are known without loading it.
#[derive(Clone, Debug)]
pub struct Description {
    /// The numbers of the model.
    pub info: ModelInfo,
    /// Context length of a request, in tokens.
    pub n_ctx: usize,
}

/// The load state of a model.
enum LoadState {
    NotLoaded,
    /// The load, on whose end requests wait.
    Loading(Load),
    Loaded(LoadedEngine),
}

/// A model of the pool.
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
    /// Scales of its adapters, if a request has set them.
    scales: Mutex<Option<Vec<(usize, f32)>>>,
}

/// A snapshot of a model and its state.
pub(super) struct ModelSnapshot {
    pub(super) name: String,
    /// The path of the model; the name of a built-in one.
    pub(super) path: String,
    /// `loaded`, `loading`, `unloading`, `not loaded`, `not servable`, or `failed` after the death of its engine process.
    pub(super) state: &'static str,
    /// The engine of the model, if it is in this process.
    pub(super) served: Option<Arc<ServedModel>>,
    /// The engine process of the model, if it has one.
    pub(super) process: Option<Arc<EngineProcess>>,
    pub(super) description: Option<Description>,
    /// Progress of the load, while the model is being loaded.
    pub(super) progress: Option<LoadProgress>,
    /// Why the model cannot be served.
    pub(super) fault: Option<String>,
    /// Number of successful loads, and below of failed ones.
    pub(super) n_loads: u64,
    pub(super) n_failures: u64,
    /// Number of deaths of its engine processes.
    pub(super) n_deaths: u64,
}

/// The models by name.
pub struct Pool {
    entries: RwLock<BTreeMap<String, Arc<ModelEntry>>>,
    /// Aliases, with the models' own names.
    aliases: BTreeMap<String, String>,
    loader: Loader,
    describer: Option<Describer>,
    /// Held while a model is described: one at a time.
    describing: tokio::sync::Mutex<()>,
    drawer: Option<Drawer>,
    pub(super) painter: Option<Painter>,
    /// Held while a picture is drawn: one at a time.
    pub(super) drawing: tokio::sync::Mutex<()>,
    finder: Option<Finder>,
    /// Whether requests may load and unload models.
    is_managed: bool,
    /// Whether every model has an engine process of its own.
    is_split: bool,
    /// Whether this is the pool of an engine process. Its only model answers to every name.
    is_engine: bool,
    strictness: Strictness,
    /// Maximum size of a request that uploads vectors, in bytes.
    upload_bytes: usize,
    residency: LoadLimits,
    /// Number of loads under way that count towards the limit of loaded models.
    admitted: Mutex<usize>,
    /// Number of engines that were taken out of the pool and have not ended.
    n_ending: Arc<AtomicUsize>,
    created: u64,
    /// Whether a request has asked the server to shut down.
    quits: watch::Sender<bool>,
    /// Held while adapter scales are set, so that the stored scales are those in effect.
    pub(super) scaling: tokio::sync::Mutex<()>,
    /// The storage of results for later requests.
    pub(super) shelf: Option<ArtifactStore>,
    /// The vectors that requests may name.
    pub(super) vectors: Arc<VectorStore>,
    /// The items of recent responses of this process.
    pub(super) items: Arc<ItemStore>,
}

/// A name that selects the only model, whatever its own name.
pub(super) const DEFAULT_MODEL: &str = "default";

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
            scales: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, LoadState> {
        // Every change of the state is complete, so a poisoned lock still holds a valid one.
        lock(&self.state)
    }

    fn last_used(&self) -> MutexGuard<'_, Instant> {
        lock(&self.last_used)
    }

    fn description(&self) -> MutexGuard<'_, Option<Result<Description, String>>> {
        let description = self.description.lock();
        description.unwrap_or_else(PoisonError::into_inner)
    }

    fn scales(&self) -> MutexGuard<'_, Option<Vec<(usize, f32)>>> {
        lock(&self.scales)
    }

    fn info(&self, name: &str) -> ModelSnapshot {
        let (description, fault) = match self.description().clone() {
            None => (None, None),
            Some(Ok(description)) => (Some(description), None),
            Some(Err(fault)) => (None, Some(fault)),
        };
        let (n_deaths, death) = self.crashes().report();
        let (state, engine) = match &*self.state() {
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
            path: self.source.path(),
            state,
            served,
            process,
            description,
            progress: share,
            fault: fault.or(death),
            n_deaths,
            n_loads: self.n_loads.load(Ordering::Relaxed),
            n_failures: self.n_failures.load(Ordering::Relaxed),
        }
    }
}

impl Pool {
    /// A pool of these models, none of them loaded.
    pub fn new(sources: Vec<ModelSource>, loader: Loader) -> Self {
        let places = models::by_name(sources).into_iter();
        let places = places.map(|(name, source)| {
            let place = ModelEntry::new(&name, source);
            (name, place)
        });
        Self {
            entries: RwLock::new(places.collect()),
            aliases: BTreeMap::new(),
            loader,
            describer: None,
            describing: tokio::sync::Mutex::default(),
            drawer: None,
            painter: None,
            drawing: tokio::sync::Mutex::default(),
            finder: None,
            is_managed: false,
            is_split: false,
            is_engine: false,
            strictness: Strictness::default(),
            upload_bytes: 0,
            residency: LoadLimits::default(),
            admitted: Mutex::default(),
            n_ending: Arc::default(),
            created: serving::unix_seconds(),
            quits: watch::Sender::default(),
            scaling: tokio::sync::Mutex::default(),
            shelf: None,
            vectors: Arc::default(),
            items: Arc::default(),
        }
    }

    /// The pool of an engine process. Its model is loaded and answers to every name.
    pub fn of_engine(served: ServedModel, source: ModelSource) -> Self {
        let loader: Loader = Arc::new(|_| Err(LoadError::new("the model is loaded")));
        let name = served.name.clone();
        let place = ModelEntry::new(&name, source);
        // The model is loaded, so this cannot fail.
        let _ = place.finish_load(Ok(StartedEngine::from(served)));
        Self {
            entries: RwLock::new(BTreeMap::from([(name, place)])),
            is_engine: true,
            ..Self::new(Vec::new(), loader)
        }
    }

    /// The same pool, with a loader that starts an engine process for every model.
    #[must_use]
    pub fn split(self) -> Self {
        let is_split = true;
        Self { is_split, ..self }
    }

    /// Whether this is the pool of an engine process.
    pub(super) fn is_engine(&self) -> bool {
        self.is_engine
    }

    /// Whether every model has an engine process of its own.
    pub(super) fn is_split(&self) -> bool {
        self.is_split
    }

    /// The same pool with these aliases of its models.
    ///
    /// # Errors
    /// An alias names a model that does not exist.
    pub fn with_aliases(self, aliases: BTreeMap<String, String>) -> Result<Self, String> {
        let names = self.names();
        for (alias, name) in &aliases {
            if !names.contains(name) {
                let near = nearest(name, names.iter().map(String::as_str));
                let hint = near.map(|near| format!("; did you mean `{near}`?"));
                let hint = hint.unwrap_or_default();
                return Err(format!(
                    "the alias `{alias}` names the model `{name}`, which is not served{hint}"
                ));
            }
        }
        Ok(Self { aliases, ..self })
    }

    /// The same pool, whose models can be described without loading them and, if there is a `finder`, searched for
    /// again. `is_managed`: requests may load and unload models.
    #[must_use]
    pub fn managed(self, is_managed: bool, describer: Describer, finder: Option<Finder>) -> Self {
        Self {
            describer: Some(describer),
            finder,
            is_managed,
            ..self
        }
    }

    /// The same pool, whose requests are read so strictly.
    #[must_use]
    pub fn strict(self, strictness: Strictness) -> Self {
        Self { strictness, ..self }
    }

    /// The same pool, which takes uploads of vectors of so many bytes.
    #[must_use]
    pub fn uploading(self, upload_bytes: usize) -> Self {
        Self {
            upload_bytes,
            ..self
        }
    }

    /// Maximum size of a request that uploads vectors, in bytes.
    pub(super) fn upload_bytes(&self) -> usize {
        self.upload_bytes
    }

    /// Whether fields of requests that are not known are refused.
    pub(super) fn has_strict_fields(&self) -> bool {
        self.strictness.fields
    }

    /// The same pool with these limits on loaded models.
    #[must_use]
    pub fn residing(self, residency: LoadLimits) -> Self {
        Self { residency, ..self }
    }

    /// The same pool, with storage for results of requests and the vectors that requests may name.
    #[must_use]
    pub fn with_shelf(self, shelf: ArtifactStore, vectors: Arc<VectorStore>) -> Self {
        let shelf = Some(shelf);
        Self {
            shelf,
            vectors,
            ..self
        }
    }

    /// The same pool, with the functions that draw models and responses.
    #[must_use]
    pub fn drawn_by(self, drawer: Drawer, painter: Painter) -> Self {
        let (drawer, painter) = (Some(drawer), Some(painter));
        Self {
            drawer,
            painter,
            ..self
        }
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

    /// The start time of the server, in seconds since 1970.
    pub(super) fn created(&self) -> u64 {
        self.created
    }

    /// The aliases, with the models' own names.
    pub(super) fn aliases(&self) -> &BTreeMap<String, String> {
        &self.aliases
    }

    /// A snapshot of each model.
    pub(super) fn infos(&self) -> Vec<ModelSnapshot> {
        let all = self.all().into_iter();
        all.map(|(name, place)| place.info(&name)).collect()
    }

    /// A snapshot of each model. Models without a description are described from their files.
    pub(super) async fn described(&self) -> Vec<ModelSnapshot> {
        let mut infos = Vec::new();
        for (name, place) in self.all() {
            self.describe(&place).await;
            infos.push(place.info(&name));
        }
        infos
    }

    /// A snapshot of one model, described as in `described`.
    pub(super) async fn info(&self, name: &str) -> Result<ModelSnapshot, Error> {
        let (name, place) = self.entry(name)?;
        self.describe(&place).await;
        Ok(place.info(&name))
    }

    async fn describe(&self, place: &Arc<ModelEntry>) {
        let Some(describer) = self.describer.clone() else {
            return;
        };
        if matches!(*place.state(), LoadState::NotLoaded) {
            place.refresh_description();
        }
        if place.description().is_some() {
            return;
        }
        let _turn = self.describing.lock().await;
        if place.description().is_some() {
            return;
        }
        let of_thread = Arc::clone(place);
        let described =
            tokio::task::spawn_blocking(move || describer(&of_thread.name, &of_thread.source))
                .await;
        let described = described.unwrap_or_else(|error| Err(error.to_string()));
        if let Err(fault) = &described {
            tracing::warn!(fault, "a model cannot be served");
        }
        // A load may have set the description in the meantime.
        place.description().get_or_insert(described);
    }

    /// The diagram of a model as SVG.
    pub(super) async fn draw(&self, name: &str, view: DiagramView) -> Result<String, Error> {
        let (name, place) = self.entry(name)?;
        let Some(drawer) = self.drawer.clone() else {
            let message = "diagrams are not available on this server";
            return Err(Error::unsupported("view", message));
        };
        self.describe(&place).await;
        let fault = place.description().clone().and_then(Result::err);
        if let Some(fault) = fault {
            let why = Some(fault).filter(|_| self.is_managed);
            return Err(Error::NotServable { name, why });
        }
        let _turn = self.drawing.lock().await;
        let drawn = tokio::task::spawn_blocking(move || drawer(&place.name, &place.source, view));
        let drawn = drawn.await;
        let drawn = drawn.unwrap_or_else(|error| Err(error.to_string()));
        drawn.map_err(|detail| Error::DrawingFailed { name, detail })
    }

    /// A model that is served in this process; it is loaded if necessary.
    pub(super) async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<ServedModel>, Error> {
        let name = self.serving_name(name)?;
        if self.is_split {
            return Err(Error::ForEngineProcess);
        }
        let engine = self.engine(&name).await?;
        engine.parts().0.ok_or(Error::ForEngineProcess)
    }

    /// The engine process of a model, if it is running. Does not count as use of the model.
    pub(super) fn process(&self, name: &str) -> Option<Arc<EngineProcess>> {
        let (_, place) = self.entry(name).ok()?;
        match &*place.state() {
            LoadState::Loaded(engine) => engine.clone().parts().1,
            _ => None,
        }
    }

    /// Stores the adapter scales that a request has set for a model; every later load uses them.
    pub(super) fn keep_scales(&self, name: &str, scales: Vec<(usize, f32)>) {
        if let Ok((_, place)) = self.entry(name) {
            *place.scales() = Some(scales);
        }
    }

    /// Checks that the files and RPC workers that the models of this process use are unchanged.
    ///
    /// # Errors
    /// As [`Served::check`], for the first model that has to be loaded again.
    pub fn check(&self) -> Result<(), Failure> {
        let all = self.all();
        all.iter().try_for_each(|(_, place)| place.check())
    }

    /// Whether a model is loaded.
    pub(super) fn is_loaded(&self, name: &str) -> bool {
        let place = self.entry(name);
        place.is_ok_and(|(_, place)| matches!(*place.state(), LoadState::Loaded(_)))
    }

    /// The load of a model, if it is being loaded.
    pub(super) fn loading(&self, name: &str) -> Option<Load> {
        let (_, place) = self.entry(name).ok()?;
        match &*place.state() {
            LoadState::Loading(load) => Some(load.clone()),
            _ => None,
        }
    }

    /// Whether some model is not loaded.
    pub(super) fn has_unloaded_model(&self) -> bool {
        let places = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let is_loaded = |place: &Arc<ModelEntry>| matches!(*place.state(), LoadState::Loaded(_));
        !places.values().all(is_loaded)
    }

    /// Asks the server to shut down.
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
            if let Some(LoadedEngine::Process(process)) = place.take() {
                process.end();
            }
        }
    }

    /// Whether requests may load and unload models, and are told why one cannot be served.
    pub(super) fn is_managed(&self) -> bool {
        self.is_managed
    }
}

#[cfg(test)]
mod tests;
