//! The GGUF format, versions 2 and 3, little-endian: reading, split files, writing.
//!
//! A file is input from strangers: every length is checked against the bytes that remain before
//! anything is allocated, every product is checked, and a fault says where the file breaks which
//! rule. Tensor data stays in the mapped file. Specification: `docs/gguf.md` of the ggml project.
//!
//! Accepted beyond the specification's letter: gaps between tensors, tensors without dimensions
//! (one element), bytes that are not UTF-8 in string arrays (vocabularies have them).

mod cursor;
mod fault;
mod kind;
mod read;
mod split;
mod value;
mod write;

use std::path::Path;

pub use fault::{Fault, FaultKind, SplitFault};
pub use kind::Kind;
pub use write::{NewTensor, Sink, file_bytes, write, write_pieces};

use super::map::map;
use super::stranger;
use super::{Bytes, Error, Metadata, Source, TensorInfo, Weights};
use read::Parsed;

/// First bytes of every file.
const MAGIC: &[u8; 4] = b"GGUF";
/// Alignment of tensor data unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The largest alignment a file may ask for.
const MAX_ALIGNMENT: u32 = 1 << 20;

/// Opens a GGUF file. Opening any part of a split file opens all parts.
///
/// # Errors
/// A file that cannot be read, or any broken rule.
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

/// Metadata and tensors of a file's header, whether or not their data is there: all that is known of a
/// truncated file, or of one part of several.
///
/// # Errors
/// A file that cannot be read, or a broken header.
pub fn header(path: &Path) -> Result<(Metadata, Vec<TensorInfo>), Error> {
    let bytes = map(path)?;
    let label = path.display().to_string();
    let parsed = read::parse(&bytes, u64::MAX).map_err(|fault| refusal(&label, &bytes, fault))?;
    Ok((parsed.metadata, parsed.tensors))
}

/// Opens a GGUF file built into the program; `label` stands for its path.
///
/// The file's alignment holds relative to the start of `bytes`. Whoever embeds a file and wants
/// its tensors used in place must place `bytes` at an aligned address (`#[repr(align(64))]`);
/// otherwise devices copy them.
///
/// # Errors
/// Any broken rule. A part of a split file is refused.
pub fn from_static(label: &str, bytes: &'static [u8]) -> Result<Weights, Error> {
    let label = label.to_owned();
    let parsed = parse_file(&label, bytes)?;
    match split::count(&parsed.metadata) {
        Ok(0 | 1) => Ok(join(label, vec![(Bytes::Static(bytes), parsed)])),
        Ok(count) => {
            let fault = SplitFault::Embedded { count };
            Err(Error::Split { label, fault })
        }
        Err(fault) => Err(Error::Split { label, fault }),
    }
}

fn parse_file(label: &str, bytes: &[u8]) -> Result<Parsed, Error> {
    read::parse(bytes, bytes.len() as u64).map_err(|fault| refusal(label, bytes, fault))
}

/// The error for a malformed file: what it is instead, if that is known.
fn refusal(label: &str, bytes: &[u8], fault: Fault) -> Error {
    let is_begin = matches!(fault.kind, FaultKind::Magic { .. }) || bytes.len() < MAGIC.len();
    match stranger::of_bytes(bytes).filter(|_| is_begin) {
        Some(what) => Error::Stranger {
            label: label.to_owned(),
            what,
        },
        None => Error::Format {
            label: label.to_owned(),
            fault,
        },
    }
}

/// One model from its parts; the first part's metadata is the model's.
fn join(label: String, parts: Vec<(Bytes, Parsed)>) -> Weights {
    let mut metadata: Option<Metadata> = None;
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut sources = Vec::with_capacity(parts.len());
    for (source, (bytes, parsed)) in parts.into_iter().enumerate() {
        metadata.get_or_insert(parsed.metadata);
        let placed = parsed.tensors.into_iter();
        tensors.extend(placed.map(|tensor| TensorInfo { source, ..tensor }));
        sources.push(Source::File(bytes));
    }
    Weights::new(label, metadata.unwrap_or_default(), tensors, sources)
}

