//! Writes GGUF, version 3.
//!
//! Tensor data is requested one tensor or one piece at a time, so a model is never in memory as a whole. The same input
//! gives the same bytes. The file gets its name only when it is complete; until then it has a temporary name in the
//! same folder, and a failed run removes it.
//!
//! Invariant: a file that the reader would refuse is refused before anything is written, because the reader checks the
//! header first.

use std::io;

use crate::util::atomic_file::{OutputPath, PartFile};
use crate::weights::{Error, Metadata, TensorType};

use super::value::{self, write_string, write_u32, write_u64};
use super::{DEFAULT_ALIGNMENT, GgufFault, MAGIC, read};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Name of the tensor, at most 63 bytes.
    pub name: String,
    pub ty: TensorType,
    /// Dimensions in ggml order, 1 to 4 of them.
    pub shape: Vec<u64>,
}

/// Writes a file with the tensors in this order: `data(i)` gives the bytes of `tensors[i]`, and is called once for each
/// tensor, in order.
///
/// # Errors
/// The description breaks the format's rules, data is not available or has another size than the shape, or the
/// operating system fails. A file at `path` is then unchanged.
pub fn write<'p, B: AsRef<[u8]>>(
    target: impl Into<OutputPath<'p>>,
    metadata: &Metadata,
    tensors: &[NewTensor],
    mut data: impl FnMut(usize) -> io::Result<B>,
) -> Result<(), Error> {
    let target = target.into();
    let path = target.path;
    write_pieces(target, metadata, tensors, |i, out| {
        let bytes = data(i).map_err(|source| Error::Data {
            path: path.to_owned(),
            tensor: tensors[i].name.clone(),
            source,
        })?;
        out(bytes.as_ref())
    })
}

/// Receives bytes of a tensor.
pub type Sink<'s> = dyn FnMut(&[u8]) -> Result<(), Error> + 's;

/// As [`write`], with the data of each tensor in pieces: `data(i, out)` passes the pieces of `tensors[i]` to `out`, in
/// order.
///
/// # Errors
/// The errors of [`write`] and of `data`.
pub fn write_pieces<'p>(
    target: impl Into<OutputPath<'p>>,
    metadata: &Metadata,
    tensors: &[NewTensor],
    mut data: impl FnMut(usize, &mut Sink<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let target = target.into();
    let path = target.path;
    let io = Error::io(path);
    let header = Header::new(metadata, tensors).map_err(|fault| Error::Format {
        label: path.display().to_string(),
        fault,
    })?;
    let mut part = PartFile::new(target).map_err(io)?;
    part.write(&header.bytes).map_err(io)?;
    for (i, (tensor, expected)) in tensors.iter().zip(header.sizes).enumerate() {
        let mut found = 0;
        data(i, &mut |bytes| {
            found += bytes.len() as u64;
            part.write(bytes).map_err(io)
        })?;
        if found != expected {
            return Err(Error::DataSize {
                path: path.to_owned(),
                tensor: tensor.name.clone(),
                found,
                expected,
            });
        }
        part.write(&vec![0; padding(found, header.alignment)])
            .map_err(io)?;
    }
    part.finish().map_err(io)
}

/// Size in bytes of a file with these tensors.
pub fn file_bytes(metadata: &Metadata, tensors: &[NewTensor]) -> Result<u64, GgufFault> {
    let header = Header::new(metadata, tensors)?;
    let data = header.sizes.iter();
    let padded = data.map(|size| size.next_multiple_of(header.alignment));
    Ok(header.bytes.len() as u64 + padded.sum::<u64>())
}

struct Header {
    bytes: Vec<u8>,
    alignment: u64,
    sizes: Vec<u64>,
}

impl Header {
    fn new(metadata: &Metadata, tensors: &[NewTensor]) -> Result<Self, GgufFault> {
        // A wrong alignment or size is refused below, where the reader determines its place.
        let alignment = read::alignment(metadata).unwrap_or(DEFAULT_ALIGNMENT);
        let mut bytes = MAGIC.to_vec();
        write_u32(&mut bytes, 3);
        write_u64(&mut bytes, tensors.len() as u64);
        write_u64(&mut bytes, metadata.len() as u64);
        for (key, value) in metadata.iter() {
            write_string(&mut bytes, key.as_bytes());
            value::write(&mut bytes, value);
        }
        let mut sizes = Vec::with_capacity(tensors.len());
        let mut offset = 0u64;
        for tensor in tensors {
            write_string(&mut bytes, tensor.name.as_bytes());
            write_u32(&mut bytes, tensor.shape.len() as u32);
            for n in &tensor.shape {
                write_u64(&mut bytes, *n);
            }
            write_u32(&mut bytes, tensor.ty.id());
            write_u64(&mut bytes, offset);
            let size = tensor.ty.tensor_bytes(&tensor.shape).unwrap_or(0);
            offset = offset
                .saturating_add(size)
                .checked_next_multiple_of(alignment)
                .unwrap_or(u64::MAX);
            sizes.push(size);
        }
        if !tensors.is_empty() {
            bytes.resize(bytes.len() + padding(bytes.len() as u64, alignment), 0);
        }
        read::parse(&bytes, (bytes.len() as u64).saturating_add(offset))?;
        Ok(Self {
            bytes,
            alignment,
            sizes,
        })
    }
}

