//! A logit as a sum of what parts of the model add to the hidden state: which hidden states are captured for that.

use crate::model::{LOGITS, LabCapture, Points};

use super::{Lengths, Rejected, Where, refuse};

/// What a logit is split among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// The embedding and the layers.
    Layers,
    /// The embedding and the slots of the layers: attention, MLP.
    Slots,
}

/// A logit as a sum of what parts of the model add to the hidden state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// The token.
    pub of: u32,
    /// The parts.
    pub among: Among,
    /// After which tokens.
    pub positions: Where,
}

/// A logit that is split.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Split {
    pub(in crate::engine) of: u32,
    /// Hidden states, the first after the embedding and the last before the head, each with the name of what was added last.
    pub(in crate::engine) points: Vec<(String, LabCapture)>,
}

impl Attribution {
    /// The hidden states whose differences are what parts add.
    pub(super) fn compiled(
        &self,
        points: &Points,
        n: Lengths,
        n_vocab: usize,
    ) -> Result<Split, Rejected> {
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
        let outs = points.find("layers.*.out").unwrap_or_default();
        let all = match self.among {
            Among::Layers => outs.clone(),
            Among::Slots => {
                let is_slot = |at: &usize| {
                    let point = &points.all[*at];
                    point.spec.name == "x" && point.path.starts_with("layers.")
                };
                (0..points.all.len()).filter(is_slot).collect()
            }
        };
        let positions = self.positions.resolved(n)?;
        let width = points.all[first[0]].width();
        let name = |at: usize| -> String {
            let point = &points.all[at];
            match self.among {
                Among::Layers => point
                    .name_by("layers.*.out")
                    .trim_end_matches(".out")
                    .into(),
                Among::Slots => point.path.trim_end_matches(".x").into(),
            }
        };
        let embed = ("embed".to_owned(), first[0]);
        let named = all.iter().map(|at| (name(*at), *at));
        let chain: Vec<(String, usize)> = std::iter::once(embed).chain(named).collect();
        let is_one = chain.iter().all(|(_, at)| points.all[*at].width() == width);
        let embed_width = points.find("embed.x").map(|at| points.all[at[0]].width());
        if !is_one || embed_width != Ok(width) || chain.last().map(|(_, at)| at) != outs.last() {
            return refuse("attribution: the layers have several hidden states".into());
        }
        let capture = |(name, point)| {
            let positions = positions.clone();
            (name, LabCapture { point, positions })
        };
        Ok(Split {
            of: self.of,
            points: chain.into_iter().map(capture).collect(),
        })
    }
}
