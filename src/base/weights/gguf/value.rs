//! Metadata values as bytes, read and written. The type ids are listed once, for both directions.

use crate::weights::{Array, StringArray, Value};

use super::cursor::{Cursor, Field};
use super::{FaultKind, GgufFault};

/// Limits far above those of any real file; a file beyond them is hostile or damaged.
const MAX_STRING_BYTES: u64 = 1 << 26;
const MAX_ARRAY_LEN: u64 = 1 << 26;
const MAX_NESTING: u32 = 4;

const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

macro_rules! numbers {
    ($( $id:literal = $variant:ident($ty:ty); )*) => {
        fn read_number(cursor: &mut Cursor<'_>, key: Field<'_>, id: u32) -> Result<Option<Value>, GgufFault> {
            Ok(Some(match id {
                $( $id => Value::$variant(<$ty>::from_le_bytes(cursor.number(key)?)), )*
                _ => return Ok(None),
            }))
        }

        fn read_numbers(
            cursor: &mut Cursor<'_>,
            key: Field<'_>,
            id: u32,
            len: u64,
        ) -> Result<Option<Array>, GgufFault> {
            Ok(Some(match id {
                $( $id => Array::$variant(cursor.numbers(key, len, <$ty>::from_le_bytes)?), )*
                _ => return Ok(None),
            }))
        }

        pub(super) fn write(out: &mut Vec<u8>, value: &Value) {
            match value {
                $( Value::$variant(number) => {
                    write_u32(out, $id);
                    out.extend_from_slice(&number.to_le_bytes());
                } )*
                Value::Bool(fact) => {
                    write_u32(out, BOOL);
                    out.push(u8::from(*fact));
                }
                Value::Str(text) => {
                    write_u32(out, STRING);
                    write_string(out, text.as_bytes());
                }
                Value::Array(array) => {
                    write_u32(out, ARRAY);
                    write_array(out, array);
                }
            }
        }

        fn write_array(out: &mut Vec<u8>, array: &Array) {
            let mut head = |id, len: usize| {
                write_u32(out, id);
                write_u64(out, len as u64);
            };
            match array {
                $( Array::$variant(numbers) => {
                    head($id, numbers.len());
                    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
                } )*
                Array::Bool(facts) => {
                    head(BOOL, facts.len());
                    out.extend(facts.iter().map(|fact| u8::from(*fact)));
                }
                Array::Str(strings) => {
                    head(STRING, strings.len());
                    strings.iter().for_each(|string| write_string(out, string));
                }
                Array::Array(arrays) => {
                    head(ARRAY, arrays.len());
                    arrays.iter().for_each(|array| write_array(out, array));
                }
            }
        }
    };
}

numbers! {
    0 = U8(u8);
    1 = I8(i8);
    2 = U16(u16);
    3 = I16(i16);
    4 = U32(u32);
    5 = I32(i32);
    6 = F32(f32);
    10 = U64(u64);
    11 = I64(i64);
    12 = F64(f64);
}

pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, GgufFault> {
    let what = Field::Key(key);
    let offset = cursor.at();
    let id = cursor.u32(what)?;
    if let Some(number) = read_number(cursor, what, id)? {
        return Ok(number);
    }
    match id {
        BOOL => read_bool(cursor, key).map(Value::Bool),
        STRING => Ok(Value::Str(cursor.text(what, MAX_STRING_BYTES)?.to_owned())),
        ARRAY => read_array(cursor, key, 1).map(Value::Array),
        found => Err(unknown_type(offset, key, found)),
    }
}

fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Array, GgufFault> {
    if depth > MAX_NESTING {
        let (key, limit) = (key.to_owned(), MAX_NESTING);
        return Err(cursor.fault(FaultKind::Nesting { key, limit }));
    }
    let what = Field::Key(key);
    let offset = cursor.at();
    let id = cursor.u32(what)?;
    let len = cursor.count("array elements", what, MAX_ARRAY_LEN)?;
    if let Some(numbers) = read_numbers(cursor, what, id, len)? {
        return Ok(numbers);
    }
    // Collections below grow with the bytes that are read, so a false length allocates nothing.
    match id {
        BOOL => {
            let facts = (0..len).map(|_| read_bool(cursor, key));
            facts.collect::<Result<_, _>>().map(Array::Bool)
        }
        STRING => {
            let mut strings = StringArray::default();
            for _ in 0..len {
                strings.push(cursor.string(what, MAX_STRING_BYTES)?);
            }
            Ok(Array::Str(strings))
        }
        ARRAY => {
            let arrays = (0..len).map(|_| read_array(cursor, key, depth + 1));
            arrays.collect::<Result<_, _>>().map(Array::Array)
        }
        found => Err(unknown_type(offset, key, found)),
    }
}

fn read_bool(cursor: &mut Cursor<'_>, key: &str) -> Result<bool, GgufFault> {
    let offset = cursor.at();
    let [found] = cursor.number(Field::Key(key))?;
    match found {
        0 => Ok(false),
        1 => Ok(true),
        found => {
            let key = key.to_owned();
            Err(FaultKind::Bool { key, found }.at(offset))
        }
    }
}

