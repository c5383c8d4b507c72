//! The towers of a model, in numbers: what they read, what they are made of, and the memory that they take.
//!
//! Nothing is loaded. What a medium costs is measured by one of a usual size.

use std::num::NonZeroU32;

use serde::Serialize;

use lab_base::util::wording::{bytes, count};
use lab_core::hf::MAP_KEY;
use lab_core::model::{Options, TowerUse};
use lab_core::models::media::{SAMPLE_PIXELS, SAMPLE_SECONDS};
use lab_core::models::towers::{OpenedMedia, OpenedTower};
use lab_core::plan::Media;

/// A tower of a model.
#[derive(Clone, Debug, Serialize)]
pub struct TowerReport {
    /// What it reads: `image` or `audio`.
    pub media: &'static str,
    /// The name of its definition.
    pub definition: String,
    /// The name of the map that makes its tensors; none if the file has them.
    pub map: Option<String>,
    pub layers: usize,
    pub weights: u64,
    pub weight_bytes: u64,
    /// Elements of its rows, which take the place of tokens.
    pub width: u64,
    /// What a medium of a usual size costs, or why that is not known.
    #[serde(skip)]
    pub sample: Result<MediumCost, String>,
}

/// What a picture of 1024 x 1024 pixels or a sound of 30 seconds costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MediumCost {
    /// Its tokens in a prompt.
    pub rows: usize,
    /// The memory of the tower with it, in bytes.
    pub memory: TowerUse,
}

/// The towers of a model. Each would run with these options.
pub fn towers(media: &OpenedMedia, options: &Options) -> Vec<TowerReport> {
    let report = |tower: &OpenedTower| TowerReport {
        media: tower.media.name(),
        definition: tower.def.name.clone(),
        map: tower.weights.metadata().str(MAP_KEY).map(str::to_owned),
        layers: tower.plan.layers.len(),
        weights: tower.plan.n_weights(),
        weight_bytes: tower.plan.weight_bytes(),
        width: tower.plan.n_embd,
        sample: cost(media, tower, options),
    };
    media.towers.iter().map(report).collect()
}

fn cost(media: &OpenedMedia, tower: &OpenedTower, options: &Options) -> Result<MediumCost, String> {
    let sample = media.processors.sample(tower.media, NonZeroU32::MIN);
    let sample = sample.map_err(|error| error.to_string())?;
    let memory = TowerUse::of(tower, &media.processors, &sample, options);
    Ok(MediumCost {
        rows: sample.n_rows(),
        memory: memory.map_err(|error| error.to_string())?,
    })
}

impl TowerReport {
    /// What media of its kind are called.
    pub fn kind(&self) -> &'static str {
        match self.is_of_pictures() {
            true => "pictures",
            false => "sounds",
        }
    }

    fn is_of_pictures(&self) -> bool {
        self.media == Media::Image.name()
    }

    /// Its definition, its map and its size, in words.
    pub fn phrase(&self) -> String {
        let map = self.map.as_ref();
        let map = map.map_or_else(String::new, |map| format!(" by the map `{map}`"));
        format!(
            "`{}`{map}, {} layers, {} weights in {}",
            self.definition,
            self.layers,
            count(self.weights),
            bytes(self.weight_bytes)
        )
    }

    /// What a medium of a usual size costs, in words.
    pub fn sample_phrase(&self) -> String {
        let medium = match self.is_of_pictures() {
            true => format!("a picture of {SAMPLE_PIXELS} x {SAMPLE_PIXELS} pixels"),
            false => format!("a sound of {SAMPLE_SECONDS} seconds"),
        };
        match &self.sample {
            Ok(MediumCost { rows: 0, memory }) => {
                format!("{medium}: {} of scratch memory", bytes(memory.compute))
            }
            Ok(MediumCost { rows, memory }) => format!(
                "{medium}: {rows} tokens, {} of scratch memory",
                bytes(memory.compute)
            ),
            Err(error) => format!("{medium}: {error}"),
        }
    }
}
