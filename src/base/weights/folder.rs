//! A model as a folder for editing: GGUF's tensor names in safetensors, GGUF's metadata in `config.json`.
//!
//! The configuration contains the metadata (with the vocabulary) under one key, in the notation of `json.rs`. That key
//! distinguishes such a folder from one that needs a map. Tensors are stored unchanged, so an edited tensor has an
//! effect when the folder is opened. The folder gets its name when it is complete.
//!
//! Invariant: a written folder opens with the same metadata and the same bytes.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

use crate::util::atomic_file::{PartFolder, sync_folder};
use crate::util::inputs::refuse_input;

use super::gguf::Sink;
use super::safetensors::{self, ALIGNMENT, Checkpoint, Dtype, StoredTensor};
use super::space::check_space;
use super::{Error, Metadata, TensorData, TensorEntry, TensorInfo, TensorType, Weights, json};

/// Key of the configuration that contains the metadata.
pub const KEY: &str = "gguf_metadata";
const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";

/// Whether a configuration belongs to such a folder.
pub fn is_config(json: &Json) -> bool {
    json.get(KEY).is_some()
}

/// The model of a folder with this configuration.
pub fn open(path: &Path, config: &Json, checkpoint: &Checkpoint) -> Result<Weights, Error> {
    let refuse = |path: PathBuf, message: String| Error::File { path, message };
    let metadata = json::from_json(&config[KEY])
        .map_err(|message| refuse(path.to_owned(), format!("{CONFIG}: {KEY}: {message}")))?;
    of_checkpoint(path, metadata, checkpoint)
}

/// The tensors of a safetensors file, which does not state their meaning.
pub fn plain(path: &Path) -> Result<Weights, Error> {
    let checkpoint = Checkpoint::open(path)?;
    of_checkpoint(path, Metadata::default(), &checkpoint)
}

fn of_checkpoint(
    path: &Path,
    metadata: Metadata,
    checkpoint: &Checkpoint,
) -> Result<Weights, Error> {
    let refuse = |path: PathBuf, message: String| Error::File { path, message };
    let files: Vec<_> = checkpoint.files().collect();
    let mut entries = Vec::new();
    for (name, stored) in checkpoint.tensors() {
        let ty = type_of(stored.dtype).ok_or_else(|| {
            refuse(
                checkpoint.path(stored).to_owned(),
                format!(
                    "tensor `{name}`: element type {:?} is not supported",
                    stored.dtype
                ),
            )
        })?;
        entries.push(TensorEntry {
            name: name.to_owned(),
            ty,
            shape: shape_of(stored),
            data: TensorData::Mapped(files[stored.file].clone(), stored.offset),
        });
    }
    Weights::of(path.display().to_string(), metadata, entries)
}

fn shape_of(stored: &StoredTensor) -> Vec<u64> {
    match stored.shape.is_empty() {
        true => vec![1],
        false => stored.shape.iter().rev().copied().collect(),
    }
}

const TYPES: [(Dtype, TensorType); 8] = [
    (Dtype::F64, TensorType::F64),
    (Dtype::F32, TensorType::F32),
    (Dtype::F16, TensorType::F16),
    (Dtype::BF16, TensorType::BF16),
    (Dtype::I64, TensorType::I64),
    (Dtype::I32, TensorType::I32),
    (Dtype::I16, TensorType::I16),
    (Dtype::I8, TensorType::I8),
];

fn type_of(dtype: Dtype) -> Option<TensorType> {
    let found = TYPES.iter().find(|(other, _)| *other == dtype);
    found.map(|(_, ty)| *ty)
}

/// A folder that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewFolder<'a> {
    pub path: &'a Path,
    pub metadata: &'a Metadata,
    pub tensors: &'a [TensorInfo],
    /// Maximum size of the tensors in one file, in bytes; a file has at least one tensor.
    pub shard_bytes: u64,
    /// Whether an existing model is replaced.
    pub replaces: bool,
}

