//! The folder of the prefix cache: its files, their total size, the least recently used of them removed for new ones.
//!
//! Several processes may use the folder. A file appears under its name when it is complete, and its time of change is that of its
//! last use. Files of other names are left alone.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::segment::{self, PrefixHash, PrefixSeed, SegmentError, SegmentHeader};
use crate::model::{PrefixBlocks, PrefixLayout};

/// Maximum number of files, whatever their sizes.
const MAX_FILES: usize = 1 << 16;
/// What a small file takes on disk.
const SECTOR: u64 = 4096;
const ENDING: &str = ".kv";
const PART: &str = ".part";

/// The files of the prefix cache of one model, among those of others.
#[derive(Debug)]
pub(super) struct CacheFolder {
    path: PathBuf,
    /// The start of the names of the model's files.
    prefix: String,
    limit: u64,
    /// Bytes of all files, as far as this process knows.
    total: AtomicU64,
}

struct FoundFile {
    name: String,
    bytes: u64,
    used: SystemTime,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a file is one of a prefix cache: 16 hexadecimal digits, `-`, 32 digits, `.kv`.
fn is_own(name: &str) -> bool {
    let parts = name
        .strip_suffix(ENDING)
        .and_then(|name| name.split_once('-'));
    let is_hex = |part: &str, n| part.len() == n && part.bytes().all(|b| b.is_ascii_hexdigit());
    parts.is_some_and(|(model, content)| is_hex(model, 16) && is_hex(content, 32))
}

impl CacheFolder {
    /// The folder, which is made if it is not there.
    ///
    /// # Errors
    /// It is no folder, or cannot be made.
    pub(super) fn open(path: PathBuf, identity: &PrefixSeed, limit: u64) -> io::Result<Self> {
        make_private(&path)?;
        if !path.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self {
            path,
            prefix: hex(&identity[..8]),
            limit,
            total: AtomicU64::new(0),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes that all files take, as far as this process knows.
    pub(super) fn bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn files(&self) -> io::Result<Vec<FoundFile>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Neither a link nor a pipe is one of ours.
            let about = match entry.metadata() {
                Ok(about) if about.is_file() => about,
                _ => continue,
            };
            if is_own(&name) {
                found.push(FoundFile {
                    bytes: about.len().max(SECTOR),
                    used: about.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    name,
                });
            } else if name.strip_suffix(PART).is_some_and(is_own_part) {
                remove_left(&entry.path());
            }
        }
        found.sort_by_key(|file| file.used);
        let total = found.iter().map(|file| file.bytes).sum();
        self.total.store(total, Ordering::Relaxed);
        Ok(found)
    }

    /// The headers of the model's files, the least recently used first. Files that are not of this layout are removed.
    pub(super) fn scan(&self, layout: &PrefixLayout) -> Vec<(String, SegmentHeader)> {
        let files = self.files().unwrap_or_else(|error| {
            tracing::warn!(folder = %self.path.display(), %error, "the folder of the prefix cache is not read");
            Vec::new()
        });
        let own = files
            .into_iter()
            .filter(|file| file.name.starts_with(&self.prefix));
        let read = own.filter_map(|file| {
            let header = self.header(&file.name, layout);
            match header {
                Ok(header) => Some((file.name, header)),
                Err(error) => {
                    self.drop_unfit(&file.name, &error);
                    None
                }
            }
        });
        read.collect()
    }

    fn header(&self, name: &str, layout: &PrefixLayout) -> Result<SegmentHeader, SegmentError> {
        let file = File::open(self.path.join(name))?;
        let bytes = file.metadata()?.len();
        let header = SegmentHeader::read(BufReader::new(file), layout)?;
        match header.size == bytes {
            true => Ok(header),
            false => Err(SegmentError::Unfit(
                "its length is not what its header says",
            )),
        }
    }

