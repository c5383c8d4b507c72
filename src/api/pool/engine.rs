//! The engine of a loaded model: in this process, or a process of its own.

use std::sync::Arc;

use crate::engine::serving::Served;
use crate::ggml;

use super::super::process::Process;
use super::{Description, Place, State};

/// An engine that was just started.
pub enum Started {
    /// In this process.
    Here(Box<Served>),
    /// In a process of its own.
    Own(Process),
}

impl From<Served> for Started {
    fn from(served: Served) -> Self {
        Self::Here(Box::new(served))
    }
}

/// The engine of a loaded model; it ends when nobody holds it.
#[derive(Clone)]
pub(in crate::api) enum Engine {
    Here(Arc<Served>),
    Own(Arc<Process>),
}

impl Engine {
    /// The engine of the model that is served under this name.
    pub(super) fn new(started: Started, name: &str) -> Self {
        match started {
            Started::Here(mut served) => {
                name.clone_into(&mut served.name);
                Self::Here(Arc::from(served))
            }
            Started::Own(process) => Self::Own(Arc::new(process)),
        }
    }

    /// Whether nobody else holds it.
    pub(super) fn is_free(&self) -> bool {
        match self {
            Self::Here(served) => Arc::strong_count(served) == 1,
            Self::Own(process) => Arc::strong_count(process) == 1,
        }
    }

    /// What it says of its model; none if only the model's file says it.
    pub(super) fn description(&self) -> Option<Description> {
        match self {
            Self::Here(served) => Some(Description {
                info: served.info.clone(),
                n_ctx: served.handle.limits().n_ctx,
            }),
            Self::Own(_) => None,
        }
    }

    /// The engine in this process, or the process.
    pub(in crate::api) fn parts(self) -> (Option<Arc<Served>>, Option<Arc<Process>>) {
        match self {
            Self::Here(served) => (Some(served), None),
            Self::Own(process) => (None, Some(process)),
        }
    }

    /// Gives its memory back. Blocks.
    pub(super) fn end(self) {
        match self {
            Self::Here(served) => drop(served),
            Self::Own(process) => process.end(),
        }
        ggml::release_memory();
    }
}

impl Place {
    /// Takes note of the death of an engine process.
    pub(super) fn supervise(self: &Arc<Self>, engine: &Engine) {
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
            // It was unloaded.
            return;
        }
        let dead = std::mem::replace(&mut *state, State::NotLoaded);
        self.deaths().note(how);
        drop(state);
        drop(dead);
        tracing::error!(model = self.name, how, "an engine process died");
    }
}
