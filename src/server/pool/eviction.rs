//! Which models stay loaded: the least recently used one is evicted, and an idle one is unloaded after a time.
//!
//! A model is in use while a request holds it, and is then never unloaded. Not here: loading.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use lab_base::util::lock::lock;

use tokio::task::JoinHandle;

use super::loading::Loaded;
use super::{LoadState, LoadedEngine, ModelEntry, Pool};
use crate::process::LoadError;

/// Limits on the number of loaded models and on their idle time.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadLimits {
    /// Maximum number of loaded models; `None` for as many as fit into memory.
    pub max_loaded: Option<usize>,
    /// Idle time after which a model is unloaded; `None` for never.
    pub idle: Option<Duration>,
}

/// Maximum time that a load waits for another model to become idle.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time between two checks of models that are in use.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

impl ModelEntry {
    pub(super) fn touch(&self) {
        *lock(&self.last_used) = Instant::now();
    }

    /// The time of its last use, if the model is loaded and no request holds it.
    fn unused_since(&self) -> Option<Instant> {
        let state = lock(&self.state);
        let LoadState::Loaded(engine) = &*state else {
            return None;
        };
        if !engine.is_free() {
            self.touch();
            return None;
        }
        Some(*lock(&self.last_used))
    }

    /// Takes the engine out of the pool, unless a request holds it.
    fn take_unused(&self) -> Option<LoadedEngine> {
        let mut state = lock(&self.state);
        match &*state {
            LoadState::Loaded(engine) if engine.is_free() => {}
            _ => return None,
        }
        taken(&mut state)
    }

    pub(super) fn take(&self) -> Option<LoadedEngine> {
        taken(&mut lock(&self.state))
    }

    /// Whether an engine of the model has been taken out of the pool and has not ended.
    pub(super) fn is_ending(&self) -> bool {
        self.n_ending.load(Ordering::Acquire) > 0
    }

    fn is_loaded(&self) -> bool {
        matches!(*lock(&self.state), LoadState::Loaded(_))
    }
}

/// The engine of a loaded model, whose state becomes not loaded.
fn taken(state: &mut LoadState) -> Option<LoadedEngine> {
    if !matches!(state, LoadState::Loaded(_)) {
        return None;
    }
    match std::mem::replace(state, LoadState::NotLoaded) {
        LoadState::Loaded(engine) => Some(engine),
        _ => None,
    }
}

/// An engine that ends. While this exists, the engine counts as loaded.
struct Ending {
    of_pool: Arc<AtomicUsize>,
    place: Option<Arc<ModelEntry>>,
}