fn padding(len: u64, alignment: u64) -> usize {
    (len.next_multiple_of(alignment) - len) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::gguf::builder::{open, sound};
    use crate::weights::{self, Array, Value, Weights};

    fn values() -> Metadata {
        let strings = || [&b"a"[..], b"", b"\xff\0"].into_iter().collect();
        let numbers = Array::Array(vec![Array::U8(vec![]), Array::Str(strings())]);
        Metadata::from_iter([
            ("u8", Value::U8(u8::MAX)),
            ("i8", Value::I8(i8::MIN)),
            ("u16", Value::U16(u16::MAX)),
            ("i16", Value::I16(i16::MIN)),
            ("u32", Value::U32(u32::MAX)),
            ("i32", Value::I32(i32::MIN)),
            ("f32", Value::F32(-0.1)),
            ("bool", Value::Bool(true)),
            ("string", Value::Str("naïve\n".into())),
            ("u64", Value::U64(u64::MAX)),
            ("i64", Value::I64(i64::MIN)),
            ("f64", Value::F64(f64::MIN_POSITIVE)),
            ("of u8", Value::Array(Array::U8(vec![1, 2]))),
            ("of i8", Value::Array(Array::I8(vec![-1, 2]))),
            ("of u16", Value::Array(Array::U16(vec![0x102]))),
            ("of i16", Value::Array(Array::I16(vec![-2, 3]))),
            ("of u32", Value::Array(Array::U32(vec![0x0102_0304]))),
            ("of i32", Value::Array(Array::I32(vec![-4]))),
            ("of f32", Value::Array(Array::F32(vec![0.5, f32::INFINITY]))),
            ("of bool", Value::Array(Array::Bool(vec![true, false]))),
            ("of strings", Value::Array(Array::Str(strings()))),
            ("of u64", Value::Array(Array::U64(vec![1 << 40]))),
            ("of i64", Value::Array(Array::I64(vec![-1 << 40]))),
            ("of f64", Value::Array(Array::F64(vec![1e300]))),
            ("of arrays", Value::Array(numbers)),
        ])
    }

    fn new_tensor(name: &str, ty: TensorType, shape: &[u64]) -> NewTensor {
        NewTensor {
            name: name.into(),
            ty,
            shape: shape.into(),
        }
    }

    /// Writes the file and returns its bytes and the other entries of its folder.
    fn written(
        metadata: &Metadata,
        tensors: &[NewTensor],
        data: impl FnMut(usize) -> std::io::Result<Vec<u8>>,
    ) -> (Result<Vec<u8>, String>, usize) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("m.gguf");
        let result = write(&path, metadata, tensors, data);
        let n_files = std::fs::read_dir(folder.path()).expect("a folder").count();
        let result = match result {
            Ok(()) => Ok(std::fs::read(&path).expect("the file was written")),
            Err(error) => Err(error.to_string().replace(&path.display().to_string(), "m")),
        };
        (result, n_files)
    }

    fn same(found: &Weights, metadata: &Metadata, tensors: &[NewTensor], data: &[Vec<u8>]) {
        assert_eq!(found.metadata(), metadata);
        let keys = |metadata: &Metadata| -> Vec<String> {
            metadata.iter().map(|(key, _)| key.to_owned()).collect()
        };
        assert_eq!(
            keys(found.metadata()),
            keys(metadata),
            "the order of the keys"
        );
        assert_eq!(found.tensors().len(), tensors.len());
        for ((found_tensor, tensor), data) in found.tensors().iter().zip(tensors).zip(data) {
            assert_eq!(found_tensor.name, tensor.name);
            assert_eq!(found_tensor.ty, tensor.ty);
            assert_eq!(found_tensor.shape, tensor.shape);
            assert_eq!(&found.data(found_tensor).expect("in place")[..], data);
        }
    }

    #[test]
    fn every_type_of_value_and_tensor_comes_back() {
        for alignment in [None, Some(256)] {
            let mut metadata = values();
            if let Some(alignment) = alignment {
                metadata.insert("general.alignment", Value::U32(alignment));
            }
            let tensors: Vec<NewTensor> = TensorType::ALL
                .iter()
                .map(|ty| new_tensor(ty.name(), *ty, &[ty.block_len(), 3, 1]))
                .collect();
            let data: Vec<Vec<u8>> = (1u8..)
                .zip(TensorType::ALL)
                .map(|(i, ty)| vec![i; 3 * ty.block_bytes() as usize])
                .collect();
            let (bytes, n_files) = written(&metadata, &tensors, |i| Ok(data[i].clone()));
            let bytes = bytes.expect("the file is sound");
            assert_eq!(n_files, 1);
            let found = open(bytes.clone()).expect("what is written can be read");
            same(&found, &metadata, &tensors, &data);
            for tensor in found.tensors() {
                let alignment = alignment.unwrap_or(32) as usize;
                let (_, offset) = found.place(tensor).expect("in place");
                assert!(offset.is_multiple_of(alignment));
            }
            let again = written(&metadata, &tensors, |i| Ok(data[i].clone())).0;
            assert_eq!(again, Ok(bytes), "the same input gives the same bytes");
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        let metadata = Metadata::from_iter([
            ("general.architecture", Value::Str("test".into())),
            ("test.block_count", Value::U32(1)),
            (
                "tokens",
                Value::Array(Array::Str([&b"a"[..], b"\xff"].into_iter().collect())),
            ),
        ]);
        let tensors = [
            new_tensor("a", TensorType::F32, &[2, 2]),
            new_tensor("b.weight", TensorType::Q8_0, &[32]),
        ];
        let data = [vec![1; 16], (0..34).collect()];
        let (bytes, _) = written(&metadata, &tensors, |i| Ok(data[i].clone()));
        let mut expected = sound().bytes();
        expected.resize(expected.len() + 30, 0);
        assert_eq!(bytes, Ok(expected));
    }

    #[test]
    fn what_the_reader_would_refuse_is_not_written() {
        let refused = |metadata: &[(&str, Value)], tensors: &[NewTensor], expected: &str| {
            let metadata = Metadata::from_iter(metadata.iter().cloned());
            let never = |_| panic!("the header is refused before data is read");
            let (message, n_files) = written(&metadata, tensors, never);
            let message = message.expect_err("the description breaks a rule");
            assert!(
                message.starts_with("m: at byte ") && message.contains(expected),
                "{message}"
            );
            assert_eq!(n_files, 0);
        };
        let f32 = |shape: &[u64]| new_tensor("a", TensorType::F32, shape);
        let large = |name| new_tensor(name, TensorType::I8, &[1 << 63]);
        let unaligned = [("general.alignment", Value::U32(48))];
        refused(
            &[("", Value::U8(0))],
            &[],
            "the name of key 0 is empty or holds control characters",
        );
        refused(
            &unaligned,
            &[f32(&[1])],
            "expected a power of two up to 1048576",
        );
        for (tensors, expected) in [
            (&[f32(&[1]), f32(&[1])][..], "tensor `a` occurs twice"),
            (&[f32(&[0])], "has a dimension of zero in its shape [0]"),
            (&[f32(&[1; 5])], "has 5 dimensions, expected at most 4"),
            (
                &[f32(&[1 << 62])],
                "is too large: [4611686018427387904] of f32",
            ),
            (
                &[large("a"), large("b")],
                "tensor `b` ends at byte 18446744073709551615 of a file",
            ),
            (
                &[new_tensor("a", TensorType::Q4_K, &[32])],
                "rows of 32 elements, expected a multiple of 256",
            ),
        ] {
            refused(&[], tensors, expected);
        }
    }

    #[test]
    fn a_run_that_fails_leaves_everything_as_it_was() {
        let tensors = [
            new_tensor("a", TensorType::I8, &[4]),
            new_tensor("b", TensorType::I8, &[4]),
        ];
        let (message, n_files) = written(&Metadata::default(), &tensors, |i| match i {
            0 => Ok(vec![0; 4]),
            _ => Err(std::io::Error::other("no more")),
        });
        assert_eq!(message, Err("m: tensor `b`: no more".into()));
        assert_eq!(n_files, 0);
        let (message, n_files) = written(&Metadata::default(), &tensors, |_| Ok(vec![0; 5]));
        assert_eq!(message, Err("m: tensor `a` got 5 bytes, expected 4".into()));
        assert_eq!(n_files, 0);

        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, "before").expect("a writable folder");
        let panics = std::panic::AssertUnwindSafe(|| {
            write(
                OutputPath::replacing(&path),
                &Metadata::default(),
                &tensors,
                |_| -> std::io::Result<Vec<u8>> { panic!("no data") },
            )
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(std::fs::read(&path).expect("still there"), b"before");
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("a folder").count(),
            1
        );

        let nowhere = folder.path().join("missing/m.gguf");
        let error = write(&nowhere, &Metadata::default(), &tensors, |_| Ok([0; 4]));
        assert!(matches!(error, Err(Error::Io { .. })), "{error:?}");
        let onto_a_folder = write(
            folder.path(),
            &Metadata::default(),
            &tensors,
            |_| Ok([0; 4]),
        );
        assert!(
            matches!(onto_a_folder, Err(Error::Io { .. })),
            "{onto_a_folder:?}"
        );
        let target = OutputPath::replacing(&path);
        write(target, &Metadata::default(), &tensors, |_| Ok([0; 4])).expect("a sound file");
        assert!(weights::open(&path).is_ok(), "a file is replaced");
    }
}