/// Writes a folder: `data(tensor, out)` passes the bytes of a tensor to `out`, in order.
///
/// # Errors
/// The folder is not empty, the model in it is an input, the format lacks a type, the disk space is too small, or the operating system or `data`
/// fails. Existing files are then unchanged, unless the complete folder could not be renamed.
pub fn write(
    new: &NewFolder<'_>,
    mut data: impl FnMut(&TensorInfo, &mut Sink<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let io = Error::io(new.path);
    let is_there = !is_empty(new.path).map_err(io)?;
    if is_there && !new.replaces {
        return Err(Error::File {
            path: new.path.to_owned(),
            message: "is there already; --force replaces the model in it".into(),
        });
    }
    if is_there {
        for path in of_model(new.path).map_err(io)? {
            refuse_input(&path).map_err(|source| Error::Io { path, source })?;
        }
    }
    let config = serde_json::to_vec_pretty(&json!({
        "model_type": new.metadata.str("general.architecture"),
        KEY: json::to_json(new.metadata),
    }))
    .map_err(|error| io(error.into()))?;
    let bytes: u64 = new.tensors.iter().map(|tensor| tensor.bytes).sum();
    // A header has a line for each tensor.
    let headers = 512 * (new.tensors.len() as u64 + 1);
    check_space(new.path, bytes + headers + config.len() as u64)?;

    let part = PartFolder::new(new.path).map_err(io)?;
    let shards = shards(new.tensors, new.shard_bytes);
    let mut names = Vec::with_capacity(shards.len());
    let mut places = Map::new();
    for (i, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
        };
        write_shard(&part.path().join(&name), shard, &mut data)?;
        places.extend(shard.iter().map(|t| (t.name.clone(), json!(name))));
        names.push(name);
    }
    if shards.len() > 1 {
        let index = json!({ "metadata": { "total_size": bytes }, "weight_map": places });
        let text = serde_json::to_vec_pretty(&index).map_err(|error| io(error.into()))?;
        write_file(&part.path().join(INDEX), &text).map_err(io)?;
        names.push(INDEX.to_owned());
    }
    write_file(&part.path().join(CONFIG), &config).map_err(io)?;
    names.push(CONFIG.to_owned());
    match is_there {
        // The target does not exist or is an empty folder.
        false => fs::rename(part.path(), new.path),
        true => replace(part.path(), new.path, &names),
    }
    .map_err(io)?;
    sync_folder(new.path);
    Ok(())
}

fn is_empty(path: &Path) -> io::Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// The files of the model in a folder, the configuration first.
fn of_model(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = vec![folder.join(CONFIG), folder.join(INDEX)];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|n| n.starts_with("model") && n.ends_with(".safetensors")) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Moves files into a folder, where they replace a model; other files stay. Meanwhile the folder has no configuration,
/// so it does not count as a model.
fn replace(from: &Path, to: &Path, names: &[String]) -> io::Result<()> {
    let remove = |path: PathBuf| match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    of_model(to)?.into_iter().try_for_each(remove)?;
    names
        .iter()
        .try_for_each(|name| fs::rename(from.join(name), to.join(name)))
}

/// The tensors of each file; first those whose size keeps the next one aligned.
fn shards(tensors: &[TensorInfo], shard_bytes: u64) -> Vec<Vec<&TensorInfo>> {
    let mut shards: Vec<Vec<&TensorInfo>> = vec![Vec::new()];
    let mut bytes = 0;
    for tensor in tensors {
        if bytes > 0 && bytes + tensor.bytes > shard_bytes {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += tensor.bytes;
        shards.last_mut().into_iter().for_each(|s| s.push(tensor));
    }
    for shard in &mut shards {
        shard.sort_by_key(|tensor| !tensor.bytes.is_multiple_of(ALIGNMENT));
    }
    shards
}

fn write_shard(
    path: &Path,
    tensors: &[&TensorInfo],
    data: &mut impl FnMut(&TensorInfo, &mut Sink<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let io = Error::io(path);
    let header = header(tensors).map_err(|message| Error::File {
        path: path.to_owned(),
        message,
    })?;
    let mut out = BufWriter::with_capacity(1 << 20, File::create_new(path).map_err(io)?);
    out.write_all(&header).map_err(io)?;
    for tensor in tensors {
        let mut found = 0;
        data(tensor, &mut |bytes| {
            found += bytes.len() as u64;
            out.write_all(bytes).map_err(io)
        })?;
        if found != tensor.bytes {
            return Err(Error::DataSize {
                path: path.to_owned(),
                tensor: tensor.name.clone(),
                found,
                expected: tensor.bytes,
            });
        }
    }
    out.flush().map_err(io)?;
    out.get_ref().sync_all().map_err(io)
}

fn header(tensors: &[&TensorInfo]) -> Result<Vec<u8>, String> {
    let metadata = Map::from_iter([("format".to_owned(), json!("pt"))]);
    let entry = |tensor: &&TensorInfo| {
        let ty = TYPES.iter().find(|(_, ty)| *ty == tensor.ty);
        let (dtype, _) = ty.ok_or_else(|| {
            format!(
                "tensor `{}`: the format does not have the type {}",
                tensor.name, tensor.ty
            )
        })?;
        let shape = tensor.shape.iter().rev().copied().collect();
        Ok((tensor.name.clone(), *dtype, shape))
    };
    let entries: Result<Vec<_>, String> = tensors.iter().map(entry).collect();
    safetensors::head(metadata, entries?)
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
