//! A file as memory-mapped bytes: the system reads pages when they are accessed.
//!
//! The only `unsafe` of the weights layer. The promise it rests on cannot be kept by this program
//! alone: another process that cuts a mapped file short ends this one with a bus error. That is
//! the price of using weights where they lie.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::common::writing::Reading;

use super::{Bytes, Error};

/// A mapped file, which nothing that this program writes replaces.
#[derive(Debug)]
pub struct Mapped {
    map: Mmap,
    _reading: Reading,
}

impl std::ops::Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Maps a regular file for reading.
///
/// # Errors
/// An error of the operating system, or a path that is not a regular file.
pub(super) fn map(path: &Path) -> Result<Bytes, Error> {
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    // Asked before opening, since opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(Error::NotAFile {
            path: path.to_owned(),
        });
    }
    let file = File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.len() == 0 {
        return Ok(Bytes::Static(&[]));
    }
    map_file(&file).map_err(io)
}

#[expect(unsafe_code, reason = "a mapping is shared with other processes")]
fn map_file(file: &File) -> std::io::Result<Bytes> {
    // SAFETY: the mapping is read-only and private to this value, and the file is only ever
    // replaced by name, never changed in place, by this program.
    let map = unsafe { Mmap::map(file) }?;
    Ok(Bytes::Mapped(Arc::new(Mapped {
        map,
        _reading: Reading::new(file),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let message = |path: &Path| map(path).expect_err("no file").to_string();
        let missing = folder.path().join("missing.gguf");
        assert_eq!(
            message(&missing),
            format!(
                "{}: No such file or directory (os error 2)",
                missing.display()
            )
        );
        assert_eq!(
            message(folder.path()),
            format!("{}: not a regular file", folder.path().display())
        );
    }

    #[test]
    fn an_empty_file_is_no_bytes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("empty.gguf");
        fs::write(&path, []).expect("the folder is writable");
        assert!(map(&path).expect("a file").is_empty());
        fs::write(&path, [7, 8]).expect("the folder is writable");
        assert_eq!(&map(&path).expect("a file")[..], [7, 8]);
    }
}
