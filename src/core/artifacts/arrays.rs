//! Writes named arrays as one file: safetensors, or NPZ as NumPy writes it.
//!
//! The file also has texts that describe the arrays: in the metadata of safetensors, or as `metadata.json` in an NPZ
//! archive. Elements are converted piece by piece, so no array is in memory twice.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

use half::f16;
use half::slice::HalfFloatSliceExt;
use serde_json::{Map, Value};

use lab_base::util::atomic_file::{OutputPath, PartFile};
use lab_base::weights::safetensors;
use lab_base::weights::safetensors::Dtype;

use super::npy;

/// Name of the entry with the texts in an archive.
const METADATA: &str = "metadata.json";
/// Number of elements that are converted at a time.
const PIECE: usize = 1 << 16;

/// The format of a file of arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrayFormat {
    #[default]
    Safetensors,
    /// A ZIP archive of NPY files, not compressed.
    Npz,
}

impl ArrayFormat {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Safetensors, Self::Npz];

    /// File name extension, without the dot.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Safetensors => safetensors::ENDING,
            Self::Npz => "npz",
        }
    }

    /// The format of a file by its extension.
    pub fn of(path: &Path) -> Option<Self> {
        let ending = path.extension()?;
        Self::ALL.into_iter().find(|f| ending == f.ending())
    }
}

/// The elements of an array.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// f32 values.
    F32(&'a [f32]),
    /// f64 values.
    F64(&'a [f64]),
    /// Values that are written as f16.
    F16(&'a [f32]),
    /// Integers below 2^31, written as i32.
    I32(&'a [u32]),
}

impl Elements<'_> {
    fn len(self) -> usize {
        match self {
            Self::F32(all) | Self::F16(all) => all.len(),
            Self::F64(all) => all.len(),
            Self::I32(all) => all.len(),
        }
    }

    fn dtype(self) -> (Dtype, &'static str) {
        match self {
            Self::F32(_) => (Dtype::F32, "<f4"),
            Self::F64(_) => (Dtype::F64, "<f8"),
            Self::F16(_) => (Dtype::F16, "<f2"),
            Self::I32(_) => (Dtype::I32, "<i4"),
        }
    }

    fn part(self, of: std::ops::Range<usize>) -> Self {
        match self {
            Self::F32(all) => Self::F32(&all[of]),
            Self::F64(all) => Self::F64(&all[of]),
            Self::F16(all) => Self::F16(&all[of]),
            Self::I32(all) => Self::I32(&all[of]),
        }
    }

    /// The bytes of the elements, little-endian like the processors for which ggml is built.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::F32(all) => Cow::Borrowed(bytemuck::cast_slice(all)),
            Self::F64(all) => Cow::Borrowed(bytemuck::cast_slice(all)),
            Self::I32(all) => Cow::Borrowed(bytemuck::cast_slice(all)),
            Self::F16(all) => {
                let mut rounded = vec![f16::ZERO; all.len()];
                rounded.convert_from_f32_slice(all);
                Cow::Owned(bytemuck::cast_slice(&rounded).to_vec())
            }
        }
    }

    /// Writes the bytes of the elements.
    pub fn write(self, out: &mut impl Write) -> io::Result<()> {
        for from in (0..self.len()).step_by(PIECE) {
            let to = (from + PIECE).min(self.len());
            out.write_all(&self.part(from..to).bytes())?;
        }
        Ok(())
    }
}

/// An array with its name.
#[derive(Clone, Debug)]
pub struct NamedArray<'a> {
    /// Name of the array, unique in a file.
    pub name: String,
    /// Dimensions, the slowest first.
    pub shape: Vec<u64>,
    /// The elements, as many as the shape states.
    pub elements: Elements<'a>,
}

/// Upper bound of the bytes of a file with these arrays and texts.
pub fn most_bytes(arrays: &[NamedArray<'_>], metadata: &Map<String, Value>) -> u64 {
    // Each array takes its elements, a header, and in an archive twice its name.
    let array = |array: &NamedArray<'_>| {
        let bits = array.elements.dtype().0.bitsize() as u64;
        array.elements.len() as u64 * bits / 8 + 512
    };
    let names: u64 = arrays.iter().map(|a| 4 * a.name.len() as u64).sum();
    let texts = Value::Object(metadata.clone()).to_string().len() as u64;
    // Texts are quoted once more in the header.
    arrays.iter().map(array).sum::<u64>() + names + 2 * texts + 1024
}

