//! Files that clients upload and that batches write, in a folder, with what is known of them.
//!
//! A file has two parts: `ID.data`, and `ID.json` with its name, purpose and owner. Invariant: an id from a client is
//! compared with the known ones and is never used as a path; all files together have at most so many bytes; a file is
//! found only by the client that it belongs to.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use lab_base::util::appended_lines::cut_partial_line;
use lab_base::util::atomic_file::{self, OutputPath};
use lab_base::util::clock::unix_seconds;
use lab_base::util::lock::lock;

use crate::http::random::random;

/// Maximum number of files.
const MAX_FILES: usize = 10_000;
/// The purpose of files to which lines are added.
pub(crate) const BATCH_OUTPUT: &str = "batch_output";
const DATA: &str = "data";
const FACTS: &str = "json";
/// The file that the server which uses the folder locks.
const LOCK: &str = "lock";

/// Why a file is not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("the files would have {wanted} bytes, and may have {limit} (`--file-bytes`)")]
    Full { wanted: u64, limit: u64 },
    #[error("there are {MAX_FILES} files already")]
    TooMany,
    #[error("the file cannot be written: {0}")]
    Io(#[from] io::Error),
}

/// A stored file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredFile {
    pub(crate) id: String,
    /// The client that it belongs to; empty where there are no API keys.
    owner: String,
    pub(crate) name: String,
    pub(crate) purpose: String,
    /// Unix time in seconds.
    created: u64,
    #[serde(skip)]
    pub(crate) n_bytes: u64,
}

impl StoredFile {
    /// The file in OpenAI's shape.
    pub(crate) fn json(&self) -> Value {
        json!({
            "id": self.id, "object": "file", "bytes": self.n_bytes, "created_at": self.created,
            "filename": self.name, "purpose": self.purpose, "status": "processed",
            "expires_at": null, "status_details": null,
        })
    }
}

/// A folder with files.
#[derive(Debug)]
pub struct FileStore {
    folder: PathBuf,
    max_bytes: u64,
    /// By id, which begins with the time of creation.
    files: Mutex<BTreeMap<String, StoredFile>>,
    /// Held while the store is used.
    _lock: File,
}

/// A new id, which nobody can guess. Ids sort by their time.
pub(crate) fn new_id(kind: &str) -> String {
    format!("{kind}{:010x}{:016x}", unix_seconds(), random())
}

/// Reads the JSON files of a folder whose names begin with `kind`.
pub(super) fn documents<T: for<'de> Deserialize<'de>>(
    folder: &Path,
    kind: &str,
) -> io::Result<Vec<T>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_named = path.file_name().and_then(|name| name.to_str());
        let is_named = is_named.is_some_and(|name| name.starts_with(kind));
        if is_named && path.extension().is_some_and(|end| end == FACTS) {
            let read = serde_json::from_slice(&fs::read(&path)?);
            let fault = |error| io::Error::other(format!("{}: {error}", path.display()));
            all.push(read.map_err(fault)?);
        }
    }
    Ok(all)
}