#[cfg(test)]
pub(crate) mod forge;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::forge::{Forge, array, open, sound};
    use super::*;
    use crate::weights;

    /// Opens the bytes, and reads every tensor of a file that opens.
    fn try_everything(bytes: Vec<u8>) {
        let Ok(weights) = open(bytes) else { return };
        for tensor in weights.tensors() {
            let data = weights.data(tensor).expect("it lies in the file");
            assert_eq!(data.len() as u64, tensor.bytes);
            assert!(tensor.elements() > 0);
            let (file, offset) = weights.place(tensor).expect("it lies in the file");
            assert!(offset + tensor.bytes as usize <= file.len());
        }
        let names: Vec<&str> = weights.tensors().iter().map(|t| t.name.as_str()).collect();
        let _ = weights::check(&weights, &names);
    }

    fn rich() -> Vec<u8> {
        let nested = [
            array(9, 2),
            array(7, 2),
            vec![0, 1],
            array(12, 1),
            vec![0; 8],
        ]
        .concat();
        sound()
            .key("nested", 9, &nested)
            .key("floats", 9, &[array(6, 3), vec![0; 12]].concat())
            .key("fact", 7, &[1])
            .u32("general.alignment", 32)
            .bytes()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn mutations_do_not_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            words in prop::collection::vec(
                (any::<prop::sample::Index>(), prop_oneof![
                    Just(0), Just(1), Just(u64::MAX), Just(1 << 42), Just((1 << 42) + 1),
                    Just(i64::MIN as u64), 0u64..100, any::<u64>(),
                ]),
                0..2,
            ),
            len in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = rich();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            for (at, word) in words {
                let at = at.index(bytes.len() - 8);
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            if let Some(len) = len {
                bytes.truncate(len.index(bytes.len()));
            }
            try_everything(bytes);
        }

        #[test]
        fn noise_does_not_panic(noise in prop::collection::vec(any::<u8>(), 0..256)) {
            let head = Forge { n_tensors: 2, n_keys: 2, ..Forge::new() }.bytes();
            try_everything([&head[..24], &noise].concat());
        }
    }

    /// Files of other programs, in `../shared`: they open, and written again they are the same.
    #[test]
    #[expect(clippy::print_stdout, reason = "says what was not run")]
    fn files_of_other_programs_come_back_as_they_were() {
        let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
        let named = std::env::var_os("BENCH_SHARED").map(PathBuf::from);
        if named.is_none() && !default.is_dir() {
            println!("NOT RUN: there is no shared folder beside the checkout");
            return;
        }
        let shared = named.unwrap_or(default);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut n_files, again) = (0, folder.path().join("again.gguf"));
        for part in ["zoo/dev", "golden/tokenizers/vocab"] {
            let entries = std::fs::read_dir(shared.join(part));
            let entries = entries.unwrap_or_else(|error| panic!("{part}: {error}"));
            for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
                if path.extension().is_none_or(|ending| ending != "gguf") {
                    continue;
                }
                n_files += 1;
                let weights = weights::open(&path).expect("a sound file");
                let tensors: Vec<NewTensor> = weights
                    .tensors()
                    .iter()
                    .map(|t| NewTensor {
                        name: t.name.clone(),
                        ty: t.ty,
                        shape: t.shape.clone(),
                    })
                    .collect();
                let data = |i: usize| {
                    let data = weights.data(&weights.tensors()[i]);
                    data.map_err(std::io::Error::other)
                };
                write(&again, weights.metadata(), &tensors, data).expect("a sound file");
                let (before, after) = (std::fs::read(&path), std::fs::read(&again));
                assert_eq!(before.ok(), after.ok(), "{}", path.display());
            }
        }
        println!("{n_files} files");
    }
}
