//! A model along every execution path against logits that another program computed.

use crate::files::models::Opened;
use crate::model::{Batch, Error, Model, Options};
use crate::plan::Plan;
use crate::weights::{TensorType, Weights};

/// A way to compute the same logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutionPath {
    /// What it is called in reports.
    pub name: &'static str,
    /// Tokens per pass; 0: all.
    pub chunk: usize,
    /// Whether nothing is kept between passes.
    pub stateless: bool,
    /// Whether another sequence with other tokens runs in the same passes.
    pub interleaved: bool,
    /// Element type of the KV cache.
    pub kv_type: TensorType,
    /// Whether attention is flash attention.
    pub flash_attn: bool,
    /// Whether it computes what the reference computes, but for the order of sums.
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

/// The paths, from the simplest on.
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

/// Logits of every token, `[n_tokens, n_vocab]` (hidden states of a model without a head), along a path; none where the path
/// is another computation: tokens attend to later ones and are not all in a pass, heads are no whole blocks of the cache's
/// type.
///
/// # Errors
/// The model does not load, or a pass fails.
pub fn logits(
    plan: Plan,
    weights: &Weights,
    tokens: &[u32],
    path: &ExecutionPath,
    n_threads: usize,
) -> Result<Option<Vec<f32>>, Error> {
    if plan.mode != crate::arch::Mode::Causal && path.chunk != 0 {
        return Ok(None);
    }
    let (n, n_vocab) = (tokens.len(), plan.n_vocab.max(1) as u32);
    let options = Options {
        n_ctx: if path.stateless {
            0
        } else {
            (2 * n).next_multiple_of(256)
        },
        n_ctx_seq: n,
        n_seqs: 2,
        n_threads,
        k_type: path.kv_type,
        v_type: path.kv_type,
        flash_attn: path.flash_attn,
        ..Options::plain(0, 2 * n)
    };
    let mut model = match Model::load(plan, weights, options, &mut |_, _| {}) {
        Err(Error::CacheType { .. }) => return Ok(None),
        loaded => loaded?,
    };
    let chunk = if path.chunk == 0 { n } else { path.chunk };
    let mut found = Vec::new();
    for start in (0..n).step_by(chunk.max(1)) {
        let mut batch = Batch::default();
        let end = (start + chunk).min(n);
        // Without a cache a pass has all tokens from the first on.
        let first = if path.stateless { 0 } else { start };
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

/// How the logits of a path compare with the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The path.
    pub path: &'static str,
    /// Sum of squared differences over sum of squares of the reference; none where the path does not apply.
    pub nmse: Option<f64>,
    /// What it may be.
    pub bound: f64,
    /// The first position whose logits differ by more than the bound, and its own NMSE.
    pub first_wrong: Option<(usize, f64)>,
    /// Positions whose most likely token is another.
    pub n_other_best: usize,
}

impl Outcome {
    /// Whether the path gives the reference's numbers.
    pub fn is_proven(&self) -> bool {
        self.nmse.is_none_or(|nmse| nmse <= self.bound)
    }
}

/// Squared error over the power of the reference; infinite if anything is not finite.
pub(super) fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    let pairs = || {
        found
            .iter()
            .zip(expected)
            .map(|(a, b)| (f64::from(*a), f64::from(*b)))
    };
    let error: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    let power: f64 = pairs().map(|(_, b)| b * b).sum();
    match error {
        0.0 => 0.0,
        error if error.is_finite() => error / power,
        _ => f64::INFINITY,
    }
}

fn best(row: &[f32]) -> Option<usize> {
    let found = row
        .iter()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    found.map(|(at, _)| at)
}

/// Compares rows of `width` logits.
fn outcome(
    path: &ExecutionPath,
    found: Option<&[f32]>,
    expected: &[f32],
    width: usize,
    bounds: [f64; 2],
) -> Outcome {
    let bound = bounds[usize::from(!path.is_exact)];
    let found = found.filter(|found| found.len() == expected.len());
    let rows = || {
        found
            .into_iter()
            .flat_map(|f| f.chunks(width))
            .zip(expected.chunks(width))
    };
    let errors = rows().map(|(found, expected)| nmse(found, expected));
    Outcome {
        path: path.name,
        nmse: found.map(|found| nmse(found, expected)),
        bound,
        first_wrong: errors.enumerate().find(|(_, error)| *error > bound),
        n_other_best: rows().filter(|(a, b)| best(a) != best(b)).count(),
    }
}

