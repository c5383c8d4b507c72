//! Bytes of one GGUF file to metadata and tensor places.

use std::collections::HashSet;

use crate::weights::{Array, MAX_DIMS, Metadata, StringArray, TensorInfo, TensorType, Value};

use super::{DEFAULT_ALIGNMENT, Fault, FaultKind, MAGIC};

/// Limits no real file comes near; a file beyond them is hostile or damaged.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 17;
const MAX_KEY_BYTES: u64 = 1 << 16;
const MAX_STRING_BYTES: u64 = 1 << 26;
const MAX_ARRAY_LEN: u64 = 1 << 26;
const MAX_NESTING: u32 = 4;
const MAX_ALIGNMENT: u64 = 1 << 20;
/// ggml keeps 63 bytes of a name.
const MAX_TENSOR_NAME_BYTES: u64 = 63;

/// What one file holds.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
}

/// Reads the header of a file; tensor data is only measured.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, Fault> {
    let mut cursor = Cursor { bytes, at: 0 };
    let magic = cursor.take(4, "the header")?;
    if magic != MAGIC {
        let found = format!("{:02x?}", magic);
        return Err(Fault {
            offset: 0,
            kind: FaultKind::Magic { found },
        });
    }
    let version = cursor.u32("the header")?;
    match version {
        2 | 3 => {}
        found if matches!(found.swap_bytes(), 1..=3) => {
            return Err(cursor.fault(4, FaultKind::BigEndian));
        }
        found => return Err(cursor.fault(4, FaultKind::Version { found })),
    }
    let n_tensors = cursor.u64("the header")?;
    let n_keys = cursor.u64("the header")?;
    limit(&cursor, "the number of tensors", n_tensors, MAX_TENSORS)?;
    limit(&cursor, "the number of keys", n_keys, MAX_KEYS)?;

    let metadata = metadata(&mut cursor, n_keys)?;
    let alignment = alignment(&cursor, &metadata)?;
    let mut tensors = tensor_infos(&mut cursor, n_tensors, alignment)?;
    place(&cursor, &mut tensors, alignment)?;
    Ok(Parsed { metadata, tensors })
}

fn limit(cursor: &Cursor<'_>, what: &str, found: u64, limit: u64) -> Result<(), Fault> {
    if found > limit {
        return Err(cursor.fault(
            cursor.at as u64,
            FaultKind::TooMany {
                what: what.into(),
                found,
                limit,
            },
        ));
    }
    Ok(())
}

