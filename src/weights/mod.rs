//! A weight file on disk as metadata and named tensors, whatever the format.
//!
//! [`Weights`] hides the file format from everything above it. Tensor data stays in the mapped file,
//! or is computed row by row when it is read ([`LazyTensor`]). Used by the planner (shapes, types),
//! the model (data) and `inspect`.
//!
//! Invariant: every returned range lies inside its mapped file. A file that would break this is
//! refused when it is opened.

mod check;
pub mod experts;
pub mod folder;
pub mod gguf;
mod json;
mod map;
mod metadata;
pub mod safetensors;
mod space;
pub mod stranger;
mod tensor_type;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use check::{Checked, NotFinite, check};
pub use map::MappedFile;
pub use metadata::{Array, Metadata, StringArray, Value};
pub use space::check_space;
pub use tensor_type::TensorType;

/// Maximum number of dimensions of a tensor (a limit of ggml).
pub const MAX_DIMS: usize = 4;

/// One tensor of a weight file: name, type, shape and the place of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type as stored.
    pub ty: TensorType,
    /// Dimensions in ggml order (fastest first), 1 to 4 of them, none of them 0.
    pub shape: Vec<u64>,
    /// Size of the data in bytes.
    pub bytes: u64,
    /// Index of the source that has the data.
    source: usize,
    /// Offset of the data in that source, if it is a file.
    offset: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Size of a row in bytes; a row is the elements of the first dimension.
    pub fn row_bytes(&self) -> u64 {
        self.bytes / self.n_rows()
    }

    /// Number of rows: the product of all dimensions after the first.
    pub fn n_rows(&self) -> u64 {
        self.shape[1..].iter().product::<u64>().max(1)
    }

    /// Splits the tensor into pieces of whole rows of about `bytes` bytes. Gives first row and number
    /// of rows of each piece.
    pub fn pieces(&self, bytes: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (n_rows, step) = (self.n_rows(), (bytes / self.row_bytes()).max(1));
        let starts = (0..n_rows).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        starts.map(move |first| (first, step.min(n_rows - first)))
    }
}

/// A tensor whose rows are computed when they are read.
pub trait LazyTensor: fmt::Debug + Send + Sync {
    /// Fills `out` with whole rows, starting at row `first`. Rows are counted over all dimensions after
    /// the first.
    ///
    /// # Errors
    /// Why the rows cannot be computed.
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), String>;

    /// Fills `out` with the values before [`Self::rows`] rounds them to the tensor's type, starting at
    /// row `first`. Returns false, and leaves `out` as it is, if rows are not rounded.
    ///
    /// # Errors
    /// As [`Self::rows`].
    fn values(&self, _first: u64, _out: &mut [f32]) -> Result<bool, String> {
        Ok(false)
    }
}

/// A tensor for [`Weights::of`].
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Element type.
    pub ty: TensorType,
    /// Dimensions in ggml order, 1 to 4 of them.
    pub shape: Vec<u64>,
    /// Its data.
    pub data: Data,
}

/// The data of an [`Entry`].
#[derive(Clone, Debug)]
pub enum Data {
    /// Stored bytes, starting at this offset.
    Mapped(Bytes, usize),
    /// Rows that are computed when they are read.
    Lazy(Arc<dyn LazyTensor>),
}

/// Where the bytes of a source lie.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// A mapped file.
    Mapped(Arc<MappedFile>),
    /// Bytes built into the program.
    Static(&'static [u8]),
}

impl Entry {
    fn place(self, source: usize) -> Result<(TensorInfo, Source), Error> {
        let refuse = |message: String| Error::Made {
            tensor: self.name.clone(),
            message,
        };
        let is_sound = (1..=MAX_DIMS).contains(&self.shape.len()) && !self.shape.contains(&0);
        let bytes = self.ty.tensor_bytes(&self.shape).filter(|_| is_sound);
        let bytes = bytes.ok_or_else(|| {
            refuse(format!(
                "{} cannot have the shape {:?}",
                self.ty, self.shape
            ))
        })?;
        let (data, offset) = match self.data {
            Data::Mapped(file, offset) => {
                let end = (offset as u64).checked_add(bytes);
                if end.is_none_or(|end| end > file.len() as u64) {
                    return Err(refuse(format!(
                        "{bytes} bytes at {offset} are not in a file of {}",
                        file.len()
                    )));
                }
                (Source::File(file), offset as u64)
            }
            Data::Lazy(lazy) => (Source::Lazy(lazy), 0),
        };
        let tensor = TensorInfo {
            name: self.name,
            ty: self.ty,
            shape: self.shape,
            bytes,
            source,
            offset,
        };
        Ok((tensor, data))
    }
}

