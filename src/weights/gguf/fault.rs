//! How a GGUF file can break the rules.

/// A broken rule and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {kind}")]
pub struct Fault {
    /// Offset in the file.
    pub offset: u64,
    /// Which rule.
    pub kind: FaultKind,
}

/// The rules a file can break.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each is")]
pub enum FaultKind {
    #[error("not a GGUF file: it begins with {found}, expected `GGUF`")]
    Magic { found: String },
    #[error("unsupported GGUF version {found}: expected 2 or 3")]
    Version { found: u32 },
    #[error("the file is big-endian, which is not supported")]
    BigEndian,
    #[error("the file ends inside {what}: {needed} bytes needed, {left} left")]
    Truncated {
        what: String,
        needed: u64,
        left: u64,
    },
    #[error("{what}: {found} is more than the limit of {limit}")]
    TooMany {
        what: String,
        found: u64,
        limit: u64,
    },
    #[error("{what} is not UTF-8")]
    NotUtf8 { what: String },
    #[error("{what} is empty or holds a zero byte")]
    BadName { what: String },
    #[error("key `{key}` occurs twice")]
    DuplicateKey { key: String },
    #[error("key `{key}`: unknown value type {found}: expected 0 to 12")]
    ValueType { key: String, found: u32 },
    #[error("key `{key}`: a boolean is {found}, expected 0 or 1")]
    Bool { key: String, found: u8 },
    #[error("key `{key}`: arrays are nested more than {limit} deep")]
    Nesting { key: String, limit: u32 },
    #[error("`general.alignment` is {found}: expected a u32, a power of two up to {limit}")]
    Alignment { found: String, limit: u64 },
    #[error("tensor `{name}` occurs twice")]
    DuplicateTensor { name: String },
    #[error("tensor `{name}`: {found} dimensions: expected 1 to 4")]
    Dimensions { name: String, found: u32 },
    #[error("tensor `{name}`: a dimension is zero in {shape:?}")]
    ZeroDimension { name: String, shape: Vec<u64> },
    #[error("tensor `{name}`: unknown element type {found}")]
    TensorType { name: String, found: u32 },
    #[error(
        "tensor `{name}`: {shape:?} of {ty} is no whole number of blocks of {block}, or too large"
    )]
    Size {
        name: String,
        shape: Vec<u64>,
        ty: String,
        block: u64,
    },
    #[error("tensor `{name}`: its offset {found} is not a multiple of the alignment {alignment}")]
    Unaligned {
        name: String,
        found: u64,
        alignment: u64,
    },
    #[error("tensor `{name}` ends at byte {end} of a file of {len} bytes")]
    OutOfFile { name: String, end: u64, len: u64 },
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap { first: String, second: String },
    #[error("{0}")]
    Split(String),
}
