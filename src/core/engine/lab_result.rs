//! The results of a lab request: captured values, lens rows and attributions. Plain data.

use std::collections::HashMap;

use lab_media::{Piece, RowSource};
use lab_sampling::TokenLogprob;

use super::lab::Reduction;
use crate::model::EncodedMedia;
use crate::models::media::{PreparedMedium, PromptMedia};
use crate::plan::Media;

/// A captured value.
#[derive(Clone, Debug, PartialEq)]
pub struct CapturedPoint {
    /// Index of its capture in the plan.
    pub of: usize,
    /// The name of the point in the plan.
    pub point: String,
    /// The positions of the rows.
    pub positions: Vec<u32>,
    /// Dimensions of one row in ggml order, after the reduction.
    pub shape: Vec<u64>,
    /// How the rows were reduced.
    pub reduce: Reduction,
    /// Elements, row by row.
    pub elements: Vec<f32>,
    /// With [`Reduction::TopK`], the indices of the elements in their rows.
    pub places: Vec<u32>,
    /// Of a value of a tower, the medium whose rows it has. Positions are those of the rows then, from 0.
    pub of_medium: Option<OfMedium>,
}

/// A medium whose rows a captured value has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfMedium {
    /// Index of the medium.
    pub medium: usize,
    /// The number of rows of each of its views.
    pub n_of_views: Vec<usize>,
}

/// A row of a medium.
#[derive(Clone, Debug, PartialEq)]
pub struct MediumRow {
    /// The token that it stands for; none where the rows are the source of the model.
    pub position: Option<u32>,
    pub source: MediumRowSource,
}

/// Where a row of a medium comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum MediumRowSource {
    /// The result of a tower for a view. Of several that it mixes, the one with the largest share.
    View {
        view: usize,
        /// Index of the row in the result.
        row: usize,
        /// The column and the row of its cell in the grid of the view, where the rows are such cells.
        cell: Option<[usize; 2]>,
        /// What it shows; see [`View::part`](lab_media::View::part).
        part: Option<[f64; 4]>,
    },
    /// A learned row of a name.
    Learned(String),
}

/// The rows of a medium of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct MediumRows {
    pub media: Media,
    pub rows: Vec<MediumRow>,
}

impl MediumRows {
    /// The rows of all media of a prompt.
    pub fn of(prompt: &PromptMedia, encoded: &EncodedMedia) -> Vec<Self> {
        let media = prompt.media.iter().enumerate();
        media
            .map(|(at, medium)| Self::of_medium(at, medium, prompt, encoded))
            .collect()
    }

    fn of_medium(
        at: usize,
        medium: &PreparedMedium,
        prompt: &PromptMedia,
        encoded: &EncodedMedia,
    ) -> Self {
        let places = prompt.places.iter().filter(|place| place.medium == at);
        let positions: HashMap<usize, u32> = places
            .flat_map(|place| (place.from..place.from + place.n).zip(place.at as u32..))
            .collect();
        let shown = |view: usize, row: usize| {
            let of = medium.prepared.views.get(view);
            let part = of
                .zip(encoded.grid(at, view))
                .and_then(|(of, grid)| of.shown_by(row, grid));
            let columns = of.map_or(1, |of| of.grid[2]).max(1);
            MediumRowSource::View {
                view,
                row,
                cell: part.map(|_| [row % columns, row / columns]),
                part,
            }
        };
        let sources = medium.prepared.layout.iter().flat_map(|piece| match piece {
            Piece::Rows { rows, .. } => rows.as_slice(),
            Piece::Text(_) => &[],
        });
        let rows = sources.enumerate().map(|(index, source)| MediumRow {
            position: positions.get(&index).copied(),
            source: match source {
                RowSource::View { view, row } => shown(*view, *row),
                RowSource::Mixed(parts) => {
                    let largest = parts.iter().max_by(|a, b| a.2.total_cmp(&b.2));
                    largest.map_or(shown(usize::MAX, 0), |(view, row, _)| shown(*view, *row))
                }
                RowSource::Learned(name) => MediumRowSource::Learned(name.clone()),
            },
        });
        Self {
            media: medium.media,
            rows: rows.collect(),
        }
    }
}

/// The lens result of one token at one point.
#[derive(Clone, Debug, PartialEq)]
pub struct LensRow {
    pub position: u32,
    /// The most probable next tokens.
    pub top: Vec<TokenLogprob>,
    /// Log-probability of each target, and its rank among all tokens, from 1.
    pub targets: Vec<(TokenLogprob, usize)>,
}

/// The lens results at one point.
#[derive(Clone, Debug, PartialEq)]
pub struct LensPoint {
    /// The name of the point in the plan.
    pub point: String,
    /// The result of each token.
    pub rows: Vec<LensRow>,
}

/// The parts of a token's logit at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributedRow {
    pub position: u32,
    /// The logit, after scale and softcap.
    pub logit: f32,
    /// The contribution of the biases of norm and output head.
    pub constant: f64,
    /// The contribution of each part.
    pub values: Vec<f64>,
}

/// A logit, attributed to parts of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributionResult {
    /// The token of the logit.
    pub of: u32,
    /// The parts that add to the hidden state, in order.
    pub parts: Vec<String>,
    /// The result of each position.
    pub rows: Vec<AttributedRow>,
}

/// The results of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabResult {
    /// Captured values in the order of the plan, then of the points.
    pub captures: Vec<CapturedPoint>,
    /// Lens results in the order of the points.
    pub lens: Vec<LensPoint>,
    /// The attributed logit, if the plan has one.
    pub attribution: Option<AttributionResult>,
    /// The tokens of the sequence. All but the last one of the completion are read.
    pub tokens: Vec<u32>,
    /// The rows of the media of the prompt.
    pub media: Vec<MediumRows>,
}

impl LabResult {
    /// How many of its numbers are not finite.
    pub fn n_not_finite(&self) -> usize {
        let captured = self.captures.iter().flat_map(|one| &one.elements);
        let of_rows = self.attribution.iter().flat_map(|of| &of.rows);
        let attributed = of_rows.flat_map(|row| {
            let own = [f64::from(row.logit), row.constant];
            own.into_iter().chain(row.values.iter().copied())
        });
        captured.filter(|n| !n.is_finite()).count() + attributed.filter(|n| !n.is_finite()).count()
    }
}
