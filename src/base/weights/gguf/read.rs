//! Parses the bytes of one GGUF file into metadata and the places of tensors.
//!
//! Only the header is read; the place of tensor data is checked, but the data is never read. Invariant: the bytes of a
//! returned tensor are inside the file, and belong to no other tensor.

use std::collections::HashSet;

use crate::weights::{MAX_DIMS, Metadata, TensorInfo, TensorType, Value};

use super::cursor::{Cursor, Field};
use super::{DEFAULT_ALIGNMENT, FaultKind, GgufFault, MAGIC, MAX_ALIGNMENT, value};

/// Limits far above those of any real file; a file beyond them is hostile or damaged.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 17;
/// The limit of the specification.
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
/// Number of bytes of a name that ggml stores.
const MAX_TENSOR_NAME_BYTES: u64 = 63;

#[derive(Debug)]
pub(super) struct ParsedHeader {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
}

/// Parses the header of a file of `len` bytes. `head` is the whole file, or its start up to at least the end of the
/// header.
pub(super) fn parse(head: &[u8], len: u64) -> Result<ParsedHeader, GgufFault> {
    let mut cursor = Cursor::new(head);
    check_version(&mut cursor)?;
    let n_tensors = cursor.count("tensors", Field::Header, MAX_TENSORS)?;
    let n_keys = cursor.count("keys", Field::Header, MAX_KEYS)?;
    let (metadata, alignment) = read_metadata(&mut cursor, n_keys)?;

    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for i in 0..n_tensors {
        let offset = cursor.at();
        let tensor = read_tensor(&mut cursor, i, alignment)?;
        if !names.insert(tensor.name.clone()) {
            let name = tensor.name;
            return Err(FaultKind::DuplicateTensor { name }.at(offset));
        }
        tensors.push(tensor);
    }
    let data = cursor.at().next_multiple_of(alignment);
    place(&mut tensors, data, len)?;
    Ok(ParsedHeader { metadata, tensors })
}

pub(super) fn alignment(metadata: &Metadata) -> Result<u64, FaultKind> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(n)) if n.is_power_of_two() && *n <= MAX_ALIGNMENT => Ok(u64::from(*n)),
        Some(Value::U32(found)) => Err(FaultKind::Alignment {
            found: *found,
            limit: MAX_ALIGNMENT,
        }),
        Some(other) => Err(FaultKind::AlignmentType {
            found: other.type_name(),
        }),
    }
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<(), GgufFault> {
    let found = cursor.number(Field::Header)?;
    if found != *MAGIC {
        return Err(FaultKind::Magic { found }.at(0));
    }
    let offset = cursor.at();
    let kind = match cursor.u32(Field::Header)? {
        2 | 3 => return Ok(()),
        // A version is a small number; with reversed bytes its low 16 bits are 0.
        found if found & 0xffff == 0 && found != 0 => FaultKind::BigEndian,
        found => FaultKind::Version { found },
    };
    Err(kind.at(offset))
}

fn read_metadata(cursor: &mut Cursor<'_>, n_keys: u64) -> Result<(Metadata, u64), GgufFault> {
    let mut metadata = Metadata::default();
    let mut data_alignment = DEFAULT_ALIGNMENT;
    for i in 0..n_keys {
        let offset = cursor.at();
        let key = cursor.name(Field::KeyName(i), MAX_KEY_BYTES)?;
        if metadata.get(key).is_some() {
            let key = key.to_owned();
            return Err(FaultKind::DuplicateKey { key }.at(offset));
        }
        let value = value::read(cursor, key)?;
        metadata.insert(key, value);
        if key == "general.alignment" {
            data_alignment = alignment(&metadata).map_err(|kind| kind.at(offset))?;
        }
    }
    Ok((metadata, data_alignment))
}

/// One tensor description, with an offset that is still relative to the data section.
fn read_tensor(cursor: &mut Cursor<'_>, i: u64, alignment: u64) -> Result<TensorInfo, GgufFault> {
    let name = cursor.name(Field::TensorName(i), MAX_TENSOR_NAME_BYTES)?;
    let what = Field::Tensor(name);
    let name = name.to_owned();
    let (at_shape, shape) = (cursor.at(), read_shape(cursor, what, &name)?);
    let (at_type, id) = (cursor.at(), cursor.u32(what)?);
    let Some(ty) = TensorType::from_id(id) else {
        return Err(FaultKind::TensorType { name, found: id }.at(at_type));
    };
    let Some(bytes) = ty.tensor_bytes(&shape) else {
        let found = shape[0];
        let kind = if found.is_multiple_of(ty.block_len()) {
            FaultKind::TooLarge { name, ty, shape }
        } else {
            FaultKind::PartialBlock { name, ty, found }
        };
        return Err(kind.at(at_shape));
    };
    let (at_offset, offset) = (cursor.at(), cursor.u64(what)?);
    if !offset.is_multiple_of(alignment) {
        return Err(FaultKind::Unaligned {
            name,
            found: offset,
            alignment,
        }
        .at(at_offset));
    }
    Ok(TensorInfo {
        name,
        ty,
        shape,
        bytes,
        source: 0,
        offset,
    })
}

