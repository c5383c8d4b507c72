//! Compares a model, on every execution path, with logits that another program computed.

use std::ops::Range;

use crate::compare::{PassOptions, ValueDifference, compare_values, record_values};
use lab_base::util::distances::{likeliest, log_probabilities, nmse};
use lab_base::weights::TensorType;
use lab_core::model::Error;
use lab_core::models::OpenedModel;
use lab_core::plan::Plan;

use super::paths::{ExecutionPath, InputTokens, ONE_PASS, PATHS, load_for_path, logits};

/// Maximum NMSE of paths that compute in f32, and of those with an f16 cache.
pub const BOUNDS: [f64; 2] = [1e-6, 1e-4];
/// Maximum NMSE of a model with f32 weights, of paths that compute in f32, if every operation and constant is the same.
const CLOSE: f64 = 1e-9;

/// The place where a path differs from one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    pub path: &'static str,
    /// The first value, in the order of computation, that differs by more than [`BOUNDS`] allows.
    pub value: ValueDifference,
    /// Whether the value is a choice: integers, such as the indices of selected experts.
    pub is_choice: bool,
}

/// Finds the first value in which the first unproven path differs from one pass, provided one pass is proven. `None`
/// for paths over several sequences, and if all values are equal.
pub fn first_divergence(
    opened: &OpenedModel,
    text: InputTokens<'_>,
    outcomes: &[PathOutcome],
    n_threads: usize,
) -> Result<Option<Divergence>, Error> {
    let of = |path: &ExecutionPath| outcomes.iter().find(|outcome| outcome.path == path.name);
    let is_wrong = |path: &&ExecutionPath| of(path).is_some_and(|outcome| !outcome.is_proven());
    let path = PATHS.iter().find(is_wrong);
    let Some(path) = path.filter(|path| !is_wrong(&&ONE_PASS) && !path.interleaved) else {
        return Ok(None);
    };
    let values = |path: &ExecutionPath| {
        let plan = opened.plan.clone();
        let Some(mut model) = load_for_path(plan, &opened.weights, text, path, n_threads, true)?
        else {
            return Ok(Vec::new());
        };
        let n = text.tokens.len();
        let passes = PassOptions {
            chunk: if path.chunk == 0 { n } else { path.chunk },
            stateless: path.stateless,
        };
        record_values(&mut model, text.tokens, passes)
    };
    let (whole, apart) = (values(&ONE_PASS)?, values(path)?);
    let bound = BOUNDS[usize::from(!path.is_exact)];
    let report = compare_values(&whole, &apart, bound);
    Ok(report.divergence(bound).map(|value| {
        let sides = || whole.iter().chain(&apart).filter(|v| v.path == value.path);
        Divergence {
            path: path.name,
            is_choice: sides().all(|side| side.elements.iter().all(|e| e.fract() == 0.0)),
            value: value.clone(),
        }
    }))
}

/// The results of another program for the same tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Reference {
    /// Logits `[n_tokens, n_vocab]`, or hidden states for a model without a head.
    Logits(Vec<f32>),
    /// The likeliest tokens after each token, with their log-probabilities in nats.
    Tops(Vec<Vec<(u32, f32)>>),
}

impl Reference {
    /// The measured error, in words.
    pub fn measure(&self) -> &'static str {
        match self {
            Self::Logits(_) => "NMSE",
            Self::Tops(_) => "largest difference of log-probabilities",
        }
    }

    /// The error over all rows, and the error of each row.
    fn errors(&self, found: &[f32], n_tokens: usize) -> (f64, Vec<f64>) {
        let width = (found.len() / n_tokens.max(1)).max(1);
        match self {
            Self::Logits(expected) => {
                let rows = found.chunks(width).zip(expected.chunks(width));
                let rows = rows.map(|(found, expected)| nmse(found, expected));
                (nmse(found, expected), rows.collect())
            }
            Self::Tops(tops) => {
                let rows = found.chunks(width).zip(tops);
                let rows = rows.map(|(found, top)| logprob_difference(found, top));
                let rows: Vec<f64> = rows.collect();
                (rows.iter().copied().fold(0.0, f64::max), rows)
            }
        }
    }

    /// The most likely token of a row.
    fn best(&self, at: usize, width: usize) -> Option<usize> {
        match self {
            Self::Logits(expected) => likeliest(expected.get(at * width..(at + 1) * width)?),
            Self::Tops(tops) => {
                let by = |a: &&(u32, f32), b: &&(u32, f32)| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0));
                tops.get(at)?.iter().max_by(by).map(|(id, _)| *id as usize)
            }
        }
    }
}

