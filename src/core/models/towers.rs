//! The towers of a model: opened beside it, from its folder or from a projector file.

use std::path::Path;

use lab_media::picture::PictureRules;
use lab_media::sound::SoundRules;

use crate::arch::ArchDef;
use crate::hf;
use crate::plan::{DeviceOverride, DeviceShare, Media, Plan};
use lab_base::weights::Weights;

use super::definitions::Definitions;
use super::error::Error;
use super::media::{MediaProcessors, MediaTokens};
use super::mmproj::{self, MmprojChoice};
use super::quantise::{Mix, quantise};
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
        let plan = tower_plan(&def, &weights)?;
        Ok(Self {
            media: plan.media().unwrap_or(Media::Image),
            weights,
            def,
            plan,
        })
    }
}

/// The prefix of the paths of a tower's parts where those of the model have none, such as `image.layers.0.attn`.
pub fn path_prefix(media: Media) -> String {
    format!("{}.", media.name())
}

impl OpenedTower {
    /// Places all of the tower on a device, or on the processor without one, apart from the parts that are moved. `moves` are those of
    /// a model: their patterns begin with the prefix of the tower's paths. A tower is placed once.
    pub fn place(&mut self, device: Option<&str>, moves: &[DeviceOverride]) {
        let n_layers = self.plan.n_placeable();
        let shares = device.map(|device| DeviceShare {
            device: device.to_owned(),
            n_layers,
        });
        let prefix = path_prefix(self.media);
        let own = moves.iter().filter_map(|to| {
            Some(DeviceOverride {
                pattern: to.pattern.strip_prefix(&prefix)?.to_owned(),
                device: to.device.clone(),
            })
        });
        let own: Vec<DeviceOverride> = own.collect();
        self.plan.place_with(shares.as_slice(), &own);
    }
}

fn tower_plan(def: &ArchDef, weights: &Weights) -> Result<Plan, Error> {
    Plan::new(def, weights.metadata(), weights).map_err(|source| Error::Plan {
        model: weights.label().to_owned(),
        source,
    })
}

/// The towers of a model, and how it prepares media.
#[derive(Debug)]
pub struct OpenedMedia {
    pub towers: Vec<OpenedTower>,
    pub processors: MediaProcessors,
}

impl OpenedMedia {
    fn new(
        towers: Vec<OpenedTower>,
        pictures: Option<PictureRules>,
        sounds: Option<SoundRules>,
    ) -> Self {
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
        Self { towers, processors }
    }

    /// The same towers with their matrices in the types of a mix.
    pub(super) fn quantised(mut self, mix: &Mix) -> Result<Self, Error> {
        for tower in &mut self.towers {
            let weights = quantise(&tower.weights, &tower.plan, mix)?;
            tower.plan = tower_plan(&tower.def, &weights)?;
            tower.weights = weights;
        }
        Ok(self)
    }

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

/// The media that a model takes: by the projector file that is given or found beside it, or by its folder. A tower of a
/// folder, or of a file that was found, that cannot be opened leaves a text model.
///
/// # Errors
/// The projector file that is given cannot be read, or is for another model.
pub fn open_media(
    source: &ModelSource,
    model: &Weights,
    plan: &Plan,
    with: &Definitions,
) -> Result<Option<OpenedMedia>, Error> {
    let opened = match &with.mmproj {
        MmprojChoice::None => return Ok(None),
        MmprojChoice::File(file) => return open_mmproj(file, model, plan, with).map(Some),
        MmprojChoice::Found => match mmproj::beside(source, plan.n_embd) {
            Some(file) => {
                tracing::info!("with {}; --no-mmproj leaves it out", file.display());
                open_mmproj(&file, model, plan, with).map(Some)
            }
            None => open_folder_media(source, with),
        },
    };
    Ok(opened.unwrap_or_else(|error| {
        tracing::warn!(%error, "the model takes texts alone: its tower is not used");
        None
    }))
}

/// The towers of a projector file, for a model.
fn open_mmproj(
    file: &Path,
    model: &Weights,
    plan: &Plan,
    with: &Definitions,
) -> Result<OpenedMedia, Error> {
    let refuse = |message: String| Error::ForeignMmproj {
        file: file.to_owned(),
        model: model.label().to_owned(),
        message,
    };
    let opened = hf::open_mmproj(file, &with.mmproj_maps, &with.towers, with.allow_unmapped)?;
    let mut towers = Vec::with_capacity(opened.len());
    let (mut pictures, mut sounds) = (None, None);
    for opened in opened {
        let tower = OpenedTower::new(opened.weights, with)?;
        let key = format!("{}.projection_dim", tower.def.name);
        let width = tower.weights.metadata().i64(&key);
        if let Some(width) = width.filter(|width| *width != plan.n_embd as i64) {
            let n_embd = plan.n_embd;
            return Err(refuse(format!(
                "the projector makes rows of {width} elements, and the model reads rows of {n_embd}"
            )));
        }
        let processors = &with.processors;
        let row_token = match tower.media {
            Media::Image => {
                pictures = processors.pictures_of(file, &opened.processor)?;
                pictures
                    .as_ref()
                    .map(|rules: &PictureRules| &rules.row_token)
            }
            Media::Audio => {
                sounds = processors.sounds_of(file, &opened.processor)?;
                sounds.as_ref().map(|rules: &SoundRules| &rules.row_token)
            }
        };
        if let Some(token) = row_token.filter(|token| !mmproj::has_token(model, token)) {
            return Err(refuse(format!(
                "the vocabulary of the model has no token `{token}`, which stands for a row of the projector"
            )));
        }
        towers.push(tower);
    }
    Ok(OpenedMedia::new(towers, pictures, sounds))
}

/// The media that the folder of a model takes; none if it has no tower that is known.
fn open_folder_media(
    source: &ModelSource,
    with: &Definitions,
) -> Result<Option<OpenedMedia>, Error> {
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
    Ok(Some(OpenedMedia::new(towers, pictures, sounds)))
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
