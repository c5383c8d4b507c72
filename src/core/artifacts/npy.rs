//! Arrays of float32 in NumPy's file format: the values of `bench logits`, and arrays of other programs.
//!
//! A file is a magic number, the length of a header, the header (a Python literal: type, order, shape), and the
//! elements. Format: numpy.lib.format, versions 1.0 to 3.0. Other types and column order are refused.

use std::io::{self, Read};
use std::path::Path;

use lab_base::util::limited_read;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Maximum length of a header; headers of plain arrays are below 128 bytes.
const MAX_HEADER: usize = 4096;

/// An array, with its shape in NumPy's order: the last dimension is the fastest.
#[derive(Clone, Debug, PartialEq)]
pub struct NpyArray {
    /// Dimensions.
    pub shape: Vec<u64>,
    /// Elements, row by row.
    pub elements: Vec<f32>,
}

/// The reason why a file is not such an array.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is no array, or another kind of array.
    #[error("{0}")]
    Form(String),
}

fn form(message: impl Into<String>) -> Error {
    Error::Form(message.into())
}

/// Maximum size of an array of an archive, in bytes.
const MAX_ARRAY: u64 = 4 << 30;

/// Reads an array.
///
/// # Errors
/// The file is not an array of float32 in rows, or is shorter than its shape says.
pub fn read(path: &Path) -> Result<NpyArray, Error> {
    let mut file = limited_read::open(path)?;
    let size = file.metadata()?.len();
    read_from(&mut file, size, &[Kind::F32])
}

/// Reads an array of an NPZ archive by its name without `.npy`: float32, or integers that float32 represents. None if
/// there is no array of that name.
///
/// # Errors
/// The file is not an archive, or the array is refused as by [`read`] or is larger than 4 GiB.
pub fn read_archive(path: &Path, name: &str) -> Result<Option<NpyArray>, Error> {
    let of_archive = |error: zip::result::ZipError| form(format!("is not an NPZ archive: {error}"));
    let mut archive = zip::ZipArchive::new(limited_read::open(path)?).map_err(of_archive)?;
    let mut entry = match archive.by_name(&format!("{name}.npy")) {
        Err(zip::result::ZipError::FileNotFound) => return Ok(None),
        found => found.map_err(of_archive)?,
    };
    let size = entry.size().min(MAX_ARRAY);
    read_from(&mut entry, size, &[Kind::F32, Kind::I32, Kind::I64]).map(Some)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F32,
    I32,
    I64,
}

impl Kind {
    const ALL: [(Self, &'static str, u64); 3] = [
        (Self::F32, "<f4", 4),
        (Self::I32, "<i4", 4),
        (Self::I64, "<i8", 8),
    ];

    fn size(self) -> u64 {
        Self::ALL[self as usize].2
    }

    fn decode(self, bytes: &[u8]) -> Option<f32> {
        // A float32 represents all integers up to 2^24.
        let whole = |value: i64| (value.unsigned_abs() <= 1 << 24).then_some(value as f32);
        match self {
            Self::F32 => bytes.try_into().ok().map(f32::from_le_bytes),
            Self::I32 => bytes
                .try_into()
                .ok()
                .map(i32::from_le_bytes)
                .and_then(|n| whole(n.into())),
            Self::I64 => bytes
                .try_into()
                .ok()
                .map(i64::from_le_bytes)
                .and_then(whole),
        }
    }
}

/// Reads an array of one of these types, of at most `size` bytes.
fn read_from(file: &mut impl Read, size: u64, kinds: &[Kind]) -> Result<NpyArray, Error> {
    let (shape, kind) = read_header(file, kinds)?;
    let n_bytes = shape
        .iter()
        .try_fold(kind.size(), |n, dim| n.checked_mul(*dim));
    let n_bytes = n_bytes.filter(|n| *n <= size);
    let n_bytes = n_bytes.ok_or_else(|| form("is shorter than its shape says"))?;
    let mut bytes = Vec::new();
    file.take(n_bytes).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != n_bytes {
        return Err(form("is shorter than its shape says"));
    }
    let elements = bytes
        .chunks_exact(kind.size() as usize)
        .map(|element| kind.decode(element));
    let elements: Option<Vec<f32>> = elements.collect();
    let elements = elements.ok_or_else(|| form("has integers that a float32 does not hold"))?;
    Ok(NpyArray { shape, elements })
}

/// The shape and the type in a file's header; the file is then positioned at the elements.
fn read_header(file: &mut impl Read, kinds: &[Kind]) -> Result<(Vec<u64>, Kind), Error> {
    let mut start = [0; 8];
    let is_npy = file.read_exact(&mut start).is_ok() && start.starts_with(MAGIC);
    let length = match (is_npy, start[6]) {
        (false, _) => return Err(form("is not an NPY file")),
        (true, 1) => {
            let mut length = [0; 2];
            file.read_exact(&mut length)?;
            usize::from(u16::from_le_bytes(length))
        }
        (true, 2 | 3) => {
            let mut length = [0; 4];
            file.read_exact(&mut length)?;
            u32::from_le_bytes(length) as usize
        }
        (true, version) => {
            return Err(form(format!(
                "has version {version} of NPY, expected 1 to 3"
            )));
        }
    };
    if length > MAX_HEADER {
        let message = format!("has a header of {length} bytes, expected at most {MAX_HEADER}");
        return Err(form(message));
    }
    let mut header = vec![0; length];
    file.read_exact(&mut header)?;
    let header = String::from_utf8(header).map_err(|_| form("has a header that is not text"))?;
    in_header(&header, kinds)
}

/// The shape and the type in a header like `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn in_header(header: &str, kinds: &[Kind]) -> Result<(Vec<u64>, Kind), Error> {
    let value = |key: &str| {
        let quoted = [format!("'{key}'"), format!("\"{key}\"")];
        let found = quoted
            .iter()
            .find_map(|key| header.split_once(key.as_str()));
        let value = found.and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
        value
            .map(str::trim_start)
            .ok_or_else(|| form(format!("has a header without `{key}`")))
    };
    let kind = value("descr")?;
    let quote = kind.chars().next().filter(|c| "'\"".contains(*c));
    let kind = quote.and_then(|quote| kind[1..].split(quote).next());
    let known = Kind::ALL
        .into_iter()
        .find(|(_, name, _)| kind == Some(*name));
    let known = known.filter(|(known, ..)| kinds.contains(known));
    let Some((known, ..)) = known else {
        let found = kind.unwrap_or("a structure");
        return Err(form(format!(
            "has elements of type `{found}`, expected float32 (`<f4`)"
        )));
    };
    if !value("fortran_order")?.starts_with("False") {
        return Err(form("is stored column by column, expected row by row"));
    }
    let dims = value("shape")?
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'));
    let dims = dims.map(|(dims, _)| dims.split(',').map(str::trim));
    let dims = dims.ok_or_else(|| form("has a shape that is not a tuple"))?;
    let dims = dims.filter(|dim| !dim.is_empty());
    let dims: Result<Vec<u64>, Error> = dims
        .map(|dim| {
            dim.parse()
                .map_err(|_| form(format!("has a dimension of `{dim}`")))
        })
        .collect();
    Ok((dims?, known))
}

