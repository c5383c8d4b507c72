//! The vectors that requests may name: files that are given when the server starts, and files that requests send, which
//! are in a folder that the server and its engine processes share.
//!
//! A file's content is cached until the file changes. An id is compared with names, and is used as a path only if it is
//! the name of a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use serde::Serialize;

use lab_base::util::atomic_file;
use lab_base::util::atomic_file::OutputPath;
use lab_base::util::lock::lock;

use super::{Error, GGUF, VectorContent, opened, read};
use crate::artifacts::owner::{Viewer, file_name, owner_and_id};

const MAX_ID: usize = 64;
/// Maximum number of files that requests send.
const MAX_FILES: usize = 1000;

/// A file with vectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredVectors {
    /// The id of the file; of another owner's, with that name before it: `OWNER~ID`.
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

/// When a file was written, and its size.
type Stamp = (SystemTime, u64);

type Cached = BTreeMap<PathBuf, (Stamp, Arc<VectorContent>)>;

/// The kind and the number of tensors of files.
type Headers = BTreeMap<PathBuf, (Stamp, &'static str, usize)>;

/// Files with vectors by their ids.
#[derive(Debug, Default)]
pub struct VectorStore {
    given: BTreeMap<String, PathBuf>,
    /// The folder of the files that requests send.
    folder: Option<PathBuf>,
    /// Maximum number of bytes of all files in the folder.
    limit: u64,
    cached: Mutex<Cached>,
    headers: Mutex<Headers>,
    /// Held while a file is stored or removed, so that only checked content gets its name and the limit holds.
    changing: Mutex<()>,
}

/// The reason why a file was not stored.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
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

fn stamp_of(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn stem(path: &Path) -> Option<String> {
    Some(path.file_stem()?.to_str()?.to_owned())
}

impl VectorStore {
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
            headers: Mutex::default(),
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

    fn path(&self, viewer: Viewer<'_>, id: &str) -> Option<PathBuf> {
        let given = self.given.get(id).cloned();
        given.or_else(|| self.sent_path(viewer, id))
    }

    /// The file of an id that a request sent: one of the viewer, or, with its owner before the id, of another.
    fn sent_path(&self, viewer: Viewer<'_>, id: &str) -> Option<PathBuf> {
        let (owner, _) = owner_and_id(id);
        let mut sent = self.sent();
        match owner {
            "" => sent.remove(&file_name(viewer.owner, id)),
            owner => sent.remove(id).filter(|_| viewer.sees(owner)),
        }
    }

    fn content(&self, path: &Path) -> Result<Arc<VectorContent>, Error> {
        let stamp = stamp_of(path);
        let cached = || lock(&self.cached);
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

    /// The content of the file of this id, if it is there for `viewer`.
    pub fn get(&self, viewer: Viewer<'_>, id: &str) -> Result<Arc<VectorContent>, String> {
        let Some(path) = self.path(viewer, id) else {
            let shown: String = id.chars().take(MAX_ID).collect();
            return Err(format!("there is no vector `{shown}`"));
        };
        self.content(&path).map_err(|error| error.to_string())
    }

    /// All files that are there for `viewer`, in the order of their ids.
    pub fn list(&self, viewer: Viewer<'_>) -> Vec<StoredVectors> {
        let given = self
            .given
            .iter()
            .map(|(id, path)| (id.clone(), (path.clone(), true)));
        let sent = self
            .sent()
            .into_iter()
            .map(|(id, path)| (id, (path, false)));
        let all: BTreeMap<String, (PathBuf, bool)> = sent.chain(given).collect();
        let paths: BTreeSet<&PathBuf> = all.values().map(|(path, _)| path).collect();
        self.headers().retain(|path, _| paths.contains(path));
        let shown = all.iter().filter_map(|(name, (path, given))| {
            let (owner, id) = match given {
                true => ("", name.as_str()),
                false => owner_and_id(name),
            };
            let id = match owner == viewer.owner || *given {
                true => id,
                false => name,
            };
            let is_shown = *given || viewer.sees(owner);
            is_shown.then(|| self.stored(id, path, *given)).flatten()
        });
        shown.collect()
    }

    fn headers(&self) -> MutexGuard<'_, Headers> {
        lock(&self.headers)
    }

    /// A file with vectors. Its header is read once.
    fn stored(&self, id: &str, path: &Path, given: bool) -> Option<StoredVectors> {
        let stamp = stamp_of(path)?;
        let known = self.headers().get(path).copied();
        let (_, kind, tensors) = match known.filter(|(of, ..)| *of == stamp) {
            Some(known) => known,
            None => {
                let weights = opened(path).ok()?;
                let found = (stamp, super::kind(&weights), weights.tensors().len());
                self.headers().insert(path.to_owned(), found);
                found
            }
        };
        Some(StoredVectors {
            id: id.to_owned(),
            kind,
            bytes: stamp.1,
            tensors,
            given,
        })
    }

    /// Stores a file of `owner` under an id: the bytes of a GGUF or safetensors file. It replaces a file that an earlier request
    /// sent.
    ///
    /// # Errors
    /// The id is malformed or that of a file that was given, the bytes have no vectors, all files together would
    /// exceed the limit, or the file cannot be written.
    pub fn save(&self, owner: &str, id: &str, bytes: &[u8]) -> Result<StoredVectors, SaveError> {
        let Some(folder) = &self.folder else {
            return Err(SaveError::Id("this server stores no vectors".into()));
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=MAX_ID).contains(&id.len()) || !id.bytes().all(is_plain) {
            let message = format!("expected 1 to {MAX_ID} letters, digits, `-` and `_`");
            return Err(SaveError::Id(message));
        }
        if self.given.contains_key(id) {
            let message = format!("`{id}` is a file that the server was started with");
            return Err(SaveError::Id(message));
        }
        let _changing = self.changing();
        let mut others = self.sent();
        let name = file_name(owner, id);
        others.remove(&name);
        if others.len() >= MAX_FILES {
            let message = format!("there are {MAX_FILES} files already, which is the limit");
            return Err(SaveError::Content(message));
        }
        let others = others.into_values();
        let taken: u64 = others
            .filter_map(|path| Some(fs::metadata(path).ok()?.len()))
            .sum();
        let found = taken + bytes.len() as u64;
        if found > self.limit {
            let limit = self.limit;
            let message = format!(
                "all vectors would take {found} bytes, the limit is {limit} (`--lab-artifacts`)"
            );
            return Err(SaveError::Content(message));
        }
        let (ending, other) = match bytes.starts_with(b"GGUF") {
            true => (GGUF, "safetensors"),
            false => ("safetensors", GGUF),
        };
        fs::create_dir_all(folder)?;
        // The file has a name that is not found until its content is checked.
        let unknown = folder.join("unknown");
        fs::create_dir_all(&unknown)?;
        let check = unknown.join(format!("{name}.{ending}"));
        atomic_file::write(OutputPath::replacing(&check), bytes)?;
        if let Err(error) = read(&check) {
            fs::remove_file(&check)?;
            let prefix = format!("{}: ", check.display());
            let message = error.to_string();
            let message = message.strip_prefix(&prefix).unwrap_or(&message);
            return Err(SaveError::Content(message.to_owned()));
        }
        let path = folder.join(format!("{name}.{ending}"));
        fs::rename(&check, &path)?;
        // A file in the other format would be a second file of the same id.
        let _ = fs::remove_file(folder.join(format!("{name}.{other}")));
        let stored = self.stored(id, &path, false);
        stored.ok_or_else(|| SaveError::Io(std::io::ErrorKind::NotFound.into()))
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }

    /// Removes a file that a request sent, if it is there for `viewer`. Returns whether it was.
    pub fn remove(&self, viewer: Viewer<'_>, id: &str) -> bool {
        let _changing = self.changing();
        let path = self.sent_path(viewer, id);
        path.is_some_and(|path| fs::remove_file(path).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifacts::arrays;
    use crate::artifacts::arrays::{ArrayFormat, Elements, NamedArray};

    #[test]
    fn headers_are_read_once_and_the_number_of_files_is_limited() {
        let folder = tempfile::tempdir().expect("a folder");
        let one = folder.path().join("one.safetensors");
        let row = NamedArray {
            name: "direction.1".into(),
            shape: vec![2],
            elements: Elements::F32(&[1.0, 2.0]),
        };
        arrays::write(
            &one,
            ArrayFormat::Safetensors,
            &[row],
            &serde_json::Map::new(),
        )
        .expect("written");
        let bytes = fs::read(&one).expect("readable");
        let own = folder.path().join("vectors");
        let vectors = VectorStore::new(&[], Some(own.clone()), 1 << 20).expect("no names");
        for id in ["a", "b"] {
            vectors.save("", id, &bytes).expect("it fits");
        }
        assert_eq!(vectors.list(Viewer::ALL).len(), 2);
        assert_eq!(vectors.headers().len(), 2);
        // A file of the same time and size is not read again.
        let path = own.join("a.safetensors");
        let written = fs::metadata(&path)
            .and_then(|m| m.modified())
            .expect("a time");
        fs::write(&path, vec![0; bytes.len()]).expect("written");
        let file = fs::File::options().write(true).open(&path).expect("there");
        file.set_modified(written).expect("set");
        assert_eq!(vectors.list(Viewer::ALL).len(), 2);
        assert!(vectors.remove(Viewer::ALL, "a") && vectors.list(Viewer::ALL).len() == 1);
        assert_eq!(vectors.headers().len(), 1);
        for i in 1..MAX_FILES {
            fs::write(own.join(format!("f{i}.safetensors")), "").expect("written");
        }
        let refused = vectors
            .save("", "more", &bytes)
            .expect_err("too many")
            .to_string();
        assert!(refused.contains("1000 files"), "{refused}");
        vectors.save("", "b", &bytes).expect("it replaces one");
    }

    #[test]
    fn an_id_is_that_of_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes = |value: f32| {
            let row = NamedArray {
                name: "direction.1".into(),
                shape: vec![2],
                elements: Elements::F32(&[value, 2.0]),
            };
            let path = folder.path().join("one.safetensors");
            let none = serde_json::Map::new();
            let target = OutputPath::replacing(&path);
            arrays::write(target, ArrayFormat::Safetensors, &[row], &none).expect("written");
            fs::read(&path).expect("readable")
        };
        let own = folder.path().join("vectors");
        let given = folder.path().join("given.safetensors");
        fs::write(&given, bytes(9.0)).expect("written");
        let vectors = VectorStore::new(&[given], Some(own), 1 << 20).expect("no names");
        let of = |owner| Viewer {
            owner,
            sees_all: false,
        };
        let first = |viewer, id: &str| match vectors.get(viewer, id).as_deref() {
            Ok(VectorContent::Directions(all)) => all.of([], "layers.1.x").map(|row| row[0]),
            _ => None,
        };
        vectors.save("a", "v", &bytes(1.0)).expect("it fits");
        vectors.save("b.c", "v", &bytes(2.0)).expect("it fits");
        assert_eq!(first(of("a"), "v"), Some(1.0));
        assert_eq!(first(of("b.c"), "v"), Some(2.0));
        for (viewer, id) in [("c", "v"), ("", "v"), ("a", "b.c~v"), ("", "a~v")] {
            assert_eq!(first(of(viewer), id), None, "{viewer} {id}");
            assert!(!vectors.remove(of(viewer), id), "{viewer} {id}");
        }
        assert_eq!(first(Viewer::ALL, "a~v"), Some(1.0));
        assert_eq!(first(of("c"), "given"), Some(9.0));
        let ids = |viewer| -> Vec<String> {
            let all = vectors.list(viewer).into_iter();
            all.map(|stored| stored.id).collect()
        };
        assert_eq!(ids(of("a")), ["v", "given"]);
        assert_eq!(ids(Viewer::ALL), ["a~v", "b.c~v", "given"]);
        assert!(vectors.save("a", "b.c~v", &bytes(3.0)).is_err());
        assert!(vectors.remove(Viewer::ALL, "a~v") && first(of("a"), "v").is_none());
    }
}
