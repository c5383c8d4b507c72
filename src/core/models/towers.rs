//! The towers of a model: opened beside it, from its folder.

use crate::arch::ArchDef;
use crate::hf;
use crate::plan::{Media, Plan};
use lab_base::weights::Weights;

use super::definitions::Definitions;
use super::error::Error;
use super::media::{MediaProcessors, MediaTokens};
use super::source::ModelSource;

/// A tower that is opened but not loaded.
#[derive(Debug)]
pub struct OpenedTower {
    /// What it reads.
    pub media: Media,
    pub weights: Weights,
    /// Its definition.
    pub def: ArchDef,
    pub plan: Plan,
}

impl OpenedTower {
    fn new(weights: Weights, with: &Definitions) -> Result<Self, Error> {
        let model = weights.label().to_owned();
        let Some(arch) = weights.metadata().str("general.architecture") else {
            return Err(Error::NoArch { model });
        };
        let def = with.towers.get(arch).map_err(|source| Error::Arch {
            model: model.clone(),
            source,
        })?;
        let plan = Plan::new(&def, weights.metadata(), &weights);
        let plan = plan.map_err(|source| Error::Plan { model, source })?;
        Ok(Self {
            media: plan.media().unwrap_or(Media::Image),
            weights,
            def,
            plan,
        })
    }
}

/// The towers of a model, and how it prepares media.
#[derive(Debug)]
pub struct OpenedMedia {
    pub towers: Vec<OpenedTower>,
    pub processors: MediaProcessors,
}

impl OpenedMedia {
    /// The kinds of media that the model takes.
    pub fn kinds(&self) -> Vec<Media> {
        self.processors.kinds()
    }

    /// Bytes of the weights of all towers.
    pub fn weight_bytes(&self) -> u64 {
        let sizes = self.towers.iter().map(|tower| tower.plan.weight_bytes());
        sizes.fold(0, u64::saturating_add)
    }
}

/// The media that a model takes; none if it has no tower that is known.
///
/// # Errors
/// The errors of [`open_towers`], or no processor file fits the folder.
pub fn open_media(source: &ModelSource, with: &Definitions) -> Result<Option<OpenedMedia>, Error> {
    let towers = open_towers(source, with)?;
    let Some(path) = source.file().filter(|_| !towers.is_empty()) else {
        return Ok(None);
    };
    let has = |media: Media| towers.iter().any(|tower| tower.media == media);
    let folder = hf::folder_of(path);
    let pictures = match has(Media::Image) {
        true => with.processors.pictures(folder)?,
        false => None,
    };
    let sounds = match has(Media::Audio) {
        true => with.processors.sounds(folder)?,
        false => None,
    };
    let tokens = towers.iter().map(|tower| MediaTokens {
        media: tower.media,
        attention: tower.plan.media_attention(),
        positions: tower.plan.media_positions(),
    });
    let processors = MediaProcessors {
        pictures,
        sounds,
        tokens: tokens.collect(),
        ..MediaProcessors::default()
    };
    Ok(Some(OpenedMedia { towers, processors }))
}

/// The towers of a model; none if it has none that is known.
///
/// # Errors
/// A map of a tower does not fit the folder, or a tower's weights do not fit its definition.
pub fn open_towers(source: &ModelSource, with: &Definitions) -> Result<Vec<OpenedTower>, Error> {
    let Some(path) = source.file().filter(|path| hf::is_folder(path)) else {
        return Ok(Vec::new());
    };
    let all = hf::open_towers(path, &with.tower_maps, &with.towers, with.allow_unmapped)?;
    all.into_iter()
        .map(|weights| OpenedTower::new(weights, with))
        .collect()
}
