//! Loading a model: once, however many requests wait for it, with progress.
//!
//! A load goes on when no request waits for it any more. Not here: which other models are evicted for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use lab_base::util::lock::lock;

use tokio::sync::watch;

use lab_core::engine::Failure;
use lab_core::models::ModelSource;

use super::{HostMode, LoadState, LoadedEngine, ModelEntry, NamedAdapter, Pool, StartedEngine};
use crate::http::error::Error;
use crate::process::LoadError;
use crate::served::Progress;

/// A request to load a model.
pub struct LoadRequest<'a> {
    /// The name under which it is served.
    pub name: &'a str,
    pub source: &'a ModelSource,
    /// Adapter scales that a request has set; `None` for those of its options.
    pub scales: Option<Vec<(usize, f32)>>,
    /// Adapters that requests have loaded.
    pub adapters: Vec<NamedAdapter>,
    /// Called with the bytes loaded so far and the total.
    pub progress: Progress,
}

/// Loads a model and starts its engine.
pub type Loader = Arc<dyn Fn(LoadRequest<'_>) -> Result<StartedEngine, LoadError> + Send + Sync>;

pub(crate) type Loaded = Result<LoadedEngine, String>;

/// Progress of a load in bytes; 0 of 0 until the total is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadProgress {
    pub(crate) loaded: u64,
    pub(crate) total: u64,
}

impl LoadProgress {
    /// The progress in whole per cent; `None` if the total is unknown.
    pub(crate) fn percent(self) -> Option<u64> {
        let loaded = u128::from(self.loaded.min(self.total));
        (loaded * 100)
            .checked_div(self.total.into())
            .map(|percent| percent as u64)
    }
}

/// A running load, as seen by those who wait for it.
#[derive(Clone)]
pub(crate) struct Load {
    name: String,
    /// Whether those who wait are told why it fails.
    is_told: bool,
    /// The result of the load, once it has ended.
    end: Arc<OnceLock<Loaded>>,
    /// Closed when the loading thread has dropped `end`.
    ended: watch::Receiver<()>,
    share: watch::Receiver<LoadProgress>,
}

impl Load {
    pub(crate) fn progress(&self) -> LoadProgress {
        *self.share.borrow()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// Waits for more progress; `None` at the end of the load.
    pub(crate) async fn next(&mut self) -> Result<Option<LoadProgress>, Error> {
        let mut share = self.share.clone();
        let is_further = tokio::select! {
            biased;
            changed = share.changed() => changed,
            ended = self.ended() => return ended.map(|_| None),
        };
        self.share = share;
        match is_further {
            Ok(()) => Ok(Some(self.progress())),
            // The model is gone, and with it the sender of the progress.
            Err(_) => self.ended().await.map(|_| None),
        }
    }

    pub(crate) async fn ended(&mut self) -> Result<LoadedEngine, Error> {
        self.result().await.map_err(|detail| Error::LoadFailed {
            name: self.name.clone(),
            detail,
            is_told: self.is_told,
        })
    }

    async fn result(&mut self) -> Loaded {
        // Then the loading thread holds no reference to the engine, and an unused model can be unloaded.
        while self.ended.changed().await.is_ok() {}
        let loaded = self.end.get().cloned();
        loaded.unwrap_or_else(|| Err("the server is ending".into()))
    }
}

impl ModelEntry {
    /// Drops the description if the file has been replaced.
    pub(crate) fn refresh_description(&self) {
        let now = self.source.stamp();
        let mut stamp = lock(&self.stamp);
        if *stamp != now {
            *stamp = now;
            *lock(&self.description) = None;
        }
    }

