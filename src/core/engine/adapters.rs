//! The adapters of an engine's model, their names, and their scales for requests that set none.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use lab_base::util::lock::lock;

use crate::model::LoadedAdapter;

use super::rejected::Rejected;

/// Maximum number of adapters that an engine loads until it ends. Ids are not used again.
const MAX_LOADED: usize = 1024;

/// An adapter of an engine's model.
#[derive(Clone, Debug)]
pub struct EngineAdapter {
    pub path: PathBuf,
    /// The name by which requests choose it, if it was loaded while the engine runs.
    pub name: Option<String>,
    /// The scale for requests that set none.
    pub scale: f32,
    /// Whether requests can use it no more.
    pub is_unloaded: bool,
}

/// Adapters by their ids: those of the command line, then those that were loaded while the engine runs.
#[derive(Debug, Default)]
pub struct Adapters {
    all: Mutex<Vec<EngineAdapter>>,
    /// Held while one is loaded, so that its id is that of the model.
    pub(super) loading: Mutex<()>,
}

impl Adapters {
    pub(super) fn new(loaded: &[LoadedAdapter]) -> Self {
        let all = loaded.iter().map(|adapter| EngineAdapter {
            path: adapter.path.clone(),
            name: None,
            scale: adapter.scale,
            is_unloaded: false,
        });
        Self {
            all: Mutex::new(all.collect()),
            loading: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<EngineAdapter>> {
        lock(&self.all)
    }

    /// The adapters, in the order of their ids.
    pub fn all(&self) -> Vec<EngineAdapter> {
        self.lock().clone()
    }

    /// The id of the adapter that a request chooses by its name; none if no adapter had the name.
    ///
    /// # Errors
    /// The adapter was unloaded.
    pub fn id_of(&self, name: &str) -> Result<Option<usize>, Rejected> {
        let all = self.lock();
        let is_named = |adapter: &EngineAdapter| adapter.name.as_deref() == Some(name);
        match all.iter().rposition(is_named) {
            Some(id) if all[id].is_unloaded => Err(Rejected::field(
                "model",
                format!("the adapter `{name}` was unloaded"),
            )),
            found => Ok(found),
        }
    }

    /// Refuses a further adapter where too many were loaded, or one of this name is.
    pub(super) fn check_new(&self, name: &str) -> Result<(), Rejected> {
        if let Ok(Some(_)) = self.id_of(name) {
            let message = format!("an adapter `{name}` is loaded");
            return Err(Rejected::field("lora_name", message));
        }
        match self.lock().len() < MAX_LOADED {
            true => Ok(()),
            false => Err(Rejected::field(
                "lora_name",
                format!(
                    "{MAX_LOADED} adapters were loaded since the model was; unload the model to load more"
                ),
            )),
        }
    }

    pub(super) fn push(&self, name: &str, path: PathBuf) {
        self.lock().push(EngineAdapter {
            path,
            name: Some(name.to_owned()),
            scale: 0.0,
            is_unloaded: false,
        });
    }

    /// Lets later requests not use the adapter of a name. Returns its id.
    pub(super) fn retire(&self, name: &str) -> Result<usize, Rejected> {
        let refuse = || Rejected::field("lora_name", format!("no adapter `{name}` is loaded"));
        let id = self.id_of(name).ok().flatten().ok_or_else(refuse)?;
        self.lock()[id].is_unloaded = true;
        Ok(id)
    }

    /// Sets the scales for later requests that set none. Adapters that `named` leaves out are off.
    ///
    /// # Errors
    /// An id is unknown or that of an adapter with a name, or a scale is not a finite number.
    pub fn set(&self, named: &[(usize, f32)]) -> Result<(), Rejected> {
        let scales = self.named(named)?;
        let mut all = self.lock();
        if let Some((id, _)) = named.iter().find(|(id, _)| all[*id].name.is_some()) {
            return Err(Rejected::field(
                "lora",
                format!("requests choose adapter {id} by its name, as their `model`"),
            ));
        }
        for (adapter, scale) in all.iter_mut().zip(scales) {
            adapter.scale = scale;
        }
        Ok(())
    }

    /// The scale of each adapter for a request: the scales that it sets, or the defaults.
    pub(super) fn of(&self, named: Option<&[(usize, f32)]>) -> Result<Vec<f32>, Rejected> {
        match named {
            Some(named) => self.named(named),
            None => Ok(self.lock().iter().map(|adapter| adapter.scale).collect()),
        }
    }

    fn named(&self, named: &[(usize, f32)]) -> Result<Vec<f32>, Rejected> {
        let refuse = |message: String| Err(Rejected::field("lora", message));
        let all = self.lock();
        let mut scales = vec![0.0; all.len()];
        for (id, scale) in named {
            if !scale.is_finite() {
                return refuse(format!("the scale of adapter {id} is not a finite number"));
            }
            match all.get(*id) {
                None => {
                    let n = all.len();
                    return refuse(format!("there is no adapter {id}; the model has {n}"));
                }
                Some(adapter) if adapter.is_unloaded => {
                    return refuse(format!("adapter {id} was unloaded"));
                }
                Some(_) => scales[*id] = *scale,
            }
        }
        Ok(scales)
    }
}
