//! Writes models in other formats and types: GGUF, and folders for editing.
//!
//! Rows are read, converted and written in pieces, and converted on all cores, so memory is bounded for tensors of any
//! size. Files are renamed when they are complete; free disk space is checked first. [`crate::models::quantise`] decides
//! the types of the tensors.

use std::path::Path;

use crate::models::OpenedModel;
use crate::models::quantise;
use crate::models::quantise::{Mix, quantise};
use lab_base::util::atomic_file::OutputPath;
use lab_base::util::parallel;
use lab_base::weights::folder;
use lab_base::weights::folder::NewFolder;
use lab_base::weights::gguf;
use lab_base::weights::gguf::{NewTensor, Sink};
use lab_base::weights::{Error, Metadata, TensorInfo, TensorType, Value, Weights, check_space};

/// Number of bytes of a tensor that are converted at a time; a row is never split.
const PIECE_BYTES: u64 = 4 << 20;
/// Prefix of the keys that describe a split file.
const SPLIT: &str = "split.";

/// Called with the number of bytes done and of all bytes.
pub type ProgressFn<'a> = &'a mut dyn FnMut(u64, u64);

/// Writes a model as GGUF, with its matrices in the types of a mix if one is given. With `replaces`, an existing file is
/// replaced.
///
/// # Errors
/// The file exists, the disk space is too small, weights cannot be converted, or the operating system fails. The new
/// file is then removed, and an existing one is unchanged.
pub fn to_gguf(
    model: &OpenedModel,
    mix: Option<&Mix>,
    path: &Path,
    replaces: bool,
    progress: ProgressFn<'_>,
) -> Result<(), Error> {
    let target = OutputPath { path, replaces };
    // Before the work.
    target.check().map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })?;
    let weights = match mix {
        Some(mix) => quantise(&model.weights, &model.plan, mix)?,
        None => quantise::with_plain_vectors(&model.weights, &model.plan)?,
    };
    let metadata = with_vocabulary(without_split(weights.metadata()));
    let tensors: Vec<NewTensor> = weights
        .tensors()
        .iter()
        .map(|tensor| NewTensor {
            name: tensor.name.clone(),
            ty: tensor.ty,
            shape: tensor.shape.clone(),
        })
        .collect();
    let bytes = gguf::file_bytes(&metadata, &tensors).map_err(|fault| Error::Format {
        label: path.display().to_string(),
        fault,
    })?;
    check_space(path, bytes)?;
    let mut copy = FileCopy::new(&weights, progress);
    gguf::write_pieces(target, &metadata, &tensors, |i, out| {
        copy.tensor(&weights.tensors()[i], out)
    })
}

/// Writes a model as a folder for editing. Quantised tensors become f32; with a mix of one type, all matrices get that type. Files
/// with several tensors have at most `shard_bytes` bytes. With `replaces`, an existing model is replaced.
///
/// # Errors
/// The errors of [`to_gguf`], or the folder's format lacks a type.
pub fn to_folder(
    model: &OpenedModel,
    mix: Option<&Mix>,
    path: &Path,
    shard_bytes: u64,
    replaces: bool,
    progress: ProgressFn<'_>,
) -> Result<(), Error> {
    let weights = match mix.map(|mix| (mix, mix.base())) {
        None => quantise::without_blocks(&model.weights, TensorType::F32)?,
        Some((mix, ty)) if ty.is_plain() => {
            let weights = quantise(&model.weights, &model.plan, mix)?;
            quantise::without_blocks(&weights, ty)?
        }
        Some((mix, _)) => {
            return Err(Error::File {
                path: path.to_owned(),
                message: format!("a folder holds f32, f16 or bf16, not {mix}"),
            });
        }
    };
    let new = NewFolder {
        path,
        metadata: &without_split(weights.metadata()),
        tensors: weights.tensors(),
        shard_bytes,
        replaces,
    };
    let mut copy = FileCopy::new(&weights, progress);
    folder::write(&new, |tensor, out| copy.tensor(tensor, out))
}

/// States that there is no vocabulary, if it is missing: other readers of the format require the key.
fn with_vocabulary(mut metadata: Metadata) -> Metadata {
    const KEY: &str = "tokenizer.ggml.model";
    if metadata.get(KEY).is_none() {
        metadata.insert(KEY, Value::Str("none".into()));
    }
    metadata
}

fn without_split(metadata: &Metadata) -> Metadata {
    let keys = metadata.iter().filter(|(key, _)| !key.starts_with(SPLIT));
    keys.map(|(key, value)| (key, value.clone())).collect()
}

/// Copies tensors into a file and reports progress.
struct FileCopy<'a> {
    weights: &'a Weights,
    done: u64,
    total: u64,
    progress: ProgressFn<'a>,
}

impl<'a> FileCopy<'a> {
    fn new(weights: &'a Weights, progress: ProgressFn<'a>) -> Self {
        Self {
            weights,
            done: 0,
            total: weights.tensors().iter().map(|tensor| tensor.bytes).sum(),
            progress,
        }
    }

    fn tensor(&mut self, tensor: &TensorInfo, out: &mut Sink<'_>) -> Result<(), Error> {
        let pieces: Vec<_> = tensor.pieces(PIECE_BYTES).collect();
        let make = |i: usize| {
            let (first, n) = pieces[i];
            self.weights.some_rows(tensor, first, n)
        };
        parallel::in_order(pieces.len(), make, |bytes| {
            out(&bytes)?;
            self.done += bytes.len() as u64;
            (self.progress)(self.done, self.total);
            Ok(())
        })
    }
}
