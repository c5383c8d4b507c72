//! The media of a prompt: prepared for towers, and placed among its tokens.

use std::collections::BTreeSet;
use std::sync::Arc;

use lab_media::picture::{self, PictureLimits, PictureRules};
use lab_media::sound::{self, SoundLimits, SoundRules};
use lab_media::{Medium, Piece, Prepared, PromptText, expand};
use sha2::{Digest as _, Sha256};

use crate::plan::{Media, MediaAttention, MediaPositions};

/// How a model prepares media.
#[derive(Clone, Debug, Default)]
pub struct MediaProcessors {
    /// The rules of pictures; none if the model takes none.
    pub pictures: Option<PictureRules>,
    /// The rules of sounds; none if the model takes none.
    pub sounds: Option<SoundRules>,
    pub picture_limits: PictureLimits,
    pub sound_limits: SoundLimits,
    /// How the text model treats the tokens of each kind.
    pub tokens: Vec<MediaTokens>,
}

/// How a text model treats the tokens of media of a kind.
#[derive(Clone, Copy, Debug)]
pub struct MediaTokens {
    pub media: Media,
    /// How those of one medium attend to each other.
    pub attention: MediaAttention,
    /// By which positions they are rotated, where tokens have several.
    pub positions: MediaPositions,
}

/// A medium, prepared.
#[derive(Clone, Debug)]
pub struct PreparedMedium {
    pub media: Media,
    pub prepared: Prepared,
    /// The hash of its bytes. Media with equal hashes have equal rows in one model.
    pub hash: [u8; 32],
}

/// Consecutive tokens of a prompt that stand for rows of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaPlace {
    /// The index of the first token.
    pub at: usize,
    /// Their number.
    pub n: usize,
    /// The index of the medium.
    pub medium: usize,
    /// The first row among those of the medium.
    pub from: usize,
    /// The grid of the rows (time, height, width), where they have positions of their own on it.
    pub grid: Option<[u32; 3]>,
    /// How the tokens attend to each other.
    pub attention: MediaAttention,
}

/// The media of a prompt, and their places among its tokens.
#[derive(Clone, Debug)]
pub struct PromptMedia {
    pub media: Vec<Arc<PreparedMedium>>,
    pub places: Vec<MediaPlace>,
}

impl PromptMedia {
    /// Whether tokens attend to later ones, so that one pass must read the prompt.
    pub fn attends_ahead(&self) -> bool {
        let mut places = self.places.iter();
        places.any(|place| place.attention != MediaAttention::Causal)
    }

    /// Whether prompts of these media are computed alike where their tokens are the same.
    pub fn is_same(&self, other: &Self) -> bool {
        let hashes =
            |of: &Self| -> Vec<[u8; 32]> { of.media.iter().map(|medium| medium.hash).collect() };
        self.places == other.places && hashes(self) == hashes(other)
    }
}

