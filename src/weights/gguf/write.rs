//! Writing GGUF, version 3.
//!
//! Tensor data is asked for one tensor at a time, so a model is never whole in memory. The file
//! appears under its name only when it is complete: a broken run leaves nothing behind.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::weights::{Array, Metadata, TensorType, Value};

use super::{DEFAULT_ALIGNMENT, MAGIC};

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name, at most 63 bytes.
    pub name: String,
    /// Element type.
    pub ty: TensorType,
    /// Dimensions in ggml order.
    pub shape: Vec<u64>,
}

/// Writes a file: `data(i)` gives the bytes of `tensors[i]`.
///
/// # Errors
/// What the operating system or `data` says, or bytes that are not as many as the shape asks for.
/// Nothing is left behind under `path` then.
pub fn write(
    path: &Path,
    metadata: &Metadata,
    tensors: &[NewTensor],
    data: impl FnMut(usize) -> io::Result<Vec<u8>>,
) -> io::Result<()> {
    let part = Part::new(path)?;
    let mut out = BufWriter::with_capacity(1 << 20, part.file.try_clone()?);
    emit(&mut out, metadata, tensors, data)?;
    out.flush()?;
    part.finish(path)
}

/// A file under a temporary name, which goes when it is not finished.
struct Part {
    file: File,
    path: Option<PathBuf>,
}

impl Part {
    fn new(path: &Path) -> io::Result<Self> {
        let mut name = path
            .file_name()
            .ok_or_else(|| io::Error::other("the path names no file"))?
            .to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        Ok(Self {
            file: File::create(&part)?,
            path: Some(part),
        })
    }

    fn finish(mut self, path: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        if let Some(part) = &self.path {
            std::fs::rename(part, path)?;
        }
        self.path = None;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(part) = &self.path {
            // Nothing more can be done about a file that does not go.
            let _ = std::fs::remove_file(part);
        }
    }
}

fn emit(
    out: &mut impl Write,
    metadata: &Metadata,
    tensors: &[NewTensor],
    mut data: impl FnMut(usize) -> io::Result<Vec<u8>>,
) -> io::Result<()> {
    let mut head = Vec::new();
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&3u32.to_le_bytes());
    head.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    head.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        string(&mut head, key.as_bytes());
        head.extend_from_slice(&type_id(value).to_le_bytes());
        scalar_or_array(&mut head, value);
    }
    let mut sizes = Vec::with_capacity(tensors.len());
    let mut offset = 0u64;
    for tensor in tensors {
        let size = tensor.ty.tensor_bytes(&tensor.shape);
        let size = size.ok_or_else(|| {
            io::Error::other(format!("tensor `{}` has no valid size", tensor.name))
        })?;
        string(&mut head, tensor.name.as_bytes());
        head.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
        tensor
            .shape
            .iter()
            .for_each(|n| head.extend_from_slice(&n.to_le_bytes()));
        head.extend_from_slice(&tensor.ty.id().to_le_bytes());
        head.extend_from_slice(&offset.to_le_bytes());
        offset += size.next_multiple_of(DEFAULT_ALIGNMENT);
        sizes.push(size);
    }
    pad(&mut head);
    out.write_all(&head)?;
    for (i, size) in sizes.into_iter().enumerate() {
        let mut bytes = data(i)?;
        if bytes.len() as u64 != size {
            let message = format!(
                "tensor `{}`: {} bytes, expected {size}",
                tensors[i].name,
                bytes.len()
            );
            return Err(io::Error::other(message));
        }
        pad(&mut bytes);
        out.write_all(&bytes)?;
    }
    Ok(())
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text);
}

fn type_id(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Str(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn scalar_or_array(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::Str(v) => string(out, v.as_bytes()),
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Array(v) => array(out, v),
    }
}

fn array(out: &mut Vec<u8>, array: &Array) {
    let id: u32 = match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::Str(_) => 8,
        Array::Array(_) => 9,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    };
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&(array.len() as u64).to_le_bytes());
    match array {
        Array::Str(strings) => strings.iter().for_each(|text| string(out, text)),
        Array::Array(arrays) => arrays.iter().for_each(|inner| self::array(out, inner)),
        numbers => (0..numbers.len())
            .filter_map(|i| numbers.get(i))
            .for_each(|v| scalar_or_array(out, &v)),
    }
}
