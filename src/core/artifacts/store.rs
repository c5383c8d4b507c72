//! A folder of result files that requests store for other requests. Results are kept for a limited time, and the oldest
//! are removed when a new one needs their space.
//!
//! The server and its engine processes share the folder, so a result outlives the process that computed it. The files
//! are the only state: their names are the ids, and their times give their age.
//!
//! Invariant: an id from a client is compared with the names, and is never used as a path.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};

use lab_base::util::atomic_file::{PartFolder, temporary_error};

use super::arrays::{self, ArrayFormat, NamedArray};
use super::owner::{Viewer, file_name, owner_and_id};

/// The file that a writer of a result locks.
const LOCK: &str = "lock";

/// The limits of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtifactLimits {
    /// Maximum number of bytes of all results together.
    pub bytes: u64,
    /// Time for which a result is kept.
    pub time: Duration,
    /// Number of bytes of the values of a response above which they are stored as a file.
    pub inline: u64,
}

/// A folder with results.
#[derive(Clone, Debug)]
pub struct ArtifactStore {
    folder: PathBuf,
    limits: ArtifactLimits,
}

/// A stored result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Artifact {
    /// The id of the result.
    pub id: String,
    /// Whose it is; empty where there are no owners.
    #[serde(skip)]
    pub owner: String,
    /// `safetensors` or `npz`.
    pub format: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// Time of writing, in seconds since 1970.
    pub created: u64,
    /// Time of expiry, in seconds since 1970.
    pub expires: u64,
}

/// The reason why a result was not stored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The result is larger than the limit of all results.
    #[error(
        "the result takes up to {found} bytes, results may take {limit} together (`--lab-artifacts`)"
    )]
    TooLarge { found: u64, limit: u64 },
    /// The result cannot be written.
    #[error("the result cannot be written: {0}")]
    Io(#[from] io::Error),
}

/// A folder for results in the folder of temporary files. It is removed with its contents when the return value is
/// dropped.
pub fn temporary() -> io::Result<impl AsRef<Path>> {
    let place = std::env::temp_dir();
    let folder = PartFolder::new(&place.join("bench-lab"));
    let folder = folder.map_err(|error| temporary_error(&place, &error))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700))?;
    }
    Ok(folder)
}

