//! The fields that limit the draft tokens of a completion. They change its speed alone.

use lab_core::engine::DraftLimits;

use super::fields::{BodyFields, FieldDoc, RequestPart};
use crate::http::error::Error;

/// The fields, with their types and what they say.
const FIELDS: [(&str, &str, &str); 4] = [
    (
        "draft",
        "Option<u64>",
        "Maximum number of draft tokens per step; 0 = off; default: the server's.",
    ),
    (
        "speculative.n_max",
        "Option<i64>",
        "The same, below 0 as 0, unless `draft` is set (llama-server).",
    ),
    (
        "speculative.n_min",
        "Option<i64>",
        "A draft of fewer tokens is not read (llama-server).",
    ),
    (
        "speculative.p_min",
        "Option<f64>",
        "Least probability of a token by a drafter with weights: a draft ends before a token with less (llama-server).",
    ),
];

#[derive(Debug)]
pub(crate) struct DraftFields(pub(crate) DraftLimits);

impl RequestPart for DraftFields {
    fn documented() -> Vec<FieldDoc> {
        let fields = FIELDS.into_iter().map(|(name, ty, doc)| FieldDoc {
            name,
            ty: ty.into(),
            doc: doc.into(),
        });
        fields.collect()
    }

    fn take_from(body: &mut BodyFields) -> Result<Self, Error> {
        let [draft, n_max, n_min, p_min] = FIELDS.map(|(name, ..)| name);
        let draft: Option<u64> = body.field(draft)?;
        let n_max: Option<i64> = body.field(n_max)?;
        let n_min: Option<i64> = body.field(n_min)?;
        let p_min: Option<f64> = body.field(p_min)?;
        let count = |n: i64| usize::try_from(n).unwrap_or(0);
        let draft = draft.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        Ok(Self(DraftLimits {
            n_max: draft.or(n_max.map(count)),
            n_min: n_min.map_or(0, count),
            p_min: p_min.unwrap_or(0.0) as f32,
        }))
    }
}