/// The reason why media cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// The model does not take media of this kind.
    #[error("the model takes no {0}")]
    NotTaken(&'static str),
    /// The bytes are no picture, or do not fit the rules of the processor.
    #[error(transparent)]
    Picture(#[from] picture::PictureError),
    /// The bytes are no sound, or do not fit the rules of the processor.
    #[error(transparent)]
    Sound(#[from] sound::SoundError),
    /// The prompt does not fit the media.
    #[error(transparent)]
    Prompt(#[from] lab_media::PromptError),
    /// The vocabulary lacks the token that holds the place of a row.
    #[error("the token `{0}`, which stands for a row of a medium, is not in the vocabulary")]
    NoRowToken(String),
    /// The prompt has other tokens for rows than its media have rows.
    #[error("the prompt has {found} tokens for rows of media, expected {expected}")]
    Rows { found: usize, expected: usize },
}

impl MediaProcessors {
    /// Prepares a medium, the `index`th of its kind in its prompt.
    ///
    /// # Errors
    /// The model takes no media of this kind, or the bytes are none that fits its rules.
    pub fn prepare(
        &self,
        media: Media,
        bytes: &[u8],
        index: usize,
    ) -> Result<PreparedMedium, MediaError> {
        let prepared = match media {
            Media::Image => {
                let rules = self.pictures.as_ref();
                let rules = rules.ok_or(MediaError::NotTaken("pictures"))?;
                let picture = picture::decode(bytes, &self.picture_limits)?;
                picture::prepare(&picture, rules, index, &self.picture_limits)?
            }
            Media::Audio => {
                let rules = self.sounds.as_ref();
                let rules = rules.ok_or(MediaError::NotTaken("sounds"))?;
                let sound = sound::decode(bytes, &self.sound_limits)?;
                sound::prepare(&sound, rules, &self.sound_limits)?
            }
        };
        Ok(PreparedMedium {
            media,
            prepared,
            hash: Sha256::digest(bytes).into(),
        })
    }

    /// Whether the model takes media of a kind.
    pub fn takes(&self, media: Media) -> bool {
        match media {
            Media::Image => self.pictures.is_some(),
            Media::Audio => self.sounds.is_some(),
        }
    }

    /// The text in whose place a medium stands, and the token of a row; none if it is no part of prompts.
    fn placeholder(&self, media: Media) -> Option<(&str, &str)> {
        let tokens = match media {
            Media::Image => {
                let rules = self.pictures.as_ref()?;
                (&*rules.marker, &*rules.row_token)
            }
            Media::Audio => {
                let rules = self.sounds.as_ref()?;
                (&*rules.marker, &*rules.row_token)
            }
        };
        (!tokens.0.is_empty()).then_some(tokens)
    }

    /// A rendered prompt with what stands in the place of its media.
    ///
    /// # Errors
    /// The prompt has another number of places.
    pub fn expanded(&self, prompt: &str, media: &[PreparedMedium]) -> Result<String, MediaError> {
        let all = media.iter().map(|medium| {
            let (marker, row_token) = self
                .placeholder(medium.media)
                .ok_or(MediaError::NotTaken("media in its prompts"))?;
            Ok(Medium {
                marker,
                row_token,
                layout: &medium.prepared.layout,
            })
        });
        let all: Vec<Medium<'_>> = all.collect::<Result<_, MediaError>>()?;
        let has_pictures = media.iter().any(|medium| medium.media == Media::Image);
        let pictures = self.pictures.as_ref().filter(|_| has_pictures);
        let none = PromptText::default();
        Ok(expand(
            prompt,
            &all,
            pictures.map_or(&none, |rules| &rules.prompt),
        )?)
    }

    /// The places of media among the tokens of an expanded prompt. `id_of` gives the id of a token by its text.
    ///
    /// # Errors
    /// The tokens of rows are not those of the media.
    pub fn places(
        &self,
        tokens: &[u32],
        media: &[PreparedMedium],
        id_of: impl Fn(&str) -> Option<u32>,
    ) -> Result<Vec<MediaPlace>, MediaError> {
        let row_id = |medium: &PreparedMedium| {
            let (_, token) = self
                .placeholder(medium.media)
                .ok_or(MediaError::NotTaken("media in its prompts"))?;
            id_of(token).ok_or_else(|| MediaError::NoRowToken(token.to_owned()))
        };
        let ids: Vec<u32> = media.iter().map(row_id).collect::<Result<_, _>>()?;
        let kinds: BTreeSet<u32> = ids.iter().copied().collect();
        let is_row = |at: &usize| kinds.contains(&tokens[*at]);
        let found = (0..tokens.len()).filter(is_row).count();
        let pieces = || media.iter().flat_map(|medium| &medium.prepared.layout);
        let n_of = |piece: &Piece| match piece {
            Piece::Rows { rows, .. } => rows.len(),
            Piece::Text(_) => 0,
        };
        let expected = pieces().map(n_of).sum();
        let wrong = || MediaError::Rows { found, expected };
        if found != expected {
            return Err(wrong());
        }
        let mut places = Vec::new();
        let mut next = 0;
        for (medium, (of, id)) in media.iter().zip(ids).enumerate() {
            let rules = self.tokens.iter().find(|rules| rules.media == of.media);
            let attention = rules.map_or(MediaAttention::Causal, |rules| rules.attention);
            let has_grid = rules.is_some_and(|rules| rules.positions == MediaPositions::Grid);
            let mut from = 0;
            for piece in &of.prepared.layout {
                let Piece::Rows { rows, grid } = piece else {
                    continue;
                };
                let n = rows.len();
                let Some(at) = (next..tokens.len()).find(is_row).filter(|_| n > 0) else {
                    continue;
                };
                next = at + n;
                // The rows of a piece are one token after another.
                let own = tokens.get(at..next).ok_or_else(wrong)?;
                if own.iter().any(|token| *token != id) {
                    return Err(wrong());
                }
                let is_grid = has_grid && grid.iter().product::<usize>() == n;
                places.push(MediaPlace {
                    at,
                    n,
                    medium,
                    from,
                    grid: is_grid.then(|| grid.map(|cells| cells as u32)),
                    attention,
                });
                from += n;
            }
        }
        Ok(places)
    }
}
