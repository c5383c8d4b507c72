//! The GGUF format, versions 2 and 3: reading, split files, writing.
//!
//! A file is input from strangers: every length is checked against the bytes that remain before
//! anything is allocated, every product is checked, and a fault says where the file breaks which
//! rule. Specification: GGUF in ggml's documentation. Tensor data stays in the mapped file.

mod fault;
mod read;
mod write;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

pub use fault::{Fault, FaultKind};
pub use write::{NewTensor, write};

use super::{Bytes, Error, Metadata, TensorInfo, Weights};
use read::Parsed;

/// First bytes of every file.
const MAGIC: &[u8; 4] = b"GGUF";
/// Alignment of tensor data unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Most parts of a split file.
const MAX_PARTS: u64 = 4096;

/// Opens a GGUF file; opening any part of a split file opens all parts.
///
/// # Errors
/// A file that cannot be read, or any broken rule.
pub fn open(path: &Path) -> Result<Weights, Error> {
    let label = path.display().to_string();
    let first = map(path)?;
    let parsed = read::parse(&first).map_err(|fault| Error::Format {
        label: label.clone(),
        fault,
    })?;
    let count = parsed.metadata.i64("split.count").unwrap_or(0);
    if count <= 1 {
        return Ok(join(label, vec![(first, parsed)]));
    }
    let fault = |kind: FaultKind| Error::Format {
        label: label.clone(),
        fault: Fault { offset: 0, kind },
    };
    let Some(count) = u64::try_from(count)
        .ok()
        .filter(|count| *count <= MAX_PARTS)
    else {
        return Err(fault(FaultKind::Split(format!(
            "`split.count` is {count}, expected at most {MAX_PARTS}"
        ))));
    };
    let mut parts = Vec::new();
    for (no, part) in part_paths(path, count)
        .map_err(|e| fault(FaultKind::Split(e)))?
        .into_iter()
        .enumerate()
    {
        let bytes = map(&part)?;
        let label = part.display().to_string();
        let parsed = read::parse(&bytes).map_err(|fault| Error::Format {
            label: label.clone(),
            fault,
        })?;
        let (found_no, found_count) = (
            parsed.metadata.i64("split.no"),
            parsed.metadata.i64("split.count"),
        );
        if found_no != Some(no as i64) || found_count != Some(count as i64) {
            let kind = FaultKind::Split(format!(
                "part {no} of {count} expected, found {found_no:?} of {found_count:?}"
            ));
            return Err(Error::Format {
                label,
                fault: Fault { offset: 0, kind },
            });
        }
        parts.push((bytes, parsed));
    }
    let total: usize = parts.iter().map(|(_, parsed)| parsed.tensors.len()).sum();
    if let Some(expected) = parsed.metadata.i64("split.tensors.count")
        && expected != total as i64
    {
        return Err(fault(FaultKind::Split(format!(
            "the parts hold {total} tensors, expected {expected}"
        ))));
    }
    let mut seen = HashMap::new();
    for (no, (_, parsed)) in parts.iter().enumerate() {
        for tensor in &parsed.tensors {
            if let Some(other) = seen.insert(tensor.name.as_str(), no) {
                let message = format!(
                    "tensor `{}` is in part {other} and in part {no}",
                    tensor.name
                );
                return Err(fault(FaultKind::Split(message)));
            }
        }
    }
    Ok(join(label, parts))
}

/// Opens a GGUF file built into the program. `bytes` that are not aligned as the file's tensors
/// are make every tensor unaligned, so that a device copies them.
///
/// # Errors
/// Any broken rule.
pub fn from_static(label: &str, bytes: &'static [u8]) -> Result<Weights, Error> {
    let parsed = read::parse(bytes).map_err(|fault| Error::Format {
        label: label.to_owned(),
        fault,
    })?;
    Ok(join(label.to_owned(), vec![(Bytes::Static(bytes), parsed)]))
}

#[expect(unsafe_code, reason = "mapping a file")]
fn map(path: &Path) -> Result<Bytes, Error> {
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(io(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            "is not a file",
        )));
    }
    if meta.len() == 0 {
        let fault = Fault {
            offset: 0,
            kind: FaultKind::Truncated {
                what: "the header".into(),
                needed: 24,
                left: 0,
            },
        };
        return Err(Error::Format {
            label: path.display().to_string(),
            fault,
        });
    }
    // SAFETY: the mapping is read-only. Another process that cuts the file short while it is
    // mapped ends this one with a bus error; that is the price of using weights where they lie.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    Ok(Bytes::Mapped(Arc::new(map)))
}

/// Paths of all parts, from the path of one: `NAME-00002-of-00005.gguf`.
fn part_paths(path: &Path, count: u64) -> Result<Vec<PathBuf>, String> {
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    let stem = name
        .strip_suffix(&format!("-of-{count:05}.gguf"))
        .and_then(|rest| rest.rsplit_once('-'))
        .filter(|(_, no)| no.len() == 5 && no.bytes().all(|b| b.is_ascii_digit()))
        .map(|(stem, _)| stem)
        .ok_or_else(|| {
            format!("a part of {count} is named `NAME-00001-of-{count:05}.gguf`, found `{name}`")
        })?;
    Ok((1..=count)
        .map(|no| path.with_file_name(format!("{stem}-{no:05}-of-{count:05}.gguf")))
        .collect())
}

fn join(label: String, parts: Vec<(Bytes, Parsed)>) -> Weights {
    let mut metadata: Option<Metadata> = None;
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut files = Vec::new();
    for (file, (bytes, parsed)) in parts.into_iter().enumerate() {
        metadata.get_or_insert(parsed.metadata);
        tensors.extend(
            parsed
                .tensors
                .into_iter()
                .map(|tensor| TensorInfo { file, ..tensor }),
        );
        files.push(bytes);
    }
    Weights::new(label, metadata.unwrap_or_default(), tensors, files)
}