fn read_shape(cursor: &mut Cursor<'_>, what: Field<'_>, name: &str) -> Result<Vec<u64>, GgufFault> {
    let offset = cursor.at();
    let n_dims = cursor.u32(what)?;
    if n_dims > MAX_DIMS as u32 {
        return Err(FaultKind::Dimensions {
            name: name.to_owned(),
            found: n_dims,
            limit: MAX_DIMS,
        }
        .at(offset));
    }
    // Converters write scalars without dimensions; ggml treats them as vectors of one element.
    if n_dims == 0 {
        return Ok(vec![1]);
    }
    let shape = cursor.numbers(what, u64::from(n_dims), u64::from_le_bytes)?;
    if shape.contains(&0) {
        let name = name.to_owned();
        return Err(FaultKind::ZeroDimension { name, shape }.at(offset));
    }
    Ok(shape)
}

/// Makes offsets absolute and checks that the bytes of every tensor are inside the file and belong to no other tensor.
fn place(tensors: &mut [TensorInfo], data: u64, len: u64) -> Result<(), GgufFault> {
    for tensor in tensors.iter_mut() {
        // A sum that would overflow saturates, and then the end overflows.
        let start = data.saturating_add(tensor.offset);
        let end = start.checked_add(tensor.bytes);
        if end.is_none_or(|end| end > len) {
            return Err(FaultKind::OutOfFile {
                name: tensor.name.clone(),
                end: end.unwrap_or(u64::MAX),
                len,
            }
            .at(start));
        }
        tensor.offset = start;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let (first, second) = (pair[0].name.clone(), pair[1].name.clone());
            return Err(FaultKind::Overlap { first, second }.at(pair[1].offset));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Array;
    use crate::weights::gguf::builder::{GgufBuilder, open, refusals, sound};

    #[test]
    fn a_sound_file_comes_out_as_it_is() {
        for version in [2, 3] {
            let weights = GgufBuilder { version, ..sound() }
                .open()
                .expect("a sound file");
            assert_eq!(weights.label(), "test");
            let keys: Vec<_> = weights.metadata().iter().map(|(key, _)| key).collect();
            assert_eq!(keys, ["general.architecture", "test.block_count", "tokens"]);
            assert_eq!(weights.metadata().str("general.architecture"), Some("test"));
            let tokens = weights
                .metadata()
                .array("tokens")
                .and_then(Array::as_strings);
            let tokens: Vec<_> = tokens.expect("strings").iter().collect();
            assert_eq!(tokens, [&b"a"[..], b"\xff"]);

            let [a, b] = weights.tensors() else {
                panic!("two tensors")
            };
            assert_eq!((a.name.as_str(), a.ty, a.bytes), ("a", TensorType::F32, 16));
            assert_eq!(a.shape, [2, 2]);
            assert_eq!(weights.data(a).expect("in place")[..], [1; 16][..]);
            assert_eq!(weights.tensor("b.weight"), Some(b));
            let block: Vec<u8> = (0..34).collect();
            assert_eq!(weights.data(b).expect("in place")[..], block[..]);
        }
    }

    #[test]
    fn a_file_may_have_no_tensors_and_no_padding() {
        let mut bytes = GgufBuilder::new().u32("k", 7).bytes();
        bytes.truncate(24 + 8 + 1 + 4 + 4);
        let weights = open(bytes).expect("a vocabulary file");
        assert_eq!(weights.metadata().i64("k"), Some(7));
        assert_eq!(weights.tensors(), []);
    }

    #[test]
    fn limits_can_be_reached() {
        let shape = |shape: &[u64]| {
            let file = GgufBuilder::new().tensor("a", shape, 24, 0).data(&[9; 16]);
            file.open().expect("a sound file").tensors()[0]
                .shape
                .clone()
        };
        assert_eq!(shape(&[2, 2, 2, 2]), [2, 2, 2, 2]);
        assert_eq!(shape(&[]), [1], "a scalar is a vector of one element");
        let gap = GgufBuilder::new().tensor("a", &[4], 0, 32).data(&[0; 48]);
        assert!(gap.open().is_ok(), "gaps are allowed");
        let named = GgufBuilder::new()
            .tensor(&"n".repeat(63), &[1], 24, 0)
            .data(&[0]);
        assert!(named.open().is_ok());
        for &ty in TensorType::ALL {
            let data = vec![0; ty.block_bytes() as usize];
            let file = GgufBuilder::new().tensor("a", &[ty.block_len()], ty.id(), 0);
            let weights = file.data(&data).open().expect("a known type");
            assert_eq!(weights.tensors()[0].ty, ty);
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused_with_its_place() {
        let with = |change: fn(&mut GgufBuilder)| {
            let mut file = sound();
            change(&mut file);
            file
        };
        let named = |name: &str| GgufBuilder::new().tensor(name, &[1], 24, 0).data(&[0]);
        let one = |shape: &[u64], ty, offset, n| {
            GgufBuilder::new()
                .tensor("a", shape, ty, offset)
                .data(&vec![0; n])
        };
        let two = |(a, n, from), (b, m, to)| {
            let file = GgufBuilder::new()
                .tensor(a, &[n], 0, from)
                .tensor(b, &[m], 0, to);
            file.data(&[0; 96])
        };
        insta::assert_snapshot!(
            refusals(&[
                with(|file| file.magic = *b"GGML"),
                with(|file| file.version = 0),
                with(|file| file.version = 1),
                with(|file| file.version = 0x0102_0304),
                with(|file| file.version = 3u32.swap_bytes()),
                with(|file| file.n_tensors = 1 << 20),
                with(|file| file.n_keys = u64::MAX),
                named(&"n".repeat(64)),
                named("a\0"),
                two(("a", 1, 0), ("a", 1, 32)),
                one(&[1; 5], 24, 0, 16),
                one(&[4, 0], 24, 0, 16),
                one(&[33, 2], 8, 0, 4096),
                one(&[u64::MAX, 2], 0, 0, 4096),
                one(&[1 << 42, 1 << 42], 0, 0, 4096),
                one(&[1 << 62, 1], 0, 0, 4096),
                one(&[4], 0, 16, 4096),
                one(&[4], 0, 32, 47),
                one(&[4], 0, u64::MAX - 31, 48),
                two(("late", 16, 32), ("early", 9, 0)),
            ]),
            @"
        at byte 0: not a GGUF file: it begins with [47, 47, 4d, 4c], expected `GGUF`
        at byte 4: GGUF version 0, expected 2 or 3
        at byte 4: GGUF version 1, expected 2 or 3; the file is older than the format: convert the model again, or download a newer file
        at byte 4: GGUF version 16909060, expected 2 or 3
        at byte 4: the file is big-endian, expected little-endian
        at byte 8: the number of tensors in the header is 1048576, expected at most 131072
        at byte 16: the number of keys in the header is 18446744073709551615, expected at most 65536
        at byte 24: the number of bytes in the name of tensor 0 is 64, expected at most 63
        at byte 24: the name of tensor 0 is empty or holds control characters
        at byte 57: tensor `a` occurs twice
        at byte 33: tensor `a` has 5 dimensions, expected at most 4
        at byte 33: tensor `a` has a dimension of zero in its shape [4, 0]
        at byte 33: tensor `a` has rows of 33 elements, expected a multiple of 32 for q8_0
        at byte 33: tensor `a` is too large: [18446744073709551615, 2] of f32
        at byte 33: tensor `a` is too large: [4398046511104, 4398046511104] of f32
        at byte 33: tensor `a` is too large: [4611686018427387904, 1] of f32
        at byte 49: tensor `a` has the offset 16, expected a multiple of 32
        at byte 96: tensor `a` ends at byte 112 of a file of 111 bytes; the file was cut off: download it again
        at byte 18446744073709551615: tensor `a` ends at byte 18446744073709551615 of a file of 112 bytes; the file was cut off: download it again
        at byte 160: tensors `early` and `late` overlap
        "
        );
        for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            let message = format!("at byte 45: tensor `a` has the unknown type {id}");
            assert_eq!(refusals(&[one(&[256], id, 0, 4096)]), message);
        }
        let message = |bytes: &[u8]| open(bytes.to_vec()).expect_err("too short");
        assert_eq!(message(b""), "test: the file is empty; download it again");
        assert_eq!(
            message(b"GGUF\x03\0\0\0\0"),
            "test: at byte 8: the file ends inside the header: 8 bytes needed, 1 left; the file was cut off: \
             download it again"
        );
    }

    #[test]
    fn a_header_that_ends_early_is_refused_wherever_it_ends() {
        let whole = sound().bytes();
        for len in 0..whole.len() {
            let message = open(whole[..len].to_vec()).expect_err("the file is cut");
            assert!(
                message.contains("the file ends inside")
                    || message.contains(" of a file of ")
                    || len == 0,
                "{len}: {message}"
            );
        }
    }
}
