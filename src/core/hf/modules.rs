//! `modules.json` of sentence-transformers: the modules after the transformer in an embedding model.
//!
//! The modules become one object of the configuration under [`KEY`], which maps read like any other key: `pooling`,
//! `dense_2` and `dense_3` (each the object of its own config.json) and `normalize`. The tensors of a dense layer are
//! added to those of the folder under the same names.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use lab_base::weights::safetensors::{Checkpoint, is_named, read_small};

use super::{Error, MAX_CONFIG_BYTES, read_config};

/// The file that lists the modules.
const FILE: &str = "modules.json";
/// The configuration's key under which maps find the modules.
const KEY: &str = "sentence_transformers";
/// Names of the dense layers in their order, as in GGUF files.
const DENSE: [&str; 2] = ["dense_2", "dense_3"];
const MAX_MODULES: usize = 16;

#[derive(Deserialize)]
struct ModuleEntry {
    path: String,
    r#type: String,
}

#[derive(Debug, Default)]
pub(super) struct EmbeddingModules {
    found: Map<String, Json>,
    /// Dense layers: the prefix of their tensors, and their folder.
    dense: Vec<(&'static str, PathBuf)>,
    /// The folder of the transformer, if it is not the folder itself.
    pub(super) transformer: Option<PathBuf>,
}

impl EmbeddingModules {
    /// Reads the modules of a folder; empty if the folder has no list of modules.
    pub(super) fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(FILE);
        let mut all = Self::default();
        if !is_named(&path) {
            return Ok(all);
        }
        let refuse = |message: String| Error::Config {
            path: path.clone(),
            message,
        };
        let text = read_small(&path, MAX_CONFIG_BYTES)?;
        let list: Vec<ModuleEntry> =
            serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
        if list.len() > MAX_MODULES {
            let message = format!("{} modules, expected at most {MAX_MODULES}", list.len());
            return Err(refuse(message));
        }
        for module in &list {
            all.module(folder, module, &refuse)?;
        }
        Ok(all)
    }

    fn module(
        &mut self,
        folder: &Path,
        module: &ModuleEntry,
        refuse: &dyn Fn(String) -> Error,
    ) -> Result<(), Error> {
        let place = inside(folder, &module.path)
            .ok_or_else(|| refuse(format!("`{}` is not a folder in this one", module.path)))?;
        let kind = module.r#type.rsplit('.').next().unwrap_or_default();
        match kind {
            "Transformer" if module.path.is_empty() => {}
            "Transformer" => self.transformer = Some(place),
            "Pooling" => {
                let config = read_config(&place.join(super::CONFIG))?;
                self.found.insert("pooling".into(), config);
            }
            "Dense" => {
                let Some(name) = DENSE.get(self.dense.len()) else {
                    let message = format!("more than {} dense layers", DENSE.len());
                    return Err(refuse(message));
                };
                let config = read_config(&place.join(super::CONFIG))?;
                self.found.insert((*name).into(), config);
                self.dense.push((name, place));
            }
            "Normalize" => {
                self.found.insert("normalize".into(), Json::Bool(true));
            }
            // Dropout has an effect in training only.
            "Dropout" => {}
            other => {
                let known = "Transformer, Pooling, Dense, Normalize, Dropout";
                return Err(refuse(format!(
                    "the module `{other}` cannot be run; expected one of {known}"
                )));
            }
        }
        Ok(())
    }

    /// Adds the modules to a folder's configuration and tensors.
    pub(super) fn join(self, json: &mut Json, checkpoint: &mut Checkpoint) -> Result<(), Error> {
        for (name, folder) in &self.dense {
            checkpoint.join(&format!("{KEY}.{name}."), Checkpoint::open(folder)?)?;
        }
        if let Some(config) = json.as_object_mut()
            && !self.found.is_empty()
        {
            config.insert(KEY.into(), Json::Object(self.found));
        }
        Ok(())
    }
}

/// The path of a listed module, which must be within the folder.
fn inside(folder: &Path, path: &str) -> Option<PathBuf> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let path = Path::new(path);
    path.components().all(is_plain).then(|| folder.join(path))
}
