//! The header of a safetensors file: its tensors, with their types, shapes and places.
//!
//! A file is the length of the header (8 bytes, little endian), the header (JSON: name to `dtype`, `shape` and
//! `data_offsets`, and `__metadata__`, which is not used) and the data. As the README of the format requires, tensors
//! cover the data from its first byte to its last, without gaps and without overlap, and no name occurs twice. Only the
//! header is read.
//!
//! Invariant: every returned tensor is inside the file, and has the number of bytes of its type and shape.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

const MAX_BYTES: u64 = 100_000_000;
/// Maximum number of dimensions, above that of any model.
const MAX_DIMENSIONS: usize = 16;
pub(super) const METADATA: &str = "__metadata__";

#[derive(Debug, Deserialize)]
struct TensorLine {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorSlice {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    /// Dimensions, the slowest first.
    pub(super) shape: Vec<u64>,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

pub(super) fn read(file: &[u8]) -> Result<Vec<TensorSlice>, String> {
    let Some((length, rest)) = file.split_first_chunk() else {
        return Err(format!(
            "the first 8 bytes give the length of the header, and the file has {}",
            file.len()
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_BYTES {
        return Err(format!(
            "a header of {length} bytes, expected at most {MAX_BYTES}"
        ));
    }
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        return Err(format!(
            "a header of {length} bytes, of which the file has {}",
            rest.len()
        ));
    };
    let header: Header =
        serde_json::from_slice(header).map_err(|error| format!("header: {error}"))?;
    let mut lines: Vec<(String, TensorLine)> = header.0.into_iter().collect();
    lines.sort_by_key(|(_, line)| line.data_offsets);
    let data_begin = (file.len() - data.len()) as u64;
    let mut found = Vec::with_capacity(lines.len());
    let mut end = 0;
    for (name, line) in lines {
        let bytes = place(&line, end, data.len() as u64)
            .map_err(|message| format!("tensor `{name}`: {message}"))?;
        // Both are at most the length of the file.
        let (offset, size) = ((data_begin + end) as usize, bytes as usize);
        end += bytes;
        found.push(TensorSlice {
            name,
            dtype: line.dtype,
            shape: line.shape,
            offset,
            bytes: size,
        });
    }
    match data.len() as u64 - end {
        0 => Ok(found),
        left => Err(format!("{left} bytes after the last tensor")),
    }
}

/// The size of a tensor that follows `begin` bytes of others, in a file with `data` bytes of data.
fn place(line: &TensorLine, begin: u64, data: u64) -> Result<u64, String> {
    let [from, to] = line.data_offsets;
    if from != begin {
        return Err(format!(
            "begins at {from}, and the data before it ends at {begin}"
        ));
    }
    if line.shape.len() > MAX_DIMENSIONS {
        let n = line.shape.len();
        return Err(format!(
            "a shape of {n} dimensions, expected at most {MAX_DIMENSIONS}"
        ));
    }
    let elements = line.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
    let bits = elements.and_then(|n| n.checked_mul(line.dtype.bitsize() as u64));
    let size = bits.filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
    if size.is_none() || size != to.checked_sub(from) {
        return Err(format!(
            "data from {from} to {to}, which {:?} of the shape {:?} does not take",
            line.dtype, line.shape
        ));
    }
    match to <= data {
        true => Ok(to - from),
        false => Err(format!(
            "its data ends at {to}, and that of the file at {data}; the file is cut off"
        )),
    }
}

struct Header(BTreeMap<String, TensorLine>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Lines)
    }
}

struct Lines;

impl<'de> Visitor<'de> for Lines {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut lines = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let line = map.next_value::<TensorLine>();
            let line = line.map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
            if lines.contains_key(&name) {
                return Err(A::Error::custom(format!("tensor `{name}` occurs twice")));
            }
            lines.insert(name, line);
        }
        Ok(Header(lines))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use proptest::prelude::*;
    use proptest::sample::{Index, select};
    use safetensors::SafeTensors;

    use super::*;

