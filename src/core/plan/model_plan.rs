//! The plan of a whole model, and its size in bytes.

use std::collections::{BTreeMap, BTreeSet};

use super::layer_plan::blocks;
use super::{
    CacheCapacity, CachePlan, HeadPlan, LayerPlan, SourcePlan, TargetPlan, TensorPlan, Unit,
};
use crate::arch::expr::Value;
use crate::arch::{BranchTokens, Mode, OptionValue};
use crate::choices;
use lab_base::weights::TensorType;

/// A definition resolved with the numbers of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name of the architecture.
    pub arch: String,
    /// The mode of execution.
    pub mode: Mode,
    /// Width of the hidden state.
    pub n_embd: u64,
    /// Size of the vocabulary.
    pub n_vocab: u64,
    /// Context length of the training; 0 if the file does not state it.
    pub n_ctx_train: u64,
    /// The used parameters, with their values.
    pub params: BTreeMap<String, Value>,
    /// The metadata keys that parameters read, whether set or not.
    pub keys: BTreeSet<String>,
    /// Names of the devices other than the processor that hold parts of the model.
    pub devices: Vec<String>,
    /// The used tensors, once for each device that uses them.
    pub tensors: Vec<TensorPlan>,
    /// Distinct norms.
    pub norms: Vec<Unit>,
    /// Distinct activations.
    pub acts: Vec<Unit>,
    /// Distinct ropes.
    pub ropes: Vec<Unit>,
    /// Groups of layers with the same attention view.
    pub caches: Vec<CachePlan>,
    /// Distinct selections of keys.
    pub selections: Vec<Unit>,
    /// The token embedding: token ids to the hidden state.
    pub embed: Unit,
    /// The mix that makes several hidden states of one; none: there is one hidden state.
    pub write: Option<Unit>,
    /// A further input for each layer.
    pub per_layer: Option<Unit>,
    /// The layers of all stacks, in order.
    pub layers: Vec<LayerPlan>,
    /// The end of the model: hidden state to logits.
    pub head: Option<HeadPlan>,
    /// Text diffusion, if the model decodes by it.
    pub diffusion: Option<DiffusionPlan>,
    /// The source of sequences, if the model reads one.
    pub source: Option<SourcePlan>,
    /// What it reads of its target; none: it is no drafter, or one that reads tokens alone.
    pub target: Option<TargetPlan>,
    /// Pooling: the hidden states of a sequence to one vector.
    pub pool: Unit,
    /// Tensors of the file that are not used and that the definition does not expect.
    pub unclaimed: Vec<String>,
    /// Full names of the metadata keys of the architecture that are not read and that the definition does not ignore,
    /// in the order of the file.
    pub unread: Vec<String>,
}

/// The settings of text diffusion that a model fixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffusionPlan {
    /// Whether the logits at a position predict the next token.
    pub shift_logits: bool,
}

choices! {
    /// How the vectors of a sequence's tokens become one vector.
    pub enum Pooling {
        /// The mean of the vectors.
        Mean = "mean",
        /// The first vector.
        First = "first",
        /// The last vector.
        Last = "last",
        /// The maximum of each element.
        Max = "max",
        /// The sum of the vectors over the square root of their number.
        MeanSqrt = "mean_sqrt",
        /// The mean of the vectors, each weighted by its position counted from 1.
        Weighted = "weighted",
        /// The mean of what the classification head makes of each vector.
        LateMean = "late_mean",
        /// No pooling: the classification head gives scores for each token.
        Each = "each",
    }
}

choices! {
    /// How the tokens of a medium attend to each other in the text model.
    pub enum MediaAttention {
        /// As the tokens of a text.
        Causal = "causal",
        /// Those of one medium, in both directions.
        Both = "both",
        /// As `Both` in layers with a window, as the tokens of a text in the others.
        Window = "window",
        /// Everything up to the end of the prompt, in both directions.
        Prefix = "prefix",
    }
}

choices! {
    /// By which positions the tokens of a medium are rotated, in a text model whose tokens have several.
    pub enum MediaPositions {
        /// As the tokens of a text.
        Text = "text",
        /// Time, height and width on the grid of their rows.
        Grid = "grid",
    }
}

choices! {
    /// What a tower reads.
    pub enum Media {
        /// Pictures.
        Image = "image",
        /// Sounds.
        Audio = "audio",
    }
}

impl Media {
    pub const ALL: [Self; 2] = [Self::Image, Self::Audio];

    /// Its name, as in parts of messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
        }
    }
}

impl Plan {
    /// How the hidden states of a sequence become one vector.
    pub fn pooling(&self) -> Pooling {
        let kind = self.pool.option("kind").and_then(Pooling::read);
        kind.unwrap_or(Pooling::Mean)
    }

    /// Whether each token of a block that it drafts adds something to the logits of the next one.
    pub fn chains_tokens(&self) -> bool {
        let unit = self.head.as_ref().and_then(|head| head.unit.as_ref());
        unit.is_some_and(|unit| unit.weight("before").is_some())
    }

