//! The models of a server: which there are, and those that are loaded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::arch::nearest;
use crate::engine::serving::{self, Served};
use crate::files::models::Source;

use super::error::Error;

/// Loads a model and starts its engine; the error is a message for the log.
pub type Loader = Arc<dyn Fn(&Source) -> Result<Served, String> + Send + Sync>;

/// One model: empty until it is loaded. The lock is held while it loads, so that two requests for it
/// load it once.
type Place = Arc<Mutex<Option<Arc<Served>>>>;

/// Models by name.
pub struct Pool {
    places: BTreeMap<String, (Source, Place)>,
    /// Other names of models.
    aliases: BTreeMap<String, String>,
    loader: Loader,
    created: u64,
}

/// A name that selects the only model, whatever its name.
pub(super) const ALIAS: &str = "default";

fn lock(place: &Place) -> MutexGuard<'_, Option<Arc<Served>>> {
    // A loader that panicked left the place empty, which is a sound state.
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of these models, none of them loaded.
    pub fn new(sources: Vec<Source>, loader: Loader) -> Self {
        let places = sources
            .into_iter()
            .map(|s| (s.name(), (s, Place::default())))
            .collect();
        Self {
            places,
            aliases: BTreeMap::new(),
            loader,
            created: serving::now(),
        }
    }

    /// The same pool, whose models have these names too.
    ///
    /// # Errors
    /// A name of a model that is not there.
    pub fn with_aliases(self, aliases: BTreeMap<String, String>) -> Result<Self, String> {
        for (alias, name) in &aliases {
            if !self.places.contains_key(name) {
                let near = nearest(name, self.names());
                let hint = near.map(|near| format!("; did you mean `{near}`?"));
                let hint = hint.unwrap_or_default();
                return Err(format!(
                    "the alias `{alias}` names the model `{name}`, which is not served{hint}"
                ));
            }
        }
        Ok(Self { aliases, ..self })
    }

    /// Loads every model now.
    ///
    /// # Errors
    /// The first model that cannot be loaded, with its reason.
    pub fn load_all(&self) -> Result<(), String> {
        for (source, place) in self.places.values() {
            *lock(place) = Some(Arc::new((self.loader)(source)?));
        }
        Ok(())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// When the server started, in seconds since 1970.
    pub(super) fn created(&self) -> u64 {
        self.created
    }

    /// Names of the models that are loaded; one that is being loaded is not.
    pub(super) fn loaded(&self) -> Vec<&str> {
        let is_loaded = |place: &Place| place.try_lock().is_ok_and(|served| served.is_some());
        self.places
            .iter()
            .filter(|(_, (_, place))| is_loaded(place))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The name of a model, from the name in a request.
    pub(super) fn resolve(&self, name: &str) -> Result<&str, Error> {
        if let Some((found, _)) = self.places.get_key_value(name) {
            return Ok(found);
        }
        if let Some(name) = self.aliases.get(name) {
            return Ok(name);
        }
        match (name, self.places.keys().next()) {
            (ALIAS, Some(only)) if self.places.len() == 1 => Ok(only),
            _ => Err(Error::UnknownModel {
                name: name.to_owned(),
                near: nearest(
                    name,
                    self.names().chain(self.aliases.keys().map(String::as_str)),
                )
                .map(str::to_owned),
            }),
        }
    }

    /// A model, loaded if need be.
    pub(super) async fn get(&self, name: &str) -> Result<Arc<Served>, Error> {
        let name = self.resolve(name)?;
        let Some((source, place)) = self.places.get(name) else {
            return Err(Error::UnknownModel {
                name: name.to_owned(),
                near: None,
            });
        };
        if let Ok(served) = place.try_lock()
            && let Some(served) = served.as_ref()
        {
            return Ok(Arc::clone(served));
        }
        let (source, place, loader) = (source.clone(), Arc::clone(place), Arc::clone(&self.loader));
        let loading = tokio::task::spawn_blocking(move || {
            let mut place = lock(&place);
            if let Some(served) = place.as_ref() {
                return Ok(Arc::clone(served));
            }
            let served = Arc::new(loader(&source)?);
            *place = Some(Arc::clone(&served));
            Ok(served)
        });
        let loaded: Result<Arc<Served>, String> =
            loading.await.unwrap_or_else(|e| Err(e.to_string()));
        loaded.map_err(|detail| Error::Load {
            name: name.to_owned(),
            detail,
        })
    }
}
