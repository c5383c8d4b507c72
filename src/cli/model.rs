//! The model of a command: `-m MODEL`, or an argument where the command has no other.

use std::path::{Path, PathBuf};

use clap::Args;

use lab_core::models::ModelSource;

use super::Failure;
use super::hub::model_source;

/// The model of a command that has one.
#[derive(Debug, Args)]
pub(super) struct ModelArg {
    /// The model, in place of `-m`
    #[arg(value_name = "MODEL")]
    pub(super) model_path: Option<PathBuf>,
    /// The model: a file, a folder, a name OWNER/REPO[:QUANT][@REVISION] of the Hugging Face Hub, tiny-chat or
    /// tiny-diffusion; default: tiny-chat, which is built in
    #[arg(short, long, value_name = "MODEL", conflicts_with = "model_path")]
    pub(super) model: Option<PathBuf>,
}

impl ModelArg {
    /// The path or name of the model, if one is given.
    pub(super) fn path(&self) -> Option<&Path> {
        self.model.as_deref().or(self.model_path.as_deref())
    }

    /// The model; downloaded if it is named by its repository and the cache does not have it.
    pub(super) fn source(&self) -> Result<ModelSource, Failure> {
        model_source(self.path())
    }
}

/// `-m` of a command with two models, which are else its arguments.
#[derive(Debug, Args)]
pub(super) struct TwoModels {
    /// Model A, and given twice A and B, in place of the arguments
    #[arg(short, long, value_name = "MODEL")]
    model: Vec<PathBuf>,
}

impl TwoModels {
    /// A, and B if it is given; `arguments` follow the models of `-m`. Without any, A is the default model.
    pub(super) fn of<'a>(
        &'a self,
        arguments: [Option<&'a PathBuf>; 2],
    ) -> Result<(ModelSource, Option<ModelSource>), Failure> {
        let all = self.model.iter().chain(arguments.into_iter().flatten());
        let mut all = all.map(|path| model_source(Some(path)));
        let (a, b) = (all.next().transpose()?, all.next().transpose()?);
        if all.next().is_some() {
            anyhow::bail!(
                "expected at most two models, A and B, by `-m` and as arguments together"
            );
        }
        Ok((a.unwrap_or_else(|| ModelSource::of(None)), b))
    }
}
