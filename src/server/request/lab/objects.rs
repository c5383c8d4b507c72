//! The JSON objects of a lab plan, and what a request makes of each.

use serde::Deserialize;

use lab_core::arch::PointParts;
use lab_core::engine::{
    Attribution, AttributionUnit, Capture, Edit, EditOp, EditVector, Lens, PositionSelector,
    Reduction,
};

use super::{AttributionRequest, CaptureRequest, EditRequest, FIELD, FeatureRequest, LensRequest};
use crate::http::error::{Error, invalid, refuse};
use lab_core::artifacts::packed::{Dtype, PackedArray};

pub(crate) const MAX_ITEMS: usize = 64;
const MAX_TOKENS: usize = 1024;
/// Maximum length of the lists of most probable tokens and of largest elements.
const MAX_TOP: usize = 1000;
const MAX_LAYERS: usize = 1024;
pub(crate) const MAX_POSITIONS: usize = 1 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Encoding {
    #[default]
    Base64,
    Numbers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Output {
    Inline,
    Artifact,
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
    pub(super) positions: Option<PositionSelector>,
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
    pub(super) positions: Option<PositionSelector>,
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

#[derive(Clone, Debug)]
pub(super) enum StoredVector {
    Nothing,
    Directions(String),
    Feature(String, usize),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LensObject {
    pub(super) layers: Option<Vec<u64>>,
    pub(super) positions: Option<PositionSelector>,
    pub(super) top_k: Option<usize>,
    pub(super) targets: Option<Vec<TokenRef>>,
    /// Id of the translators.
    pub(super) translator: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttributionObject {
    pub(super) of: TokenRef,
    pub(super) to: Option<AttributionUnit>,
    pub(super) positions: Option<PositionSelector>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a token id or the text of a token")]
pub(crate) enum TokenRef {
    Id(u32),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected numbers, rows of numbers, an object with `data`, `shape` and `dtype`, or an id"
)]
pub(crate) enum Vector {
    Id(String),
    Row(Vec<f32>),
    Rows(Vec<Vec<f32>>),
    Packed(PackedArray),
}

pub(crate) fn too_many(what: &str, found: usize, most: usize) -> Result<(), Error> {
    if found <= most {
        return Ok(());
    }
    let param = format!("{FIELD}.{what}");
    let message = format!("`{param}` has {found} entries, expected at most {most}");
    invalid(param, message)
}

/// The positions in a field, if the list is not too long.
pub(crate) fn positions(
    param: &str,
    asked: Option<PositionSelector>,
    default: PositionSelector,
) -> Result<PositionSelector, Error> {
    if let Some(PositionSelector::List(list)) = &asked {
        too_many(param, list.len(), MAX_POSITIONS)?;
    }
    Ok(asked.unwrap_or(default))
}

fn top(param: &str, k: usize) -> Result<usize, Error> {
    if (1..=MAX_TOP).contains(&k) {
        return Ok(k);
    }
    let param = format!("{FIELD}.{param}");
    refuse(param, format!(" is {k}, expected 1 to {MAX_TOP}"))
}

impl CaptureObject {
    pub(super) fn read(self, at: &str) -> Result<CaptureRequest, Error> {
        let k = || top(&format!("{at}.k"), self.k.unwrap_or(10));
        let reduce = self.reduce.unwrap_or(ReductionName::None);
        let (reduce, sae) = match (self.sae, reduce) {
            (Some(id), ReductionName::None | ReductionName::TopK) => {
                (Reduction::None, Some(FeatureRequest::new(id, k()?)))
            }
            (Some(_), _) => {
                let param = format!("{FIELD}.{at}.reduce");
                return refuse(param, ": with `sae`, expected `none` or `top_k`");
            }
            (None, ReductionName::None) => (Reduction::None, None),
            (None, ReductionName::Mean) => (Reduction::Mean, None),
            (None, ReductionName::Norm) => (Reduction::Norm, None),
            (None, ReductionName::Max) => (Reduction::Max, None),
            (None, ReductionName::TopK) => (Reduction::TopK(k()?), None),
        };
        if let Some(PositionSelector::List(list)) = &self.positions {
            too_many(&format!("{at}.positions"), list.len(), MAX_POSITIONS)?;
        }
        Ok(CaptureRequest {
            capture: Capture {
                positions: self.positions,
                point: self.point,
                reduce,
                n_features: 0,
            },
            dtype: self.dtype.unwrap_or_default(),
            sae,
        })
    }
}

impl LensObject {
    pub(super) fn read(self) -> Result<LensRequest, Error> {
        let targets = self.targets.unwrap_or_default();
        too_many("lens.targets", targets.len(), MAX_ITEMS)?;
        let layers = self.layers.as_deref();
        too_many("lens.layers", layers.map_or(0, <[u64]>::len), MAX_LAYERS)?;
        let points = match layers {
            Some(layers) => layers.iter().map(|n| format!("layers.{n}.out")).collect(),
            None => vec!["layers.*.out".into()],
        };
        Ok(LensRequest {
            lens: Lens {
                points,
                positions: positions("lens.positions", self.positions, PositionSelector::Last)?,
                top_k: top("lens.top_k", self.top_k.unwrap_or(10))?,
                targets: Vec::new(),
                translators: None,
            },
            targets,
            translator: self.translator,
        })
    }
}

impl AttributionObject {
    pub(super) fn read(self) -> Result<AttributionRequest, Error> {
        let param = "attribution.positions";
        Ok(AttributionRequest {
            attribution: Attribution {
                of: 0,
                among: self.to.unwrap_or_default(),
                positions: positions(param, self.positions, PositionSelector::Last)?,
            },
            of: self.of,
        })
    }
}

impl EditObject {
    pub(super) fn read(self, at: &str) -> Result<EditRequest, Error> {
        let fault = |field: &str, message: &str| {
            let param = format!("{FIELD}.{at}{field}");
            Error::invalid_value(&param, format!("`{param}`: {message}"))
        };
        let op = self.op;
        let mut stored = match (self.sae, self.feature) {
            (Some(sae), Some(feature)) => StoredVector::Feature(sae, feature),
            (None, None) => StoredVector::Nothing,
            _ => return Err(fault("", "`sae` and `feature` belong together")),
        };
        let has_feature = !matches!(stored, StoredVector::Nothing);
        if has_feature && (self.vector.is_some() || self.heads.is_some() || self.neurons.is_some())
        {
            let message = "a `feature` takes no `vector`, `heads` or `neurons`";
            return Err(fault(".feature", message));
        }
        let vector = match self.vector {
            None => Vec::new(),
            Some(Vector::Id(id)) => {
                stored = StoredVector::Directions(id);
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
        let is_stored = !matches!(stored, StoredVector::Nothing);
        let has_vector = is_stored || !vector.is_empty();
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
            vector: EditVector::Rows(vector),
            parts,
            scale: self.scale.unwrap_or(1.0),
            bounds: [
                self.low.unwrap_or(f32::NEG_INFINITY),
                self.high.unwrap_or(f32::INFINITY),
            ],
            norm_match: self.norm_match == Some(true),
        };
        Ok(EditRequest {
            edit,
            vector: stored,
            tokens: self.tokens,
        })
    }
}
