//! The findings that follow from a plan: memory, bytes read, capabilities.

use super::findings::{Context, Findings, Planned};
use crate::arch::Mode;
use crate::engine::serving::Pooled;
use crate::files::lora::Adapter;
use crate::inspect::capabilities::{Capability, Subject, capabilities};
use crate::inspect::describe::{describe, shares};
use crate::model::{Estimator, Options};
use crate::plan::{Capacity, Plan};
use crate::weights::{TensorType, Weights};

/// Context lengths for which memory is computed, besides the requested one and that of the training.
pub(super) const CONTEXTS: [u64; 3] = [2048, 8192, 32768];

/// The findings of a plan. If the weights cannot be loaded, only those that do not need them.
pub(super) fn planned(
    plan: Plan,
    (weights, adapters): (&Weights, &[Adapter]),
    options: Options,
    requested: Option<usize>,
    known: &Findings,
) -> Planned {
    let mut found = Planned {
        description: describe(&plan),
        shares: shares(&plan),
        plan,
        options,
        weights_read: None,
        contexts: Vec::new(),
        devices: Vec::new(),
        capabilities: Vec::new(),
    };
    let (plan, options) = (&found.plan, &found.options);
    let mut estimator = match Estimator::with(plan, weights, adapters) {
        Ok(estimator) => estimator,
        Err(error) => {
            found.capabilities.push(Capability {
                what: "loading",
                can: false,
                why: error.to_string(),
            });
            return found;
        }
    };
    let lengths = lengths(plan, requested).into_iter();
    let contexts = lengths.map(|n_ctx| context(plan, &mut estimator, options, n_ctx));
    let contexts = contexts.collect();
    let subject = Subject {
        plan,
        tokenizer: known.tokenizer.as_ref().map_err(Clone::clone),
        template: match &known.template {
            None => Err("the file has no chat template".to_owned()),
            Some(probed) => probed.as_ref().map_err(Clone::clone),
        },
        pooled: Pooled::of(plan, &known.metadata),
        options,
    };
    let capabilities = capabilities(&subject, &mut estimator);
    let weights_read = estimator.weight_bytes_read(options).ok();
    let is_placed = !plan.devices.is_empty();
    let memory = estimator.memory(options).ok().filter(|_| is_placed);
    drop(estimator);
    Planned {
        weights_read,
        contexts,
        devices: memory.map_or_else(Vec::new, |memory| memory.devices),
        capabilities,
        ..found
    }
}

/// The context lengths that are reported: up to that of the training, and the requested one.
fn lengths(plan: &Plan, requested: Option<usize>) -> Vec<u64> {
    let trained = plan.n_ctx_train;
    let mut lengths: Vec<u64> = CONTEXTS
        .into_iter()
        .filter(|n| trained == 0 || *n < trained)
        .chain((trained > 0).then_some(trained))
        .chain(requested.map(|n| n as u64))
        .filter(|n| *n > 0)
        .collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

fn context(plan: &Plan, estimator: &mut Estimator<'_>, options: &Options, n_ctx: u64) -> Context {
    let n = usize::try_from(n_ctx).unwrap_or(usize::MAX);
    let options = Options {
        n_ctx: n,
        n_ctx_seq: n,
        // Text diffusion runs every pass over the whole sequence.
        n_batch: match plan.diffusion {
            Some(_) => n.max(Options::N_BATCH),
            None => options.n_batch,
        },
        ..options.clone()
    };
    let memory = estimator.memory(&options);
    let refusal = estimator.check(&options).err();
    let last = n_ctx.saturating_sub(1);
    let rows = plan.cache_bytes_read(last, options.k_type, options.v_type);
    let read = rows.and_then(|rows| rows.checked_add(plan.recurrent_bytes(1)?));
    // Models that read a text as a whole read no single token.
    let read = read.filter(|_| plan.mode == Mode::Causal);
    Context {
        n_ctx,
        memory: memory.ok(),
        states: plan.recurrent_bytes(2),
        read,
        refusal: refusal.map(|error| error.to_string()),
    }
}

/// Bytes of an f16 KV cache for one sequence; `None` on overflow.
pub(in crate::cli) fn cache_bytes(plan: &Plan, n_ctx: u64) -> Option<u64> {
    let room = Capacity {
        n_ctx,
        n_seqs: 1,
        n_batch: Options::N_BATCH as u64,
    };
    plan.cache_bytes(room, TensorType::F16, TensorType::F16)
}
