//! Memory by n-grams (Engram, 2026): hashes of the last tokens select rows of a large table, which are read with a gate
//! for each of several hidden states, and convolved over time.
//!
//! ```text
//! e   = table[rows(tokens)]                       one row for each hash of each n-gram, one after another
//! s_i = norm_key_i(key_i . e) . norm_query_i(X_i) / sqrt(n_embd)
//! v_i = sigmoid(sign(s_i) * sqrt(max(|s_i|, 1e-6))) * (value . e)
//! Y_i = v_i + silu(conv(norm_conv_i(v_i)))        every `longest`-th position of the last ones
//! ```
//! The row of hash h of an n-gram is `offset_h + (token_0 * m_0 xor token_1 * m_1 xor ..) % size_h`, the latest token
//! first. From a stop token on, all tokens further back count as it. `[n_embd * states, n_tokens]` in and out: all
//! hidden states.

use std::sync::Arc;

use super::build::UnitBuilder;
use super::context::DerivedInput;
use super::ngram_hashes::NgramHashes;
use super::refused;
use crate::arch::{Contract, NormRef, RowWidth, StateSpec};
use crate::plan::Unit;
use crate::{options, points, rules, weights};
use lab_base::ggml::{Result, Tensor, Unary};

options! {
    pub(super) struct Config {
        longest: u64, "tokens of the longest n-gram";
        heads: u64, "hashes of the n-grams of one length";
        multipliers: Vec<u64>, "multiplier of each token of an n-gram, the latest first";
        sizes: Vec<u64>, "rows of each hash, those of two tokens first";
        offsets: Vec<u64>, "first row of each hash";
        stop: u64, "token before which nothing counts";
        width: u64, "elements of a row of the table";
        rows: u64, "rows of the table";
        kernel: u64, "length of the convolution, in columns that are `longest` positions apart";
        states: u64 => "n_streams", "hidden states of a token";
        norm: NormRef => "default", "kind and eps of the norms";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "ngram_memory",
    title: "N-gram memory",
    noun: "an n-gram memory",
    phrase: "rows of a table of {=rows} by {=heads} hashes of n-grams of up to {=longest} tokens",
    summary: "N-gram memory: hashes of the last tokens select rows of a table, which are added to the hidden states, each with a gate.",
    formula: "e = table[hashes of the last tokens];  v_i = sigmoid(root(norm_key(key_i . e) . norm_query(X_i))) * value . e;  Y_i = v_i + silu(conv(norm_conv(v_i)))",
    options: Config::OPTIONS,
    weights: weights! {
        table: Table "/per_layer_token_embd.weight" ["width", "rows"], "rows that n-grams name";
        key: Matrix "ple_key.weight" ["width * heads * (longest - 1)", "n_embd * states"], "projection to what the hidden states are compared with";
        value: Matrix "ple_value.weight" ["width * heads * (longest - 1)", "n_embd"], "projection to what is added to the hidden states";
        norm_key: Scale "ple_norm_key.weight" ["n_embd", "states"], "weights of the norms of the keys";
        norm_query: Scale "ple_norm_query.weight" ["n_embd", "states"], "weights of the norms of the hidden states";
        norm_conv: Scale "ple_norm_conv.weight" ["n_embd", "states"], "weights of the norms before the convolution";
        conv: Convolution "ple_conv1d.weight" ["kernel", "n_embd * states"], "convolution over time";
    },
    rows: RowWidth::Any,
    state: StateSpec::Recurrent(&[("conv", "(kernel - 1) * longest * n_embd * states")]),
    points: points! {
        rows: Neurons ["width * heads * (longest - 1)"], "rows of the n-grams of a token, one after another";
        gates: Neurons ["1", "states"], "gate of each hidden state";
        values: Neurons ["n_embd * states"], "values times their gates, before the convolution";
    },
    rules: rules! {
        "longest > 1 and longest <= 16 and heads > 0 and heads <= 256", "n-grams have 2 to 16 tokens and 1 to 256 hashes of each length";
        "kernel > 1 and kernel <= 64", "the convolution has 2 to 64 columns";
    },
    ..Contract::BLOCK
};

/// Lower bound of a comparison's absolute value before its root.
const MIN_SCORE: f32 = 1e-6;

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let (g, n, n_embd) = (b.g, b.n_tokens, b.plan.n_embd);
    let apart = [n_embd, c.states, n, 1];
    let all = [n_embd * c.states, n, 1, 1];
    let ngrams = ngrams(b.unit, &c)?;
    let width = c.width * ngrams.count();
    let ids = b.input(DerivedInput::Ngrams(Arc::new(ngrams), c.rows))?;
    let rows = g.get_rows(&b.required_weight("table")?, &ids)?;
    let rows = b.point("rows", g.reshape(&rows, [width, n, 1, 1])?)?;

    let normed = |x: &Tensor, weight: &str| {
        b.normalise_with(c.norm, b.weight(weight), &g.reshape(x, apart)?)
    };
    let key = normed(&b.product("key", &rows)?, "norm_key")?;
    let query = normed(x, "norm_query")?;
    let score = g.sum_rows(&g.mul(&key, &query)?)?; // [1, states, n]
    let score = g.scale(&score, 1.0 / (n_embd as f32).sqrt())?;
    let size = g.clamp(&g.unary(&score, Unary::Abs)?, MIN_SCORE, f32::MAX)?;
    let above = g.unary(&score, Unary::Step)?;
    let below = g.unary(&g.scale(&score, -1.0)?, Unary::Step)?;
    let root = g.mul(&g.sub(&above, &below)?, &g.unary(&size, Unary::Sqrt)?)?;
    let gates = b.point("gates", g.unary(&root, Unary::Sigmoid)?)?;

    let value = g.reshape(&b.product("value", &rows)?, [n_embd, 1, n, 1])?;
    let values = g.mul(&g.repeat(&value, apart)?, &gates)?;
    let values = b.point("values", g.reshape(&values, all)?)?;
    let columns = g.reshape(&normed(&values, "norm_conv")?, all)?;
    let conv = b.required_weight("conv")?;
    let y = b.convolve_apart("conv", &conv, &columns, c.longest)?;
    g.add(&values, &g.unary(&y, Unary::Silu)?)
}

/// The hashes; their numbers must fit each other and the table.
fn ngrams(unit: &Unit, c: &Config) -> Result<NgramHashes> {
    let ngrams = NgramHashes {
        longest: c.longest,
        heads: c.heads,
        stop: c.stop,
        multipliers: c.multipliers.clone(),
        sizes: c.sizes.clone(),
        offsets: c.offsets.clone(),
    };
    let count = ngrams.count() as usize;
    let ranges = c.offsets.iter().zip(&c.sizes);
    let fits =
        |(first, n): (&u64, &u64)| *n > 0 && first.checked_add(*n).is_some_and(|end| end <= c.rows);
    let message = if c.multipliers.len() < c.longest as usize {
        format!(
            "{} multipliers of n-grams of {} tokens",
            c.multipliers.len(),
            c.longest
        )
    } else if c.sizes.len() != count || c.offsets.len() != count {
        let found = (c.sizes.len(), c.offsets.len());
        format!(
            "{} sizes and {} offsets of {count} hashes",
            found.0, found.1
        )
    } else if !ranges.clone().all(fits) || c.rows > i32::MAX as u64 {
        format!("rows of a hash outside of a table of {}", c.rows)
    } else {
        return Ok(ngrams);
    };
    Err(refused("ngram_memory", format!("{}: {message}", unit.path)))
}
