//! Execution paths: ways to compute the same logits.

use lab_base::weights::{TensorType, Weights};
use lab_core::model::{Batch, Error, Model, Options};
use lab_core::plan::Plan;

/// An execution path: a way to compute the same logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutionPath {
    /// The name in reports.
    pub name: &'static str,
    /// Tokens per pass; 0 for all.
    pub chunk: usize,
    /// Whether nothing is kept between passes, neither keys and values nor states.
    pub stateless: bool,
    /// Whether another sequence with other tokens runs in the same passes.
    pub interleaved: bool,
    /// Element type of the KV cache.
    pub kv_type: TensorType,
    pub flash_attn: bool,
    /// Whether the path computes the same as the reference, except for the order of sums.
    pub is_exact: bool,
}

/// All tokens in one pass, with an f32 cache and without flash attention.
pub const ONE_PASS: ExecutionPath = ExecutionPath {
    name: "one pass",
    chunk: 0,
    stateless: false,
    interleaved: false,
    kv_type: TensorType::F32,
    flash_attn: false,
    is_exact: true,
};

/// The paths, the simplest first.
pub const PATHS: [ExecutionPath; 8] = [
    ONE_PASS,
    ExecutionPath {
        name: "stateless",
        stateless: true,
        ..ONE_PASS
    },
    ExecutionPath {
        name: "one token per pass",
        chunk: 1,
        ..ONE_PASS
    },
    ExecutionPath {
        name: "seven tokens per pass",
        chunk: 7,
        ..ONE_PASS
    },
    ExecutionPath {
        name: "two sequences",
        chunk: 5,
        interleaved: true,
        ..ONE_PASS
    },
    ExecutionPath {
        name: "flash attention, f32 cache",
        chunk: 7,
        flash_attn: true,
        ..ONE_PASS
    },
    ExecutionPath {
        name: "f16 cache",
        chunk: 7,
        kv_type: TensorType::F16,
        is_exact: false,
        ..ONE_PASS
    },
    ExecutionPath {
        name: "flash attention, f16 cache",
        chunk: 7,
        kv_type: TensorType::F16,
        flash_attn: true,
        is_exact: false,
        ..ONE_PASS
    },
];

/// The tokens that a model reads.
#[derive(Clone, Copy, Debug)]
pub struct InputTokens<'a> {
    /// The tokens of the sequence.
    pub tokens: &'a [u32],
    /// The tokens of the source; empty if the model reads none.
    pub source: &'a [u32],
}

impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for InputTokens<'a> {
    fn from(tokens: &'a T) -> Self {
        Self {
            tokens: tokens.as_ref(),
            source: &[],
        }
    }
}

/// The passes of `n` tokens, `chunk` of them at a time: the first token that a pass contains, the first new one, and the
/// end. Without a cache, each pass contains all tokens from the first on.
pub fn passes(
    n: usize,
    chunk: usize,
    stateless: bool,
) -> impl Iterator<Item = (usize, usize, usize)> {
    let chunk = chunk.clamp(1, n.max(1));
    let pass = move |start| {
        let first = if stateless { 0 } else { start };
        (first, start, (start + chunk).min(n))
    };
    (0..n).step_by(chunk).map(pass)
}

/// The logits of every token, `[n_tokens, n_vocab]` (hidden states for a model without a head), on an execution path.
/// `None` if the path would compute something else: tokens attend to later tokens and do not share one pass, or heads
/// are not whole blocks of the cache's type.
pub fn logits(
    plan: Plan,
    weights: &Weights,
    text: InputTokens<'_>,
    path: &ExecutionPath,
    n_threads: usize,
) -> Result<Option<Vec<f32>>, Error> {
    let (tokens, n) = (text.tokens, text.tokens.len());
    let n_vocab = plan.n_vocab.max(1) as u32;
    let Some(mut model) = load_for_path(plan, weights, text, path, n_threads, false)? else {
        return Ok(None);
    };
    let chunk = if path.chunk == 0 { n } else { path.chunk };
    let mut found = Vec::new();
    for (first, start, end) in passes(n, chunk, path.stateless) {
        let mut batch = Batch::default();
        for (at, &token) in tokens.iter().enumerate().take(end).skip(first) {
            if path.interleaved {
                batch.push((token + 1) % n_vocab, 1, at as u32, false);
            }
            batch.push(token, 0, at as u32, at >= start);
        }
        found.extend_from_slice(model.forward(&batch)?);
    }
    Ok(Some(found))
}

/// The model loaded for a path; `None` if the path would compute something else.
pub(super) fn load_for_path(
    plan: Plan,
    weights: &Weights,
    InputTokens { tokens, source }: InputTokens<'_>,
    path: &ExecutionPath,
    n_threads: usize,
    capture: bool,
) -> Result<Option<Model>, Error> {
    if plan.mode != lab_core::arch::Mode::Causal && path.chunk != 0 {
        return Ok(None);
    }
    let n = tokens.len();
    let options = Options {
        n_ctx: if path.stateless {
            0
        } else {
            (2 * (n + source.len())).next_multiple_of(256)
        },
        n_ctx_seq: n,
        n_seqs: 2,
        n_threads,
        k_type: path.kv_type,
        v_type: path.kv_type,
        flash_attn: path.flash_attn,
        capture,
        ..Options::plain(0, 2 * n.max(source.len()))
    };
    let mut model = match Model::load(plan, weights, options, &mut |_, _| {}) {
        Err(Error::CacheType { .. }) => return Ok(None),
        loaded => loaded?,
    };
    if !source.is_empty() {
        model.set_default_source(source)?;
    }
    Ok(Some(model))
}