fn unknown_type(offset: u64, key: &str, found: u32) -> GgufFault {
    let key = key.to_owned();
    FaultKind::ValueType { key, found }.at(offset)
}

pub(super) fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    write_u64(out, text.len() as u64);
    out.extend_from_slice(text);
}

pub(super) fn write_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn write_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::gguf::builder::{GgufBuilder, array, refusals, string};

    fn named(name: &[u8]) -> GgufBuilder {
        let key = [string(name), 4u32.to_le_bytes().to_vec(), vec![0; 4]].concat();
        GgufBuilder {
            n_keys: 1,
            ..GgufBuilder::new().raw(&key)
        }
    }

    fn nested(depth: usize) -> GgufBuilder {
        let mut value = array(9, 1).repeat(depth - 1);
        value.extend([array(0, 1), vec![42]].concat());
        GgufBuilder::new().key("k", 9, &value)
    }

    fn aligned(alignment: u32) -> GgufBuilder {
        let file = GgufBuilder::new().u32("general.alignment", alignment);
        file.tensor("a", &[4], 0, 0).data(&[7; 16])
    }

    #[test]
    fn sound_values_come_out_as_they_are() {
        assert!(named("ключ".as_bytes()).open().is_ok());
        let both =
            GgufBuilder::new()
                .key("k", 7, &[1])
                .key("l", 9, &[array(7, 2), vec![0, 1]].concat());
        let weights = both.open().expect("two keys");
        assert_eq!(weights.metadata().bool("k"), Some(true));
        let facts = Array::Bool(vec![false, true]);
        assert_eq!(weights.metadata().array("l"), Some(&facts));
        let inner = (1..4).fold(Array::U8(vec![42]), |inner, _| Array::Array(vec![inner]));
        let weights = nested(4).open().expect("four levels");
        assert_eq!(weights.metadata().array("k"), Some(&inner));
        for alignment in [1, 8, 64, 1 << 20] {
            let weights = aligned(alignment).open().expect("a sound file");
            let tensor = &weights.tensors()[0];
            let (_, offset) = weights.place(tensor).expect("in place");
            assert!(offset.is_multiple_of(alignment as usize));
            assert_eq!(weights.data(tensor).expect("in place")[..], [7; 16]);
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused_with_its_place() {
        let key = |ty, value: &[u8]| GgufBuilder::new().key("k", ty, value);
        let alignment = |ty, value: &[u8]| GgufBuilder::new().key("general.alignment", ty, value);
        insta::assert_snapshot!(
            refusals(&[
                named(b"k\xff"),
                named(&[b'k'; 65536]),
                GgufBuilder::new().u32("k", 1).u32("k", 1),
                key(13, &[0; 64]),
                key(9, &array(99, 0)),
                key(7, &[2]),
                key(9, &[array(7, 2), vec![1, 255]].concat()),
                key(8, &string(b"\xc3")),
                key(8, &(1u64 << 27).to_le_bytes()),
                key(8, &100u64.to_le_bytes()),
                key(9, &array(4, u64::MAX)),
                nested(5),
                aligned(3),
                aligned(1 << 21),
                alignment(4, &[0; 4]),
                alignment(10, &32u64.to_le_bytes()),
            ]),
            @"
        at byte 24: the name of key 0 is not UTF-8
        at byte 24: the number of bytes in the name of key 0 is 65536, expected at most 65535
        at byte 41: key `k` occurs twice
        at byte 33: key `k` has the unknown value type 13, expected 0 to 12
        at byte 37: key `k` has the unknown value type 99, expected 0 to 12
        at byte 37: key `k` holds the boolean 2, expected 0 or 1
        at byte 50: key `k` holds the boolean 255, expected 0 or 1
        at byte 37: key `k` is not UTF-8
        at byte 37: the number of bytes in key `k` is 134217728, expected at most 67108864
        at byte 45: the file ends inside key `k`: 100 bytes needed, 19 left; the file was cut off: download it again
        at byte 41: the number of array elements in key `k` is 18446744073709551615, expected at most 67108864
        at byte 85: key `k` nests arrays more than 4 deep
        at byte 24: key `general.alignment` is 3, expected a power of two up to 1048576
        at byte 24: key `general.alignment` is 2097152, expected a power of two up to 1048576
        at byte 24: key `general.alignment` is 0, expected a power of two up to 1048576
        at byte 24: key `general.alignment` is of type u64, expected u32
        "
        );
        assert!(nested(10_000).open().is_err());
        for bad in ["", "a\0", "\x1b[31m", "a\nb", "\u{85}"] {
            let message = "at byte 24: the name of key 0 is empty or holds control characters";
            assert_eq!(refusals(&[named(bad.as_bytes())]), message);
        }
        // A length counts only if the bytes are there.
        for ty in 0..=12 {
            let message = refusals(&[key(9, &array(ty, 1 << 26))]);
            assert!(
                message.contains("the file ends inside key `k`"),
                "{message}"
            );
        }
    }
}