    /// Checks that the files and RPC workers of a model in this process are unchanged.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &*lock(&self.state) {
            LoadState::Loaded(LoadedEngine::InProcess(served)) => served.check(),
            _ => Ok(()),
        }
    }

    fn set_progress(&self, share: LoadProgress) {
        let is_new = |own: &mut LoadProgress| std::mem::replace(own, share) != share;
        self.progress.send_if_modified(is_new);
    }

    /// Loads the model on this thread.
    pub(crate) fn try_load(&self, loader: &Loader) -> Result<StartedEngine, LoadError> {
        self.set_progress(LoadProgress::default());
        let share = self.progress.clone();
        let request = LoadRequest {
            name: &self.name,
            source: &self.source,
            scales: lock(&self.scales).clone(),
            adapters: lock(&self.adapters).clone(),
            progress: Box::new(move |loaded, total| {
                share.send_replace(LoadProgress { loaded, total });
            }),
        };
        let load = AssertUnwindSafe(|| loader(request));
        catch_unwind(load).unwrap_or_else(|_| Err(LoadError::new("loading panicked")))
    }

    pub(crate) fn finish_load(
        self: &Arc<Self>,
        result: Result<StartedEngine, LoadError>,
    ) -> Loaded {
        self.touch();
        match result {
            Ok(started) => {
                let engine = LoadedEngine::new(started, &self.name);
                self.set_loaded(&engine);
                Ok(engine)
            }
            Err(error) => {
                if error.is_death {
                    lock(&self.crashes).note(&error.message);
                }
                self.n_failures.fetch_add(1, Ordering::Relaxed);
                *lock(&self.state) = LoadState::NotLoaded;
                Err(error.message)
            }
        }
    }

    pub(crate) fn set_loaded(self: &Arc<Self>, engine: &LoadedEngine) {
        let mut state = lock(&self.state);
        self.n_loads.fetch_add(1, Ordering::Relaxed);
        lock(&self.crashes).end();
        *lock(&self.keep_alive) = None;
        if let Some(description) = engine.description() {
            *lock(&self.description) = Some(Ok(description));
        }
        *state = LoadState::Loaded(engine.clone());
        drop(state);
        self.supervise(engine);
    }

    /// The engine if the model is loaded, otherwise its load, which is started if necessary.
    fn start_load(self: &Arc<Self>, pool: &Arc<Pool>) -> Result<LoadedEngine, Load> {
        self.touch();
        // In an engine process, the process itself ends instead.
        if let Err(what) = self.check()
            && pool.config.mode != HostMode::EngineProcess
        {
            tracing::warn!(model = self.name, "{what}: it is loaded again");
            drop(self.take());
        }
        let mut state = lock(&self.state);
        match &*state {
            LoadState::Loaded(engine) => return Ok(engine.clone()),
            LoadState::Loading(load) => return Err(load.clone()),
            LoadState::NotLoaded => {}
        }
        self.refresh_description();
        let end = Arc::new(OnceLock::new());
        let (tell, ended) = watch::channel(());
        self.set_progress(LoadProgress::default());
        let load = Load {
            name: self.name.clone(),
            is_told: pool.config.is_managed,
            end: Arc::clone(&end),
            ended,
            share: self.progress.subscribe(),
        };
        *state = LoadState::Loading(load.clone());
        let (place, pool) = (Arc::clone(self), Arc::clone(pool));
        tokio::task::spawn_blocking(move || {
            // Only this thread sets it.
            let _ = end.set(pool.load_resident(&place));
            drop(end);
            drop(tell);
        });
        Err(load)
    }
}

impl Pool {
    pub(crate) fn start_load(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<Result<LoadedEngine, Load>, Error> {
        let (_, place) = self.entry(name)?;
        place.check_restart()?;
        Ok(place.start_load(self))
    }

    pub(crate) async fn engine(self: &Arc<Self>, name: &str) -> Result<LoadedEngine, Error> {
        match self.start_load(name)? {
            Ok(engine) => Ok(engine),
            Err(mut load) => load.ended().await,
        }
    }

    /// Loads every model now, one after another. When this returns, the first one is being loaded; the result is that of all.
    ///
    /// # Errors
    /// The first model that cannot be loaded, with the reason.
    pub fn load_all(self: &Arc<Self>) -> impl Future<Output = Result<(), String>> + use<> {
        self.is_ready.store(false, Ordering::Release);
        let mut places = self.all().into_iter().map(|(_, place)| place);
        let first = places.next().map(|place| place.start_load(self));
        let (pool, places): (_, Vec<_>) = (Arc::clone(self), places.collect());
        async move {
            if let Some(Err(mut load)) = first {
                load.result().await?;
            }
            for place in places {
                if let Err(mut load) = place.start_load(&pool) {
                    load.result().await?;
                }
            }
            pool.is_ready.store(true, Ordering::Release);
            Ok(())
        }
    }
}
