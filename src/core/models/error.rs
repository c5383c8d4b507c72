//! Why a model cannot be opened.

use std::path::PathBuf;

use crate::arch::LibraryError;
use crate::hf;
use crate::hf::processor::ProcessorError;
use crate::plan;
use lab_base::tokenizer;
use lab_base::weights;
use lab_base::weights::gguf;

/// The reason why a model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file has an error.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The folder does not fit a map.
    #[error(transparent)]
    Folder(#[from] hf::Error),
    #[error(transparent)]
    Vocabulary(#[from] tokenizer::folder::Error),
    /// The folder's media cannot be prepared.
    #[error(transparent)]
    Processor(#[from] ProcessorError),
    /// The architecture is unknown, or its definition has problems.
    #[error("{model}: {source}")]
    Arch { model: String, source: LibraryError },
    /// The file does not state its architecture.
    #[error("{model}: missing metadata key `general.architecture`")]
    NoArch { model: String },
    /// The file and the definition do not fit each other.
    #[error("{model}: {source}")]
    Plan { model: String, source: plan::Error },
    /// With `strict`: the file has tensors or keys that are not read.
    #[error(
        "{model}: the definition `{arch}` does not read {unread} (without `--strict` a warning)"
    )]
    Unread {
        model: String,
        arch: String,
        /// The keys and tensors that are not read.
        unread: String,
    },
    /// The path is not that of a model.
    #[error("{model}: {what}")]
    NotAModelPath {
        model: String,
        /// The actual content, and the next step.
        what: String,
    },
    /// The file is used with a model and is not a model itself.
    #[error("{model}: this is {}; {}", kind.name(), kind.next_step())]
    NotAModel {
        model: String,
        kind: gguf::AuxiliaryKind,
    },
    /// A drafter cannot draft for the model.
    #[error("the drafter {drafter}: {message}")]
    Drafter { drafter: String, message: String },
    /// The projector file is for another model.
    #[error("{}: {message}; expected the projector of {model}", file.display())]
    ForeignMmproj {
        file: PathBuf,
        model: String,
        message: String,
    },
    /// A folder could not be listed.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
}
