//! Loading a model: once, however many requests wait for it, with progress.
//!
//! A load goes on when no request waits for it any more. Not here: which other models are evicted for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use lab_base::util::lock::lock;

use tokio::sync::watch;

use lab_core::engine::{Failure, serving};
use lab_core::models::ModelSource;

use super::{Engine, Place, Pool, Started, State};
use crate::http::error::Error;

/// Why a model could not be loaded.
#[derive(Clone, Debug)]
pub struct LoadFault {
    /// The message for the log.
    pub message: String,
    /// Whether freeing memory would help.
    pub lacks_memory: bool,
    /// Whether the engine process died while loading.
    pub is_death: bool,
}

impl LoadFault {
    /// A fault that free memory would not prevent.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            lacks_memory: false,
            is_death: false,
        }
    }
}

/// A request to load a model.
pub struct Wanted<'a> {
    /// The name under which it is served.
    pub name: &'a str,
    /// The source of the model.
    pub source: &'a ModelSource,
    /// Adapter scales that a request has set; `None` for those of its options.
    pub scales: Option<Vec<(usize, f32)>>,
    /// Called with the bytes loaded so far and the total.
    pub progress: serving::Progress,
}

/// Loads a model and starts its engine.
pub type Loader = Arc<dyn Fn(Wanted<'_>) -> Result<Started, LoadFault> + Send + Sync>;

pub(crate) type Loaded = Result<Engine, String>;

/// Progress of a load in bytes; 0 of 0 until the total is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) loaded: u64,
    pub(crate) total: u64,
}

impl Share {
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
    share: watch::Receiver<Share>,
}

impl Load {
    /// The progress so far.
    pub(crate) fn share(&self) -> Share {
        *self.share.borrow()
    }

    /// Whether the load has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// Waits for more progress; `None` at the end of the load.
    pub(crate) async fn next(&mut self) -> Result<Option<Share>, Error> {
        let mut share = self.share.clone();
        let is_further = tokio::select! {
            biased;
            changed = share.changed() => changed,
            ended = self.ended() => return ended.map(|_| None),
        };
        self.share = share;
        match is_further {
            Ok(()) => Ok(Some(self.share())),
            // The model is gone, and with it the sender of the progress.
            Err(_) => self.ended().await.map(|_| None),
        }
    }

    /// Waits for the end of the load.
    pub(crate) async fn ended(&mut self) -> Result<Engine, Error> {
        // Then the loading thread holds no reference to the engine, and an unused model can be unloaded.
        while self.ended.changed().await.is_ok() {}
        let loaded = self.end.get().cloned();
        let loaded = loaded.unwrap_or_else(|| Err("the server is ending".into()));
        loaded.map_err(|detail| Error::Load {
            name: self.name.clone(),
            detail,
            is_told: self.is_told,
        })
    }
}

impl Place {
    /// Drops the description if the file has been replaced.
    pub(crate) fn look_again(&self) {
        let now = self.source.stamp();
        let mut stamp = lock(&self.stamp);
        if *stamp != now {
            *stamp = now;
            *self.description() = None;
        }
    }

    /// Checks that the files and RPC workers of a model in this process are unchanged.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &*self.state() {
            State::Loaded(Engine::Here(served)) => served.check(),
            _ => Ok(()),
        }
    }

    /// Reports progress, if it has changed.
    fn share_is(&self, share: Share) {
        let is_new = |own: &mut Share| std::mem::replace(own, share) != share;
        self.share.send_if_modified(is_new);
    }

    /// Loads the model on this thread.
    pub(crate) fn try_load(&self, loader: &Loader) -> Result<Started, LoadFault> {
        self.share_is(Share::default());
        let share = self.share.clone();
        let wanted = Wanted {
            name: &self.name,
            source: &self.source,
            scales: self.scales().clone(),
            progress: Box::new(move |loaded, total| {
                share.send_replace(Share { loaded, total });
            }),
        };
        let load = AssertUnwindSafe(|| loader(wanted));
        catch_unwind(load).unwrap_or_else(|_| Err(LoadFault::new("loading panicked")))
    }

    /// Records the result of a load.
    pub(crate) fn settle(self: &Arc<Self>, loaded: Result<Started, LoadFault>) -> Loaded {
        self.touch();
        if let Err(fault) = &loaded
            && fault.is_death
        {
            self.deaths().note(&fault.message);
        }
        let loaded = loaded.map(|started| Engine::new(started, &self.name));
        let loaded = loaded.map_err(|fault| fault.message);
        let mut state = self.state();
        match &loaded {
            Ok(engine) => {
                self.n_loads.fetch_add(1, Ordering::Relaxed);
                self.deaths().end();
                if let Some(description) = engine.description() {
                    *self.description() = Some(Ok(description));
                }
                *state = State::Loaded(engine.clone());
                drop(state);
                self.supervise(engine);
            }
            Err(_) => {
                self.n_failures.fetch_add(1, Ordering::Relaxed);
                *state = State::NotLoaded;
            }
        }
        loaded
    }

    /// The engine if the model is loaded, otherwise its load, which is started if necessary.
    fn begin(self: &Arc<Self>, pool: &Arc<Pool>) -> Result<Engine, Load> {
        self.touch();
        // In an engine process, the process itself ends instead.
        if let Err(what) = self.check()
            && !pool.is_engine
        {
            tracing::warn!(model = self.name, "{what}: it is loaded again");
            drop(self.take());
        }
        let mut state = self.state();
        match &*state {
            State::Loaded(engine) => return Ok(engine.clone()),
            State::Loading(load) => return Err(load.clone()),
            State::NotLoaded => {}
        }
        self.look_again();
        let end = Arc::new(OnceLock::new());
        let (tell, ended) = watch::channel(());
        self.share_is(Share::default());
        let load = Load {
            name: self.name.clone(),
            is_told: pool.is_managed,
            end: Arc::clone(&end),
            ended,
            share: self.share.subscribe(),
        };
        *state = State::Loading(load.clone());
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
    /// The engine of a model, or its load, which is started if necessary.
    pub(crate) fn begin(self: &Arc<Self>, name: &str) -> Result<Result<Engine, Load>, Error> {
        let (_, place) = self.place(name)?;
        place.check_rest()?;
        Ok(place.begin(self))
    }

    /// The engine of a model, which is loaded if necessary.
    pub(crate) async fn engine(self: &Arc<Self>, name: &str) -> Result<Engine, Error> {
        match self.begin(name)? {
            Ok(engine) => Ok(engine),
            Err(mut load) => load.ended().await,
        }
    }

    /// Loads every model now.
    ///
    /// # Errors
    /// The first model that cannot be loaded, with the reason.
    pub fn load_all(&self) -> Result<(), String> {
        for (_, place) in self.all() {
            self.load_resident(&place)?;
        }
        Ok(())
    }
}
