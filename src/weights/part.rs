//! Files and folders under temporary names: they are renamed when they are complete, and removed
//! otherwise.
//!
//! Called by the writers of formats. Also checks the free space of a disk.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::Error;

/// A file under a temporary name, removed unless it is finished.
pub(super) struct Part {
    out: BufWriter<File>,
    path: PathBuf,
    is_finished: bool,
}

impl Part {
    pub(super) fn new(target: &Path) -> io::Result<Self> {
        let (path, file) = with_free_name(target, |path| File::create_new(path))?;
        Ok(Self {
            out: BufWriter::with_capacity(1 << 20, file),
            path,
            is_finished: false,
        })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    pub(super) fn finish(mut self, target: &Path) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        fs::rename(&self.path, target)?;
        self.is_finished = true;
        sync_folder(target);
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_finished {
            // A file that does not go away is not a reason to hide the first error.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Syncs the folder, so that the new name reaches the disk. Failure is ignored: the file is complete
/// either way, and not every file system supports it.
pub(super) fn sync_folder(target: &Path) {
    let _ = File::open(folder_of(target)).and_then(|folder| folder.sync_all());
}

/// Creates a file or folder next to `target`, under an unused name.
fn with_free_name<T>(
    target: &Path,
    make: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    let name = target
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "names no file"))?;
    for attempt in 0u32.. {
        let mut part = name.to_owned();
        part.push(format!(".{}-{attempt}.part", std::process::id()));
        let path = target.with_file_name(part);
        match make(&path) {
            Ok(made) => return Ok((path, made)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// A folder under a temporary name, removed with its contents when the value is dropped.
pub(super) struct PartFolder {
    pub(super) path: PathBuf,
}

impl PartFolder {
    pub(super) fn new(target: &Path) -> io::Result<Self> {
        let (path, ()) = with_free_name(target, |path| fs::create_dir(path))?;
        Ok(Self { path })
    }
}

impl Drop for PartFolder {
    fn drop(&mut self) {
        // Nothing is left of it after a rename.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Checks that the disk of `target` has `needed` free bytes.
pub(crate) fn check_space(target: &Path, needed: u64) -> Result<(), Error> {
    match free(folder_of(target)) {
        Some(free) if free < needed => Err(Error::File {
            path: target.to_owned(),
            message: format!("{needed} bytes needed, {free} are free on this disk"),
        }),
        _ => Ok(()),
    }
}

/// Free bytes; none if the system does not report them.
#[cfg(unix)]
fn free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(not(unix))]
fn free(_: &Path) -> Option<u64> {
    None
}

/// The folder that a path lies in.
fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_disk_holds_is_refused_first() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("m.gguf");
        assert!(check_space(&target, 1).is_ok());
        let error = check_space(&target, u64::MAX).expect_err("no such disk");
        let message = error.to_string();
        assert!(
            message.contains("18446744073709551615 bytes needed"),
            "{message}"
        );
        assert!(message.contains("are free on this disk"), "{message}");
    }

    #[test]
    fn a_folder_that_is_not_renamed_goes_away() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("model");
        let part = PartFolder::new(&target).expect("a writable folder");
        let other = PartFolder::new(&target).expect("another name");
        fs::write(part.path.join("file"), "text").expect("a writable folder");
        fs::rename(&other.path, &target).expect("a free name");
        drop((part, other));
        let names = fs::read_dir(folder.path()).expect("a folder");
        let names: Vec<_> = names
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        assert_eq!(names, ["model"]);
    }
}
