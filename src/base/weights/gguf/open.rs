//! Opens GGUF files, whole or split, on disk or built into the program.

use std::path::Path;

use super::super::map::map;
use super::super::{DataSource, Error, FileBytes, Metadata, TensorInfo, Weights, sniff};
use super::read::{self, ParsedHeader};
use super::{FaultKind, GgufFault, MAGIC, SplitFault, split};

/// Opens a GGUF file. Opening any part of a split file opens all parts.
pub fn open(path: &Path) -> Result<Weights, Error> {
    let label = path.display().to_string();
    let bytes = map(path)?;
    let parsed = parse_file(&label, &bytes)?;
    match split::count(&parsed.metadata) {
        Ok(0 | 1) => Ok(join(label, vec![(bytes, parsed)])),
        Ok(count) => split::open(path, (bytes, parsed), count),
        Err(fault) => Err(Error::Split { label, fault }),
    }
}

/// Metadata and tensors of a file's header, whether the data exists or not, for truncated files and single parts of
/// split files.
pub fn header(path: &Path) -> Result<(Metadata, Vec<TensorInfo>), Error> {
    let bytes = map(path)?;
    let label = path.display().to_string();
    let parsed = read::parse(&bytes, u64::MAX).map_err(|fault| refusal(&label, &bytes, fault))?;
    Ok((parsed.metadata, parsed.tensors))
}

/// Opens a GGUF file built into the program; `label` takes the place of its path.
///
/// The file's alignment is relative to the start of `bytes`. To let devices use the tensors in place, `bytes` must be
/// at an aligned address (`#[repr(align(64))]`); otherwise devices copy them.
///
/// # Errors
/// The file breaks a rule of the format, or is a part of a split file.
pub fn from_static(label: &str, bytes: &'static [u8]) -> Result<Weights, Error> {
    let label = label.to_owned();
    let parsed = parse_file(&label, bytes)?;
    match split::count(&parsed.metadata) {
        Ok(0 | 1) => Ok(join(label, vec![(FileBytes::Static(bytes), parsed)])),
        Ok(count) => {
            let fault = SplitFault::Embedded { count };
            Err(Error::Split { label, fault })
        }
        Err(fault) => Err(Error::Split { label, fault }),
    }
}

pub(super) fn parse_file(label: &str, bytes: &[u8]) -> Result<ParsedHeader, Error> {
    read::parse(bytes, bytes.len() as u64).map_err(|fault| refusal(label, bytes, fault))
}

/// The error for a malformed file: its actual format, if known.
fn refusal(label: &str, bytes: &[u8], fault: GgufFault) -> Error {
    let is_begin = matches!(fault.kind, FaultKind::Magic { .. }) || bytes.len() < MAGIC.len();
    match sniff::identify(bytes).filter(|_| is_begin) {
        Some(what) => Error::OtherFormat {
            label: label.to_owned(),
            what,
        },
        None => Error::Format {
            label: label.to_owned(),
            fault,
        },
    }
}

/// Joins the parts of a model; the metadata is that of the first part.
pub(super) fn join(label: String, parts: Vec<(FileBytes, ParsedHeader)>) -> Weights {
    let mut metadata: Option<Metadata> = None;
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut sources = Vec::with_capacity(parts.len());
    for (source, (bytes, parsed)) in parts.into_iter().enumerate() {
        metadata.get_or_insert(parsed.metadata);
        let placed = parsed.tensors.into_iter();
        tensors.extend(placed.map(|tensor| TensorInfo { source, ..tensor }));
        sources.push(DataSource::File(bytes));
    }
    Weights::new(label, metadata.unwrap_or_default(), tensors, sources)
}
