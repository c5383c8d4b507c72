//! The context length of a model without `--ctx`: its own, as far as memory allows.

use lab_base::util::wording::bytes;
use lab_base::weights::TensorInfo;
use lab_core::engine::ends_in_vectors;
use lab_core::model::{Estimator, Options, interleaved_bytes};
use lab_core::models::OpenedModel;
use lab_core::models::towers::OpenedMedia;
use lab_core::plan::Plan;

use super::output::Failure;

/// The context length in tokens of a model that states none, and the least that is tried where memory is short.
pub(super) const SMALL_CTX: usize = 4096;
/// Memory that a context leaves free besides a tenth of all, in bytes.
const SPARE: u64 = 512 << 20;
/// Tensor of the RoPE factors for long contexts.
const LONG_FACTORS: &str = "rope_factors_long.weight";

/// The context length of a model's training, if the file states it.
pub(super) fn trained(plan: &Plan) -> Option<usize> {
    let n = usize::try_from(plan.n_ctx_train).unwrap_or(usize::MAX);
    (n > 0).then_some(n)
}

/// The context length of a model: that of its training, at most `most`. Without `most`, where RoPE has other factors for
/// long contexts, it is the one up to which the factors for short ones hold, so that short texts are computed with these.
pub(super) fn own_context(opened: &OpenedModel, most: Option<usize>) -> usize {
    let is_long = |tensor: &TensorInfo| tensor.name.ends_with(LONG_FACTORS);
    let has_long = most.is_none() && opened.weights.tensors().iter().any(is_long);
    let key = format!("{}.rope.scaling.original_context_length", opened.plan.arch);
    let short = opened.weights.metadata().i64(&key).filter(|_| has_long);
    let short = short.and_then(|n| usize::try_from(n).ok());
    let own = short.or_else(|| trained(&opened.plan));
    own.unwrap_or(SMALL_CTX).min(most.unwrap_or(usize::MAX))
}

/// The memory that weights leave of `free` bytes for caches. What the other models of a server need is not known, so each
/// gets half.
pub(super) fn cache_budget(opened: &OpenedModel, free: u64, is_shared: bool) -> u64 {
    let of_towers = opened.media.as_ref().map_or(0, OpenedMedia::weight_bytes);
    let weights = opened.plan.weight_bytes().saturating_add(of_towers);
    let taken = weights.saturating_add(SPARE);
    let left = (free - free / 10).saturating_sub(taken);
    if is_shared { left / 2 } else { left }
}

/// Whether main memory, of which `free` bytes are left, has room for copies of the weights that products read faster, beside the caches.
pub(super) fn has_room_for_copies(opened: &OpenedModel, options: &Options, free: u64) -> bool {
    let copies = interleaved_bytes(&opened.plan);
    let cache = options.check_cache(&opened.plan).unwrap_or(u64::MAX);
    let needed = copies.saturating_add(cache).saturating_add(SPARE);
    let has_room = needed <= free - free / 10;
    if !has_room && copies > 0 {
        let (name, copies) = (&opened.name, bytes(copies));
        tracing::info!(
            "the weights of `{name}` are used as they are in the file: there is no room for {copies} of copies that are faster"
        );
    }
    has_room
}

/// Shortens the context of a model to what fits into `budget` bytes, and says so. `n_batch` is the number of tokens of a
/// pass of models that do not read a whole context at once.
///
/// # Errors
/// The weights cannot be used.
pub(super) fn fit_context(
    opened: &OpenedModel,
    options: &mut Options,
    (budget, n_batch): (u64, usize),
) -> Result<(), Failure> {
    let (plan, own) = (&opened.plan, options.n_ctx);
    let least = own.min(SMALL_CTX);
    let mut n_ctx = options.n_ctx_within(plan, budget).min(own);
    // These read a whole context in one pass, whose scratch memory grows with it.
    if (options.n_batch > n_batch || ends_in_vectors(plan)) && n_ctx > least {
        let mut estimator = Estimator::new(plan, &opened.weights)?;
        let mut fits = |n_ctx: usize| {
            let whole = Options {
                n_ctx,
                n_batch: n_ctx,
                ..options.clone()
            };
            let used = estimator.memory(&whole);
            used.is_ok_and(|used| used.cache.saturating_add(used.compute) <= budget / 2)
        };
        while n_ctx > least && !fits(n_ctx) {
            n_ctx /= 2;
        }
    }
    n_ctx = n_ctx.max(least);
    options.n_batch = options.n_batch.min(n_ctx.max(Options::N_BATCH));
    if n_ctx < own {
        let (name, left) = (&opened.name, bytes(budget));
        tracing::info!(
            "context: {n_ctx} of the {own} tokens of `{name}`, since its weights leave {left} for the cache; --ctx sets \
             it, and --kv-type q8_0 makes room for more"
        );
    }
    (options.n_ctx, options.n_ctx_seq) = (n_ctx, n_ctx);
    Ok(())
}
