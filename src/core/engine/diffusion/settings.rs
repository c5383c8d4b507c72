//! The settings of one request: its own options, completed with those of the engine and the model, and checked.

use std::ops::Range;

use crate::plan::Plan;
use lab_sampling::ParamError;

use super::super::compute::BLOCK;
use super::super::diffusion_options::DiffusionOptions;
use super::super::limits::Limits;
use super::super::rejected::Rejected;
use super::super::remasking::Remasking;
use super::super::request::Request;

/// Positions of a completion if a request sets no length.
const LENGTH: usize = 128;

/// Positions of a block if a request sets none.
const BLOCK_LENGTH: usize = 32;

/// The fixed text diffusion settings of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiffusionModel {
    pub(super) mask: u32,
    /// Number of positions by which the logits of a token precede it.
    pub(super) shift: usize,
    /// The remasking rule of requests that set none.
    pub(super) remasking: Remasking,
    pub(super) n_batch: usize,
    /// Whether keys and values are cached between passes.
    pub(super) is_kept: bool,
}

impl DiffusionModel {
    /// The settings of a model with this mask token; none if it does not decode by text diffusion.
    pub(crate) fn of(plan: &Plan, mask: u32, n_batch: usize, is_kept: bool) -> Option<Self> {
        let shift_logits = plan.diffusion.as_ref()?.shift_logits;
        Some(Self {
            mask,
            shift: usize::from(shift_logits),
            remasking: Remasking::usual(shift_logits),
            n_batch,
            is_kept,
        })
    }

    pub(crate) fn settings(
        &self,
        request: &Request,
        limits: &Limits,
    ) -> Result<DiffusionSettings, Rejected> {
        let options = request.diffusion.unwrap_or_default().or(&limits.diffusion);
        self.check(request, &options)?;
        let n_prompt = request.prompt.len();
        let is_guided = options.cfg_scale.is_some_and(|scale| scale > 0.0);
        let capacity = match is_guided {
            // Each of the two sequences takes whole blocks of the cache.
            true => (limits.n_ctx.min(self.n_batch) / 2) / BLOCK * BLOCK,
            false => limits.n_ctx.min(self.n_batch),
        };
        if n_prompt >= capacity {
            return Err(match is_guided {
                true => Rejected::field(
                    "diffusion.cfg_scale",
                    format!(
                        "guidance reads the sequence twice: the prompt has {n_prompt} tokens, and \
                         {capacity} positions are left for prompt and completion"
                    ),
                ),
                false => Rejected::TooLong {
                    found: n_prompt,
                    limit: capacity,
                },
            });
        }
        let length = request.max_tokens.unwrap_or(LENGTH).max(1);
        let length = length.min(capacity - n_prompt);
        Ok(DiffusionSettings {
            length,
            steps: options.steps.unwrap_or(length).min(length),
            block_length: options.block_length.unwrap_or(BLOCK_LENGTH).min(length),
            remasking: options.remasking.unwrap_or(self.remasking),
            cfg_scale: is_guided.then_some(options.cfg_scale).flatten(),
            threshold: options.threshold,
            approximate_cache: options.approximate_cache.unwrap_or(false),
            shift: self.shift,
            mask: self.mask,
        })
    }

    fn check(&self, request: &Request, options: &DiffusionOptions) -> Result<(), Rejected> {
        let remasking = options.remasking.unwrap_or(self.remasking);
        let (steps, block_length) = (
            options.steps.unwrap_or(1),
            options.block_length.unwrap_or(1),
        );
        let (scale, threshold) = (
            options.cfg_scale.unwrap_or(0.0),
            options.threshold.unwrap_or(1.0),
        );
        let has_rule = options.threshold.is_none() || remasking != Remasking::None;
        let (guided, sure) = ("diffusion.cfg_scale", "diffusion.threshold");
        ParamError::unless(steps > 0, "diffusion.steps", &steps, "at least 1")?;
        let field = "diffusion.block_length";
        ParamError::unless(block_length > 0, field, &block_length, "at least 1")?;
        let is_scale = (0.0..=100.0).contains(&scale);
        ParamError::unless(is_scale, guided, &scale, "a number from 0 to 100")?;
        let is_probability = threshold > 0.0 && threshold <= 1.0;
        let expected = "a probability above 0, up to 1";
        ParamError::unless(is_probability, sure, &threshold, expected)?;
        ParamError::unless(has_rule, sure, &threshold, "none: `remasking` is `none`")?;
        request.sampling.check_memoryless()?;
        let is_uncached = options.approximate_cache == Some(true) && !self.is_kept;
        let fields = [("diffusion.approximate_cache", is_uncached)];
        Rejected::if_set(&fields, "nothing is cached without a context")?;
        let fields = [
            ("min_tokens", request.stop.min_tokens > 0),
            ("stop_token_ids", !request.stop.stop_tokens.is_empty()),
        ];
        Rejected::if_set(&fields, "this model decodes by text diffusion")?;
        let fields = [("response_format", request.constraint.is_some())];
        let message = "this model decodes by text diffusion, which cannot follow a grammar";
        Rejected::if_set(&fields, message)
    }
}

/// Options of text diffusion, all set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DiffusionSettings {
    /// Positions of the completion.
    pub(crate) length: usize,
    steps: usize,
    block_length: usize,
    pub(super) remasking: Remasking,
    /// Scale of guidance; none without guidance.
    pub(super) cfg_scale: Option<f64>,
    pub(super) threshold: Option<f64>,
    pub(super) approximate_cache: bool,
    pub(super) shift: usize,
    pub(crate) mask: u32,
}

impl DiffusionSettings {
    /// Sequences that each pass reads. Guidance adds one with a masked prompt.
    pub(crate) fn n_parts(&self) -> usize {
        1 + usize::from(self.cfg_scale.is_some())
    }

    /// The block that starts at a position of the completion.
    pub(super) fn block(&self, start: usize) -> Range<usize> {
        start..start.saturating_add(self.block_length).min(self.length)
    }

    /// Steps of a block: its share of all steps, at least one, at most one for each position.
    pub(super) fn steps_of(&self, block: &Range<usize>) -> usize {
        let until = |at: usize| self.steps * at / self.length;
        (until(block.end) - until(block.start)).clamp(1, block.len())
    }
}