    /// A file of these tensors in this order, with a header that is padded with blanks.
    fn file(tensors: &[(String, Dtype, Vec<u64>)], padding: usize) -> Vec<u8> {
        let (mut lines, mut begin) = (vec![r#""__metadata__":{"format":"pt"}"#.to_owned()], 0);
        for (name, dtype, shape) in tensors {
            let bytes = shape.iter().product::<u64>() * dtype.bitsize() as u64 / 8;
            let end = begin + bytes;
            lines.push(format!(
                r#""{name}":{{"dtype":"{dtype:?}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
            ));
            begin = end;
        }
        // The order of the header may differ from that of the data.
        lines.reverse();
        let header = format!("{{{}}}{}", lines.join(","), " ".repeat(padding));
        let data = (0..begin).map(|i| i as u8);
        with_header(&header, data)
    }

    fn with_header(header: &str, data: impl IntoIterator<Item = u8>) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes());
        file.extend(data);
        file
    }

    /// The tensors that the format's own crate finds, in the same order; none if the crate refuses the file.
    fn oracle(file: &[u8]) -> Option<Vec<TensorSlice>> {
        // The crate adds offsets without an overflow check, and debug builds panic there.
        let read = catch_unwind(|| SafeTensors::read_metadata(file).ok()).ok()?;
        let (header, metadata) = read?;
        let mut all: Vec<TensorSlice> = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| TensorSlice {
                name,
                dtype: info.dtype,
                shape: info.shape.iter().map(|n| *n as u64).collect(),
                offset: 8 + header + info.data_offsets.0,
                bytes: info.data_offsets.1 - info.data_offsets.0,
            })
            .collect();
        all.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
        Some(all)
    }

