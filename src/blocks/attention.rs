//! Attention (Vaswani et al. 2017) with grouped keys and values (Ainslie et al. 2023).
//!
//! ```text
//! q, k, v = q.h + q.bias, k.h + k.bias, v.h + v.bias     or the parts of qkv.h + qkv.bias
//! q, k    = rope(norm(q)), rope(norm(k))                  norms per head, if asked for
//! K, V    = cache(k, v)                                   all keys and values that may be seen
//! y       = o . concat over heads of softmax(scale * q.K + mask) . V  + o.bias
//! ```
//! `[n_embd, n_tokens]` in and out; head h of the queries reads head `h / (heads / kv_heads)` of
//! the keys.

use super::build::Build;
use crate::arch::{CacheRef, Contract, NormRef, RopeRef, Rule, StateSpec, WeightRole, WeightSpec};
use crate::ggml::{Error, Tensor};
use crate::plan::Unit;
use crate::{choices, options};

choices! {
    /// What is normalised before the rotation.
    pub(super) enum QkNorm {
        /// Nothing.
        None = "none",
        /// Each head of the queries and keys by itself.
        Head = "head",
    }
}

options! {
    /// Options of an attention block.
    pub(super) struct Config {
        rope: RopeRef, "rotation of queries and keys, or `none`";
        cache: CacheRef, "which keys a query sees";
        heads: u64 = "n_head", "query heads";
        kv_heads: u64 = "n_head_kv", "key and value heads";
        dk: u64 = "d_head", "elements of a query or key head";
        dv: u64 = "d_head_v", "elements of a value head";
        scale: f32 = "1 / sqrt(dk)", "factor of the scores";
        qk_norm: QkNorm = "none", "what is normalised before the rotation: `none` or each `head`";
        norm: NormRef = "default", "kind and eps of the query and key norm";
    }
}

const fn matrix(
    key: &'static str,
    tensor: &'static str,
    shape: &'static [&'static str],
) -> WeightSpec {
    WeightSpec {
        key,
        tensor,
        shape,
        when: "not has('qkv')",
        optional: false,
        role: WeightRole::Matrix,
        doc: "projection of the input",
    }
}

const fn bias(
    key: &'static str,
    tensor: &'static str,
    shape: &'static [&'static str],
    when: &'static str,
) -> WeightSpec {
    WeightSpec {
        key,
        tensor,
        shape,
        when,
        optional: true,
        role: WeightRole::Bias,
        doc: "offset of a projection",
    }
}

const fn gain(key: &'static str, tensor: &'static str) -> WeightSpec {
    WeightSpec {
        key,
        tensor,
        shape: &["dk"],
        when: "qk_norm == 'head'",
        optional: false,
        role: WeightRole::Gain,
        doc: "gain of a head's norm",
    }
}

/// The block.
pub(super) static CONTRACT: Contract = Contract {
    name: "attention",
    summary: "Mixes positions: each takes a weighted mean of the values it sees.",
    formula: "y = o . softmax(scale * rope(q.h) . rope(k.h) + mask) . (v.h)",
    options: Config::OPTIONS,
    weights: &[
        WeightSpec {
            key: "qkv",
            tensor: "attn_qkv.weight",
            shape: &["n_embd", "heads * dk + kv_heads * dk + kv_heads * dv"],
            when: "true",
            optional: true,
            role: WeightRole::Matrix,
            doc: "queries, keys and values in one projection",
        },
        bias(
            "qkv.bias",
            "attn_qkv.bias",
            &["heads * dk + kv_heads * dk + kv_heads * dv"],
            "has('qkv')",
        ),
        matrix("q", "attn_q.weight", &["n_embd", "heads * dk"]),
        bias("q.bias", "attn_q.bias", &["heads * dk"], "not has('qkv')"),
        matrix("k", "attn_k.weight", &["n_embd", "kv_heads * dk"]),
        bias(
            "k.bias",
            "attn_k.bias",
            &["kv_heads * dk"],
            "not has('qkv')",
        ),
        matrix("v", "attn_v.weight", &["n_embd", "kv_heads * dv"]),
        bias(
            "v.bias",
            "attn_v.bias",
            &["kv_heads * dv"],
            "not has('qkv')",
        ),
        gain("q_norm", "attn_q_norm.weight"),
        gain("k_norm", "attn_k_norm.weight"),
        WeightSpec {
            key: "o",
            tensor: "attn_output.weight",
            shape: &["heads * dv", "n_embd"],
            when: "true",
            optional: false,
            role: WeightRole::Matrix,
            doc: "projection of the heads back to the stream",
        },
        bias("o.bias", "attn_output.bias", &["n_embd"], "true"),
    ],
    state: StateSpec::KeyValue {
        cache: "cache",
        k: "kv_heads * dk",
        v: "kv_heads * dv",
    },
    rules: &[
        Rule {
            holds: "cache",
            message: "an attention block names a cache",
        },
        Rule {
            holds: "heads > 0 and kv_heads > 0",
            message: "there is at least one head",
        },
        Rule {
            holds: "heads % kv_heads == 0",
            message: "`kv_heads` divides `heads`",
        },
    ],
};

pub(super) fn build(b: &mut Build<'_>, unit: &Unit, x: &Tensor) -> Result<Tensor, Error> {
    let c = Config::read(&unit.options);
    let (q, k, v) = project(b, unit, &c, x)?;

    let (q, k) = match c.qk_norm {
        QkNorm::None => (q, k),
        QkNorm::Head => (
            b.normalise_with(c.norm, b.weight(unit, "q_norm"), &q)?,
            b.normalise_with(c.norm, b.weight(unit, "k_norm"), &k)?,
        ),
    };
    let (q, k) = (b.rope(c.rope, &q)?, b.rope(c.rope, &k)?);
    for (name, value) in [("q", &q), ("k", &k), ("v", &v)] {
        b.name(&unit.path, name, value);
    }

    let y = b.attend(unit, &q, &k, &v, c.scale)?;
    b.name(&unit.path, "heads", &y);
    b.linear(unit, "o", &y)
}

/// Queries `[dk, heads, n]`, keys `[dk, kv_heads, n]` and values `[dv, kv_heads, n]`.
fn project(
    b: &Build<'_>,
    unit: &Unit,
    c: &Config,
    x: &Tensor,
) -> Result<(Tensor, Tensor, Tensor), Error> {
    let (g, n) = (b.g, b.n_tokens);
    if b.weight(unit, "qkv").is_none() {
        let q = g.reshape(&b.linear(unit, "q", x)?, [c.dk, c.heads, n, 1])?;
        let k = g.reshape(&b.linear(unit, "k", x)?, [c.dk, c.kv_heads, n, 1])?;
        let v = g.reshape(&b.linear(unit, "v", x)?, [c.dv, c.kv_heads, n, 1])?;
        return Ok((q, k, v));
    }
    // One row holds queries, then keys, then values.
    let qkv = b.linear(unit, "qkv", x)?;
    let size = size_of::<f32>() as u64;
    let row = qkv.shape()[0] * size;
    let part = |d: u64, heads: u64, start: u64| {
        let strides = [(d * size) as usize, row as usize, (row * n) as usize];
        g.cont(&g.view(&qkv, [d, heads, n, 1], strides, (start * size) as usize)?)
    };
    let (q_end, k_end) = (c.dk * c.heads, c.dk * (c.heads + c.kv_heads));
    Ok((
        part(c.dk, c.heads, 0)?,
        part(c.dk, c.kv_heads, q_end)?,
        part(c.dv, c.kv_heads, k_end)?,
    ))
}
