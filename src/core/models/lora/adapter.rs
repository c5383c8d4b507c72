//! An adapter that fits a model.

use std::path::PathBuf;

use super::pairs::pairs;
use super::{AdaptedModel, AdapterSource, Error, LoraPair, peft};
use crate::models::source::ModelSource;
use crate::plan::Plan;
use lab_base::weights;
use lab_base::weights::Weights;

/// An adapter that fits a model.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// The path of the adapter.
    pub path: PathBuf,
    /// The name by which requests choose it; that of its file if they do not.
    pub name: String,
    /// Default scale of the updates.
    pub scale: f32,
    /// The matrices.
    pub weights: Weights,
    /// The updates, by the names of their weights.
    pub pairs: Vec<LoraPair>,
}

impl Adapter {
    /// Identifies its files, by their names, sizes and times of change.
    pub fn stamp(&self) -> [u8; 32] {
        let stamp = ModelSource::File(self.path.clone()).stamp();
        stamp.map_or([0; 32], |stamp| stamp.digest())
    }

    /// Reads an adapter for a model.
    ///
    /// # Errors
    /// A file cannot be read, or the adapter does not fit the model.
    pub fn open(source: &AdapterSource, base: &AdaptedModel<'_>) -> Result<Self, Error> {
        let path = source.path.as_path();
        let refuse = |message: String| Error::Unfit {
            path: path.to_owned(),
            message,
        };
        let (weights, alpha) = if path.is_dir() {
            // The factors of modules are part of the matrices of a PEFT folder.
            (peft::open(path, base)?, 0.0)
        } else {
            let weights = weights::open(path)?;
            let alpha = check_metadata(&weights, base.plan).map_err(refuse)?;
            (weights, alpha)
        };
        let pairs = pairs(&weights, base.plan, alpha).map_err(refuse)?;
        let names: Vec<&str> = weights.tensors().iter().map(|t| t.name.as_str()).collect();
        // A value that is not finite would affect the rows of requests without the adapter.
        weights::check(&weights, &names)?;
        Ok(Self {
            path: path.to_owned(),
            name: path
                .file_stem()
                .unwrap_or(path.as_os_str())
                .to_string_lossy()
                .into_owned(),
            scale: source.scale,
            weights,
            pairs,
        })
    }
}

/// Checks the metadata of an adapter's file. Returns its `alpha`, or 0 if it has none.
fn check_metadata(weights: &Weights, plan: &Plan) -> Result<f32, String> {
    let metadata = weights.metadata();
    let expect = |key: &str, expected: &str| match metadata.str(key) {
        Some(found) if found == expected => Ok(()),
        found => Err(format!(
            "`{key}` is `{}`, expected `{expected}`",
            found.unwrap_or("missing")
        )),
    };
    expect("general.type", "adapter")?;
    expect("adapter.type", "lora")?;
    match metadata.str("general.architecture") {
        Some(found) if found == plan.arch => {}
        found => {
            return Err(format!(
                "it is for the architecture `{}`, the model is of `{}`",
                found.unwrap_or("missing"),
                plan.arch
            ));
        }
    }
    let tokens = "adapter.alora.invocation_tokens";
    if metadata.get(tokens).is_some() {
        return Err(format!(
            "`{tokens}`: an adapter that its invocation tokens activate (aLoRA) is not supported"
        ));
    }
    match metadata.get("adapter.lora.alpha") {
        None => Ok(0.0),
        Some(alpha) => match alpha.as_f64().map(|alpha| alpha as f32) {
            Some(alpha) if alpha.is_finite() => Ok(alpha),
            _ => Err("`adapter.lora.alpha` is not a finite number".into()),
        },
    }
}
