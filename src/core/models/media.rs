//! The media of a prompt: prepared for towers, and placed among its tokens.

use std::sync::Arc;

use lab_media::picture::{self, PictureLimits, PictureRules};
use lab_media::{Medium, Piece, Prepared, PromptText, expand};
use sha2::{Digest as _, Sha256};

use crate::plan::{Media, MediaAttention};

/// How a model prepares media.
#[derive(Clone, Debug, Default)]
pub struct MediaProcessors {
    /// The rules of pictures; none if the model takes none.
    pub pictures: Option<PictureRules>,
    pub limits: PictureLimits,
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
}

/// The media of a prompt, and their places among its tokens.
#[derive(Clone, Debug)]
pub struct PromptMedia {
    pub media: Vec<Arc<PreparedMedium>>,
    pub places: Vec<MediaPlace>,
    /// How their tokens attend to each other.
    pub attention: MediaAttention,
}

impl PromptMedia {
    /// Whether prompts of these media are computed alike where their tokens are the same.
    pub fn is_same(&self, other: &Self) -> bool {
        let hashes = |of: &Self| -> Vec<[u8; 32]> { of.media.iter().map(|medium| medium.hash).collect() };
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
    /// Prepares a picture, the `index`th in its prompt.
    ///
    /// # Errors
    /// The model takes no pictures, or the bytes are none that fits its rules.
    pub fn picture(&self, bytes: &[u8], index: usize) -> Result<PreparedMedium, MediaError> {
        let rules = self.pictures.as_ref().ok_or(MediaError::NotTaken("pictures"))?;
        let picture = picture::decode(bytes, &self.limits)?;
        Ok(PreparedMedium {
            media: Media::Image,
            prepared: picture::prepare(&picture, rules, index, &self.limits)?,
            hash: Sha256::digest(bytes).into(),
        })
    }

    /// A rendered prompt with what stands in the place of its media.
    ///
    /// # Errors
    /// The prompt has another number of places.
    pub fn expanded(&self, prompt: &str, media: &[PreparedMedium]) -> Result<String, MediaError> {
        let Some(rules) = &self.pictures else {
            return match media.is_empty() {
                true => Ok(prompt.to_owned()),
                false => Err(MediaError::NotTaken("pictures")),
            };
        };
        let all: Vec<Medium<'_>> = media
            .iter()
            .map(|medium| Medium {
                marker: &rules.marker,
                row_token: &rules.row_token,
                layout: &medium.prepared.layout,
            })
            .collect();
        let text: &PromptText = &rules.prompt;
        Ok(expand(prompt, &all, text)?)
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
        let Some(rules) = self.pictures.as_ref().filter(|_| !media.is_empty()) else {
            return Ok(Vec::new());
        };
        let row_token = id_of(&rules.row_token);
        let row_token = row_token.ok_or_else(|| MediaError::NoRowToken(rules.row_token.clone()))?;
        let mut rows = (0..tokens.len()).filter(|at| tokens[*at] == row_token).peekable();
        let found = tokens.iter().filter(|token| **token == row_token).count();
        let pieces = || media.iter().flat_map(|medium| &medium.prepared.layout);
        let n_of = |piece: &Piece| match piece {
            Piece::Rows { rows, .. } => rows.len(),
            Piece::Text(_) => 0,
        };
        let expected = pieces().map(n_of).sum();
        if found != expected {
            return Err(MediaError::Rows { found, expected });
        }
        let mut places = Vec::new();
        for (medium, of) in media.iter().enumerate() {
            let mut from = 0;
            for piece in &of.prepared.layout {
                let Piece::Rows { rows: own, grid } = piece else {
                    continue;
                };
                let Some(at) = rows.next() else { continue };
                // The rows of a piece are one token after another.
                let n = own.len();
                let last = (1..n).map(|_| rows.next()).last().flatten();
                if n > 1 && last != Some(at + n - 1) {
                    return Err(MediaError::Rows { found, expected });
                }
                let is_grid = of.media == Media::Image && grid.iter().product::<usize>() == n;
                places.push(MediaPlace {
                    at,
                    n,
                    medium,
                    from,
                    grid: is_grid.then(|| grid.map(|cells| cells as u32)),
                });
                from += n;
            }
        }
        Ok(places)
    }
}