    /// Number of tokens that have a logit.
    pub fn n_logits(&self) -> u64 {
        let unit = self.head.as_ref().and_then(|head| head.unit.as_ref());
        let tokens = unit.and_then(|unit| unit.option_int("tokens"));
        tokens.unwrap_or(self.n_vocab)
    }

    /// Elements of a row of a medium: the embedding, and the parts that layers add.
    pub fn media_width(&self) -> u64 {
        let units = self.units().filter(|unit| unit.contract.0.is_of_media);
        let parts = units.filter_map(|unit| unit.option_int("part"));
        self.n_embd * (1 + parts.max().unwrap_or(0))
    }

    /// Whether some branches are for the tokens of media or of texts alone.
    pub fn has_branches_of_media(&self) -> bool {
        let slots = self.layers.iter().flat_map(|layer| &layer.slots);
        let mut branches = slots.flat_map(|slot| &slot.branches);
        branches.any(|branch| branch.tokens != BranchTokens::All)
    }

    /// What a tower reads; none of another model.
    pub fn media(&self) -> Option<Media> {
        self.embed.option("media").and_then(Media::read)
    }

    /// How the tokens that the rows of a tower stand for attend to each other.
    pub fn media_attention(&self) -> MediaAttention {
        let option = self.embed.option("attend");
        option
            .and_then(MediaAttention::read)
            .unwrap_or(MediaAttention::Causal)
    }

    /// By which positions the tokens that the rows of a tower stand for are rotated.
    pub fn media_positions(&self) -> MediaPositions {
        let option = self.embed.option("positions");
        option
            .and_then(MediaPositions::read)
            .unwrap_or(MediaPositions::Text)
    }

    /// Whether the result of pooling is the scores of a sequence's classes.
    pub fn is_classifier(&self) -> bool {
        self.pool.weight("cls").is_some() || self.pool.weight("cls.output").is_some()
    }

    /// Number of rows of the table of positions, the most positions that a sequence can have; none: there is no table.
    pub fn n_positions(&self) -> Option<u64> {
        let source = self.source.as_ref().map(|source| &source.embed);
        let tables = [&self.embed].into_iter().chain(source);
        let tables = tables.filter_map(|embed| embed.weight("positions"));
        tables
            .filter_map(|table| self.tensors[table].shape.get(1).copied())
            .min()
    }

    /// Bytes of all used tensors.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Number of used weights (elements).
    pub fn n_weights(&self) -> u64 {
        self.tensors
            .iter()
            .map(|t| t.shape.iter().product::<u64>())
            .sum()
    }

    /// The blocks of all layers, in the order of execution.
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        blocks(&self.layers)
    }

    /// [`Plan::units`], the mixes, and what is before and after the layers.
    pub fn all_units(&self) -> impl Iterator<Item = &Unit> {
        let ends = [
            Some(&self.embed),
            self.source.as_ref().map(|source| &source.embed),
            self.per_layer.as_ref(),
            self.head.as_ref().and_then(|head| head.unit.as_ref()),
            Some(&self.pool),
        ];
        let units = self.units().chain(self.mixes());
        units.chain(ends.into_iter().flatten())
    }

    /// Bytes of the caches, for the given types of keys and values.
    ///
    /// `None` if a row is not a whole number of blocks of its type.
    pub fn cache_bytes(
        &self,
        capacity: CacheCapacity,
        k: TensorType,
        v: TensorType,
    ) -> Option<u64> {
        self.key_values().try_fold(0u64, |sum, (_, rows)| {
            let values = if rows.v_in_k { 0 } else { v.row_bytes(rows.v)? };
            let row = k.row_bytes(rows.k)?.checked_add(values)?;
            let index = k.row_bytes(rows.index)?;
            let cache = &self.caches[rows.cache];
            let n_slots = capacity.slots(cache);
            let pooled = match &rows.pooled {
                None => 0,
                Some(pooled) => {
                    let n_slots = capacity.slots(&self.caches[pooled.cache]);
                    let row = TensorType::F32.row_bytes(pooled.width)?;
                    row.checked_mul(n_slots)?
                }
            };
            let sum = sum.checked_add(pooled)?;
            let sum = sum.checked_add(index.checked_mul(n_slots)?)?;
            sum.checked_add(row.checked_mul(cache.layout().rows(n_slots))?)
        })
    }

    /// Bytes of the recurrent states of `n_seqs` sequences.
    pub fn recurrent_bytes(&self, n_seqs: u64) -> Option<u64> {
        let parts = self.recurrent().flat_map(|(_, parts)| parts);
        let elements = parts
            .map(|part| part.size)
            .try_fold(0u64, u64::checked_add)?;
        elements
            .checked_mul(size_of::<f32>() as u64)?
            .checked_mul(n_seqs)
    }
}
