//! What an engine can do with a model, as far as plan, vocabulary and options decide it.

use crate::arch::Mode;
use crate::model::Options;
use crate::plan::Plan;
use lab_base::tokenizer::Tokenizer;

/// Why a model cannot answer with text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The model has no logits.
    #[error("the model ends in vectors of {n_embd} elements, and has no logits to choose text by")]
    Vectors { n_embd: u64 },
    /// The model decodes by text diffusion, and its vocabulary has no mask token.
    #[error("the vocabulary names no mask token (`tokenizer.ggml.mask_token_id`)")]
    NoMask,
}

/// Whether a model writes no text: its results are vectors or the scores of classes. The logits of an encoder are of the
/// tokens themselves, not of those that follow.
pub fn ends_in_vectors(plan: &Plan) -> bool {
    plan.mode == Mode::Encoder || plan.head.as_ref().is_none_or(|head| head.unit.is_none())
}

/// Whether a model with this vocabulary answers with text.
///
/// # Errors
/// The model has no logits, or no mask token for text diffusion.
pub fn can_answer(plan: &Plan, tokenizer: &Tokenizer) -> Result<(), Unsupported> {
    if ends_in_vectors(plan) {
        return Err(Unsupported::Vectors {
            n_embd: plan.n_embd,
        });
    }
    match plan.diffusion {
        Some(_) => mask_of(plan, tokenizer).map(drop),
        None => Ok(()),
    }
}

pub(super) fn mask_of(plan: &Plan, tokenizer: &Tokenizer) -> Result<u32, Unsupported> {
    let mask = tokenizer.mask();
    mask.filter(|id| u64::from(*id) < plan.n_vocab)
        .ok_or(Unsupported::NoMask)
}

/// Whether the last tokens of a sequence can be rolled back, which speculative decoding and contrastive search need.
pub fn can_roll_back(plan: &Plan, options: &Options) -> Result<(), &'static str> {
    match (options.n_ctx, plan.recurrent().next()) {
        (0, _) => Err("without a context nothing of a sequence is cached"),
        (_, Some(_)) => Err("recurrent states cannot be rolled back"),
        (_, None) => Ok(()),
    }
}

/// Whether the hidden states of a text can be pooled. Always so for models without logits.
///
/// # Errors
/// The reason why they cannot: a verb phrase about the model.
pub fn can_pool(plan: &Plan) -> Result<(), &'static str> {
    if ends_in_vectors(plan) {
        return Ok(());
    }
    match (plan.diffusion, &plan.source, plan.recurrent().next()) {
        (Some(_), ..) => Err("decodes by text diffusion, which is not pooled"),
        (_, Some(_), _) => Err("reads a source, which is not pooled"),
        (.., Some(_)) => Err("has recurrent states, whose hidden states are not pooled"),
        (_, None, None) => Ok(()),
    }
}
