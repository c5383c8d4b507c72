//! What models are opened with.

use std::path::PathBuf;

use crate::arch::{Library, LibraryError};
use crate::blocks::REGISTRY;
use crate::hf::Maps;
use crate::hf::processor::{ProcessorError, Processors};

use super::mmproj::MmprojChoice;
use super::source::ModelSource;

/// The definitions, maps and options with which models are opened.
#[derive(Clone, Debug)]
pub struct Definitions {
    /// Architectures.
    pub archs: Library,
    /// Maps of folders to architectures.
    pub maps: Maps,
    /// Towers.
    pub towers: Library,
    /// Drafters.
    pub drafters: Library,
    /// Maps of folders to drafters.
    pub drafter_maps: Maps,
    /// Maps of folders to towers.
    pub tower_maps: Maps,
    /// Maps of projector files to towers.
    pub mmproj_maps: Maps,
    /// How folders prepare media.
    pub processors: Processors,
    /// The projector file with the towers of a model.
    pub mmproj: MmprojChoice,
    /// Where the drafter of a model is.
    pub drafter: DrafterChoice,
    /// Whether tensors and keys that a map does not mention are ignored.
    pub allow_unmapped: bool,
    /// Whether unused tensors and metadata keys are an error.
    pub strict: bool,
}

impl Definitions {
    /// The built-in definitions and maps and those in `folders`.
    pub fn open(folders: &[PathBuf]) -> Result<Self, DefinitionsError> {
        Ok(Self {
            archs: Library::open(&REGISTRY, folders)?,
            maps: Maps::open(folders)?,
            towers: Library::towers(&REGISTRY, folders)?,
            drafters: Library::drafters(&REGISTRY, folders)?,
            drafter_maps: Maps::drafters(folders)?,
            tower_maps: Maps::towers(folders)?,
            mmproj_maps: Maps::mmproj(folders)?,
            processors: Processors::open(folders)?,
            mmproj: MmprojChoice::default(),
            drafter: DrafterChoice::default(),
            allow_unmapped: false,
            strict: false,
        })
    }
}

/// Where the drafter of a model is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DrafterChoice {
    /// In the file of the model, if it has one.
    #[default]
    Found,
    /// Nowhere.
    None,
    /// A model or a drafter of its own.
    Named(ModelSource),
}

/// Why definitions are not available.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionsError {
    /// A definition or a map.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A processor file.
    #[error(transparent)]
    Processor(#[from] ProcessorError),
}