/// The maximum difference between the log-probabilities of a list and those of the same tokens in a row of logits;
/// infinite if anything is not finite.
fn logprob_difference(logits: &[f32], top: &[(u32, f32)]) -> f64 {
    let ids = top.iter().map(|(id, _)| *id);
    let pairs = log_probabilities(logits, ids).zip(top);
    let differences = pairs.map(|(found, (_, expected))| (found - f64::from(*expected)).abs());
    let finite = differences.map(|d| if d.is_finite() { d } else { f64::INFINITY });
    finite.fold(0.0, f64::max)
}

/// The comparison of a path's results with the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct PathOutcome {
    pub path: &'static str,
    /// The error over all rows, in the measure of [`Reference::measure`]; `None` if the path does not apply.
    pub error: Option<f64>,
    pub bound: f64,
    /// The first position whose error exceeds the bound, and its error.
    pub first_wrong: Option<(usize, f64)>,
    /// Whether the last position is within the bound.
    pub is_last_right: bool,
    /// Number of positions with another most likely token.
    pub n_other_best: usize,
}

impl PathOutcome {
    /// Whether the path reproduces the reference's numbers.
    pub fn is_proven(&self) -> bool {
        self.error.is_none_or(|error| error <= self.bound)
    }
}

/// Compares the rows of a path with the reference.
fn outcome(
    path: &ExecutionPath,
    found: Option<&[f32]>,
    reference: &Reference,
    n_tokens: usize,
    bounds: [f64; 2],
) -> PathOutcome {
    let bound = bounds[usize::from(!path.is_exact)];
    let (error, rows) = match found {
        Some(found) => {
            let (error, rows) = reference.errors(found, n_tokens);
            (Some(error), rows)
        }
        None => (None, Vec::new()),
    };
    let found = found.unwrap_or_default();
    let width = (found.len() / n_tokens.max(1)).max(1);
    let is_other = |(at, row): &(usize, &[f32])| likeliest(row) != reference.best(*at, width);
    let is_wrong = |error: &f64| *error > bound;
    let mut places = rows.iter().copied().enumerate();
    PathOutcome {
        path: path.name,
        error,
        bound,
        first_wrong: places.find(|(_, error)| is_wrong(error)),
        is_last_right: rows.last().is_some_and(|error| !is_wrong(error)),
        n_other_best: found.chunks(width).enumerate().filter(is_other).count(),
    }
}

/// The reason why a model cannot be compared with a reference.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    #[error(transparent)]
    Model(#[from] Error),
    /// The rows have different widths.
    #[error("the model gives {found} numbers for each token, the reference has {expected}")]
    Width { found: usize, expected: usize },
}

