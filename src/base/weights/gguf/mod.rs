//! The GGUF format, versions 2 and 3, little-endian: reading, writing, split files.
//!
//! A file is untrusted input: every length is checked against the remaining bytes before memory is allocated, every
//! product is checked, and a fault states the broken rule and its place. Tensor data stays in the mapped file.
//! Specification: `docs/gguf.md` of the ggml project.
//!
//! Accepted in addition to the specification: gaps between tensors, tensors without dimensions (one element), and bytes
//! that are not UTF-8 in string arrays (vocabularies have them).

mod auxiliary;
#[cfg(test)]
pub(crate) mod builder;
mod cursor;
mod open;
mod read;
mod split;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub use super::gguf_fault::{FaultKind, GgufFault, SplitFault};
pub use auxiliary::AuxiliaryKind;
pub use open::{from_static, header, open};
pub use write::{NewTensor, Sink, file_bytes, write, write_pieces};

use open::{join, parse_file};

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u32 = 1 << 20;
