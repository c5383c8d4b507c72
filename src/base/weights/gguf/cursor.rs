//! A position in the bytes of a file. Every read is checked against the remaining bytes before memory is allocated; the
//! error of a failed read states the position and the value that was read.

use std::fmt;

use super::{FaultKind, GgufFault};

/// The value that is being read; it becomes text only in a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field<'a> {
    Header,
    KeyName(u64),
    Key(&'a str),
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("the header"),
            Self::KeyName(i) => write!(f, "the name of key {i}"),
            Self::Key(key) => write!(f, "key `{key}`"),
            Self::TensorName(i) => write!(f, "the name of tensor {i}"),
            Self::Tensor(name) => write!(f, "tensor `{name}`"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    pub(super) fn take(&mut self, len: u64, what: Field<'_>) -> Result<&'a [u8], GgufFault> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len));
        let Some(taken) = taken else {
            let kind = FaultKind::Truncated {
                what: what.to_string(),
                needed: len,
                left: rest.len() as u64,
            };
            return Err(self.fault(kind));
        };
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn number<const N: usize>(&mut self, what: Field<'_>) -> Result<[u8; N], GgufFault> {
        let bytes = self.take(N as u64, what)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    pub(super) fn numbers<const N: usize, T>(
        &mut self,
        what: Field<'_>,
        len: u64,
        from: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufFault> {
        let bytes = self.take(len.saturating_mul(N as u64), what)?;
        let (numbers, _) = bytes.as_chunks::<N>();
        Ok(numbers.iter().map(|number| from(*number)).collect())
    }

    pub(super) fn u32(&mut self, what: Field<'_>) -> Result<u32, GgufFault> {
        self.number(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: Field<'_>) -> Result<u64, GgufFault> {
        self.number(what).map(u64::from_le_bytes)
    }

    pub(super) fn count(
        &mut self,
        noun: &str,
        what: Field<'_>,
        limit: u64,
    ) -> Result<u64, GgufFault> {
        let offset = self.at();
        let found = self.u64(what)?;
        if found > limit {
            return Err(FaultKind::TooMany {
                what: format!("the number of {noun} in {what}"),
                found,
                limit,
            }
            .at(offset));
        }
        Ok(found)
    }

    /// A string of at most `limit` arbitrary bytes.
    pub(super) fn string(&mut self, what: Field<'_>, limit: u64) -> Result<&'a [u8], GgufFault> {
        let len = self.count("bytes", what, limit)?;
        self.take(len, what)
    }

    pub(super) fn text(&mut self, what: Field<'_>, limit: u64) -> Result<&'a str, GgufFault> {
        let offset = self.at();
        let bytes = self.string(what, limit)?;
        std::str::from_utf8(bytes).map_err(|_| GgufFault {
            offset,
            kind: FaultKind::NotUtf8 {
                what: what.to_string(),
            },
        })
    }

    /// A text that is a name and can be printed.
    pub(super) fn name(&mut self, what: Field<'_>, limit: u64) -> Result<&'a str, GgufFault> {
        let offset = self.at();
        let name = self.text(what, limit)?;
        if name.is_empty() || name.contains(char::is_control) {
            let what = what.to_string();
            return Err(GgufFault {
                offset,
                kind: FaultKind::BadName { what },
            });
        }
        Ok(name)
    }

    pub(super) fn fault(&self, kind: FaultKind) -> GgufFault {
        GgufFault {
            offset: self.at(),
            kind,
        }
    }
}
