//! Compares two computations of the same tokens and finds the first value, in the order of computation, that differs.
//!
//! A computation is a list of named values. It comes from a model run on an execution path, or from a folder of arrays
//! that another engine wrote. Values that only one side has do not count, but are reported.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use lab_base::util::distances::{first_difference, kl_divergence, likeliest, rms};
use lab_core::artifacts::npy;
use lab_core::model::{self, Batch, Model, NamedValue};

use super::paths;

/// The passes in which tokens are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassOptions {
    /// Tokens per pass; at least 1.
    pub chunk: usize,
    /// Whether each pass computes all earlier tokens again.
    pub stateless: bool,
}

/// The error of a recorded computation that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {message}")]
pub struct DumpError {
    pub file: String,
    pub message: String,
}

/// Runs `tokens` and returns the values by path. Values of several passes are joined.
///
/// The model must have been loaded with `capture`.
pub fn record_values(
    model: &mut Model,
    tokens: &[u32],
    passes: PassOptions,
) -> Result<Vec<NamedValue>, model::Error> {
    let mut joined: Vec<NamedValue> = Vec::new();
    let n = tokens.len();
    let mut batch = Batch::default();
    for (first, start, end) in paths::passes(n, passes.chunk, passes.stateless) {
        batch.clear();
        for (position, token) in (0..).zip(tokens).take(end).skip(first) {
            batch.push(*token, 0, position, true);
        }
        model.forward(&batch)?;
        let values = model.values()?;
        if start == 0 {
            joined = values;
            continue;
        }
        let n_pass = end - first;
        for value in values.into_iter().filter(|value| value.is_per_token) {
            // Rows that were computed again are dropped, new rows are appended.
            let row = value.elements.len() / n_pass;
            let new = &value.elements[(start - first) * row..];
            if let Some(all) = joined.iter_mut().find(|v| v.path == value.path) {
                all.elements.extend_from_slice(new);
            }
        }
    }
    if passes.chunk < n {
        joined.retain(|value| value.is_per_token);
    }
    for value in &mut joined {
        let rows = value.elements.len() as u64;
        let row = value.shape[..value.shape.len() - 1].iter().product::<u64>();
        // In a pass of one token, shapes lack the dimension of the tokens.
        if passes.chunk < n && value.shape.iter().product::<u64>() != rows {
            if passes.chunk > 1 {
                value.shape.pop();
                value.shape.push(rows / row.max(1));
            } else {
                value.shape.push(n as u64);
            }
        }
    }
    Ok(joined)
}

/// Reads a folder of float32 arrays, one `NAME.npy` for each value. A name is a path of this project, or llama.cpp's
/// name of a value (`l_out-3`).
///
/// # Errors
/// The folder has no arrays, or an array is not float32.
pub fn read_dump(folder: &Path) -> Result<Vec<NamedValue>, DumpError> {
    let fault = |path: &Path, message: &dyn std::fmt::Display| DumpError {
        file: path.display().to_string(),
        message: message.to_string(),
    };
    let entries = std::fs::read_dir(folder).map_err(|e| fault(folder, &e))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_array = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "npy");
    let mut files: Vec<PathBuf> = paths.filter(is_array).collect();
    files.sort();
    if files.is_empty() {
        return Err(fault(folder, &"holds no arrays (NAME.npy)"));
    }
    let read = |path: &PathBuf| read_array(path).map_err(|e| fault(path, &e));
    files.iter().map(read).collect()
}

fn read_array(path: &Path) -> Result<NamedValue, npy::Error> {
    let npy::NpyArray {
        mut shape,
        elements,
    } = npy::read(path)?;
    shape.reverse();
    let stem = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned());
    Ok(NamedValue {
        path: stem.unwrap_or_default(),
        shape,
        is_per_token: true,
        elements,
    })
}

/// llama.cpp's names of the values of a layer, and the corresponding values here: of the first slot, of the last, or of
/// any.
const NAMES: &[(&str, SlotValue)] = &[
    ("attn_norm", SlotValue::First("in")),
    ("ffn_inp", SlotValue::First("x")),
    ("ffn_norm", SlotValue::Last("in")),
    ("ffn_out", SlotValue::Last("out")),
    ("l_out", SlotValue::Last("x")),
    ("Qcur", SlotValue::Any("q")),
    ("Kcur", SlotValue::Any("k")),
    ("Vcur", SlotValue::Any("v")),
    ("kqv_out", SlotValue::Any("heads")),
    ("ffn_swiglu", SlotValue::Any("hidden")),
    ("ffn_moe_logits", SlotValue::Any("router")),
    ("ffn_moe_topk", SlotValue::Any("picked")),
];

