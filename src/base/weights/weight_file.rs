//! An opened weight file: metadata, tensors and the sources of their data.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::data::DataSource;
use super::{Error, FileBytes, Metadata, TensorData, TensorEntry, TensorInfo};

/// An opened weight file (or set of files): metadata and tensors.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Name for messages: the path, or a name in place of it.
    label: String,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    sources: Vec<DataSource>,
    /// Description of the stored tensors from which each tensor is computed, for messages.
    origins: HashMap<String, String>,
    files: Vec<FileBytes>,
}

impl Weights {
    /// A tensor with its data, for [`Self::of`].
    pub fn entry(&self, tensor: &TensorInfo) -> TensorEntry {
        let data = match &self.sources[tensor.source] {
            DataSource::File(bytes) => TensorData::Mapped(bytes.clone(), tensor.offset as usize),
            DataSource::Lazy(lazy) => TensorData::Lazy(lazy.clone()),
        };
        TensorEntry {
            name: tensor.name.clone(),
            ty: tensor.ty,
            shape: tensor.shape.clone(),
            data,
        }
    }
}

impl Weights {
    /// Weights from the reader of a format, which has checked all ranges.
    pub(super) fn new(
        label: String,
        metadata: Metadata,
        tensors: Vec<TensorInfo>,
        sources: Vec<DataSource>,
    ) -> Self {
        let index = tensors
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.clone(), i))
            .collect();
        Self {
            label,
            metadata,
            tensors,
            index,
            sources,
            origins: HashMap::new(),
            files: Vec::new(),
        }
    }

    /// Weights of tensors from any sources.
    ///
    /// # Errors
    /// A shape exceeds the limits of its type or of tensors, data is outside its file, or a name occurs twice.
    pub fn of(label: String, metadata: Metadata, entries: Vec<TensorEntry>) -> Result<Self, Error> {
        let mut tensors = Vec::with_capacity(entries.len());
        let mut sources = Vec::with_capacity(entries.len());
        for entry in entries {
            let source = sources.len();
            let (tensor, data) = entry.place(source)?;
            tensors.push(tensor);
            sources.push(data);
        }
        let n = tensors.len();
        let all = Self::new(label, metadata, tensors, sources);
        match all.index.len() == n {
            true => Ok(all),
            false => {
                let twice = all
                    .tensors
                    .iter()
                    .enumerate()
                    .find(|(i, t)| all.index[&t.name] != *i);
                Err(Error::NotComputed {
                    tensor: twice.map(|(_, t)| t.name.clone()).unwrap_or_default(),
                    message: "occurs twice".into(),
                })
            }
        }
    }

    /// Sets the descriptions of the sources of tensors, including missing ones, by tensor name.
    #[must_use]
    pub fn with_origins(self, origins: HashMap<String, String>) -> Self {
        Self { origins, ..self }
    }

    /// Sets the files from which lazy tensors are computed.
    #[must_use]
    pub fn with_files(self, files: impl IntoIterator<Item = FileBytes>) -> Self {
        let files = files.into_iter().collect();
        Self { files, ..self }
    }

    /// The files of the tensors, or from which they are computed; a file may occur several times.
    pub fn files(&self) -> impl Iterator<Item = &FileBytes> {
        let sources = self.sources.iter().filter_map(|source| match source {
            DataSource::File(bytes) => Some(bytes),
            DataSource::Lazy(_) => None,
        });
        sources.chain(&self.files)
    }

    /// Releases the memory of mapped pages that were accessed; the next access reads them again.
    pub fn release(&self) {
        let mut released = HashSet::new();
        for bytes in self.files() {
            if let FileBytes::Mapped(file) = bytes
                && released.insert(file.as_ptr())
            {
                file.release();
            }
        }
    }

    /// The description of the sources of a tensor, or of a missing one; for messages.
    pub fn origin(&self, name: &str) -> Option<&str> {
        self.origins.get(name).map(String::as_str)
    }

    /// The path, or a name in place of it, for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Adds metadata and replaces existing keys.
    pub fn add_metadata(&mut self, more: &Metadata) {
        for (key, value) in more.iter() {
            self.metadata.insert(key, value.clone());
        }
    }

    /// All tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The mapped file that has a tensor, and the offset of its data there, for users that keep the whole mapping
    /// alive; none for a lazy tensor.
    pub fn place(&self, tensor: &TensorInfo) -> Option<(&FileBytes, usize)> {
        match &self.sources[tensor.source] {
            DataSource::File(bytes) => Some((bytes, tensor.offset as usize)),
            DataSource::Lazy(_) => None,
        }
    }

    /// The bytes of a tensor: borrowed from its file, or computed.
    pub fn data(&self, tensor: &TensorInfo) -> Result<Cow<'_, [u8]>, Error> {
        if let Some((bytes, start)) = self.place(tensor) {
            return Ok(bytes[start..start + tensor.bytes as usize].into());
        }
        let mut out = vec![0; tensor.bytes as usize];
        self.rows(tensor, 0, &mut out)?;
        Ok(out.into())
    }

    /// `n` rows of a tensor, starting at row `first`: borrowed from its file, or computed.
    pub fn some_rows(
        &self,
        tensor: &TensorInfo,
        first: u64,
        n: u64,
    ) -> Result<Cow<'_, [u8]>, Error> {
        let row = tensor.row_bytes();
        if let Some((bytes, start)) = self.place(tensor) {
            let start = start + (first * row) as usize;
            return Ok(bytes[start..start + (n * row) as usize].into());
        }
        let mut out = vec![0; (n * row) as usize];
        self.rows(tensor, first, &mut out)?;
        Ok(out.into())
    }

    /// Fills `out` with the values of rows before rounding, and returns true, if the tensor has such values; see
    /// [`super::LazyTensor::values`].
    pub fn values(&self, tensor: &TensorInfo, first: u64, out: &mut [f32]) -> Result<bool, Error> {
        let made = match &self.sources[tensor.source] {
            DataSource::File(_) => Ok(false),
            DataSource::Lazy(lazy) => lazy.values(first, out),
        };
        made.map_err(|message| Error::NotComputed {
            tensor: tensor.name.clone(),
            message,
        })
    }

    /// Fills `out` with rows of a tensor, starting at row `first`; see [`super::LazyTensor::rows`].
    pub fn rows(&self, tensor: &TensorInfo, first: u64, out: &mut [u8]) -> Result<(), Error> {
        let made = match &self.sources[tensor.source] {
            DataSource::File(bytes) => {
                let start = (tensor.offset + first * tensor.row_bytes()) as usize;
                match bytes {
                    FileBytes::Mapped(file) => file.read_at(start, out),
                    FileBytes::Static(bytes) => {
                        out.copy_from_slice(&bytes[start..start + out.len()]);
                        Ok(())
                    }
                }
            }
            DataSource::Lazy(lazy) => lazy.rows(first, out),
        };
        made.map_err(|message| Error::NotComputed {
            tensor: tensor.name.clone(),
            message,
        })
    }
}