/// Runs a model on every path and compares the results with those of another program for the same tokens. `bounds` are
/// the maximum errors of paths that compute in f32, and of those with an f16 cache.
///
/// # Errors
/// The model does not load, a pass fails, or the rows have another width than the reference's.
pub fn prove(
    opened: &OpenedModel,
    text: InputTokens<'_>,
    reference: &Reference,
    bounds: [f64; 2],
    n_threads: usize,
    each: &mut dyn FnMut(&PathOutcome),
) -> Result<Vec<PathOutcome>, ProofError> {
    let n = text.tokens.len().max(1);
    let mut outcomes = Vec::new();
    for path in &PATHS {
        let found = logits(opened.plan.clone(), &opened.weights, text, path, n_threads)?;
        if let (Some(found), Reference::Logits(expected)) = (&found, reference)
            && found.len() != expected.len()
        {
            return Err(ProofError::Width {
                found: found.len() / n,
                expected: expected.len() / n,
            });
        }
        let outcome = outcome(path, found.as_deref(), reference, n, bounds);
        each(&outcome);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// The maximum change of the log-probabilities of the tokens in `tops` if this program's cache is f16 instead of f32:
/// the noise that a correct definition may show compared with another program.
pub fn cache_noise(
    opened: &OpenedModel,
    tokens: &[u32],
    tops: &[Vec<(u32, f32)>],
    n_threads: usize,
) -> Result<f64, Error> {
    let half = PATHS.iter().find(|path| !path.is_exact && path.chunk != 0);
    let mut rows = Vec::new();
    for path in [Some(&ONE_PASS), half].into_iter().flatten() {
        let (plan, weights) = (opened.plan.clone(), &opened.weights);
        rows.push(logits(plan, weights, tokens.into(), path, n_threads)?);
    }
    let [Some(exact), Some(half)] = rows.as_slice() else {
        return Ok(0.0);
    };
    let width = (exact.len() / tokens.len().max(1)).max(1);
    let pairs = exact.chunks(width).zip(half.chunks(width)).zip(tops);
    let moved = pairs.map(|((exact, half), top)| {
        let ids = || top.iter().map(|(id, _)| *id);
        let ours = log_probabilities(exact, ids()).map(|p| p as f32);
        logprob_difference(half, &ids().zip(ours).collect::<Vec<_>>())
    });
    Ok(moved.fold(0.0, f64::max))
}

/// The likely causes of wrong results, as in the table of docs/adding-a-model.md. A line has the first wrong position (`0!`:
/// position 0 is wrong, and the last position is right), the least and the greatest NMSE over all positions, and the causes.
const LIKELY_CAUSES: &str = "\
1 1e-2 inf pairing of rope, whole heads rotated instead of halves, no q/k norm, scale of the scores
1 0 3e-2 rope in layers that have none, base of the rope, q/k norm after instead of before the rotation
later 0 inf window one wider, or none at all
0 0.3 inf norm `after` instead of `post`, keys and values swapped, embedding scaled, `post` left out
0 3e-2 0.6 layer norm instead of RMS norm, residual scale, gate and up swapped, shared expert left out or without its gate, softmax instead of sigmoid
0 1e-3 0.3 gelu instead of silu, weights of experts not renormalised or not scaled, groups or selection bias ignored, logits not capped (same ranking)
0! 0 inf later tokens visible
0 0 1e-3 eps";

/// The entries of [`LIKELY_CAUSES`]: the first wrong position, the NMSE, the causes.
fn likely_causes() -> impl Iterator<Item = (&'static str, Range<f64>, &'static str)> {
    LIKELY_CAUSES.lines().filter_map(|line| {
        let mut parts = line.splitn(4, ' ');
        let (first, low, high) = (parts.next()?, parts.next()?, parts.next()?);
        Some((first, low.parse().ok()?..high.parse().ok()?, parts.next()?))
    })
}

/// Whether all matrices of a model are f32, so that products do not round what they multiply.
pub fn is_f32(plan: &Plan) -> bool {
    let mut matrices = plan.tensors.iter().filter(|tensor| tensor.shape.len() > 1);
    matrices.all(|tensor| tensor.ty.is_none_or(|ty| ty == TensorType::F32))
}

/// The likely causes of the pattern of wrong rows and paths, in words. If all is proven, a warning where a model with f32
/// weights (`is_f32`) is not as close as it can be; otherwise nothing.
pub fn hints(outcomes: &[PathOutcome], reference: &Reference, is_f32: bool) -> Vec<String> {
    let of = |name: &str| outcomes.iter().find(|outcome| outcome.path == name);
    let Some(first) = of(ONE_PASS.name) else {
        return Vec::new();
    };
    let mut hints: Vec<String> = Vec::new();
    // Single rows may be above the bound where all rows together are not.
    let (place, general) = match first.first_wrong.filter(|_| !first.is_proven()) {
        Some((0, _)) if first.is_last_right => {
            (Some("0!"), "wrong at the first position, right at the last")
        }
        Some((0, _)) => (
            Some("0"),
            "wrong from the first position, where attention has one key and the rotation is none: norms, scales, \
             activation, gate, router, head. `bench compare --dump` names the first value",
        ),
        Some((1, _)) => (
            Some("1"),
            "right at the first position, wrong from the second on: rotation (kind, base, dimensions), scale of the \
             scores, order of rows in q and k, heads that share keys, convolution or state of a recurrent block",
        ),
        Some(_) => (
            Some("later"),
            "right on the first positions, wrong later: window, its layers, selection of keys, base or scaling of \
             the rotation, temperature by position",
        ),
        None => (None, ""),
    };
    if let Some(place) = place {
        hints.push(general.to_owned());
        // The table is about NMSE; a difference of log-probabilities has no row in it.
        let is_nmse = matches!(reference, Reference::Logits(_));
        let nmse = first.error.filter(|_| is_nmse);
        let causes = likely_causes().filter(|(own, range, _)| {
            *own == place && nmse.is_none_or(|nmse| range.contains(&nmse))
        });
        hints.extend(causes.map(|(.., causes)| format!("seen with such a result: {causes}")));
        if first.n_other_best == 0 && place.starts_with('0') {
            hints.push("wrong numbers in the right order: scale or softcap of the logits".into());
        }
    }
    if first.is_proven() && outcomes.iter().any(|outcome| !outcome.is_proven()) {
        hints.push("right in one pass, wrong along other paths: not the definition".into());
    }
    let is_apart = first.error.is_some_and(|error| error > CLOSE) && first.is_proven();
    if is_apart && is_f32 && matches!(reference, Reference::Logits(_)) {
        hints.push(format!(
            "equal within the bound, but above {CLOSE:e}, which f32 reaches: an approximated activation, another eps or \
             constant, or a choice between nearly equal scores"
        ));
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(expected: &[f32]) -> Reference {
        Reference::Logits(expected.to_vec())
    }

    fn of(found: &[f32], expected: &[f32]) -> PathOutcome {
        outcome(&ONE_PASS, Some(found), &logits(expected), 3, [1e-6, 1e-4])
    }

    #[test]
    fn the_first_wrong_position_points_to_its_cause() {
        let expected = [1.0, 2.0, 3.0, 1.0, 0.5, 4.0];
        let reference = logits(&expected);
        let right = of(&expected, &expected);
        assert!(right.is_proven() && right.first_wrong.is_none());
        assert!(hints(&[right], &reference, true).is_empty());
        for (at, word) in [
            (0, "right at the last"),
            (1, "from the second"),
            (2, "later"),
        ] {
            let mut found = expected;
            found[2 * at] += 5.0;
            let wrong = of(&found, &expected);
            assert_eq!(wrong.first_wrong.map(|(at, _)| at), Some(at));
            assert!(!wrong.is_proven());
            assert!(
                hints(&[wrong], &reference, true)[0].contains(word),
                "{word}"
            );
        }
        let halved = expected.map(|x| x / 2.0);
        let scaled = of(&halved, &expected);
        assert_eq!(scaled.n_other_best, 0);
        let said = hints(&[scaled], &reference, true).join("\n");
        assert!(
            said.contains("scale or softcap") && said.contains("such a result: gelu"),
            "{said}"
        );
        let other = PathOutcome {
            path: "one token per pass",
            ..of(&halved, &expected)
        };
        assert!(
            hints(&[of(&expected, &expected), other], &reference, true)[0]
                .contains("not the definition")
        );
        assert_eq!(nmse(&[f32::NAN], &[1.0]), f64::INFINITY);
    }

    #[test]
    fn a_proven_path_has_no_causes_and_may_have_a_warning() {
        // The last row is above the bound by itself, and too small to count among all.
        let expected = [100.0, 200.0, 300.0, 100.0, 0.01, 0.02];
        let mut found = expected;
        found[5] = 0.0201;
        let apart = of(&found, &expected);
        assert_eq!(apart.first_wrong.map(|(at, _)| at), Some(2));
        assert!(apart.is_proven());
        let reference = logits(&expected);
        assert!(hints(&[apart], &reference, true).is_empty());
        found[0] = 100.1;
        let apart = of(&found, &expected);
        assert!(apart.is_proven());
        let said = hints(std::slice::from_ref(&apart), &reference, true);
        assert!(
            said[0].contains("above 1e-9") && said.len() == 1,
            "{said:?}"
        );
        assert!(hints(&[apart], &reference, false).is_empty());
    }

    #[test]
    fn lists_of_likely_tokens_are_compared_by_their_log_probabilities() {
        let found = [0.0, 1.0, 2.0, 3.0, 0.0, 0.0];
        let row = |row: &[f32]| -> Vec<(u32, f32)> {
            let all = log_probabilities(row, 0..2).map(|p| p as f32);
            (0..2).zip(all).collect()
        };
        let tops: Vec<Vec<(u32, f32)>> = found.chunks(2).map(row).collect();
        let of = |tops: &[Vec<(u32, f32)>]| {
            let reference = Reference::Tops(tops.to_vec());
            outcome(&ONE_PASS, Some(&found), &reference, 3, [1e-3, 1e-3])
        };
        // Logits differ from log-probabilities by a constant per row, which does not count.
        let right = of(&tops);
        assert!(
            right.is_proven() && right.n_other_best == 0 && right.error.is_some_and(|e| e < 1e-6)
        );
        let mut wrong = tops.clone();
        wrong[1][0].1 -= 0.5;
        let wrong = of(&wrong);
        assert_eq!(wrong.first_wrong.map(|(at, _)| at), Some(1));
        assert!(wrong.error.is_some_and(|error| (error - 0.5).abs() < 1e-6));
        // A token outside the row, and a row with NaN.
        assert_eq!(logprob_difference(&[1.0], &[(7, -1.0)]), f64::INFINITY);
        assert_eq!(
            logprob_difference(&[f32::NAN, 1.0], &[(1, 0.0)]),
            f64::INFINITY
        );
    }

    #[test]
    fn likely_causes_are_those_of_the_guide() {
        let guide = include_str!("../../docs/adding-a-model.md");
        assert_eq!(likely_causes().count(), LIKELY_CAUSES.lines().count());
        for (.., causes) in likely_causes() {
            assert!(guide.contains(&format!("| {causes} |\n")), "{causes}");
        }
    }
}
