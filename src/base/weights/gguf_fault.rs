//! The ways in which a GGUF file can break the rules of the format.

use super::TensorType;

/// A broken rule and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {kind}{}", kind.hint())]
pub struct GgufFault {
    /// Offset of the fault in the file.
    pub offset: u64,
    pub kind: FaultKind,
}

/// The rules that a file can break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    #[error("not a GGUF file: it begins with {found:02x?}, expected `GGUF`")]
    Magic { found: [u8; 4] },
    #[error("GGUF version {found}, expected 2 or 3{}", again(*found))]
    Version { found: u32 },
    #[error("the file is big-endian, expected little-endian")]
    BigEndian,
    #[error("the file ends inside {what}: {needed} bytes needed, {left} left")]
    Truncated {
        what: String,
        needed: u64,
        left: u64,
    },
    #[error("{what} is {found}, expected at most {limit}")]
    TooMany {
        what: String,
        found: u64,
        limit: u64,
    },
    #[error("{what} is not UTF-8")]
    NotUtf8 { what: String },
    #[error("{what} is empty or holds control characters")]
    BadName { what: String },
    #[error("key `{key}` occurs twice")]
    DuplicateKey { key: String },
    #[error("key `{key}` has the unknown value type {found}, expected 0 to 12")]
    ValueType { key: String, found: u32 },
    #[error("key `{key}` holds the boolean {found}, expected 0 or 1")]
    Bool { key: String, found: u8 },
    #[error("key `{key}` nests arrays more than {limit} deep")]
    Nesting { key: String, limit: u32 },
    #[error("key `general.alignment` is of type {found}, expected u32")]
    AlignmentType { found: &'static str },
    #[error("key `general.alignment` is {found}, expected a power of two up to {limit}")]
    Alignment { found: u32, limit: u32 },
    #[error("tensor `{name}` occurs twice")]
    DuplicateTensor { name: String },
    #[error("tensor `{name}` has {found} dimensions, expected at most {limit}")]
    Dimensions {
        name: String,
        found: u32,
        limit: usize,
    },
    #[error("tensor `{name}` has a dimension of zero in its shape {shape:?}")]
    ZeroDimension { name: String, shape: Vec<u64> },
    #[error("tensor `{name}` has the unknown type {found}")]
    TensorType { name: String, found: u32 },
    #[error("tensor `{name}` has rows of {found} elements, expected a multiple of {} for {ty}", ty.block_len())]
    PartialBlock {
        name: String,
        ty: TensorType,
        found: u64,
    },
    #[error("tensor `{name}` is too large: {shape:?} of {ty}")]
    TooLarge {
        name: String,
        ty: TensorType,
        shape: Vec<u64>,
    },
    #[error("tensor `{name}` has the offset {found}, expected a multiple of {alignment}")]
    Unaligned {
        name: String,
        found: u64,
        alignment: u64,
    },
    #[error("tensor `{name}` ends at byte {end} of a file of {len} bytes")]
    OutOfFile { name: String, end: u64, len: u64 },
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap { first: String, second: String },
}

impl FaultKind {
    pub(super) fn at(self, offset: u64) -> GgufFault {
        GgufFault { offset, kind: self }
    }

    fn hint(&self) -> &'static str {
        match self {
            Self::Truncated { .. } | Self::OutOfFile { .. } => {
                "; the file was cut off: download it again"
            }
            _ => "",
        }
    }
}

/// The ways in which the parts of a split file can contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitFault {
    #[error("key `{key}` is missing or not a count")]
    Key { key: &'static str },
    #[error("key `split.count` is {found}, expected at most {limit}")]
    Count { found: u64, limit: u64 },
    #[error("key `split.no` is {found}, expected less than {count}")]
    Number { found: u64, count: u64 },
    #[error("part of {count}: a model built into the program is one file")]
    Embedded { count: u64 },
    #[error(
        "the file is part {part} of {count}, expected a name that ends in `-{part:05}-of-{count:05}.gguf`"
    )]
    Name { part: u64, count: u64 },
    #[error("the file is part {found} of {found_count}, expected part {expected} of {count}")]
    Part {
        found: u64,
        found_count: u64,
        expected: u64,
        count: u64,
    },
    #[error("the parts hold {found} tensors, expected {expected} (key `split.tensors.count`)")]
    Tensors { found: u64, expected: u64 },
    #[error("part {part} of {count} is missing: expected `{}`; all parts belong in one folder", path.display())]
    Missing {
        part: u64,
        count: u64,
        path: std::path::PathBuf,
    },
    #[error("tensor `{name}` is in part {first} and in part {second}")]
    DuplicateTensor {
        name: String,
        first: usize,
        second: usize,
    },
}

fn again(version: u32) -> &'static str {
    match version {
        1 => {
            "; the file is older than the format: convert the model again, or download a newer file"
        }
        _ => "",
    }
}
