//! The safetensors format: one file, or a folder of shards with an index. Reading only; what the
//! tensors mean to an architecture is a map's affair.
//!
//! The header is parsed by the format's own crate, which checks lengths, offsets and sizes against
//! the file; here shards are found and joined. Data stays where it lies.
//! Specification: the README of the safetensors project.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;

pub use safetensors::Dtype;

use super::map::map;
use super::{Bytes, Error};

/// Ending of the name of a file of tensors.
pub const ENDING: &str = "safetensors";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Bytes of an index that no sensible one reaches.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// A tensor as it is stored.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, the slowest first (the reverse of ggml's order).
    pub shape: Vec<u64>,
    /// Which of the checkpoint's files holds it.
    pub file: usize,
    /// Offset of its data in the file.
    pub offset: usize,
    /// Size of its data.
    pub bytes: usize,
}

/// The tensors of a file or folder, by name.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    tensors: BTreeMap<String, Stored>,
    files: Vec<(PathBuf, Bytes)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the file at `path`, or the files in the folder at `path`: those of an index, the one
    /// with the usual name, or the only one there is.
    ///
    /// # Errors
    /// No such files, a file or index that breaks its rules, or ones that contradict each other.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if !path.is_dir() {
            return Self::of_files(vec![path.to_owned()]);
        }
        let index = path.join(INDEX);
        if index.exists() {
            return Self::of_index(path, &index);
        }
        let single = path.join(SINGLE);
        if single.exists() {
            return Self::of_files(vec![single]);
        }
        let io = |source| Error::Io {
            path: path.to_owned(),
            source,
        };
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

    fn of_files(paths: Vec<PathBuf>) -> Result<Self, Error> {
        let mut all = Self {
            tensors: BTreeMap::new(),
            files: Vec::with_capacity(paths.len()),
        };
        for path in paths {
            all.add(path)?;
        }
        Ok(all)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), Error> {
        let bytes = map(&path)?;
        let (header, metadata) = SafeTensors::read_metadata(&bytes)
            .map_err(|error| fault(&path, format!("no sound safetensors file: {error}")))?;
        let begin = size_of::<u64>() + header;
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let stored = Stored {
                dtype: info.dtype,
                shape: info.shape.iter().map(|n| *n as u64).collect(),
                file: self.files.len(),
                offset: begin + start,
                bytes: end - start,
            };
            if let Some(other) = self.tensors.insert(name.clone(), stored) {
                let other = self.files[other.file].0.display();
                return Err(fault(&path, format!("tensor `{name}` is also in {other}")));
            }
        }
        self.files.push((path, bytes));
        Ok(())
    }

    fn of_index(folder: &Path, path: &Path) -> Result<Self, Error> {
        let index: Index = serde_json::from_slice(&read_small(path, MAX_INDEX_BYTES)?)
            .map_err(|error| fault(path, error.to_string()))?;
        let mut names: Vec<&String> = index.weight_map.values().collect();
        names.sort();
        names.dedup();
        let mut shards = Vec::with_capacity(names.len());
        for name in &names {
            let mut parts = Path::new(name).components();
            let is_plain = matches!(parts.next(), Some(Component::Normal(_)));
            if !is_plain || parts.next().is_some() {
                let message = format!("`{name}` is no name of a file in this folder");
                return Err(fault(path, message));
            }
            shards.push(folder.join(name));
        }
        let all = Self::of_files(shards)?;
        for (tensor, shard) in &index.weight_map {
            let found = all.tensors.get(tensor).map(|t| &all.files[t.file].0);
            match found {
                Some(file) if file.file_name() == Some(OsStr::new(shard)) => {}
                Some(file) => {
                    let message = format!(
                        "`{tensor}` is said to be in {shard}, found in {}",
                        file.display()
                    );
                    return Err(fault(path, message));
                }
                None => return Err(fault(path, format!("`{tensor}` is not in {shard}"))),
            }
        }
        Ok(all)
    }

    /// All tensors in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Stored)> {
        self.tensors
            .iter()
            .map(|(name, stored)| (name.as_str(), stored))
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// The files, in the order of [`Stored::file`].
    pub fn files(&self) -> impl Iterator<Item = &Bytes> {
        self.files.iter().map(|(_, bytes)| bytes)
    }

    /// The name of the file that holds a tensor.
    pub fn path(&self, stored: &Stored) -> &Path {
        &self.files[stored.file].0
    }
}

/// The contents of a file that should not be large.
///
/// # Errors
/// It cannot be read, or is larger than `limit` bytes.
pub fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
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
    std::fs::read(path).map_err(io)
}

fn fault(path: &Path, message: String) -> Error {
    Error::File {
        path: path.to_owned(),
        message,
    }
}