/// Why a model cannot be compared with a reference.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It does not run.
    #[error(transparent)]
    Model(#[from] Error),
    /// Rows have different widths.
    #[error("the model gives {found} numbers for each token, the reference has {expected}")]
    Width {
        /// Numbers of the model's rows.
        found: usize,
        /// Those of the reference's.
        expected: usize,
    },
}

/// Runs a model along every path and compares with `expected`, rows of logits of all tokens. `bounds` are the NMSE of paths
/// that compute in f32, and of those with an f16 cache.
///
/// # Errors
/// The model does not load, a pass fails, or rows have another width than the reference's.
pub fn prove(
    opened: &Opened,
    tokens: &[u32],
    expected: &[f32],
    bounds: [f64; 2],
    n_threads: usize,
    each: &mut dyn FnMut(&Outcome),
) -> Result<Vec<Outcome>, Fault> {
    let width = expected.len() / tokens.len().max(1);
    let mut outcomes = Vec::new();
    for path in &PATHS {
        let found = logits(
            opened.plan.clone(),
            &opened.weights,
            tokens,
            path,
            n_threads,
        )?;
        if let Some(found) = &found
            && found.len() != expected.len()
        {
            return Err(Fault::Width {
                found: found.len() / tokens.len().max(1),
                expected: width,
            });
        }
        let outcome = outcome(path, found.as_deref(), expected, width.max(1), bounds);
        each(&outcome);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// What the pattern of wrong rows and paths points to, in words; nothing if all is proven.
pub fn hints(outcomes: &[Outcome], n_tokens: usize) -> Vec<&'static str> {
    let of = |name: &str| outcomes.iter().find(|outcome| outcome.path == name);
    let Some(first) = of(ONE_PASS.name) else {
        return Vec::new();
    };
    let mut hints = Vec::new();
    let wrong_from = first.first_wrong.map(|(at, _)| at);
    match wrong_from {
        Some(0) => hints.push(
            "wrong from the first position, where attention sees one key and the rotation is none: norms, scales, \
             activation, gate, router, head. `bench compare --dump` names the first value",
        ),
        Some(1) => hints.push(
            "right at the first position, wrong from the second on: rotation (kind, base, dimensions), scale of the \
             scores, order of rows in q and k, heads that share keys, convolution or state of a recurrent block",
        ),
        Some(at) if at < n_tokens => hints.push(
            "right on the first positions, wrong later: window, its layers, selection of keys, base or scaling of \
             the rotation, temperature by position",
        ),
        _ => {}
    }
    if wrong_from.is_some() && first.n_other_best == 0 {
        hints.push("wrong numbers in the right order: scale or softcap of the logits");
    }
    if first.is_proven() && outcomes.iter().any(|outcome| !outcome.is_proven()) {
        hints.push(
            "right in one pass, wrong along other paths: not the definition. Compare with the noise that an f16 \
             cache has in the reference, and report it",
        );
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(found: &[f32], expected: &[f32]) -> Outcome {
        outcome(&ONE_PASS, Some(found), expected, 2, [1e-6, 1e-4])
    }

    #[test]
    fn the_first_wrong_position_points_to_its_cause() {
        let expected = [1.0, 2.0, 3.0, 1.0, 0.5, 4.0];
        let right = of(&expected, &expected);
        assert!(right.is_proven() && right.first_wrong.is_none());
        assert!(hints(&[right], 3).is_empty());
        for (at, word) in [(0, "from the first"), (1, "from the second"), (2, "later")] {
            let mut found = expected;
            found[2 * at] += 5.0;
            let wrong = of(&found, &expected);
            assert_eq!(wrong.first_wrong.map(|(at, _)| at), Some(at));
            assert!(!wrong.is_proven());
            assert!(hints(&[wrong], 3)[0].contains(word), "{word}");
        }
        let halved = expected.map(|x| x / 2.0);
        let scaled = of(&halved, &expected);
        assert_eq!(scaled.n_other_best, 0);
        assert!(
            hints(&[scaled], 3)
                .iter()
                .any(|hint| hint.contains("scale"))
        );
        let other = Outcome {
            path: "one token per pass",
            ..of(&halved, &expected)
        };
        assert!(hints(&[of(&expected, &expected), other], 3)[0].contains("not the definition"));
        assert_eq!(nmse(&[f32::NAN], &[1.0]), f64::INFINITY);
    }
}
