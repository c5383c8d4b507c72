//! The media of a prompt: prepared for towers, and placed among its tokens.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use lab_media::picture::{self, Picture, PictureLimits, PictureRules};
use lab_media::sound::{self, Sound, SoundLimits, SoundRules, SoundWindows};
use lab_media::{Medium, Piece, Prepared, PromptText, expand};
use sha2::{Digest as _, Sha256};

use crate::plan::{Media, MediaAttention, MediaPositions};

/// Pixels of a side of the picture of [`MediaProcessors::sample`].
pub const SAMPLE_PIXELS: u32 = 1024;
/// Seconds of the sound of [`MediaProcessors::sample`].
pub const SAMPLE_SECONDS: u32 = 30;

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

impl PreparedMedium {
    /// Number of its rows, which is that of the tokens that stand for them.
    pub fn n_rows(&self) -> usize {
        let rows = self.prepared.layout.iter().map(|piece| match piece {
            Piece::Rows { rows, .. } => rows.len(),
            Piece::Text(_) => 0,
        });
        rows.sum()
    }
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
    /// The ranges of a prompt of so many tokens within which tokens attend to later ones, in their order. One pass must read a range.
    pub fn attending_ahead(&self, n_prompt: usize) -> Vec<Range<usize>> {
        let places = self.places.iter();
        let mut ranges = Vec::new();
        for place in places {
            match place.attention {
                MediaAttention::Causal => {}
                MediaAttention::Prefix => return std::iter::once(0..n_prompt).collect(),
                MediaAttention::Both | MediaAttention::Window => {
                    ranges.push(place.at..place.at + place.n);
                }
            }
        }
        ranges
    }

    /// The number of tokens of a prompt that stand for rows of media of a kind.
    pub fn n_tokens(&self, kind: Media) -> usize {
        let is_of = |place: &&MediaPlace| {
            let medium = self.media.get(place.medium);
            medium.is_some_and(|medium| medium.media == kind)
        };
        self.places.iter().filter(is_of).map(|place| place.n).sum()
    }

