//! What requests that manage models do with the pool: a model is unloaded, the folder is searched again.
//!
//! Not here: loading, and models that are unloaded because others need their place.

use std::sync::PoisonError;

use lab_base::util::lock::lock;
use lab_core::models;

use super::{LoadState, ModelEntry, Pool, eviction};
use crate::http::error::Error;

impl Pool {
    /// Unloads a model: its running requests are completed, and later ones load it again. Its memory is free when this
    /// returns. Returns whether it was loaded.
    pub(crate) async fn unload(&self, name: &str) -> Result<bool, Error> {
        let (name, place) = self.entry(name)?;
        if let Some(mut load) = self.loading(&name) {
            let _ = load.ended().await;
        }
        let ended = self.end_when_free(&name, &place);
        let was_loaded = ended.is_some();
        if let Some(ended) = ended {
            let _ = ended.await;
        }
        // Another request may have unloaded it.
        while place.is_ending() {
            tokio::time::sleep(eviction::PAUSE).await;
        }
        Ok(was_loaded)
    }

    /// Searches for models again. Returns the names of new ones and of those that are gone.
    pub(crate) async fn rescan(&self) -> Result<(Vec<String>, Vec<String>), Error> {
        let Some(collection) = self.config.collection.clone() else {
            let message = "one model is served, not the models of a folder or of the cache";
            return Err(Error::unsupported("models", message));
        };
        let found = tokio::task::spawn_blocking(move || {
            collection.list().map_err(|error| error.to_string())
        });
        let found = found.await.unwrap_or_else(|error| Err(error.to_string()));
        let found = models::by_name(found.map_err(Error::engine)?);
        let mut places = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let gone = places.keys().filter(|name| !found.contains_key(*name));
        let gone: Vec<String> = gone.cloned().collect();
        let new = found.keys().filter(|name| !places.contains_key(*name));
        let new: Vec<String> = new.cloned().collect();
        for name in &gone {
            if let Some(place) = places.remove(name) {
                // Its requests are completed, whoever waits for that.
                drop(self.end_when_free(name, &place));
            }
        }
        for (name, source) in found {
            match places.get(&name).filter(|place| place.source == source) {
                // The file may have been replaced.
                Some(place) if matches!(*lock(&place.state), LoadState::NotLoaded) => {
                    *lock(&place.description) = None;
                }
                Some(_) => {}
                None => {
                    let place = ModelEntry::new(&name, source);
                    places.insert(name, place);
                }
            }
        }
        Ok((new, gone))
    }
}