/// llama.cpp's names of values outside the layers, and the paths here.
const GLOBAL_NAMES: &[(&str, &str)] = &[
    ("inp_embd", "embed.x"),
    ("embd", "embed.x"),
    ("result_norm", "head.norm"),
    ("result_output", "head.logits"),
];

#[derive(Clone, Copy)]
enum SlotValue {
    First(&'static str),
    Last(&'static str),
    Any(&'static str),
}

/// The path here for llama.cpp's name of a value, among the paths of a computation.
fn translate(name: &str, paths: &[&str]) -> Option<String> {
    if let Some((_, path)) = GLOBAL_NAMES.iter().find(|(theirs, _)| *theirs == name) {
        return Some((*path).to_owned());
    }
    let (stem, layer) = name.rsplit_once('-')?;
    let (_, place) = NAMES.iter().find(|(theirs, _)| *theirs == stem)?;
    let prefix = format!("layers.{}.", layer.parse::<u64>().ok()?);
    // The path of a slot's own value has no further part between slot and value.
    let of_slot = |value: &str| {
        let paths = paths.iter().filter(move |path| {
            path.strip_prefix(&prefix)
                .and_then(|rest| rest.split_once('.'))
                .is_some_and(|(_, last)| last == value)
        });
        paths.copied().collect::<Vec<&str>>()
    };
    let found = match place {
        SlotValue::First(value) => of_slot(value).first().copied(),
        SlotValue::Last(value) => of_slot(value).last().copied(),
        SlotValue::Any(value) => match of_slot(value).as_slice() {
            [only] => Some(*only),
            _ => None,
        },
    };
    found.map(str::to_owned)
}

/// The difference of a value between two computations.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueDifference {
    pub path: String,
    /// The shape of the value, fastest dimension first.
    pub shape: Vec<u64>,
    /// Sum of squared differences over sum of squares of the finite elements of the second computation; 0 if all
    /// elements are equal, otherwise infinite if that is not a finite number, such as with NaN on a side.
    pub nmse: f64,
    /// Root mean square of the finite elements of each side.
    pub rms: [f64; 2],
    /// The first element that differs by more than the tolerance allows: its index and both values.
    pub first: Option<(usize, f32, f32)>,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueComparison {
    /// Values that both sides have, in the order of computation.
    pub values: Vec<ValueDifference>,
    /// Values that only one side has, or whose numbers of elements differ: side and name.
    pub left_out: Vec<(&'static str, String)>,
}

impl ValueComparison {
    /// The first value whose NMSE is above the tolerance.
    pub fn divergence(&self, tolerance: f64) -> Option<&ValueDifference> {
        self.values.iter().find(|value| value.nmse > tolerance)
    }
}

/// Compares two computations in the order of the first one.
pub fn compare_values(a: &[NamedValue], b: &[NamedValue], tolerance: f64) -> ValueComparison {
    let paths: Vec<&str> = a.iter().map(|value| value.path.as_str()).collect();
    let mut others: HashMap<String, &NamedValue> = HashMap::new();
    let mut report = ValueComparison::default();
    for value in b {
        let path = if paths.contains(&value.path.as_str()) {
            Some(value.path.clone())
        } else {
            translate(&value.path, &paths)
        };
        match path {
            Some(path) => _ = others.insert(path, value),
            None => report.left_out.push(("B", value.path.clone())),
        }
    }
    for value in a {
        match others.get(&value.path) {
            Some(other) if other.elements.len() == value.elements.len() => {
                report.values.push(difference(value, other, tolerance));
            }
            _ => report.left_out.push(("A", value.path.clone())),
        }
    }
    report
}

fn difference(a: &NamedValue, b: &NamedValue, tolerance: f64) -> ValueDifference {
    let (nmse, first) = first_difference(&a.elements, &b.elements, tolerance);
    ValueDifference {
        path: a.path.clone(),
        shape: a.shape.clone(),
        nmse,
        rms: [rms(&a.elements), rms(&b.elements)],
        first: first.map(|at| (at, a.elements[at], b.elements[at])),
    }
}

/// Kullback-Leibler divergences of B's next-token distributions from A's, in nats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KlDivergence {
    /// Number of compared positions.
    pub positions: usize,
    pub mean: f64,
    pub max: f64,
    /// Number of positions at which both have the same likeliest token.
    pub same_top: usize,
}

impl fmt::Display for KlDivergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "KL divergence over {} positions: mean {:.3e}, max {:.3e}; the same likeliest token at {}",
            self.positions, self.mean, self.max, self.same_top
        )
    }
}

