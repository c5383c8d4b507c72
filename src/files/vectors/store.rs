//! The vectors that requests may name: files that are given when the server starts, and files that requests send, which
//! are in a folder that the server and its engine processes share.
//!
//! A file's content is cached until the file changes. An id is compared with names, and is used as a path only if it is
//! the name of a file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

use crate::common::writing::{self, Target};

use super::{Content, Error, GGUF, opened, read};

/// Maximum length of an id.
const MAX_ID: usize = 64;

/// A file with vectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// The id of the file.
    pub id: String,
    /// `directions`, `sae` or `translators`.
    pub kind: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// Number of its tensors.
    pub tensors: usize,
    /// Whether the file was given when the server started.
    pub given: bool,
}

type Cached = BTreeMap<PathBuf, ((SystemTime, u64), Arc<Content>)>;

/// Files with vectors by their ids.
#[derive(Debug, Default)]
pub struct Vectors {
    given: BTreeMap<String, PathBuf>,
    /// The folder of the files that requests send.
    folder: Option<PathBuf>,
    /// Maximum number of bytes of all files in the folder.
    limit: u64,
    cached: Mutex<Cached>,
    /// Held while a file is stored or removed, so that only checked content gets its name and the limit holds.
    changing: Mutex<()>,
}

/// The reason why a file was not stored.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The id is refused.
    #[error("{0}")]
    Id(String),
    /// The content is refused.
    #[error("{0}")]
    Content(String),
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

fn stem(path: &Path) -> Option<String> {
    Some(path.file_stem()?.to_str()?.to_owned())
}

impl Vectors {
    /// The given files, by their names without extension, and the files in a folder, of at most `limit` bytes.
    ///
    /// # Errors
    /// Two files have one name.
    pub fn new(given: &[PathBuf], folder: Option<PathBuf>, limit: u64) -> Result<Self, String> {
        let mut by_id = BTreeMap::new();
        for path in given {
            let id = stem(path).ok_or_else(|| format!("{}: names no file", path.display()))?;
            if let Some(other) = by_id.insert(id.clone(), path.clone()) {
                let (path, other) = (path.display(), other.display());
                return Err(format!("{path} and {other}: both are called `{id}`"));
            }
        }
        Ok(Self {
            given: by_id,
            folder,
            limit,
            cached: Mutex::default(),
            changing: Mutex::default(),
        })
    }

    /// Reads the files that were given.
    ///
    /// # Errors
    /// A file has no vectors; the error is that of the first one.
    pub fn check(&self) -> Result<(), Error> {
        let mut given = self.given.values();
        given.try_for_each(|path| self.content(path).map(drop))
    }

    fn sent(&self) -> BTreeMap<String, PathBuf> {
        let entries = self
            .folder
            .iter()
            .flat_map(fs::read_dir)
            .flatten()
            .flatten();
        let paths = entries.map(|entry| entry.path());
        let is_one = |path: &PathBuf| {
            path.extension()
                .is_some_and(|e| e == GGUF || e == "safetensors")
        };
        let named = paths
            .filter(is_one)
            .filter_map(|path| Some((stem(&path)?, path)));
        named.collect()
    }

    fn path(&self, id: &str) -> Option<PathBuf> {
        let given = self.given.get(id).cloned();
        given.or_else(|| self.sent().remove(id))
    }

