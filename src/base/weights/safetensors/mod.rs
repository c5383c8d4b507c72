//! The safetensors format: one file, or a folder of shards with an index. Reading only; maps state the meaning of the
//! tensors for an architecture.
//!
//! `header` reads and checks headers; this module finds and joins shards. Data stays in the mapped files.
//! Specification: the README of the safetensors project.

mod header;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use safetensors::Dtype;

use crate::util::limited_read;

use super::map::map;
use super::{Error, FileBytes, TensorType, Weights, sniff};

/// Ending of the name of a file of tensors.
pub const ENDING: &str = "safetensors";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Alignment in bytes of the data of written files and, as far as sizes allow, of each tensor.
pub(crate) const ALIGNMENT: u64 = 64;

/// The bytes before the data of a file of these tensors, given by name, element type and shape (the slowest dimension
/// first), whose data follows in this order. `metadata` has texts by names.
///
/// # Errors
/// A name occurs twice, or a tensor is too large for the format.
pub fn head(
    metadata: Map<String, Value>,
    tensors: impl IntoIterator<Item = (String, Dtype, Vec<u64>)>,
) -> Result<Vec<u8>, String> {
    let mut entries = Map::new();
    entries.insert(header::METADATA.into(), Value::Object(metadata));
    let mut offset = 0u64;
    for (name, dtype, shape) in tensors {
        let n = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        let bits = n.and_then(|n| n.checked_mul(dtype.bitsize() as u64));
        let end = bits.and_then(|bits| offset.checked_add(bits.div_ceil(8)));
        let end = end.ok_or_else(|| format!("tensor `{name}` is too large: {shape:?}"))?;
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] });
        if entries.insert(name.clone(), entry).is_some() {
            return Err(format!("tensor `{name}` occurs twice"));
        }
        offset = end;
    }
    let mut text = serde_json::to_vec(&entries).map_err(|error| error.to_string())?;
    let begin = (size_of::<u64>() + text.len()) as u64;
    let padding = begin.next_multiple_of(ALIGNMENT) - begin;
    text.resize(text.len() + padding as usize, b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.append(&mut text);
    Ok(out)
}

#[derive(Clone, Debug)]
pub struct StoredTensor {
    pub dtype: Dtype,
    /// Dimensions, the slowest first (the reverse of ggml's order).
    pub shape: Vec<u64>,
    /// Index of the tensor's file among the checkpoint's files.
    pub file: usize,
    /// Offset of the data in the file.
    pub offset: usize,
    /// Size of the data in bytes.
    pub bytes: usize,
}