fn total<'a>(kept: impl IntoIterator<Item = &'a Artifact>) -> u64 {
    kept.into_iter().map(|one| one.bytes).sum()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl ArtifactStore {
    /// The store in a folder.
    pub fn new(folder: PathBuf, limits: ArtifactLimits) -> Self {
        Self { folder, limits }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The limits of the store.
    pub fn limits(&self) -> ArtifactLimits {
        self.limits
    }

    /// The stored results that are there for `viewer`, the oldest first. Expired ones are removed.
    pub fn list(&self, viewer: Viewer<'_>) -> Vec<Artifact> {
        let mut all = self.all();
        all.retain(|kept| viewer.sees(&kept.owner));
        all
    }

    fn all(&self) -> Vec<Artifact> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut all: Vec<(SystemTime, Artifact)> = entries
            .filter_map(|entry| self.kept(&entry.path()))
            .collect();
        all.sort_by(|a, b| (a.0, &a.1.id).cmp(&(b.0, &b.1.id)));
        all.into_iter().map(|(_, kept)| kept).collect()
    }

    /// A file as a result, with the time of writing; none if it is not a result or has expired.
    fn kept(&self, path: &Path) -> Option<(SystemTime, Artifact)> {
        let format = ArrayFormat::of(path)?;
        let (owner, id) = owner_and_id(path.file_stem()?.to_str()?);
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let written = metadata.modified().ok()?;
        if written.elapsed().is_ok_and(|age| age > self.limits.time) {
            // Another process may have removed the file.
            let _ = fs::remove_file(path);
            return None;
        }
        let created = seconds(written);
        let kept = Artifact {
            id: id.to_owned(),
            owner: owner.to_owned(),
            format: format.ending(),
            bytes: metadata.len(),
            created,
            expires: created.saturating_add(self.limits.time.as_secs()),
        };
        Some((written, kept))
    }

    fn path(&self, kept: &Artifact) -> PathBuf {
        let name = file_name(&kept.owner, &kept.id);
        self.folder.join(format!("{name}.{}", kept.format))
    }

    /// Refuses a result of `found` bytes if it is too large.
    ///
    /// # Errors
    /// The result is larger than the limit of all results.
    pub fn check(&self, found: u64) -> Result<(), Error> {
        let limit = self.limits.bytes;
        match found <= limit {
            true => Ok(()),
            false => Err(Error::TooLarge { found, limit }),
        }
    }

    /// Stores a result of `owner`. As far as it needs their space, the oldest results go of whoever has the most.
    ///
    /// # Errors
    /// The result is larger than the limit of all results, or cannot be written.
    pub fn save(
        &self,
        owner: &str,
        format: ArrayFormat,
        arrays: &[NamedArray<'_>],
        metadata: &Map<String, Value>,
    ) -> Result<Artifact, Error> {
        let wanted = arrays::most_bytes(arrays, metadata);
        self.check(wanted)?;
        // Held until the file is complete. Writers of other processes wait for it, so that all together stay in the limit.
        let turn = File::options()
            .append(true)
            .create(true)
            .open(self.folder.join(LOCK))?;
        turn.lock()?;
        let mut kept = self.all();
        while total(&kept).saturating_add(wanted) > self.limits.bytes {
            let of = |owner: &str| total(kept.iter().filter(|one| one.owner == owner));
            let most = kept.iter().map(|one| of(&one.owner)).max();
            let Some(oldest) = kept.iter().position(|one| Some(of(&one.owner)) == most) else {
                break;
            };
            let _ = fs::remove_file(self.path(&kept.remove(oldest)));
        }
        // The id cannot be guessed, and is unique over all processes.
        let [a, b] = [0_u8; 2].map(|n| RandomState::new().hash_one(n));
        let path = self.folder.join(file_name(
            owner,
            &format!("{a:016x}{b:016x}.{}", format.ending()),
        ));
        arrays::write(&path, format, arrays, metadata)?;
        let kept = self.kept(&path);
        let (_, kept) = kept.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(kept)
    }

    /// A result by its id, and its opened file, if it is there for `viewer`.
    pub fn open(&self, viewer: Viewer<'_>, id: &str) -> Option<(Artifact, File)> {
        let kept = self.list(viewer).into_iter().find(|kept| kept.id == id)?;
        let file = File::open(self.path(&kept)).ok()?;
        Some((kept, file))
    }

    /// Removes a result, if it is there for `viewer`. Returns whether it was.
    pub fn remove(&self, viewer: Viewer<'_>, id: &str) -> bool {
        let found = self.list(viewer).into_iter().find(|kept| kept.id == id);
        found.is_some_and(|kept| fs::remove_file(self.path(&kept)).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifacts::arrays::Elements;

    fn store(folder: &Path, bytes: u64, time: Duration) -> ArtifactStore {
        let inline = 0;
        ArtifactStore::new(
            folder.to_owned(),
            ArtifactLimits {
                bytes,
                time,
                inline,
            },
        )
    }

    fn keep(store: &ArtifactStore, n: usize) -> Result<Artifact, Error> {
        keep_as("", store, n)
    }

    fn keep_as(owner: &str, store: &ArtifactStore, n: usize) -> Result<Artifact, Error> {
        let numbers = vec![1.0; n];
        let array = NamedArray {
            name: "a".into(),
            shape: vec![n as u64],
            elements: Elements::F32(&numbers),
        };
        store.save(owner, ArrayFormat::Safetensors, &[array], &Map::new())
    }

    #[test]
    fn the_oldest_go_where_there_is_no_room_and_what_never_fits_is_refused() {
        let folder = temporary().expect("a folder");
        let store = store(folder.as_ref(), 10_000, Duration::from_secs(600));
        let ids: Vec<String> = (0..4)
            .map(|_| {
                // File times have a limited resolution.
                std::thread::sleep(Duration::from_millis(20));
                keep(&store, 1000).expect("it fits").id
            })
            .collect();
        let left: Vec<String> = store
            .list(Viewer::ALL)
            .into_iter()
            .map(|kept| kept.id)
            .collect();
        assert!(left.len() < 4 && !left.is_empty(), "{left:?}");
        assert_eq!(left, ids[4 - left.len()..]);
        let total: u64 = store.list(Viewer::ALL).iter().map(|kept| kept.bytes).sum();
        assert!(total <= 10_000);
        let error = keep(&store, 3000).expect_err("too large").to_string();
        assert!(error.contains("10000"), "{error}");
        assert_eq!(store.list(Viewer::ALL).len(), left.len());
        let (kept, file) = store.open(Viewer::ALL, &left[0]).expect("it is there");
        assert_eq!(file.metadata().expect("a file").len(), kept.bytes);
        assert!(store.remove(Viewer::ALL, &left[0]) && !store.remove(Viewer::ALL, &left[0]));
        assert!(store.open(Viewer::ALL, &left[0]).is_none());
        for id in ["", "..", "../a", "/etc/passwd", &left[0]] {
            assert!(store.open(Viewer::ALL, id).is_none() && !store.remove(Viewer::ALL, id));
        }
    }

    #[test]
    fn results_are_there_for_their_owner_and_for_who_sees_all() {
        let folder = temporary().expect("a folder");
        let store = store(folder.as_ref(), 20_000, Duration::from_secs(600));
        let of = |owner| Viewer {
            owner,
            sees_all: false,
        };
        let a = keep_as("a.b", &store, 1000).expect("it fits").id;
        let b = keep_as("", &store, 10).expect("it fits").id;
        assert!(store.open(of("a.b"), &a).is_some() && store.open(Viewer::ALL, &a).is_some());
        for other in ["", "a", "b", "a.b~"] {
            assert!(store.open(of(other), &a).is_none(), "{other}");
            assert!(!store.remove(of(other), &a), "{other}");
        }
        assert_eq!(store.list(of("a.b")).len(), 1);
        assert_eq!(store.list(of(""))[0].id, b);
        assert_eq!(store.list(Viewer::ALL).len(), 2);
        // Who fills the store loses its own results.
        for _ in 0..10 {
            keep_as("c", &store, 1000).expect("it fits");
        }
        assert!(store.open(of("a.b"), &a).is_some());
        assert!(store.remove(of("a.b"), &a) && store.list(of("a.b")).is_empty());
    }

    #[test]
    fn writers_at_the_same_time_stay_in_the_limit_together() {
        let folder = temporary().expect("a folder");
        let path = folder.as_ref();
        let limit = 100_000;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let store = store(path, limit, Duration::from_secs(600));
                        keep(&store, 10_000).expect("one fits");
                        let taken: u64 =
                            store.list(Viewer::ALL).iter().map(|kept| kept.bytes).sum();
                        assert!(taken <= limit, "{taken}");
                    }
                });
            }
        });
    }

    #[test]
    fn results_go_when_their_time_is_over_and_with_their_folder() {
        let folder = temporary().expect("a folder");
        let path = folder.as_ref().to_owned();
        keep(&store(&path, 10_000, Duration::from_secs(600)), 10).expect("it fits");
        std::thread::sleep(Duration::from_millis(30));
        assert!(
            store(&path, 10_000, Duration::from_millis(10))
                .list(Viewer::ALL)
                .is_empty()
        );
        assert!(
            store(&path, 10_000, Duration::from_secs(600))
                .list(Viewer::ALL)
                .is_empty()
        );
        // Another test may get the name of the folder at once.
        let file = path.join("file");
        std::fs::write(&file, "").expect("the folder is there");
        drop(folder);
        assert!(!file.exists());
    }
}
