//! Converts a Hugging Face folder to the tensors and parameters of an architecture, by a map.
//!
//! A map (`stmaps/*.arch.stmap.toml`) lists its classes, and states how parameters follow from `config.json` and of
//! which stored tensors each tensor of the architecture is made, in which order of elements. All of these are
//! expressions over the configuration, so a map serves every size of a model. The result is
//! [`Weights`](lab_base::weights::Weights) like those of a file; no later module distinguishes them. Tensors that need no
//! conversion stay in the mapped file; the others are lazy tensors ([`recipe`]). Pure except for reading the folder.

mod apply;
mod chosen;
mod computed;
mod config;
mod config_file;
mod definition;
mod error;
mod json;
mod library;
mod missing;
mod mmproj;
mod modules;
mod nearest;
mod open;
mod packed;
mod parameters;
pub mod processor;
mod read;
mod rearrange;
mod recipe;
#[cfg(test)]
mod tests;
mod text;
mod tied;
mod unit_rows;
pub mod update;
mod values;

pub use chosen::map_of;
pub use config_file::{folder_of, is_folder, is_model};
pub use error::Error;
pub use library::{ENDING, MMPROJ_ENDING, Maps, TOWER_ENDING};
pub use missing::{MissingFeature, missing};
pub use mmproj::{ProjectorTower, open_mmproj};
pub use nearest::{MapFit, UnknownFolder, UnmadeTensor, draft_extending_map, draft_map, fits};
pub use open::{MAP_KEY, open, open_towers};
pub use read::schema;

use chosen::{ChosenMap, choose_map};
use config_file::{MAX_CONFIG_BYTES, read_config};
use error::MAX_LISTED;

/// Name of the configuration in a folder.
const CONFIG: &str = "config.json";