    /// Every file gives consecutive tensors inside it, or an error; the tensors are those that the format's crate
    /// finds.
    fn check(file: &[u8]) {
        let found = read(file);
        if let Ok(found) = &found {
            let mut end = found.first().map_or(file.len(), |first| first.offset);
            for tensor in found {
                assert_eq!(tensor.offset, end);
                end += tensor.bytes;
                let bits = tensor.shape.iter().product::<u64>() * tensor.dtype.bitsize() as u64;
                assert_eq!(bits, 8 * tensor.bytes as u64);
            }
            assert_eq!(end, file.len());
        }
        match (found, oracle(file)) {
            (Ok(mut found), Some(expected)) => {
                found.sort_by(|a, b| {
                    (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name))
                });
                assert_eq!(found, expected);
            }
            (Err(_), None) => {}
            // The crate takes the last of two lines with one name.
            (Err(message), Some(_)) => assert!(message.contains("occurs twice"), "{message}"),
            // The crate requires texts in a part that is not used.
            (Ok(_), None) => {
                let header = String::from_utf8_lossy(file).into_owned();
                assert!(header.contains(METADATA), "{header}");
            }
        }
    }

    const DTYPES: [Dtype; 8] = [
        Dtype::BOOL,
        Dtype::F4,
        Dtype::U8,
        Dtype::F8_E4M3,
        Dtype::BF16,
        Dtype::F16,
        Dtype::F32,
        Dtype::I64,
    ];

    fn tensors() -> impl Strategy<Value = Vec<(String, Dtype, Vec<u64>)>> {
        let shape = prop::collection::vec(0u64..5, 0..5);
        let line = (select(&DTYPES[..]), shape).prop_map(|(dtype, mut shape)| {
            if dtype == Dtype::F4 {
                shape.push(2);
            }
            (dtype, shape)
        });
        prop::collection::vec(line, 0..8).prop_map(|lines| {
            let named = lines.into_iter().enumerate();
            named
                .map(|(i, (dtype, shape))| (format!("layers.{i}.weight"), dtype, shape))
                .collect()
        })
    }

    /// What damaged headers have in them, separated by blanks.
    const SPLINTERS: &str = " 0 1 -1 7 1e3 0.5 18446744073709551615 18446744073709551616 9223372036854775808 \
        2305843009213693951 4294967296 null [ ] { } \" , F32 layers.0.weight \u{0} \
        \"layers.0.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},";

    /// Bytes that a text replaces from a place on, or from the next number on: that number.
    type Change = (Index, Option<usize>, &'static str);

    fn change() -> impl Strategy<Value = Change> {
        let splinters: Vec<&str> = SPLINTERS.split(' ').collect();
        (
            any::<Index>(),
            prop::option::of(0usize..40),
            select(splinters),
        )
    }

    /// Applies a change to the header; the stored length of the header may be told.
    fn changed(mut file: Vec<u8>, (at, n, text): Change, is_told: bool) -> Vec<u8> {
        let before = file.len();
        if before < 9 {
            return file;
        }
        let mut at = 8 + at.index(before - 8);
        if n.is_none() {
            at += file[at..]
                .iter()
                .take_while(|b| !b.is_ascii_digit())
                .count();
        }
        let digits = || file[at..].iter().take_while(|b| b.is_ascii_digit()).count();
        let end = (at + n.unwrap_or_else(digits)).min(before);
        file.splice(at..end, text.bytes());
        if is_told {
            let grown = (file.len() as u64).wrapping_sub(before as u64);
            let (length, _) = file.split_first_chunk().expect("eight bytes");
            let length = u64::from_le_bytes(*length).wrapping_add(grown);
            file[..8].copy_from_slice(&length.to_le_bytes());
        }
        file
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn a_sound_header_gives_its_tensors(tensors in tensors(), padding in 0usize..9) {
            let file = file(&tensors, padding);
            let found = read(&file).expect("a sound file");
            prop_assert_eq!(found.len(), tensors.len());
            for (name, dtype, shape) in &tensors {
                let tensor = found.iter().find(|tensor| tensor.name == *name).expect("the names");
                prop_assert_eq!((&tensor.dtype, &tensor.shape), (dtype, shape));
            }
            check(&file);
        }

        #[test]
        fn any_bytes_give_tensors_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            check(&bytes);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            check(&with_header(&text, []));
        }

        #[test]
        fn a_damaged_file_gives_tensors_or_an_error(
            tensors in tensors(),
            changes in prop::collection::vec((change(), any::<bool>()), 1..4),
            (flip, bits, end) in (any::<Index>(), any::<u8>(), prop::option::of(any::<Index>())),
        ) {
            let mut damaged = changes
                .into_iter()
                .fold(file(&tensors, 0), |file, (change, is_told)| changed(file, change, is_told));
            check(&damaged);
            damaged.truncate(end.map_or(usize::MAX, |end| end.index(damaged.len())));
            if !damaged.is_empty() {
                let flip = flip.index(damaged.len());
                damaged[flip] ^= bits;
            }
            check(&damaged);
        }
    }

    #[test]
    fn what_a_file_breaks_is_named() {
        let line = |text: &str| format!(r#""q.weight":{{{text}}}"#);
        let of_lines = |lines: &[&str], data: usize| {
            with_header(&format!("{{{}}}", lines.join(",")), vec![0; data])
        };
        let of = |text: &str, data: usize| of_lines(&[&line(text)], data);
        let sound = line(r#""dtype":"F32","shape":[2],"data_offsets":[0,8]"#);
        let files = [
            of_lines(&[&sound], 7),
            of_lines(&[&sound], 9),
            of_lines(&[&sound, &sound], 8),
            of(r#""dtype":"F32","shape":[2],"data_offsets":[4,12]"#, 12),
            of(r#""dtype":"F32","shape":[3],"data_offsets":[0,8]"#, 8),
            of(
                r#""dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]"#,
                0,
            ),
            of(r#""dtype":"F32","shape":[-2],"data_offsets":[0,8]"#, 8),
            vec![0; 7],
            vec![9, 0, 0, 0, 0, 0, 0, 0, b'{'],
            vec![0xff; 20],
        ];
        let messages = files.map(|file| read(&file).expect_err("a broken rule"));
        insta::assert_snapshot!(messages.join("\n"), @"
        tensor `q.weight`: its data ends at 8, and that of the file at 7; the file is cut off
        1 bytes after the last tensor
        header: tensor `q.weight` occurs twice at line 1 column 121
        tensor `q.weight`: begins at 4, and the data before it ends at 0
        tensor `q.weight`: data from 0 to 8, which F32 of the shape [3] does not take
        tensor `q.weight`: data from 0 to 0, which F32 of the shape [4294967296, 4294967296] does not take
        header: tensor `q.weight`: invalid value: integer `-2`, expected u64 at line 1 column 38
        the first 8 bytes give the length of the header, and the file has 7
        a header of 9 bytes, of which the file has 1
        a header of 18446744073709551615 bytes, expected at most 100000000
        ");
    }
}
