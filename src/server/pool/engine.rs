//! The engine of a loaded model, in this process or in an engine process.

use std::sync::Arc;

use crate::served::ServedModel;
use lab_base::ggml;
use lab_base::util::lock::lock;

use super::{Description, LoadState, ModelEntry};
use crate::process::EngineProcess;

/// An engine that was just started.
pub enum StartedEngine {
    /// An engine in this process.
    InProcess(Box<ServedModel>),
    Process(EngineProcess),
}

impl From<ServedModel> for StartedEngine {
    fn from(served: ServedModel) -> Self {
        Self::InProcess(Box::new(served))
    }
}

/// The engine of a loaded model. It ends with its last owner.
#[derive(Clone)]
pub(crate) enum LoadedEngine {
    InProcess(Arc<ServedModel>),
    Process(Arc<EngineProcess>),
}

impl LoadedEngine {
    /// The engine of a model under its served name.
    pub(crate) fn new(started: StartedEngine, name: &str) -> Self {
        match started {
            StartedEngine::InProcess(mut served) => {
                name.clone_into(&mut served.name);
                Self::InProcess(Arc::from(served))
            }
            StartedEngine::Process(process) => Self::Process(Arc::new(process)),
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::InProcess(own), Self::InProcess(other)) => Arc::ptr_eq(own, other),
            (Self::Process(own), Self::Process(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// Whether no one else holds the engine.
    pub(crate) fn is_free(&self) -> bool {
        match self {
            Self::InProcess(served) => Arc::strong_count(served) == 1,
            Self::Process(process) => Arc::strong_count(process) == 1,
        }
    }

    /// The engine's description of its model; `None` for a process, whose model is described from its file.
    pub(crate) fn description(&self) -> Option<Description> {
        match self {
            Self::InProcess(served) => Some(Description {
                info: served.info.clone(),
                n_ctx: served.handle.limits().n_ctx,
                sampling: served.sampling.clone(),
                modalities: served.modalities(),
            }),
            Self::Process(_) => None,
        }
    }

    pub(crate) fn parts(self) -> (Option<Arc<ServedModel>>, Option<Arc<EngineProcess>>) {
        match self {
            Self::InProcess(served) => (Some(served), None),
            Self::Process(process) => (None, Some(process)),
        }
    }

    /// Ends the engine and frees its memory. Blocks.
    pub(crate) fn end(self) {
        match self {
            Self::InProcess(served) => {
                served.handle.flush();
                drop(served);
            }
            Self::Process(process) => process.end(),
        }
        ggml::release_memory();
    }
}

impl ModelEntry {
    pub(crate) fn supervise(self: &Arc<Self>, engine: &LoadedEngine) {
        let LoadedEngine::Process(process) = engine else {
            return;
        };
        let (place, id) = (Arc::downgrade(self), process.id);
        process.on_end(move |how| {
            if let Some(place) = place.upgrade() {
                place.died(id, how);
            }
        });
    }

    fn died(&self, id: u32, how: &str) {
        let mut state = lock(&self.state);
        let is_own = matches!(&*state, LoadState::Loaded(LoadedEngine::Process(process)) if process.id == id);
        if !is_own {
            // The model was unloaded or reloaded in the meantime.
            return;
        }
        let dead = std::mem::replace(&mut *state, LoadState::NotLoaded);
        lock(&self.crashes).note(how);
        drop(state);
        drop(dead);
        tracing::error!(model = self.name, how, "an engine process died");
    }
}
