//! The JSON objects of a lab plan, and their conversion to those of the engine.

use serde::Deserialize;

use lab_core::arch::PointParts;
use lab_core::engine;
use lab_core::engine::{Edit, EditOp, PositionSelector};

use super::FIELD;
use crate::http::error::Error;
use lab_core::artifacts::packed::{Dtype, PackedArray};

/// Maximum number of captures, edits or targets of a request.
pub(super) const MAX_ITEMS: usize = 64;
/// Maximum number of tokens of an edit.
const MAX_TOKENS: usize = 1024;
/// Maximum length of the lists of most probable tokens and of largest elements.
pub(super) const MAX_TOP: usize = 1000;
/// Maximum number of positions in a list.
pub(super) const MAX_POSITIONS: usize = 1 << 20;

/// The encoding of numbers in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Encoding {
    #[default]
    Base64,
    Numbers,
}

/// Where captured values go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Output {
    /// Into the response.
    Inline,
    /// Into a file.
    Artifact,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected last, all, prompt, answer or a list of positions"
)]
pub(super) enum Places {
    Named(NamedPlaces),
    List(Vec<i64>),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NamedPlaces {
    Last,
    All,
    Prompt,
    Answer,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReductionName {
    None,
    Mean,
    Norm,
    Max,
    TopK,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaptureObject {
    pub(super) point: String,
    pub(super) positions: Option<Places>,
    pub(super) reduce: Option<ReductionName>,
    pub(super) k: Option<usize>,
    pub(super) dtype: Option<Dtype>,
    /// Id of the autoencoder whose features are requested.
    pub(super) sae: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EditObject {
    pub(super) point: String,
    pub(super) op: EditOp,
    pub(super) positions: Option<Places>,
    /// Tokens whose rows are edited.
    pub(super) tokens: Option<Vec<TokenRef>>,
    pub(super) vector: Option<Vector>,
    pub(super) heads: Option<Vec<u64>>,
    pub(super) neurons: Option<Vec<u64>>,
    pub(super) experts: Option<Vec<u64>>,
    pub(super) scale: Option<f32>,
    pub(super) low: Option<f32>,
    pub(super) high: Option<f32>,
    pub(super) norm_match: Option<bool>,
    /// Id of an autoencoder; `feature` is one of its features.
    pub(super) sae: Option<String>,
    pub(super) feature: Option<usize>,
    pub(super) when: Option<Period>,
}

/// The tokens to which an edit applies, by phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Period {
    Prompt,
    Answer,
    Always,
}

/// The vectors and tokens that an edit names, which are resolved per model.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) vector: Reference,
    pub(super) tokens: Option<Vec<TokenRef>>,
}

/// The stored vectors that an edit names.
#[derive(Clone, Debug)]
pub(super) enum Reference {
    Nothing,
    /// The directions with this id.
    Directions(String),
    /// A feature of the autoencoder with this id.
    Feature(String, usize),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LensObject {
    pub(super) layers: Option<Vec<u64>>,
    pub(super) positions: Option<Places>,
    pub(super) top_k: Option<usize>,
    pub(super) targets: Option<Vec<TokenRef>>,
    /// Id of the translators.
    pub(super) translator: Option<String>,
}

/// The parts to which a logit is attributed.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Parted {
    Layers,
    Slots,
    Heads,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttributionObject {
    pub(super) of: TokenRef,
    pub(super) to: Option<Parted>,
    pub(super) positions: Option<Places>,
}

/// A token by its id or its text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a token id or the text of a token")]
pub(super) enum TokenRef {
    Id(u32),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected numbers, rows of numbers, an object with `data`, `shape` and `dtype`, or an id"
)]
pub(super) enum Vector {
    Id(String),
    Row(Vec<f32>),
    Rows(Vec<Vec<f32>>),
    Packed(PackedArray),
}

pub(super) fn too_many(what: &str, found: usize, most: usize) -> Result<(), Error> {
    if found <= most {
        return Ok(());
    }
    let param = format!("{FIELD}.{what}");
    let message = format!("`{param}` has {found} entries, expected at most {most}");
    Err(Error::invalid_value(param, message))
}

pub(super) fn positions(
    param: &str,
    places: Option<Places>,
    default: PositionSelector,
) -> Result<PositionSelector, Error> {
    Ok(match places {
        None => default,
        Some(Places::Named(NamedPlaces::Last)) => PositionSelector::Last,
        Some(Places::Named(NamedPlaces::All)) => PositionSelector::All,
        Some(Places::Named(NamedPlaces::Prompt)) => PositionSelector::Prompt,
        Some(Places::Named(NamedPlaces::Answer)) => PositionSelector::Answer,
        Some(Places::List(list)) => {
            too_many(param, list.len(), MAX_POSITIONS)?;
            PositionSelector::List(list)
        }
    })
}

pub(super) fn top(param: &str, k: usize) -> Result<usize, Error> {
    if (1..=MAX_TOP).contains(&k) {
        return Ok(k);
    }
    let param = format!("{FIELD}.{param}");
    let message = format!("`{param}` is {k}, expected 1 to {MAX_TOP}");
    Err(Error::invalid_value(param, message))
}

impl EditObject {
    pub(super) fn read(self, at: &str) -> Result<(Edit, Names), Error> {
        let fault = |field: &str, message: &str| {
            let param = format!("{FIELD}.{at}{field}");
            Error::invalid_value(&param, format!("`{param}`: {message}"))
        };
        let op = self.op;
        let mut reference = match (self.sae, self.feature) {
            (Some(sae), Some(feature)) => Reference::Feature(sae, feature),
            (None, None) => Reference::Nothing,
            _ => return Err(fault("", "`sae` and `feature` belong together")),
        };
        let has_feature = !matches!(reference, Reference::Nothing);
        if has_feature && (self.vector.is_some() || self.heads.is_some() || self.neurons.is_some())
        {
            let message = "a `feature` takes no `vector`, `heads` or `neurons`";
            return Err(fault(".feature", message));
        }
        let vector = match self.vector {
            None => Vec::new(),
            Some(Vector::Id(id)) => {
                reference = Reference::Directions(id);
                Vec::new()
            }
            Some(Vector::Row(row)) => vec![row],
            Some(Vector::Rows(rows)) => rows,
            Some(Vector::Packed(packed)) => {
                let rows = packed.rows();
                rows.map_err(|message| fault(".vector", &message))?
            }
        };
        let takes_vector = matches!(op, EditOp::Add | EditOp::Set | EditOp::ProjectOut);
        let is_referred = !matches!(reference, Reference::Nothing);
        let has_vector = is_referred || !vector.is_empty();
        if takes_vector != has_vector && !(has_feature && op == EditOp::Clamp) {
            let message = match takes_vector {
                true => "`op` needs a `vector`",
                false => "`op` takes no `vector`",
            };
            return Err(fault(".vector", message));
        }
        if op == EditOp::Scale && self.scale.is_none() {
            return Err(fault(".scale", "`op` needs a `scale`"));
        }
        if op == EditOp::Clamp && self.low.is_none() && self.high.is_none() {
            return Err(fault("", "`op` needs `low` or `high`"));
        }
        let parts = [
            (PointParts::Heads, self.heads),
            (PointParts::Neurons, self.neurons),
            (PointParts::Experts, self.experts),
        ];
        let mut parts = parts.into_iter().filter_map(|(of, list)| Some((of, list?)));
        let (parts, others) = (parts.next(), parts.next());
        if others.is_some() {
            return Err(fault(
                "",
                "`heads`, `neurons` and `experts` are mutually exclusive",
            ));
        }
        let positions = positions(
            &format!("{at}.positions"),
            self.positions,
            PositionSelector::All,
        )?;
        let n_tokens = self.tokens.as_ref().map_or(0, Vec::len);
        too_many(&format!("{at}.tokens"), n_tokens, MAX_TOKENS)?;
        let when = match self.when {
            Some(Period::Prompt) => PositionSelector::Prompt,
            Some(Period::Answer) => PositionSelector::Answer,
            Some(Period::Always) | None => PositionSelector::All,
        };
        let edit = Edit {
            when,
            tokens: None,
            point: self.point,
            op,
            positions,
            vector: engine::EditVector::Rows(vector),
            parts,
            scale: self.scale.unwrap_or(1.0),
            bounds: [
                self.low.unwrap_or(f32::NEG_INFINITY),
                self.high.unwrap_or(f32::INFINITY),
            ],
            norm_match: self.norm_match == Some(true),
        };
        let names = Names {
            vector: reference,
            tokens: self.tokens,
        };
        Ok((edit, names))
    }
}