impl FileStore {
    /// The store in a folder, which is created if there is none, with the files that it has.
    ///
    /// # Errors
    /// The folder cannot be read or written, or another server uses it.
    pub fn open(folder: PathBuf, max_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let place = |error: &dyn std::fmt::Display| {
            io::Error::other(format!("{}: {error}", folder.display()))
        };
        let options = File::options().append(true).create(true).clone();
        let held = options.open(folder.join(LOCK)).map_err(|e| place(&e))?;
        held.try_lock()
            .map_err(|_| place(&"another server uses this folder"))?;
        let mut files = BTreeMap::new();
        for mut file in documents::<StoredFile>(&folder, "file-")? {
            let data = folder.join(format!("{}.{DATA}", file.id));
            // Without its data it is what a removal left.
            if let Ok(mut data) = File::options().read(true).write(true).open(data) {
                if file.purpose == BATCH_OUTPUT {
                    cut_partial_line(&mut data)?;
                }
                file.n_bytes = data.metadata()?.len();
                files.insert(file.id.clone(), file);
            }
        }
        Ok(Self {
            folder,
            max_bytes,
            files: Mutex::new(files),
            _lock: held,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Maximum number of bytes of all files together.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    fn path(&self, id: &str, part: &str) -> PathBuf {
        self.folder.join(format!("{id}.{part}"))
    }

    fn write(&self, id: &str, part: &str, bytes: &[u8]) -> io::Result<()> {
        atomic_file::write(OutputPath::replacing(&self.path(id, part)), bytes)
    }

    fn check(&self, files: &BTreeMap<String, StoredFile>, n_new: u64) -> Result<(), FileError> {
        let taken: u64 = files.values().map(|file| file.n_bytes).sum();
        let (wanted, limit) = (taken.saturating_add(n_new), self.max_bytes);
        match wanted <= limit {
            true => Ok(()),
            false => Err(FileError::Full { wanted, limit }),
        }
    }

    pub(crate) fn create(
        &self,
        owner: &str,
        name: &str,
        purpose: &str,
        data: &[u8],
    ) -> Result<StoredFile, FileError> {
        let file = StoredFile {
            id: new_id("file-"),
            owner: owner.to_owned(),
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            created: unix_seconds(),
            n_bytes: data.len() as u64,
        };
        let mut files = lock(&self.files);
        if files.len() >= MAX_FILES {
            return Err(FileError::TooMany);
        }
        self.check(&files, file.n_bytes)?;
        self.write(&file.id, DATA, data)?;
        let facts = serde_json::to_vec(&file).map_err(io::Error::other)?;
        self.write(&file.id, FACTS, &facts)?;
        files.insert(file.id.clone(), file.clone());
        Ok(file)
    }

    /// Adds data at the end of a file.
    pub(crate) fn append(&self, owner: &str, id: &str, data: &[u8]) -> Result<(), FileError> {
        let mut files = lock(&self.files);
        self.check(&files, data.len() as u64)?;
        let file = files.get_mut(id).filter(|file| file.owner == owner);
        let file = file.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut end = File::options().append(true).open(self.path(id, DATA))?;
        let before = file.n_bytes;
        if let Err(error) = end.write_all(data) {
            // What is half written is no line.
            let _ = end.set_len(before);
            return Err(error.into());
        }
        file.n_bytes += data.len() as u64;
        Ok(())
    }

    pub(crate) fn get(&self, owner: &str, id: &str) -> Option<StoredFile> {
        let files = lock(&self.files);
        files.get(id).filter(|file| file.owner == owner).cloned()
    }

    /// The files of a client, the oldest first.
    pub(crate) fn list(&self, owner: &str) -> Vec<StoredFile> {
        let files = lock(&self.files);
        files
            .values()
            .filter(|file| file.owner == owner)
            .cloned()
            .collect()
    }

    /// A file, and its data.
    pub(crate) fn open_data(&self, owner: &str, id: &str) -> Option<(StoredFile, File)> {
        let file = self.get(owner, id)?;
        let data = File::open(self.path(&file.id, DATA)).ok()?;
        Some((file, data))
    }

    /// Removes a file. Returns whether it existed.
    pub(crate) fn remove(&self, owner: &str, id: &str) -> bool {
        let mut files = lock(&self.files);
        if files.get(id).is_none_or(|file| file.owner != owner) {
            return false;
        }
        files.remove(id);
        [DATA, FACTS]
            .iter()
            .all(|part| fs::remove_file(self.path(id, part)).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_bounded_belong_to_one_client_and_are_found_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || FileStore::open(folder.path().to_owned(), 10);
        let store = open().expect("it opens");
        assert!(open().is_err(), "another one uses it");
        let file = store.create("one", "a", "batch", b"1234").expect("stored");
        store.append("one", &file.id, b"56\n").expect("stored");
        assert!(store.append("two", &file.id, b"7").is_err());
        assert!(store.append("one", &file.id, b"78901").is_err());
        let large = store.create("one", "b", "batch", b"12345");
        assert!(matches!(
            large,
            Err(FileError::Full {
                wanted: 12,
                limit: 10
            })
        ));
        assert!(store.get("two", &file.id).is_none() && store.list("two").is_empty());
        assert!(!store.remove("two", &file.id));
        drop(store);
        let store = open().expect("it opens again");
        let (found, data) = store.open_data("one", &file.id).expect("it is there");
        assert_eq!((found.n_bytes, found.name.as_str()), (7, "a"));
        assert_eq!(io::read_to_string(data).expect("text"), "123456\n");
        assert!(store.remove("one", &file.id) && store.list("one").is_empty());
        let left = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 1, "only the lock");
    }
}
