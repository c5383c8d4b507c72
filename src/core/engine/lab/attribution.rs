//! Attribution of a logit to the parts of a model that add to the hidden state: which hidden states are captured.

use serde::Deserialize;

use crate::model::{LOGITS, LabCapture, Points};

use super::{Lengths, PositionSelector, Rejected, refuse};

/// The parts that a logit is attributed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttributionUnit {
    /// The embedding and the layers.
    #[default]
    Layers,
    /// The embedding and the slots of the layers: attention, MLP.
    Slots,
    /// As `Slots`, with each attention head as a part of its own.
    Heads,
}

/// A logit as the sum of what parts of the model add to the hidden state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// The token of the logit.
    pub of: u32,
    /// The parts that the logit is attributed to.
    pub among: AttributionUnit,
    /// The positions after which the logit is attributed.
    pub positions: PositionSelector,
}

#[derive(Clone, Debug)]
pub(crate) struct AttributionPlan {
    pub(crate) of: u32,
    /// Names of the parts. The heads of a slot come before the rest of the slot.
    pub(crate) parts: Vec<String>,
    /// Hidden states, from the one after the embedding to the last one before the output head.
    pub(crate) states: Vec<LabCapture>,
    /// The heads that are separate parts, in the order of `states`.
    pub(crate) heads: Vec<AttributedHeads>,
}

/// The attention heads of a slot, as separate parts.
#[derive(Clone, Debug)]
pub(crate) struct AttributedHeads {
    /// Index in [`Points::head_sums`].
    pub(crate) at: usize,
    pub(crate) n: usize,
    /// Index in [`AttributionPlan::states`] of the first hidden state that contains their results.
    pub(crate) state: usize,
    /// The results of the heads.
    pub(crate) results: LabCapture,
    /// The inputs of the norms after the heads.
    pub(crate) normed: Vec<LabCapture>,
}

impl AttributionPlan {
    /// All captures that the attribution needs.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &LabCapture> {
        let of_heads = self.heads.iter();
        let of_heads = of_heads.flat_map(|of| std::iter::once(&of.results).chain(&of.normed));
        self.states.iter().chain(of_heads)
    }
}

impl Attribution {
    /// The hidden states whose differences are the contributions of the parts.
    pub(super) fn compiled(
        &self,
        points: &Points,
        n: Lengths,
        n_vocab: usize,
    ) -> Result<AttributionPlan, Rejected> {
        if self.of as usize >= n_vocab {
            let id = self.of;
            return refuse(format!(
                "attribution: {id} is not a token id below {n_vocab}"
            ));
        }
        let has_logits = points.find(LOGITS).is_ok();
        let (Some(first), true) = (points.find("layers.0.in").ok(), has_logits) else {
            return refuse("attribution: the model has no logits".into());
        };
        if points.find("head.transformed").is_ok() {
            return refuse(
                "attribution: a dense layer with an activation precedes the logits".into(),
            );
        }
        let outs = points.find("layers.*.out").unwrap_or_default();
        let all = match self.among {
            AttributionUnit::Layers => outs.clone(),
            AttributionUnit::Slots | AttributionUnit::Heads => {
                let is_slot = |at: &usize| {
                    let point = &points.all[*at];
                    point.spec.name == "x" && point.path.starts_with("layers.")
                };
                (0..points.all.len()).filter(is_slot).collect()
            }
        };
        let width = points.all[first[0]].width();
        let chain: Vec<usize> = first[..1].iter().chain(&all).copied().collect();
        let is_one = chain.iter().all(|at| points.all[*at].width() == width);
        let embed_width = points.find("embed.x").map(|at| points.all[at[0]].width());
        if !is_one || embed_width != Ok(width) || chain.last() != outs.last() {
            return refuse("attribution: the layers have several hidden states".into());
        }
        let positions = self.positions.resolved(n)?;
        let capture = |point: usize| LabCapture {
            point,
            positions: positions.clone(),
        };
        let (mut parts, mut heads) = (vec!["embed".to_owned()], Vec::new());
        for (state, after) in chain.iter().enumerate().skip(1) {
            let point = &points.all[*after];
            let sums = points.head_sums.iter().enumerate();
            let sums =
                sums.filter(|(_, sum)| self.among == AttributionUnit::Heads && sum.after == *after);
            let before = heads.len();
            for (at, sum) in sums {
                let results = &points.all[sum.heads];
                let n = results.shape.get(1).map_or(1, |n| *n as usize);
                let (unit, _) = results.path.rsplit_once('.').unwrap_or_default();
                parts.extend((0..n).map(|head| format!("{unit}.heads.{head}")));
                heads.push(AttributedHeads {
                    at,
                    n,
                    state,
                    results: capture(sum.heads),
                    normed: sum.normed.iter().map(|at| capture(*at)).collect(),
                });
            }
            let slot = point.path.trim_end_matches(".x");
            parts.push(match (self.among, heads.len() > before) {
                (AttributionUnit::Layers, _) => {
                    let name = point.name_by("layers.*.out");
                    name.trim_end_matches(".out").into()
                }
                (_, false) => slot.to_owned(),
                (_, true) => format!("{slot}.rest"),
            });
        }
        if self.among == AttributionUnit::Heads && heads.is_empty() {
            return refuse("attribution: no matrix sums up the heads of a slot".into());
        }
        Ok(AttributionPlan {
            of: self.of,
            parts,
            states: chain.into_iter().map(capture).collect(),
            heads,
        })
    }
}
