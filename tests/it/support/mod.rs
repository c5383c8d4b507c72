//! Helpers of several tests: the shared oracles, NPY and NPZ, error measures, execution paths, walks of a
//! graph. How the program is run stands in `command`.

pub mod command;
pub mod hf;
pub mod memory_tensor;
#[cfg(target_os = "linux")]
pub mod process;
pub mod published_heads;
pub mod refusals;
pub mod server;
pub mod sources;
pub mod unlike_heads;
pub mod vocabulary;

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lab_base::ggml::{GraphOp, OpSource};
use lab_base::weights::{TensorType, Weights};
use lab_core::arch::{ArchDef, Mode};
use lab_core::model::{Batch, Model, Options, SequenceMedia};
use lab_core::plan::Plan;
use lab_inspect::paths;
pub use lab_inspect::paths::ExecutionPath;

/// A folder of the oracles in `../shared`, or where `BENCH_SHARED` says. None, with a line that
/// says so, if there are no oracles at all.
///
/// # Panics
/// There are oracles, or `BENCH_SHARED` or `CI` promises them, and this folder is not among them: a test must
/// not pass because what it compares with is missing.
pub fn shared(part: &str) -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let named = std::env::var_os("BENCH_SHARED").map(PathBuf::from);
    if named.is_none() && !default.is_dir() {
        assert!(
            std::env::var_os("CI").is_none(),
            "no ../shared/{part} in CI"
        );
        println!("NOT RUN: there is no ../shared/{part}");
        return None;
    }
    let folder = named.unwrap_or(default).join(part);
    assert!(folder.is_dir(), "there is no {}", folder.display());
    Some(folder)
}

/// An array of an NPY file: f32 or i32 values as f64.
#[derive(Debug, Clone)]
pub struct Array {
    pub values: Vec<f64>,
}

pub fn parse_npy(bytes: &[u8]) -> Array {
    assert_eq!(&bytes[..6], b"\x93NUMPY");
    let header_len = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = std::str::from_utf8(&bytes[10..10 + header_len]).expect("NPY headers are ASCII");
    assert!(header.contains("'fortran_order': False"), "{header}");
    let inner = header
        .split_once("'shape': (")
        .and_then(|(_, rest)| rest.split_once(')'))
        .expect("a shape")
        .0;
    let shape: Vec<usize> = inner
        .split(',')
        .filter_map(|n| n.trim().parse().ok())
        .collect();
    let data = &bytes[10 + header_len..];
    let four = |c: &[u8]| [c[0], c[1], c[2], c[3]];
    let values: Vec<f64> = if header.contains("'<f4'") {
        data.chunks_exact(4)
            .map(|c| f32::from_le_bytes(four(c)).into())
            .collect()
    } else if header.contains("'<i4'") {
        data.chunks_exact(4)
            .map(|c| i32::from_le_bytes(four(c)).into())
            .collect()
    } else {
        panic!("unexpected NPY type: {header}");
    };
    assert_eq!(values.len(), shape.iter().product::<usize>());
    Array { values }
}

/// An array of an NPZ file, if it has one of that name.
pub fn read_npz(path: &Path, name: &str) -> Option<Array> {
    let file = std::fs::File::open(path).expect("the reference is readable");
    let mut archive = zip::ZipArchive::new(file).expect("an NPZ is a zip archive");
    let mut entry = archive.by_name(&format!("{name}.npy")).ok()?;
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).expect("the archive is whole");
    Some(parse_npy(&bytes))
}

/// Sum of squared differences over sum of squared reference values; infinite if anything is not
/// finite.
pub fn nmse(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let (mut error, mut power) = (0.0, 0.0);
    for (f, e) in found.iter().zip(expected) {
        error += (f64::from(*f) - e).powi(2);
        power += e.powi(2);
    }
    if error.is_finite() {
        error / power
    } else {
        f64::INFINITY
    }
}

/// The middle of the rows' own errors. Where a router chooses experts, rounding keys and values may
/// tip a choice that is nearly a tie: that moves the rows after it by a jump of the model's, not by
/// an error of ours, and leaves the others where they are.
pub fn middle_nmse(found: &[f32], expected: &[f64], width: usize) -> f64 {
    let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
    let mut errors: Vec<f64> = rows
        .map(|(found, expected)| nmse(found, expected))
        .collect();
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

/// Rows of `width` whose largest element is another than the reference's, although the reference
/// tells the two apart by more than four times what `bound` allows an element to differ by.
pub fn flips(found: &[f32], expected: &[f64], width: usize, bound: f64) -> usize {
    let power = expected.iter().map(|e| e * e).sum::<f64>() / expected.len() as f64;
    let tolerance = 4.0 * (bound * power).sqrt();
    let largest = |row: &mut dyn Iterator<Item = f64>| {
        let best = row.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        best.map_or(0, |(at, _)| at)
    };
    let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
    rows.filter(|(found, expected)| {
        let ours = largest(&mut found.iter().map(|v| f64::from(*v)));
        let theirs = largest(&mut expected.iter().copied());
        expected[theirs] - expected[ours] > tolerance
    })
    .count()
}

const EXACT: ExecutionPath = paths::ONE_PASS;

pub const PATHS: [ExecutionPath; 10] = [
    EXACT,
    ExecutionPath {
        name: "chunk 1",
        chunk: 1,
        ..EXACT
    },
    ExecutionPath {
        name: "chunk 7",
        chunk: 7,
        ..EXACT
    },
    ExecutionPath {
        name: "stateless",
        stateless: true,
        ..EXACT
    },
    ExecutionPath {
        name: "two sequences",
        chunk: 5,
        interleaved: true,
        ..EXACT
    },
    ExecutionPath {
        name: "flash, f32 cache",
        chunk: 7,
        flash_attn: true,
        ..EXACT
    },
    ExecutionPath {
        name: "f16 cache",
        chunk: 7,
        kv_type: TensorType::F16,
        is_exact: false,
        ..EXACT
    },
    ExecutionPath {
        name: "flash, f16 cache",
        chunk: 7,
        kv_type: TensorType::F16,
        flash_attn: true,
        is_exact: false,
        ..EXACT
    },
    ExecutionPath {
        name: "q8_0 cache",
        chunk: 7,
        kv_type: TensorType::Q8_0,
        is_exact: false,
        ..EXACT
    },
    ExecutionPath {
        name: "flash, q4_0 cache",
        chunk: 7,
        kv_type: TensorType::Q4_0,
        flash_attn: true,
        is_exact: false,
        ..EXACT
    },
];

/// The media of a text.
#[derive(Clone, Debug)]
pub struct TextMedia {
    pub set: Arc<SequenceMedia>,
    /// Tokens that one pass must read, because they attend to later ones.
    pub whole: Vec<Range<usize>>,
}

impl TextMedia {
    /// The end of a pass that shall read the tokens before `end`.
    pub fn end_of_pass(&self, end: usize) -> usize {
        let mut whole = self.whole.iter();
        let cut = whole.find(|whole| whole.start < end && end < whole.end);
        cut.map_or(end, |whole| whole.end)
    }
}

/// What a model reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct InputTokens<'a> {
    pub tokens: &'a [u32],
    /// The tokens of the source; empty if the model reads none.
    pub source: &'a [u32],
    pub media: Option<&'a TextMedia>,
}

impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for InputTokens<'a> {
    fn from(tokens: &'a T) -> Self {
        Self {
            tokens: tokens.as_ref(),
            ..Self::default()
        }
    }
}

/// Logits of every token, `[n_tokens, n_vocab]`, along a path; `None` if the model's heads are no
/// whole blocks of the path's cache type.
pub fn logits<'a>(
    def: &ArchDef,
    weights: &Weights,
    text: impl Into<InputTokens<'a>>,
    path: &ExecutionPath,
) -> Option<Result<Vec<f32>, String>> {
    results(def, weights, text, path, Output::Logits)
}

/// A request to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The logits of every token.
    Logits,
    /// The hidden states of every token after the final norm.
    Hidden,
    /// The vector of the sequence, or the scores of its classes.
    Pooled,
}

/// As `logits`, or something else that a model gives.
pub fn results<'a>(
    def: &ArchDef,
    weights: &Weights,
    text: impl Into<InputTokens<'a>>,
    path: &ExecutionPath,
    output: Output,
) -> Option<Result<Vec<f32>, String>> {
    let plan = match Plan::new(def, weights.metadata(), weights) {
        Ok(plan) => plan,
        Err(error) => return Some(Err(error.to_string())),
    };
    let InputTokens {
        tokens,
        source,
        media,
    } = text.into();
    // Where tokens attend to each other, a part of them is another computation.
    if plan.mode != Mode::Causal && path.chunk != 0 {
        return None;
    }
    let (n, n_vocab) = (tokens.len(), plan.n_vocab as u32);
    let options = Options {
        n_ctx: if path.stateless { 0 } else { 512 },
        n_ctx_seq: if path.stateless { n } else { 0 },
        n_seqs: 2,
        k_type: path.kv_type,
        v_type: path.kv_type,
        flash_attn: path.flash_attn,
        embeddings: output != Output::Logits,
        ..Options::plain(0, 2 * n.max(source.len()))
    };
    let mut model = match Model::load(plan, weights, options, &mut |_, _| {}) {
        Ok(model) => model,
        Err(lab_core::model::Error::CacheType { .. }) => return None,
        Err(error) => return Some(Err(error.to_string())),
    };
    if !source.is_empty()
        && let Err(error) = model.set_default_source(source)
    {
        return Some(Err(error.to_string()));
    }
    if let Some(media) = media {
        model.set_media(0, Arc::clone(&media.set));
    }
    // Another source, which changes nothing of the first sequence.
    if path.interleaved && model.reads_source() {
        let other: Vec<u32> = source.iter().map(|token| (token + 1) % n_vocab).collect();
        model.set_source(1, &other[1..]).expect("it reads a source");
    }
    let chunk = if path.chunk == 0 { n } else { path.chunk };
    let mut out = Vec::new();
    let mut start = 0;
    while start < n {
        let end = (start + chunk).min(n);
        let end = media.map_or(end, |media| media.end_of_pass(end));
        let mut batch = Batch::default();
        let rows = tokens.iter().enumerate().take(end).skip(start);
        start = end;
        for (i, &token) in rows {
            if path.interleaved {
                batch.push((token + 1) % n_vocab, 1, i as u32, false);
            }
            batch.push(token, 0, i as u32, true);
        }
        match model.forward(&batch) {
            Ok(logits) => out.extend_from_slice(logits),
            Err(error) => return Some(Err(error.to_string())),
        }
    }
    if output == Output::Pooled {
        return Some(model.pool(&out).map_err(|error| error.to_string()));
    }
    Some(Ok(out))
}

/// What a value is made of, behind operations that `is_seen_through`.
pub fn behind(
    steps: &[GraphOp],
    origin: &OpSource,
    is_seen_through: impl Fn(&GraphOp) -> bool + Copy,
) -> OpSource {
    match origin {
        OpSource::Op(at) if is_seen_through(&steps[*at]) => {
            behind(steps, &steps[*at].sources[0], is_seen_through)
        }
        other => other.clone(),
    }
}
