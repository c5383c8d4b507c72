//! The adapters that requests have loaded: their names, their model, and the folder that has them.
//!
//! Every later load of the model loads them again. Not here: how an engine uses an adapter.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lab_base::util::lock::lock;

use crate::http::error::{Error, invalid, quoted, refuse};

use super::{LoadState, LoadedEngine, ModelEntry, Pool};

/// Maximum length of the name of an adapter in bytes.
const MAX_NAME: usize = 256;

/// An adapter that requests choose by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAdapter {
    pub name: String,
    /// A GGUF file or a PEFT folder.
    pub path: String,
}

impl ModelEntry {
    pub(super) fn has_adapter(&self, name: &str) -> bool {
        lock(&self.adapters).iter().any(|own| own.name == name)
    }
}

impl Pool {
    /// Refuses the name of a new adapter if it is no name, or names something else.
    pub(crate) fn check_adapter_name(&self, name: &str) -> Result<(), Error> {
        if name.is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) {
            let expected = format!("expected 1 to {MAX_NAME} bytes without control characters");
            return refuse("lora_name", format!(": {expected}"));
        }
        match self.entry(name) {
            Err(_) => Ok(()),
            Ok(_) => refuse(
                "lora_name",
                format!(": `{}` is served already", quoted(name)),
            ),
        }
    }

    /// The path of an adapter below the folder of the adapters, without links.
    pub(crate) async fn adapter_path(&self, path: String) -> Result<String, Error> {
        let Some(folder) = self.config.lora_dir.clone() else {
            let message = ": adapters are loaded from the folder of `--lora-dir`, which is not set";
            return refuse("lora_path", message);
        };
        let found = tokio::task::spawn_blocking(move || confined(&folder, &path)).await;
        let found = found.unwrap_or_else(|_| Err("the path cannot be read".into()));
        found.or_else(|message| invalid("lora_path", format!("`lora_path`: {message}")))
    }

    /// Keeps an adapter that this engine of a model has loaded, for requests and for later loads.
    pub(crate) fn keep_adapter(
        &self,
        model: &str,
        engine: &LoadedEngine,
        adapter: NamedAdapter,
    ) -> Result<(), Error> {
        let (_, place) = self.entry(model)?;
        let state = lock(&place.state);
        match &*state {
            LoadState::Loaded(own) if own.is_same(engine) => {
                lock(&place.adapters).push(adapter);
                Ok(())
            }
            _ => Err(Error::engine(
                "the model was unloaded while the adapter was loaded",
            )),
        }
    }

    /// Forgets an adapter. Returns the engine that has it, if its model is loaded.
    pub(crate) async fn forget_adapter(&self, name: &str) -> Result<Option<LoadedEngine>, Error> {
        let of = |(_, place): &(String, Arc<ModelEntry>)| place.has_adapter(name);
        let Some((model, place)) = self.all().into_iter().find(of) else {
            let message = format!(": no adapter `{}` is loaded", quoted(name));
            return refuse("lora_name", message);
        };
        // A load that is under way loads the adapter too.
        if let Some(mut load) = self.loading(&model) {
            let _ = load.ended().await;
        }
        let state = lock(&place.state);
        lock(&place.adapters).retain(|own| own.name != name);
        Ok(match &*state {
            LoadState::Loaded(engine) => Some(engine.clone()),
            _ => None,
        })
    }
}

/// The path of an adapter, without links, if it and the files of its folder are below `folder`.
fn confined(folder: &Path, path: &str) -> Result<String, String> {
    let shown = quoted(path);
    let fault = |error: std::io::Error| format!("`{shown}` below `--lora-dir`: {error}");
    let folder = folder.canonicalize().map_err(fault)?;
    let inside = |path: PathBuf| match path.canonicalize() {
        Ok(real) if real.starts_with(&folder) && real != folder => Ok(real),
        Ok(_) => Err(format!("`{shown}` is not below the folder of `--lora-dir`")),
        Err(error) => Err(fault(error)),
    };
    let real = inside(folder.join(path))?;
    let kind = real.metadata().map_err(fault)?;
    if kind.is_dir() {
        for file in real.read_dir().map_err(fault)? {
            inside(file.map_err(fault)?.path())?;
        }
    } else if !kind.is_file() {
        return Err(format!("`{shown}` is no file and no folder"));
    }
    let text = real.into_os_string().into_string();
    text.map_err(|_| format!("`{shown}`: its path is not UTF-8"))
}