/// The tensors of a file or folder, by name.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    tensors: BTreeMap<String, StoredTensor>,
    /// Names in the files of the tensors that were renamed.
    stored_names: BTreeMap<String, String>,
    /// Names of stored tensors that other tensors replace.
    replaced: BTreeSet<String>,
    files: Vec<(PathBuf, FileBytes)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the file at `path`, or the files in the folder at `path`: those of an index, the file with the usual name,
    /// or the only file.
    ///
    /// # Errors
    /// There are no such files, a file or index breaks its rules, or they contradict each other.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if !path.is_dir() {
            return Self::of_files(vec![path.to_owned()]);
        }
        let index = path.join(INDEX);
        if is_named(&index) {
            return Self::of_index(path, &index);
        }
        let single = path.join(SINGLE);
        if is_named(&single) {
            return Self::of_files(vec![single]);
        }
        let io = Error::io(path);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.extension() == Some(OsStr::new(ENDING)) {
                found.push(path);
            }
        }
        match found.len() {
            1 => Self::of_files(found),
            n => Err(fault(
                path,
                format!("{n} files of tensors and no {INDEX}; expected {SINGLE}, or an index"),
            )),
        }
    }

    /// The tensors of an opened file of another format, `path`. Where the data are blocks of quantised numbers, the type
    /// is that of bytes, and the shape that of the numbers. Slow axes of one element, which that format does not tell from
    /// none, are left out.
    pub fn of_weights(path: &Path, weights: &Weights) -> Self {
        let mut all = Self::default();
        for tensor in weights.tensors() {
            let Some((bytes, offset)) = weights.place(tensor) else {
                continue;
            };
            let known = all.files.iter().position(|(_, file)| is_same(file, bytes));
            let file = known.unwrap_or(all.files.len());
            if known.is_none() {
                all.files.push((path.to_owned(), bytes.clone()));
            }
            let mut shape = tensor.shape.clone();
            while shape.len() > 1 && shape.last() == Some(&1) {
                shape.pop();
            }
            shape.reverse();
            let stored = StoredTensor {
                dtype: dtype_of(tensor.ty),
                shape,
                file,
                offset,
                bytes: tensor.bytes as usize,
            };
            all.tensors.insert(tensor.name.clone(), stored);
        }
        all
    }

    fn of_files(paths: Vec<PathBuf>) -> Result<Self, Error> {
        let mut all = Self {
            tensors: BTreeMap::new(),
            stored_names: BTreeMap::new(),
            replaced: BTreeSet::new(),
            files: Vec::with_capacity(paths.len()),
        };
        for path in paths {
            all.add(path)?;
        }
        Ok(all)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), Error> {
        let bytes = map(&path)?;
        let tensors = header::read(&bytes).map_err(|message| match sniff::identify(&bytes) {
            // A broken header that starts like JSON still shows that the file is safetensors.
            Some(what) if !bytes.get(8..).is_some_and(|rest| rest.starts_with(b"{")) => {
                fault(&path, what.to_owned())
            }
            _ => fault(&path, format!("no sound safetensors file: {message}")),
        })?;
        for found in tensors {
            let stored = StoredTensor {
                dtype: found.dtype,
                shape: found.shape,
                file: self.files.len(),
                offset: found.offset,
                bytes: found.bytes,
            };
            if let Some(other) = self.tensors.insert(found.name.clone(), stored) {
                let other = self.files[other.file].0.display();
                let message = format!("tensor `{}` is also in {other}", found.name);
                return Err(fault(&path, message));
            }
        }
        self.files.push((path, bytes));
        Ok(())
    }

    fn of_index(folder: &Path, path: &Path) -> Result<Self, Error> {
        let index: Index = serde_json::from_slice(&read_small(path, MAX_INDEX_BYTES)?)
            .map_err(|error| fault(path, error.to_string()))?;
        // Each file with one of its tensors, for messages.
        let shards: BTreeMap<&String, &String> = index
            .weight_map
            .iter()
            .map(|(tensor, shard)| (shard, tensor))
            .collect();
        let mut all = Self::of_files(Vec::new())?;
        for (shard, tensor) in shards {
            let refuse = |message: String| {
                fault(
                    path,
                    format!("`{tensor}` is listed in `{shard}`: {message}"),
                )
            };
            let mut parts = Path::new(shard).components();
            let is_plain = matches!(parts.next(), Some(Component::Normal(_)));
            if !is_plain || parts.next().is_some() {
                return Err(refuse("not the name of a file in this folder".into()));
            }
            all.add(folder.join(shard)).map_err(|error| match error {
                Error::Io { .. } if !is_named(&folder.join(shard)) => refuse(format!(
                    "that file is missing; download it into {}",
                    folder.display()
                )),
                Error::Io { .. } | Error::NotAFile { .. } => refuse(error.to_string()),
                other => other,
            })?;
        }
        for (tensor, shard) in &index.weight_map {
            let found = all.tensors.get(tensor).map(|t| &all.files[t.file].0);
            match found {
                Some(file) if file.file_name() == Some(OsStr::new(shard)) => {}
                Some(file) => {
                    let message = format!(
                        "`{tensor}` is listed in {shard}, found in {}",
                        file.display()
                    );
                    return Err(fault(path, message));
                }
                None => return Err(fault(path, format!("`{tensor}` is not in {shard}"))),
            }
        }
        Ok(all)
    }

    /// Adds the tensors of another folder, with `prefix` before their names.
    pub fn join(&mut self, prefix: &str, other: Self) -> Result<(), Error> {
        let first = self.files.len();
        for (name, mut stored) in other.tensors {
            stored.file += first;
            let name = format!("{prefix}{name}");
            if let Some(own) = self.tensors.get(&name) {
                let message = format!("tensor `{name}` is also a module's");
                return Err(fault(self.path(own), message));
            }
            self.tensors.insert(name, stored);
        }
        self.files.extend(other.files);
        Ok(())
    }

    /// All tensors in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &StoredTensor)> {
        self.tensors
            .iter()
            .map(|(name, stored)| (name.as_str(), stored))
    }

    pub fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// Renames tensors; an existing name is not given to another tensor.
    pub fn rename(&mut self, name_of: impl Fn(&str) -> Option<String>) {
        let renamed: Vec<(String, String)> = self
            .tensors
            .keys()
            .filter_map(|stored| Some((stored.clone(), name_of(stored)?)))
            .collect();
        for (stored, name) in renamed {
            if self.tensors.contains_key(&name) {
                continue;
            }
            if let Some(tensor) = self.tensors.remove(&stored) {
                self.tensors.insert(name.clone(), tensor);
                self.stored_names.insert(name, stored);
            }
        }
    }

    /// The name of a tensor in its file.
    pub fn stored_name<'n>(&'n self, name: &'n str) -> &'n str {
        self.stored_names.get(name).map_or(name, String::as_str)
    }

    /// Whether a tensor of this name is stored, even as a part of another one.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name) || self.replaced.contains(name)
    }

    /// Removes a tensor that another one replaces.
    pub fn remove(&mut self, name: &str) {
        if self.tensors.remove(name).is_some() {
            self.replaced.insert(name.to_owned());
        }
    }

    /// Adds a tensor, or replaces the one of the same name; its file must belong to the checkpoint.
    pub fn insert(&mut self, name: String, stored: StoredTensor) {
        self.tensors.insert(name, stored);
    }

    /// The files, in the order of [`Stored::file`].
    pub fn files(&self) -> impl Iterator<Item = &FileBytes> {
        self.files.iter().map(|(_, bytes)| bytes)
    }

    pub fn path(&self, stored: &StoredTensor) -> &Path {
        &self.files[stored.file].0
    }
}