/// The divergence of the logits of `b` from those of `a`, position by position; `None` if a side has no logits or the
/// shapes differ.
pub fn divergence(a: &[NamedValue], b: &[NamedValue]) -> Option<KlDivergence> {
    let logits = |side: &[NamedValue]| side.iter().position(|value| value.path == model::LOGITS);
    let (a, b) = (&a[logits(a)?], &b[logits(b)?]);
    let width = usize::try_from(*a.shape.first()?).ok().filter(|n| *n > 0)?;
    if a.shape != b.shape || a.elements.len() != b.elements.len() || a.elements.is_empty() {
        return None;
    }
    let rows = a.elements.chunks_exact(width);
    let rows = rows.zip(b.elements.chunks_exact(width));
    let each: Vec<f64> = rows.clone().map(|(p, q)| kl_divergence(p, q)).collect();
    Some(KlDivergence {
        positions: each.len(),
        mean: each.iter().sum::<f64>() / each.len() as f64,
        max: each.iter().copied().fold(0.0, f64::max),
        same_top: rows.filter(|(p, q)| likeliest(p) == likeliest(q)).count(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(path: &str, elements: &[f32]) -> NamedValue {
        NamedValue {
            path: path.into(),
            shape: vec![elements.len() as u64],
            is_per_token: true,
            elements: elements.into(),
        }
    }

    #[test]
    fn the_first_value_that_differs_is_named() {
        let a = [
            value("embed.x", &[1.0, 2.0]),
            value("layers.0.attn.q", &[1.0, 2.0, 3.0]),
            value("layers.0.ffn.x", &[1.0]),
        ];
        let b = [
            value("layers.0.ffn.x", &[5.0]),
            value("layers.0.attn.q", &[1.0, 2.5, 3.0]),
            value("embed.x", &[1.0, 2.0]),
            value("strange", &[0.0]),
        ];
        let report = compare_values(&a, &b, 1e-6);
        let found = report.divergence(1e-6).expect("they differ");
        assert_eq!(found.path, "layers.0.attn.q");
        assert_eq!(found.first, Some((1, 2.0, 2.5)));
        assert_eq!(report.left_out, [("B", "strange".to_owned())]);
        assert_eq!(
            report.divergence(0.1).map(|d| d.path.as_str()),
            Some("layers.0.ffn.x")
        );
    }

    #[test]
    fn nan_differs_from_everything_and_equal_infinities_are_equal() {
        let nmse = |x: &[f32], y: &[f32]| {
            compare_values(&[value("v", x)], &[value("v", y)], 0.0).values[0].nmse
        };
        assert_eq!(nmse(&[f32::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(nmse(&[f32::NAN], &[f32::NAN]), f64::INFINITY);
        assert_eq!(
            nmse(&[f32::NEG_INFINITY, 1.0], &[f32::NEG_INFINITY, 1.0]),
            0.0
        );
    }

    #[test]
    fn names_of_llama_cpp_are_translated() {
        let paths = [
            "embed.x",
            "layers.3.attn.in",
            "layers.3.attn.q",
            "layers.3.attn.x",
            "layers.3.ffn.in",
            "layers.3.ffn.shared.hidden",
            "layers.3.ffn.out",
            "layers.3.ffn.x",
            "layers.13.ffn.x",
        ];
        let found = |name| translate(name, &paths);
        assert_eq!(found("l_out-3").as_deref(), Some("layers.3.ffn.x"));
        assert_eq!(found("ffn_inp-3").as_deref(), Some("layers.3.attn.x"));
        assert_eq!(found("attn_norm-3").as_deref(), Some("layers.3.attn.in"));
        assert_eq!(found("Qcur-3").as_deref(), Some("layers.3.attn.q"));
        assert_eq!(found("inp_embd").as_deref(), Some("embed.x"));
        assert_eq!(found("l_out-4"), None);
        assert_eq!(found("l_out-x"), None);
    }

    #[test]
    fn distributions_are_compared_position_by_position() {
        let logits = |rows: &[&[f32]]| {
            vec![NamedValue {
                shape: vec![rows[0].len() as u64, rows.len() as u64],
                ..value(model::LOGITS, &rows.concat())
            }]
        };
        let (p, q) = ([1.0f32, 2.0, -0.5], [2.5f32, 0.5, 0.0]);
        let found = divergence(&logits(&[&p, &p]), &logits(&[&q, &p])).expect("logits");
        assert_eq!((found.positions, found.same_top), (2, 1));
        assert_eq!(found.max, kl_divergence(&p, &q));
        assert!((found.mean - found.max / 2.0).abs() < 1e-12, "{found:?}");
        assert_eq!(divergence(&logits(&[&p]), &logits(&[&[1.0, 2.0]])), None);
        assert_eq!(divergence(&[], &logits(&[&p])), None);
    }
}
