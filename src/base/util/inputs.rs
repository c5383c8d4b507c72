//! The files that this process reads: no output replaces one of them, by whatever name.
//!
//! A file counts while it is being read (`Reading`), in commands also after it was closed (`remember_inputs`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lock::lock;

/// The files that this process reads, by device and inode number, each with the number of its readers.
static READ: Mutex<BTreeMap<(u64, u64), usize>> = Mutex::new(BTreeMap::new());
/// Whether files that are read are remembered.
static REMEMBERS: AtomicBool = AtomicBool::new(false);
/// The remembered files, by device and inode number.
static REMEMBERED: Mutex<BTreeMap<(u64, u64), PathBuf>> = Mutex::new(BTreeMap::new());

/// Device and inode number of a regular file, where the system has them.
#[cfg(unix)]
fn identity(of: &fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    of.is_file().then(|| (of.dev(), of.ino()))
}

#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> Option<(u64, u64)> {
    None
}

/// A file that is being read. No output may replace it while this value exists.
#[derive(Debug)]
pub struct InputGuard(Option<(u64, u64)>);

impl InputGuard {
    /// Registers a file, which is open for reading.
    pub fn new(file: &File, path: &Path) -> Self {
        remember(file, path);
        let identity = file.metadata().ok().as_ref().and_then(identity);
        if let Some(identity) = identity {
            *lock(&READ).entry(identity).or_default() += 1;
        }
        Self(identity)
    }
}

impl Drop for InputGuard {
    fn drop(&mut self) {
        let Some(identity) = self.0 else { return };
        let mut all = lock(&READ);
        if let Some(n) = all.get_mut(&identity) {
            *n -= 1;
            if *n == 0 {
                all.remove(&identity);
            }
        }
    }
}

/// Whether files that are read from now on are remembered: no output replaces them even after they are closed. For
/// commands, which read their inputs before they write.
pub fn remember_inputs(remembers: bool) {
    REMEMBERS.store(remembers, Ordering::Relaxed);
}

/// Notes a file that was opened for reading, if files are remembered.
pub fn remember(file: &File, path: &Path) {
    if !REMEMBERS.load(Ordering::Relaxed) {
        return;
    }
    if let Some(identity) = file.metadata().ok().as_ref().and_then(identity) {
        lock(&REMEMBERED).insert(identity, path.to_owned());
    }
}

/// Forgets a file: it is a command's own, which it reads and writes again.
pub fn forget_input(path: &Path) {
    if let Some(identity) = fs::metadata(path).ok().as_ref().and_then(identity) {
        lock(&REMEMBERED).remove(&identity);
    }
}

/// Whether two paths lead to one file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().as_ref().and_then(identity);
    identity(a).is_some_and(|own| identity(b) == Some(own))
}

/// The error for an output that is an input.
pub fn is_input() -> io::Error {
    let message = "is an input of this command; the output needs another name";
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Refuses to replace a file that is an input, by whatever name.
pub fn refuse_input(target: &Path) -> io::Result<()> {
    let Some(own) = fs::metadata(target).ok().as_ref().and_then(identity) else {
        return Ok(());
    };
    if lock(&READ).contains_key(&own) {
        return Err(is_input());
    }
    // The number of a removed file is given to a new one.
    let remembered = lock(&REMEMBERED).get(&own).cloned();
    match remembered.is_some_and(|path| is_same_file(&path, target)) {
        true => Err(is_input()),
        false => Ok(()),
    }
}
