//! The engine of a loaded model, in this process or in an engine process.

use std::sync::Arc;

use lab_base::ggml;
use lab_core::engine::serving::Served;

use super::super::process::Process;
use super::{Description, Place, State};

/// An engine that was just started.
pub enum Started {
    /// An engine in this process.
    Here(Box<Served>),
    /// An engine in a process of its own.
    Own(Process),
}

impl From<Served> for Started {
    fn from(served: Served) -> Self {
        Self::Here(Box::new(served))
    }
}

/// The engine of a loaded model. It ends with its last owner.
#[derive(Clone)]
pub(crate) enum Engine {
    Here(Arc<Served>),
    Own(Arc<Process>),
}

impl Engine {
    /// The engine of a model under its served name.
    pub(crate) fn new(started: Started, name: &str) -> Self {
        match started {
            Started::Here(mut served) => {
                name.clone_into(&mut served.name);
                Self::Here(Arc::from(served))
            }
            Started::Own(process) => Self::Own(Arc::new(process)),
        }
    }

    /// Whether no one else holds the engine.
    pub(crate) fn is_free(&self) -> bool {
        match self {
            Self::Here(served) => Arc::strong_count(served) == 1,
            Self::Own(process) => Arc::strong_count(process) == 1,
        }
    }

    /// The engine's description of its model; `None` for a process, whose model is described from its file.
    pub(crate) fn description(&self) -> Option<Description> {
        match self {
            Self::Here(served) => Some(Description {
                info: served.info.clone(),
                n_ctx: served.handle.limits().n_ctx,
            }),
            Self::Own(_) => None,
        }
    }

    /// The engine in this process, or the engine process.
    pub(crate) fn parts(self) -> (Option<Arc<Served>>, Option<Arc<Process>>) {
        match self {
            Self::Here(served) => (Some(served), None),
            Self::Own(process) => (None, Some(process)),
        }
    }

    /// Ends the engine and frees its memory. Blocks.
    pub(crate) fn end(self) {
        match self {
            Self::Here(served) => drop(served),
            Self::Own(process) => process.end(),
        }
        ggml::release_memory();
    }
}

impl Place {
    /// Watches an engine process to record its death.
    pub(crate) fn supervise(self: &Arc<Self>, engine: &Engine) {
        let Engine::Own(process) = engine else {
            return;
        };
        let (place, id) = (Arc::downgrade(self), process.id());
        process.on_end(move |how| {
            if let Some(place) = place.upgrade() {
                place.died(id, how);
            }
        });
    }

    fn died(&self, id: u32, how: &str) {
        let mut state = self.state();
        let is_own = matches!(&*state, State::Loaded(Engine::Own(process)) if process.id() == id);
        if !is_own {
            // The model was unloaded or reloaded in the meantime.
            return;
        }
        let dead = std::mem::replace(&mut *state, State::NotLoaded);
        self.deaths().note(how);
        drop(state);
        drop(dead);
        tracing::error!(model = self.name, how, "an engine process died");
    }
}