impl Bytes {
    /// Whether they are as they were when their file was mapped.
    ///
    /// # Errors
    /// The file, which was changed in place since.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Mapped(file) => file.check(),
            Self::Static(_) => Ok(()),
        }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}

impl Weights {
    /// A tensor with its data, for [`Self::of`].
    pub fn entry(&self, tensor: &TensorInfo) -> Entry {
        let data = match &self.sources[tensor.source] {
            Source::File(bytes) => Data::Mapped(bytes.clone(), tensor.offset as usize),
            Source::Lazy(lazy) => Data::Lazy(lazy.clone()),
        };
        Entry {
            name: tensor.name.clone(),
            ty: tensor.ty,
            shape: tensor.shape.clone(),
            data,
        }
    }
}

/// An opened weight file (or set of files): metadata and tensors.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Name for messages: the path, or a name in its place.
    label: String,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    sources: Vec<Source>,
    /// Description of the stored tensors that each tensor is computed from, for messages.
    origins: HashMap<String, String>,
    /// Files that lazy tensors are made of.
    files: Vec<Bytes>,
}

/// The data of one or more tensors.
#[derive(Clone, Debug)]
enum Source {
    File(Bytes),
    Lazy(Arc<dyn LazyTensor>),
}

impl Weights {
    /// Weights of a format's reader, which has checked all ranges.
    fn new(
        label: String,
        metadata: Metadata,
        tensors: Vec<TensorInfo>,
        sources: Vec<Source>,
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
    /// A shape that the type or the limits of a tensor do not allow, data outside its file, or a name
    /// that occurs twice.
    pub fn of(label: String, metadata: Metadata, entries: Vec<Entry>) -> Result<Self, Error> {
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
                Err(Error::Made {
                    tensor: twice.map(|(_, t)| t.name.clone()).unwrap_or_default(),
                    message: "occurs twice".into(),
                })
            }
        }
    }

    /// Sets the sources of each tensor, or of one that the file lacks, by tensor name.
    #[must_use]
    pub fn with_origins(self, origins: HashMap<String, String>) -> Self {
        Self { origins, ..self }
    }

    /// Sets the files that lazy tensors are made of.
    #[must_use]
    pub fn with_files(self, files: impl IntoIterator<Item = Bytes>) -> Self {
        let files = files.into_iter().collect();
        Self { files, ..self }
    }

    /// The files that tensors lie in or are made of; one may occur several times.
    pub fn files(&self) -> impl Iterator<Item = &Bytes> {
        let sources = self.sources.iter().filter_map(|source| match source {
            Source::File(bytes) => Some(bytes),
            Source::Lazy(_) => None,
        });
        sources.chain(&self.files)
    }

    /// Gives back the memory of mapped pages that were accessed; they are read again when they are accessed again.
    pub fn release(&self) {
        let mut released = HashSet::new();
        for bytes in self.files() {
            if let Bytes::Mapped(file) = bytes
                && released.insert(file.as_ptr())
            {
                file.release();
            }
        }
    }

    /// The sources of a tensor, or of one that the file lacks; for messages.
    pub fn origin(&self, name: &str) -> Option<&str> {
        self.origins.get(name).map(String::as_str)
    }

    /// The path, or a name in its place, for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The metadata of the model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Adds metadata; existing keys are replaced.
    pub fn add_metadata(&mut self, more: &Metadata) {
        for (key, value) in more.iter() {
            self.metadata.insert(key, value.clone());
        }
    }

    /// All tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The mapped file that holds a tensor and the offset of its data there, for users that
    /// need the whole mapping to stay alive; none for a lazy tensor.
    pub fn place(&self, tensor: &TensorInfo) -> Option<(&Bytes, usize)> {
        match &self.sources[tensor.source] {
            Source::File(bytes) => Some((bytes, tensor.offset as usize)),
            Source::Lazy(_) => None,
        }
    }

    /// The bytes of a tensor: borrowed from its file, or computed.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn data(&self, tensor: &TensorInfo) -> Result<Cow<'_, [u8]>, Error> {
        if let Some((bytes, start)) = self.place(tensor) {
            return Ok(bytes[start..start + tensor.bytes as usize].into());
        }
        let mut out = vec![0; tensor.bytes as usize];
        self.rows(tensor, 0, &mut out)?;
        Ok(out.into())
    }

    /// `n` rows of a tensor, starting at row `first`: borrowed from its file, or computed.
    ///
    /// # Errors
    /// They cannot be made.
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

    /// Fills `out` with the values of rows before rounding, and returns true, if the tensor has them; see
    /// [`LazyTensor::values`].
    ///
    /// # Errors
    /// They cannot be made.
    pub fn values(&self, tensor: &TensorInfo, first: u64, out: &mut [f32]) -> Result<bool, Error> {
        let made = match &self.sources[tensor.source] {
            Source::File(_) => Ok(false),
            Source::Lazy(lazy) => lazy.values(first, out),
        };
        made.map_err(|message| Error::Made {
            tensor: tensor.name.clone(),
            message,
        })
    }

    /// Fills `out` with rows of a tensor, starting at row `first`; see [`LazyTensor::rows`].
    ///
    /// # Errors
    /// They cannot be made.
    pub fn rows(&self, tensor: &TensorInfo, first: u64, out: &mut [u8]) -> Result<(), Error> {
        let made = match &self.sources[tensor.source] {
            Source::File(bytes) => {
                let start = (tensor.offset + first * tensor.row_bytes()) as usize;
                match bytes {
                    Bytes::Mapped(file) => file.read_at(start, out),
                    Bytes::Static(bytes) => {
                        out.copy_from_slice(&bytes[start..start + out.len()]);
                        Ok(())
                    }
                }
            }
            Source::Lazy(lazy) => lazy.rows(first, out),
        };
        made.map_err(|message| Error::Made {
            tensor: tensor.name.clone(),
            message,
        })
    }
}