    /// Reads and checks a file of this prefix cache.
    ///
    /// # Errors
    /// The file cannot be read, or does not fit.
    pub(super) fn read(
        &self,
        name: &str,
        layout: &PrefixLayout,
    ) -> Result<(SegmentHeader, PrefixBlocks), SegmentError> {
        let file = File::open(self.path.join(name))?;
        let bytes = file.metadata()?.len();
        let read = segment::read(BufReader::with_capacity(1 << 20, &file), layout, bytes)?;
        // The time is all that tells other processes of the use. A folder may be read alone.
        let _ = file.set_modified(SystemTime::now());
        Ok(read)
    }

    /// Removes a file that does not fit.
    pub(super) fn drop_unfit(&self, name: &str, error: &SegmentError) {
        if let SegmentError::Io(error) = error
            && error.kind() == io::ErrorKind::NotFound
        {
            // Another process has evicted it.
            return;
        }
        tracing::warn!(file = %self.path.join(name).display(), %error, "a file of the prefix cache is dropped");
        let _ = fs::remove_file(self.path.join(name));
    }

    /// Writes a segment to a file of its own. Returns the file's name.
    ///
    /// # Errors
    /// The file cannot be written, or is larger than all files may be.
    pub(super) fn write(
        &self,
        layout: &PrefixLayout,
        hashes: (&PrefixSeed, &PrefixHash),
        blocks: &PrefixBlocks,
    ) -> io::Result<String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        if blocks.bytes() as u64 > self.limit {
            return Err(io::Error::other("it is larger than --cache-disk"));
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let part = format!("{}-{}-{count}{PART}", self.prefix, std::process::id());
        let part = self.path.join(part);
        let written = write_private(&part, |out| segment::write(out, layout, hashes, blocks));
        let named = written.and_then(|(hash, bytes)| {
            let name = format!("{}-{}{ENDING}", self.prefix, hex(&hash[..16]));
            fs::rename(&part, self.path.join(&name))?;
            self.total.fetch_add(bytes.max(SECTOR), Ordering::Relaxed);
            Ok(name)
        });
        named.inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })
    }

    /// Removes the least recently used files until all together are within the limit. Returns their names. `n_known`: the number
    /// of the model's own.
    pub(super) fn evict(&self, n_known: usize) -> Vec<String> {
        if self.bytes() <= self.limit && n_known <= MAX_FILES {
            return Vec::new();
        }
        let Ok(files) = self.files() else {
            return Vec::new();
        };
        let (mut total, mut n_files) = (self.bytes(), files.len());
        let mut removed = Vec::new();
        for file in files {
            if total <= self.limit && n_files <= MAX_FILES {
                break;
            }
            if fs::remove_file(self.path.join(&file.name)).is_ok() {
                total -= file.bytes;
                n_files -= 1;
                removed.push(file.name);
            }
        }
        self.total.store(total, Ordering::Relaxed);
        removed
    }
}

/// Whether a name without its ending is that of a file that was being written: 16 hexadecimal digits and two numbers.
fn is_own_part(name: &str) -> bool {
    let mut parts = name.split('-');
    let is_model = parts.next().is_some_and(|part| part.len() == 16);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    is_model && parts.clone().count() == 2 && parts.all(is_number)
}

/// Removes a file that a writer left. One that is being written is locked.
fn remove_left(path: &Path) {
    let file = File::open(path);
    if file.is_ok_and(|file| file.try_lock().is_ok()) {
        let _ = fs::remove_file(path);
    }
}

/// Makes a folder that others cannot read, unless it is there.
fn make_private(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
    }
    #[cfg(not(unix))]
    fs::create_dir_all(path)
}

/// Writes a new file that others cannot read: it has what prompts say. Returns the file's length too.
pub(super) fn write_private<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>,
) -> io::Result<(T, u64)> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    let file = options.open(path)?;
    // Not every file system has locks.
    let _ = file.lock();
    let mut out = BufWriter::with_capacity(1 << 20, &file);
    let written = write(&mut out)?;
    out.flush()?;
    drop(out);
    Ok((written, file.metadata()?.len()))
}