/// Writes a file of arrays, with texts by their names.
///
/// # Errors
/// Two arrays have one name, the number of elements differs from the shape, or the operating system fails: a file
/// that is there is then unchanged.
pub fn write<'p>(
    target: impl Into<OutputPath<'p>>,
    format: ArrayFormat,
    arrays: &[NamedArray<'_>],
    metadata: &Map<String, Value>,
) -> io::Result<()> {
    let fault = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
    for array in arrays {
        let n = array.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        if n != Some(array.elements.len() as u64) {
            let (name, found) = (&array.name, array.elements.len());
            let message = format!("array `{name}` has {found} elements, not {:?}", array.shape);
            return Err(fault(message));
        }
    }
    let mut part = PartFile::new(target)?;
    let out = part.file();
    match format {
        ArrayFormat::Safetensors => {
            let entry =
                |a: &NamedArray<'_>| (a.name.clone(), a.elements.dtype().0, a.shape.clone());
            let head = safetensors::head(metadata.clone(), arrays.iter().map(entry));
            out.write_all(&head.map_err(fault)?)?;
            for array in arrays {
                array.elements.write(out)?;
            }
        }
        ArrayFormat::Npz => {
            let mut archive = zip::ZipWriter::new(out);
            // A fixed time, so that the same input gives the same bytes.
            let options = zip::write::SimpleFileOptions::default()
                .compression_method(zip::CompressionMethod::Stored)
                .last_modified_time(zip::DateTime::default())
                .large_file(true);
            for array in arrays {
                archive.start_file(format!("{}.npy", array.name), options)?;
                archive.write_all(&npy::head(array.elements.dtype().1, &array.shape))?;
                array.elements.write(&mut archive)?;
            }
            archive.start_file(METADATA, options)?;
            archive.write_all(&serde_json::to_vec_pretty(metadata)?)?;
            archive.finish()?;
        }
    }
    part.place().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_base::weights::safetensors::Checkpoint;

    fn metadata() -> Map<String, Value> {
        Map::from_iter([("plan".to_owned(), Value::from("{\"a\": 1}"))])
    }

    #[test]
    fn arrays_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let numbers: Vec<f32> = (0..200_000).map(|i| i as f32 / 8.0).collect();
        let arrays = [
            NamedArray {
                name: "layers.0.out".into(),
                shape: vec![2, 100_000],
                elements: Elements::F32(&numbers),
            },
            NamedArray {
                name: "half".into(),
                shape: vec![3],
                elements: Elements::F16(&[0.5, -2.0, 1e9]),
            },
            NamedArray {
                name: "places".into(),
                shape: vec![1, 2],
                elements: Elements::I32(&[7, 8]),
            },
        ];
        for format in ArrayFormat::ALL {
            let path = folder.path().join(format!("a.{}", format.ending()));
            write(&path, format, &arrays, &metadata()).expect("written");
            assert_eq!(ArrayFormat::of(&path), Some(format));
            let n_bytes = std::fs::metadata(&path).expect("a file").len();
            assert!(n_bytes <= most_bytes(&arrays, &metadata()), "{n_bytes}");
            if format == ArrayFormat::Npz {
                let found = npy::read_archive(&path, "layers.0.out").expect("read");
                let found = found.expect("it is there");
                assert_eq!(
                    (found.shape, found.elements),
                    (vec![2, 100_000], numbers.clone())
                );
                let places = npy::read_archive(&path, "places")
                    .expect("read")
                    .expect("there");
                assert_eq!(
                    (places.shape, places.elements),
                    (vec![1, 2], vec![7.0, 8.0])
                );
                continue;
            }
            let checkpoint = Checkpoint::open(&path).expect("sound");
            let half = checkpoint.get("half").expect("it is there");
            assert_eq!((half.dtype, &half.shape), (Dtype::F16, &vec![3]));
            let own = checkpoint.get("layers.0.out").expect("it is there");
            let bytes = std::fs::read(&path).expect("bytes");
            let stored = &bytes[own.offset..own.offset + own.bytes];
            assert_eq!(stored[4..8], 0.125f32.to_le_bytes());
            assert_eq!(&stored[stored.len() - 4..], &numbers[199_999].to_le_bytes());
        }
    }

    #[test]
    fn what_is_no_sound_file_is_not_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let array = |shape: Vec<u64>| NamedArray {
            name: "a".into(),
            shape,
            elements: Elements::F32(&[1.0, 2.0]),
        };
        for format in ArrayFormat::ALL {
            let path = folder.path().join(format!("b.{}", format.ending()));
            for arrays in [vec![array(vec![3])], vec![array(vec![2]), array(vec![2])]] {
                write(&path, format, &arrays, &metadata()).expect_err("refused");
                assert!(!path.exists());
            }
        }
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("a folder").count(),
            0
        );
    }
}