/// Opens the file of a model at `path`. A folder takes a map (`crate::stmap`).
///
/// # Errors
/// A file that cannot be read or that breaks its format's rules; the error names the place.
pub fn open(path: &Path) -> Result<Weights, Error> {
    gguf::open(path)
}

/// Why a weight file was refused, or could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The path leads to a folder or a device.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is of another format.
    #[error("{label}: {what}")]
    Stranger {
        /// The file.
        label: String,
        /// What it is, and the next step.
        what: &'static str,
    },
    /// The file breaks the rules of its format.
    #[error("{label}: {fault}")]
    Format {
        /// The file.
        label: String,
        /// Which rule, where.
        fault: gguf::Fault,
    },
    /// A file or folder cannot be used.
    #[error("{}: {message}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// The data of a tensor could not be computed.
    #[error("tensor `{tensor}`: {message}")]
    Made {
        /// Its name.
        tensor: String,
        /// Why.
        message: String,
    },
    /// The parts of a split file do not fit together.
    #[error("{label}: {fault}")]
    Split {
        /// The file.
        label: String,
        /// How.
        fault: gguf::SplitFault,
    },
    /// A weight is not a finite number.
    #[error(
        "tensor `{tensor}`: {found}{} at row {row}, column {column}",
        if *in_scale { " in the scale of the block" } else { "" }
    )]
    NotFinite {
        /// Its name.
        tensor: String,
        /// Row of the first such value, counted over all dimensions above the first.
        row: u64,
        /// Its column, or the first column of the block whose scale it is.
        column: u64,
        /// Whether it is a scale rather than a value.
        in_scale: bool,
        /// What it is.
        found: NotFinite,
    },
    /// The data of a tensor could not be read while the file was written.
    #[error("{}: tensor `{tensor}`: {source}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Why.
        source: std::io::Error,
    },
    /// The data of a tensor does not have the size of its shape.
    #[error("{}: tensor `{tensor}` got {found} bytes, expected {expected}", path.display())]
    DataSize {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Bytes that came.
        found: u64,
        /// Bytes of the shape.
        expected: u64,
    },
}