/// The bytes of a file with an array, in version 1.0.
pub fn bytes_of(elements: &[f32], shape: &[usize]) -> Vec<u8> {
    let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
    let mut bytes = head("<f4", &shape);
    bytes.extend(elements.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

/// The bytes of a file before the elements, in version 1.0: `descr` is NumPy's name of their type.
pub fn head(descr: &str, shape: &[u64]) -> Vec<u8> {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    // A tuple of one element keeps its comma.
    let shape = dims.join(", ") + if dims.len() == 1 { "," } else { "" };
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Magic, version and length take 10 bytes; the data starts at a multiple of 64.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.push_str(&" ".repeat(padded - header.len() - 1));
    header.push('\n');
    let mut bytes = [MAGIC, b"\x01\x00", &(padded as u16).to_le_bytes()].concat();
    bytes.extend_from_slice(header.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.npy");
        for shape in [vec![], vec![1], vec![2, 3], vec![0, 4]] {
            let n: usize = shape.iter().product();
            let elements: Vec<f32> = (0..n).map(|i| i as f32 / 3.0).collect();
            std::fs::write(&path, bytes_of(&elements, &shape)).expect("written");
            let array = read(&path).expect("read");
            let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
            assert_eq!(array, NpyArray { shape, elements });
            assert_eq!((std::fs::read(&path).expect("bytes").len() - 4 * n) % 64, 0);
        }
    }

    #[test]
    fn headers_of_any_writer_are_read_and_others_refused() {
        let shape = |header: &str| {
            in_header(header, &[Kind::F32])
                .map(|(shape, _)| shape)
                .map_err(|error| error.to_string())
        };
        let good = "{\"shape\" : (3,4) , 'fortran_order':False,'descr': \"<f4\"}";
        assert_eq!(shape(good), Ok(vec![3, 4]));
        for (header, expected) in [
            (
                "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
                "`<f8`, expected float32",
            ),
            (
                "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
                "a structure",
            ),
            (
                "{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}",
                "column by column",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
                "a dimension of `-1`",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': ((((",
                "not a tuple",
            ),
            ("{'descr': '<f4', 'shape': (1,)}", "without `fortran_order`"),
            ("", "without `descr`"),
        ] {
            let error = shape(header).expect_err(header);
            assert!(error.contains(expected), "{header}: {error}");
        }
    }

    #[test]
    fn a_file_that_lies_about_its_size_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.npy");
        let header =
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999), }\n";
        for (length, rest, expected) in [
            (header.len() as u32, header, "shorter than its shape"),
            (u32::MAX, "", "expected at most"),
        ] {
            let bytes = [MAGIC, b"\x02\x00", &length.to_le_bytes(), rest.as_bytes()].concat();
            std::fs::write(&path, bytes).expect("written");
            let error = read(&path).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
        std::fs::write(&path, "GGUF").expect("written");
        assert_eq!(
            read(&path).expect_err("refused").to_string(),
            "is not an NPY file"
        );
    }
}