    /// The numbers that stand for the rows of the only medium, where no token of the prompt does: a model reads them before its tokens. They
    /// follow from the hash of the medium.
    pub fn as_source(&self) -> Option<Vec<u32>> {
        let [medium] = self.media.as_slice() else {
            return None;
        };
        let words = medium.hash.chunks_exact(4);
        let words = words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let n = medium.n_rows();
        (self.places.is_empty() && n > 0).then(|| words.cycle().take(n).collect())
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
    /// The number of samples of the longest sound among media at the rate of the rules; 0 where it has no effect.
    ///
    /// # Errors
    /// The bytes of one are no sound; with its index.
    pub fn longest_sound(
        &self,
        media: &[(Media, impl AsRef<[u8]>)],
    ) -> Result<usize, (usize, MediaError)> {
        let rules = self.sounds.as_ref();
        let Some(rules) = rules.filter(|rules| rules.samples.pad_to_longest) else {
            return Ok(0);
        };
        let all = media.iter().enumerate();
        let sounds: Vec<_> = all.filter(|(_, (kind, _))| *kind == Media::Audio).collect();
        // One alone is not padded, and need not be decoded to find that out.
        if sounds.len() < 2 {
            return Ok(0);
        }
        let mut longest = 0;
        for (at, (_, bytes)) in sounds {
            let sound = sound::decode(bytes.as_ref(), &self.sound_limits);
            let n = sound.and_then(|sound| {
                let samples = sound::resample(&sound, rules.sampling_rate, &self.sound_limits);
                samples.map(|samples| samples.len())
            });
            longest = longest.max(n.map_err(|error| (at, error.into()))?);
        }
        Ok(longest)
    }

    /// The rules of sounds.
    fn sound_rules(&self) -> Result<&SoundRules, MediaError> {
        self.sounds.as_ref().ok_or(MediaError::NotTaken("sounds"))
    }

    /// A sound whose windows are read one after another.
    ///
    /// # Errors
    /// The model takes no sounds, the bytes are none, or the rules have no window.
    pub fn windows(&self, bytes: &[u8]) -> Result<MediumWindows, MediaError> {
        let rules = self.sound_rules()?;
        let sound = sound::decode(bytes, &self.sound_limits)?;
        Ok(MediumWindows {
            windows: SoundWindows::new(&sound, rules, &self.sound_limits)?,
            hash: Sha256::digest(bytes).into(),
        })
    }

    /// The length of a window in seconds; none: sounds are not cut.
    pub fn window_seconds(&self) -> Option<f64> {
        let rules = self.sounds.as_ref()?;
        let n = rules.samples.truncate;
        (n > 0).then(|| n as f64 / f64::from(rules.sampling_rate))
    }

    /// The number of rows of a whole window of sound; 0 if sounds are not cut.
    pub fn n_of_window(&self) -> usize {
        let Some(rules) = &self.sounds else {
            return 0;
        };
        let silence = Sound {
            rate: rules.sampling_rate,
            samples: vec![0.0; rules.samples.truncate],
        };
        let prepared = sound::prepare(&silence, rules, &self.sound_limits);
        prepared.map_or(0, |prepared| {
            prepared.views.iter().map(|view| view.grid[0]).sum()
        })
    }

    /// Prepares a medium: a picture with `index` pictures before it in its prompt, or a sound beside one of `longest` samples.
    ///
    /// # Errors
    /// The model takes no media of this kind, or the bytes are none that fits its rules.
    pub fn prepare(
        &self,
        media: Media,
        bytes: &[u8],
        index: usize,
        longest: usize,
    ) -> Result<PreparedMedium, MediaError> {
        let mut hash = Sha256::new_with_prefix(bytes);
        let prepared = match media {
            Media::Image => {
                let rules = self.pictures.as_ref();
                let rules = rules.ok_or(MediaError::NotTaken("pictures"))?;
                let picture = picture::decode(bytes, &self.picture_limits)?;
                picture::prepare(&picture, rules, index, &self.picture_limits)?
            }
            Media::Audio => {
                let rules = self.sound_rules()?;
                let sound = sound::decode(bytes, &self.sound_limits)?;
                if longest > 0 {
                    hash.update((longest as u64).to_le_bytes());
                }
                sound::prepare_beside(&sound, longest, rules, &self.sound_limits)?
            }
        };
        Ok(PreparedMedium {
            media,
            prepared,
            hash: hash.finalize().into(),
        })
    }

    /// A medium whose size stands for many, to measure by: a picture of [`SAMPLE_PIXELS`] by as many pixels, or silence of
    /// [`SAMPLE_SECONDS`], both divided by `part`.
    ///
    /// # Errors
    /// The model takes no media of this kind, or its rules do not fit this one.
    pub fn sample(&self, media: Media, part: NonZeroU32) -> Result<PreparedMedium, MediaError> {
        let prepared = match media {
            Media::Image => {
                let rules = self.pictures.as_ref();
                let rules = rules.ok_or(MediaError::NotTaken("pictures"))?;
                let side = (SAMPLE_PIXELS / part).max(1);
                let side = NonZeroU32::new(side).unwrap_or(part);
                let bytes = vec![127; 3 * side.get() as usize * side.get() as usize];
                let picture = Picture::new(side, side, bytes);
                let picture = picture.ok_or(MediaError::NotTaken("pictures"))?;
                picture::prepare(&picture, rules, 0, &self.picture_limits)?
            }
            Media::Audio => {
                let rules = self.sounds.as_ref();
                let rules = rules.ok_or(MediaError::NotTaken("sounds"))?;
                let n = rules.sampling_rate / part * SAMPLE_SECONDS;
                let silence = Sound {
                    rate: rules.sampling_rate,
                    samples: vec![0.0; n as usize],
                };
                sound::prepare(&silence, rules, &self.sound_limits)?
            }
        };
        Ok(PreparedMedium {
            media,
            prepared,
            hash: [0; 32],
        })
    }

    /// Whether the model takes media of a kind.
    pub fn takes(&self, media: Media) -> bool {
        match media {
            Media::Image => self.pictures.is_some(),
            Media::Audio => self.sounds.is_some(),
        }
    }

    /// The text in whose place a medium of a kind stands; none if it is no part of prompts.
    pub fn marker(&self, media: Media) -> Option<&str> {
        self.placeholder(media).map(|(marker, _)| marker)
    }

    /// The kinds of media that the model takes.
    pub fn kinds(&self) -> Vec<Media> {
        let kinds = Media::ALL.into_iter();
        kinds.filter(|media| self.takes(*media)).collect()
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

    /// The token that stands for a row of a medium; none if media of this kind are no part of prompts.
    pub fn row_token(&self, media: Media) -> Option<&str> {
        self.placeholder(media).map(|(_, token)| token)
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
        let expected = media.iter().map(PreparedMedium::n_rows).sum();
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

/// A sound, and the windows that a model reads of it, each as a medium of its own.
pub struct MediumWindows {
    windows: SoundWindows,
    /// The hash of the bytes.
    hash: [u8; 32],
}

impl MediumWindows {
    /// What is known of the windows.
    pub fn sound(&self) -> &SoundWindows {
        &self.windows
    }

    /// The window that starts at a frame.
    ///
    /// # Errors
    /// The sound is too long for its frames to be computed.
    pub fn at(&self, frame: usize) -> Result<PreparedMedium, MediaError> {
        let hash = match frame == 0 && self.windows.is_one() {
            true => self.hash,
            false => {
                let mut hash = Sha256::new_with_prefix(self.hash);
                hash.update((frame as u64).to_le_bytes());
                hash.finalize().into()
            }
        };
        Ok(PreparedMedium {
            media: Media::Audio,
            prepared: self.windows.at(frame)?,
            hash,
        })
    }
}