fn metadata(cursor: &mut Cursor<'_>, n_keys: u64) -> Result<Metadata, Fault> {
    let mut metadata = Metadata::default();
    for i in 0..n_keys {
        let offset = cursor.at as u64;
        let key = cursor.name(&format!("key {i}"), MAX_KEY_BYTES)?;
        if metadata.get(&key).is_some() {
            return Err(cursor.fault(offset, FaultKind::DuplicateKey { key }));
        }
        let ty = cursor.u32(&key)?;
        let value = value(cursor, &key, ty)?;
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn value(cursor: &mut Cursor<'_>, key: &str, ty: u32) -> Result<Value, Fault> {
    Ok(match ty {
        0 => Value::U8(u8::from_le_bytes(cursor.number(key)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.number(key)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.number(key)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.number(key)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.number(key)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.number(key)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.number(key)?)),
        7 => Value::Bool(cursor.bool(key)?),
        8 => Value::Str(cursor.text(key, MAX_STRING_BYTES)?),
        9 => Value::Array(array(cursor, key, 1)?),
        10 => Value::U64(u64::from_le_bytes(cursor.number(key)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.number(key)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.number(key)?)),
        found => {
            let kind = FaultKind::ValueType {
                key: key.to_owned(),
                found,
            };
            return Err(cursor.fault(cursor.at as u64 - 4, kind));
        }
    })
}

fn array(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Array, Fault> {
    if depth > MAX_NESTING {
        let kind = FaultKind::Nesting {
            key: key.to_owned(),
            limit: MAX_NESTING,
        };
        return Err(cursor.fault(cursor.at as u64, kind));
    }
    let ty = cursor.u32(key)?;
    let len = cursor.u64(key)?;
    limit(
        cursor,
        &format!("the length of the array `{key}`"),
        len,
        MAX_ARRAY_LEN,
    )?;
    Ok(match ty {
        0 => Array::U8(cursor.numbers(key, len, u8::from_le_bytes)?),
        1 => Array::I8(cursor.numbers(key, len, i8::from_le_bytes)?),
        2 => Array::U16(cursor.numbers(key, len, u16::from_le_bytes)?),
        3 => Array::I16(cursor.numbers(key, len, i16::from_le_bytes)?),
        4 => Array::U32(cursor.numbers(key, len, u32::from_le_bytes)?),
        5 => Array::I32(cursor.numbers(key, len, i32::from_le_bytes)?),
        6 => Array::F32(cursor.numbers(key, len, f32::from_le_bytes)?),
        7 => Array::Bool(
            (0..len)
                .map(|_| cursor.bool(key))
                .collect::<Result<_, _>>()?,
        ),
        8 => {
            let mut strings = StringArray::default();
            for _ in 0..len {
                strings.push(cursor.string(key, MAX_STRING_BYTES)?);
            }
            Array::Str(strings)
        }
        9 => {
            let mut arrays = Vec::new();
            for _ in 0..len {
                arrays.push(array(cursor, key, depth + 1)?);
            }
            Array::Array(arrays)
        }
        10 => Array::U64(cursor.numbers(key, len, u64::from_le_bytes)?),
        11 => Array::I64(cursor.numbers(key, len, i64::from_le_bytes)?),
        12 => Array::F64(cursor.numbers(key, len, f64::from_le_bytes)?),
        found => {
            let kind = FaultKind::ValueType {
                key: key.to_owned(),
                found,
            };
            return Err(cursor.fault(cursor.at as u64 - 12, kind));
        }
    })
}

fn alignment(cursor: &Cursor<'_>, metadata: &Metadata) -> Result<u64, Fault> {
    let found = match metadata.get("general.alignment") {
        None => return Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(found)) => u64::from(*found),
        Some(other) => {
            let kind = FaultKind::Alignment {
                found: format!("{other:?}"),
                limit: MAX_ALIGNMENT,
            };
            return Err(cursor.fault(cursor.at as u64, kind));
        }
    };
    if !found.is_power_of_two() || found > MAX_ALIGNMENT {
        let kind = FaultKind::Alignment {
            found: found.to_string(),
            limit: MAX_ALIGNMENT,
        };
        return Err(cursor.fault(cursor.at as u64, kind));
    }
    Ok(found)
}

/// Tensor descriptions; their offsets are still relative to the data section.
fn tensor_infos(
    cursor: &mut Cursor<'_>,
    n_tensors: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>, Fault> {
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut names = HashSet::new();
    for i in 0..n_tensors {
        let start = cursor.at as u64;
        let name = cursor.name(&format!("the name of tensor {i}"), MAX_TENSOR_NAME_BYTES)?;
        if !names.insert(name.clone()) {
            return Err(cursor.fault(start, FaultKind::DuplicateTensor { name }));
        }
        let n_dims = cursor.u32(&name)?;
        if !(1..=MAX_DIMS as u32).contains(&n_dims) {
            return Err(cursor.fault(
                start,
                FaultKind::Dimensions {
                    name,
                    found: n_dims,
                },
            ));
        }
        let shape = cursor.numbers(&name, u64::from(n_dims), u64::from_le_bytes)?;
        if shape.contains(&0) {
            return Err(cursor.fault(start, FaultKind::ZeroDimension { name, shape }));
        }
        let id = cursor.u32(&name)?;
        let Some(ty) = TensorType::from_id(id) else {
            return Err(cursor.fault(start, FaultKind::TensorType { name, found: id }));
        };
        let Some(bytes) = ty.tensor_bytes(&shape) else {
            let kind = FaultKind::Size {
                name,
                shape,
                ty: ty.name().into(),
                block: ty.block_len(),
            };
            return Err(cursor.fault(start, kind));
        };
        let offset = cursor.u64(&name)?;
        if !offset.is_multiple_of(alignment) {
            return Err(cursor.fault(
                start,
                FaultKind::Unaligned {
                    name,
                    found: offset,
                    alignment,
                },
            ));
        }
        tensors.push(TensorInfo {
            name,
            ty,
            shape,
            bytes,
            file: 0,
            offset,
        });
    }
    Ok(tensors)
}

/// Makes offsets absolute and checks that every tensor has bytes of its own inside the file.
fn place(cursor: &Cursor<'_>, tensors: &mut [TensorInfo], alignment: u64) -> Result<(), Fault> {
    let len = cursor.bytes.len() as u64;
    let data = (cursor.at as u64).next_multiple_of(alignment);
    for tensor in tensors.iter_mut() {
        let end = data
            .checked_add(tensor.offset)
            .and_then(|start| start.checked_add(tensor.bytes));
        match end {
            Some(end) if end <= len => tensor.offset += data,
            _ => {
                let name = tensor.name.clone();
                let kind = FaultKind::OutOfFile {
                    name,
                    end: end.unwrap_or(u64::MAX),
                    len,
                };
                return Err(cursor.fault(data, kind));
            }
        }
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let (first, second) = (pair[0].name.clone(), pair[1].name.clone());
            return Err(cursor.fault(pair[1].offset, FaultKind::Overlap { first, second }));
        }
    }
    Ok(())
}

/// A place in the bytes of a file.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn fault(&self, offset: u64, kind: FaultKind) -> Fault {
        Fault { offset, kind }
    }

    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], Fault> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            let kind = FaultKind::Truncated {
                what: format!("`{what}`"),
                needed: len,
                left,
            };
            return Err(self.fault(self.at as u64, kind));
        }
        let bytes = &self.bytes[self.at..self.at + len as usize];
        self.at += len as usize;
        Ok(bytes)
    }

    fn number<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        let bytes = self.take(N as u64, what)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    fn numbers<const N: usize, T>(
        &mut self,
        what: &str,
        len: u64,
        from: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Fault> {
        // The length is capped, so the product fits.
        let bytes = self.take(len * N as u64, what)?;
        Ok(bytes
            .chunks_exact(N)
            .map(|chunk| from(std::array::from_fn(|i| chunk[i])))
            .collect())
    }

    fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.number(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.number(what)?))
    }

    fn bool(&mut self, key: &str) -> Result<bool, Fault> {
        match self.number::<1>(key)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(self.fault(
                self.at as u64 - 1,
                FaultKind::Bool {
                    key: key.to_owned(),
                    found,
                },
            )),
        }
    }

    fn string(&mut self, what: &str, most: u64) -> Result<&'a [u8], Fault> {
        let len = self.u64(what)?;
        limit(
            self,
            &format!("the length of a string of `{what}`"),
            len,
            most,
        )?;
        self.take(len, what)
    }

    fn text(&mut self, what: &str, most: u64) -> Result<String, Fault> {
        let start = self.at as u64;
        let bytes = self.string(what, most)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.fault(
                start,
                FaultKind::NotUtf8 {
                    what: format!("`{what}`"),
                },
            )),
        }
    }

    /// Text that names something.
    fn name(&mut self, what: &str, most: u64) -> Result<String, Fault> {
        let start = self.at as u64;
        let name = self.text(what, most)?;
        if name.is_empty() || name.contains('\0') {
            return Err(self.fault(
                start,
                FaultKind::BadName {
                    what: what.to_owned(),
                },
            ));
        }
        Ok(name)
    }
}