impl Ending {
    fn start(of_pool: &Arc<AtomicUsize>, place: Option<&Arc<ModelEntry>>) -> Self {
        of_pool.fetch_add(1, Ordering::AcqRel);
        if let Some(place) = place {
            place.n_ending.fetch_add(1, Ordering::AcqRel);
        }
        Self {
            of_pool: Arc::clone(of_pool),
            place: place.cloned(),
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            place.n_ending.fetch_sub(1, Ordering::AcqRel);
        }
        self.of_pool.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Ends the engine of a model and frees its memory.
fn end(name: &str, engine: LoadedEngine, why: &str) {
    engine.end();
    tracing::info!(model = name, why, "unloaded");
}

impl Pool {
    /// Loads a model within the limits; models that are not in use are evicted for it.
    pub(super) fn load_resident(&self, place: &Arc<ModelEntry>) -> Loaded {
        if let Err(message) = self.admit(place) {
            return place.finish_load(Err(LoadError::new(message)));
        }
        let loaded = loop {
            match place.try_load(&self.loader) {
                Err(fault) if fault.lacks_memory && self.evict(place, "memory is needed") => {}
                other => break other,
            }
        };
        // Under the lock, so that the model is counted once: as a load, then as loaded.
        let mut admitted = lock(&self.admitted);
        *admitted -= 1;
        place.finish_load(loaded)
    }

    /// Waits until one more model may be loaded, and evicts others for it. Loads that wait do not count, so that they
    /// never wait for each other.
    fn admit(&self, place: &Arc<ModelEntry>) -> Result<(), &'static str> {
        let started = Instant::now();
        loop {
            let mut admitted = lock(&self.admitted);
            let max = self.config.limits.max_loaded;
            if max.is_none_or(|max| self.n_loaded() + *admitted < max) {
                *admitted += 1;
                return Ok(());
            }
            drop(admitted);
            if !self.evict(place, "another model is loaded") {
                if started.elapsed() > PATIENCE {
                    return Err("all models that are loaded are in use");
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Number of loaded models, with those whose engine has not ended.
    fn n_loaded(&self) -> usize {
        let all = self.all().into_iter();
        let n_loaded = all.filter(|(_, place)| place.is_loaded()).count();
        n_loaded + self.n_ending.load(Ordering::Acquire)
    }

    /// Takes the engine of a model out of the pool and ends it when its requests are complete, whether or not the result
    /// is awaited. None if the model is not loaded.
    pub(super) fn end_when_free(
        &self,
        name: &str,
        place: &Arc<ModelEntry>,
    ) -> Option<JoinHandle<()>> {
        let ending = Ending::start(&self.n_ending, Some(place));
        let engine = place.take()?;
        let name = name.to_owned();
        Some(tokio::spawn(async move {
            while !engine.is_free() {
                tokio::time::sleep(PAUSE).await;
            }
            let work = move || {
                end(&name, engine, "a request asked for it");
                drop(ending);
            };
            let _ = tokio::task::spawn_blocking(work).await;
        }))
    }

    /// Evicts the least recently used model other than `place`. Returns whether there was one.
    fn evict(&self, place: &Arc<ModelEntry>, why: &str) -> bool {
        let others = self.all().into_iter();
        let others = others.filter(|(_, other)| !Arc::ptr_eq(other, place));
        let unused = others.filter_map(|(name, other)| Some((other.unused_since()?, name, other)));
        let mut unused: Vec<_> = unused.collect();
        unused.sort_by_key(|(since, ..)| *since);
        let _ending = Ending::start(&self.n_ending, None);
        // A request may have taken a model in the meantime.
        let taken = unused
            .into_iter()
            .find_map(|(_, name, other)| Some((name, other.take_unused()?)));
        taken
            .map(|(name, engine)| end(&name, engine, why))
            .is_some()
    }

    /// Sets the idle time after which a model is unloaded, until it is loaded anew. `Duration::MAX` is never.
    pub(crate) fn keep_alive(&self, name: &str, time: Duration) {
        if let Ok((_, place)) = self.entry(name) {
            *lock(&place.keep_alive) = Some(time);
            self.idle_thread
                .get()
                .map(Thread::unpark)
                .unwrap_or_default();
        }
    }

    /// Unloads idle models. Returns the shortest idle time of a loaded model, if there is one.
    fn unload_idle(&self) -> Option<Duration> {
        let mut shortest = None;
        for (name, place) in self.all() {
            let Some(idle) = lock(&place.keep_alive).or(self.config.limits.idle) else {
                continue;
            };
            if place.is_loaded() {
                shortest = Some(shortest.map_or(idle, |other| idle.min(other)));
            }
            let is_idle = place
                .unused_since()
                .is_some_and(|since| since.elapsed() >= idle);
            let _ending = is_idle.then(|| Ending::start(&self.n_ending, Some(&place)));
            if let Some(engine) = is_idle.then(|| place.take_unused()).flatten() {
                end(&name, engine, "not used");
            }
        }
        shortest
    }

    /// Starts the thread that unloads idle models. It ends with the pool.
    pub(crate) fn watch_idle(self: &Arc<Self>) -> std::io::Result<()> {
        /// Maximum time between two looks, after which the thread of a pool that is gone ends.
        const MAX: Duration = Duration::from_secs(5);
        let pool: Weak<Self> = Arc::downgrade(self);
        let look = move || {
            while let Some(pool) = pool.upgrade() {
                let pause = pool.unload_idle().map_or(MAX, |idle| idle / 4);
                drop(pool);
                std::thread::park_timeout(pause.clamp(PAUSE, MAX));
            }
        };
        let thread = std::thread::Builder::new().name("idle models".into());
        let thread = thread.spawn(look)?;
        // Only one router is made of a pool; the thread of another one would do the same.
        let _ = self.idle_thread.set(thread.thread().clone());
        Ok(())
    }
}