    fn content(&self, path: &Path) -> Result<Arc<Content>, Error> {
        let metadata = fs::metadata(path).ok();
        let stamp = metadata.and_then(|m| Some((m.modified().ok()?, m.len())));
        let cached = || self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(stamp), Some((of, content))) = (stamp, cached().get(path))
            && *of == stamp
        {
            return Ok(Arc::clone(content));
        }
        let content = Arc::new(read(path)?);
        if let Some(stamp) = stamp {
            cached().retain(|path, _| path.exists());
            cached().insert(path.to_owned(), (stamp, Arc::clone(&content)));
        }
        Ok(content)
    }

    /// The content of the file of this id.
    ///
    /// # Errors
    /// The file does not exist, or cannot be read.
    pub fn get(&self, id: &str) -> Result<Arc<Content>, String> {
        let Some(path) = self.path(id) else {
            let shown: String = id.chars().take(MAX_ID).collect();
            return Err(format!("there is no vector `{shown}`"));
        };
        self.content(&path).map_err(|error| error.to_string())
    }

    /// All files in the order of their ids.
    pub fn list(&self) -> Vec<Stored> {
        let given = self
            .given
            .iter()
            .map(|(id, path)| (id.clone(), (path.clone(), true)));
        let sent = self
            .sent()
            .into_iter()
            .map(|(id, path)| (id, (path, false)));
        let all: BTreeMap<String, (PathBuf, bool)> = sent.chain(given).collect();
        let stored = |(id, (path, given)): (String, (PathBuf, bool))| {
            let weights = opened(&path).ok()?;
            Some(Stored {
                id,
                kind: super::kind(&weights),
                bytes: fs::metadata(&path).ok()?.len(),
                tensors: weights.tensors().len(),
                given,
            })
        };
        all.into_iter().filter_map(stored).collect()
    }

    /// Stores a file under an id: the bytes of a GGUF or safetensors file. It replaces a file that an earlier request
    /// sent.
    ///
    /// # Errors
    /// The id is malformed or that of a file that was given, the bytes have no vectors, all files together would
    /// exceed the limit, or the file cannot be written.
    pub fn keep(&self, id: &str, bytes: &[u8]) -> Result<Stored, Refused> {
        let Some(folder) = &self.folder else {
            return Err(Refused::Id("vectors are not kept here".into()));
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=MAX_ID).contains(&id.len()) || !id.bytes().all(is_plain) {
            let message = format!("expected 1 to {MAX_ID} letters, digits, `-` and `_`");
            return Err(Refused::Id(message));
        }
        if self.given.contains_key(id) {
            let message = format!("`{id}` is a file that the server was started with");
            return Err(Refused::Id(message));
        }
        let _changing = self.changing();
        let others = self.sent().into_iter().filter(|(other, _)| other != id);
        let taken: u64 = others
            .filter_map(|(_, path)| Some(fs::metadata(path).ok()?.len()))
            .sum();
        let found = taken + bytes.len() as u64;
        if found > self.limit {
            let limit = self.limit;
            let message = format!(
                "all vectors would take {found} bytes, the limit is {limit} (`--lab-artifacts`)"
            );
            return Err(Refused::Content(message));
        }
        let (ending, other) = match bytes.starts_with(b"GGUF") {
            true => (GGUF, "safetensors"),
            false => ("safetensors", GGUF),
        };
        fs::create_dir_all(folder)?;
        // The file has a name that is not found until its content is checked.
        let unknown = folder.join("unknown");
        fs::create_dir_all(&unknown)?;
        let check = unknown.join(format!("{id}.{ending}"));
        writing::write(Target::replacing(&check), bytes)?;
        if let Err(error) = read(&check) {
            fs::remove_file(&check)?;
            let prefix = format!("{}: ", check.display());
            let message = error.to_string();
            let message = message.strip_prefix(&prefix).unwrap_or(&message);
            return Err(Refused::Content(message.to_owned()));
        }
        fs::rename(&check, folder.join(format!("{id}.{ending}")))?;
        // A file in the other format would be a second file of the same id.
        let _ = fs::remove_file(folder.join(format!("{id}.{other}")));
        let stored = self.list().into_iter().find(|stored| stored.id == id);
        stored.ok_or_else(|| Refused::Io(std::io::ErrorKind::NotFound.into()))
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a file that a request sent. Returns whether it existed.
    pub fn remove(&self, id: &str) -> bool {
        let _changing = self.changing();
        let path = self.sent().remove(id);
        path.is_some_and(|path| fs::remove_file(path).is_ok())
    }
}