/// Whether two values are the same bytes in memory.
fn is_same(a: &FileBytes, b: &FileBytes) -> bool {
    std::ptr::eq::<[u8]>(&**a, &**b)
}

/// The element type of a tensor in its file; that of bytes for blocks of quantised numbers.
fn dtype_of(ty: TensorType) -> Dtype {
    match ty {
        TensorType::F32 => Dtype::F32,
        TensorType::F16 => Dtype::F16,
        TensorType::BF16 => Dtype::BF16,
        TensorType::F64 => Dtype::F64,
        TensorType::I8 => Dtype::I8,
        TensorType::I16 => Dtype::I16,
        TensorType::I32 => Dtype::I32,
        TensorType::I64 => Dtype::I64,
        _ => Dtype::U8,
    }
}

/// Whether a folder has an entry of this name, even a broken link.
pub fn is_named(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The contents of a file of limited size.
pub fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let io = Error::io(path);
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(Error::NotAFile {
            path: path.to_owned(),
        });
    }
    if metadata.len() > limit {
        let message = format!("{} bytes, expected at most {limit}", metadata.len());
        return Err(fault(path, message));
    }
    limited_read::bytes(path, limit).map_err(io)
}

fn fault(path: &Path, message: String) -> Error {
    Error::File {
        path: path.to_owned(),
        message,
    }
}
