//! Where the models of a server come from that serves more than one: a folder, or the cache of the Hub.

use std::path::PathBuf;

use lab_core::models;
use lab_core::models::ModelSource;
use lab_hub::{Cache, CachedModel};

/// The place whose models are served.
#[derive(Clone, Debug)]
pub enum Collection {
    /// Model files and folders of tensors in a folder.
    Folder(PathBuf),
    /// The models that were downloaded from the Hub; each is served under its name there.
    Cache(Cache),
}

impl Collection {
    /// The models that are there now.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn list(&self) -> Result<Vec<ModelSource>, models::Error> {
        match self {
            Self::Folder(folder) => models::list(folder),
            Self::Cache(cache) => {
                let cached = cache.list().into_iter().map(cached_source);
                Ok(cached.filter(models::is_servable).collect())
            }
        }
    }
}

/// The source of a model in the cache of the Hub; it is served under its name there.
pub fn cached_source(model: CachedModel) -> ModelSource {
    ModelSource::Named {
        name: model.name.to_string(),
        path: model.path,
    }
}
