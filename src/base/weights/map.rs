//! Memory-mapped files: the system reads pages when they are accessed.
//!
//! This file has the only `unsafe` code of the weights layer. Its premise does not depend on this program alone:
//! another process that shortens a mapped file ends this one (`ggml::report_bus_errors`). In return weights are used in
//! place. Bytes that are copied anyway are read from the file instead ([`MappedFile::read_at`]).

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use memmap2::Mmap;

use crate::util::inputs::InputGuard;

use super::Error;

/// A mapped file. No output of this program replaces the file while it is mapped.
pub struct MappedFile {
    map: Mmap,
    file: File,
    path: PathBuf,
    /// Size and time of the last change at the time of the mapping.
    stamp: Option<(u64, SystemTime)>,
    _reading: InputGuard,
}

/// Size and time of the last change of a file, if the system provides them.
fn stamp(file: &File) -> Option<(u64, SystemTime)> {
    let about = file.metadata().ok()?;
    Some((about.len(), about.modified().ok()?))
}

impl MappedFile {
    /// Reads bytes of the mapping from the file, so that a file that was shortened meanwhile gives an error.
    pub(super) fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), String> {
        let n = out.len();
        read(&self.file, &self.map, offset, out).map_err(|error| {
            let path = self.path.display();
            match error.kind() {
                io::ErrorKind::UnexpectedEof => format!(
                    "{path} has not the {n} bytes at {offset} any more: it was cut short while it was read"
                ),
                _ => format!("{path}: {n} bytes at {offset}: {error}"),
            }
        })
    }

    /// Checks that the file has the size and time of the last change that it had when it was mapped. Another file that
    /// took its name meanwhile has no effect.
    pub(super) fn check(&self) -> Result<(), String> {
        let now = stamp(&self.file);
        if now == self.stamp {
            return Ok(());
        }
        let path = self.path.display();
        Err(match (self.stamp, now) {
            (Some((before, _)), Some((now, _))) if before != now => {
                format!(
                    "{path} was changed while it was in use: it had {before} bytes and has {now}"
                )
            }
            _ => format!("{path} was changed while it was in use"),
        })
    }

    /// Releases the memory of the pages that were accessed; the next access reads them again.
    #[cfg(unix)]
    #[expect(
        unsafe_code,
        reason = "the call can drop data of other kinds of mappings"
    )]
    pub(super) fn release(&self) {
        // SAFETY: the mapping is read-only and of a file, so the file has the content of every page.
        let done = unsafe {
            self.map
                .unchecked_advise(memmap2::UncheckedAdvice::DontNeed)
        };
        // Advice that the system does not follow has no effect.
        if let Err(error) = done {
            tracing::debug!(%error, "mapped pages stay");
        }
    }

    #[cfg(not(unix))]
    pub(super) fn release(&self) {}
}

#[cfg(unix)]
fn read(file: &File, _map: &[u8], offset: usize, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset as u64)
}

#[cfg(not(unix))]
fn read(_file: &File, map: &[u8], offset: usize, out: &mut [u8]) -> io::Result<()> {
    out.copy_from_slice(&map[offset..offset + out.len()]);
    Ok(())
}

impl std::ops::Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.map.len(), self.path.display())
    }
}

/// The bytes of a source.
#[derive(Clone, Debug)]
pub enum FileBytes {
    Mapped(Arc<MappedFile>),
    /// Bytes built into the program.
    Static(&'static [u8]),
}

impl FileBytes {
    /// Checks that the bytes are unchanged since their file was mapped.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Mapped(file) => file.check(),
            Self::Static(_) => Ok(()),
        }
    }
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}

/// Maps a regular file for reading.
pub(super) fn map(path: &Path) -> Result<FileBytes, Error> {
    let io = Error::io(path);
    // The type is checked before opening, since opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(Error::NotAFile {
            path: path.to_owned(),
        });
    }
    let file = File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.len() == 0 {
        return Ok(FileBytes::Static(&[]));
    }
    let map = map_file(&file).map_err(io)?;
    Ok(FileBytes::Mapped(Arc::new(MappedFile {
        map,
        path: path.to_owned(),
        stamp: stamp(&file),
        _reading: InputGuard::new(&file, path),
        file,
    })))
}

#[expect(unsafe_code, reason = "a mapping is shared with other processes")]
fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only and private to this value, and the file is only ever
    // replaced by name, never changed in place, by this program.
    unsafe { Mmap::map(file) }
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

    #[test]
    fn a_file_that_is_changed_in_place_is_noticed_and_one_that_is_replaced_is_not() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.gguf");
        fs::write(&path, [1; 100]).expect("written");
        let FileBytes::Mapped(mapped) = map(&path).expect("a file") else {
            panic!("it is mapped");
        };
        let other = folder.path().join("b.gguf");
        fs::write(&other, [2; 90]).expect("written");
        mapped.check().expect("nothing was changed");
        let file = File::options().write(true).open(&path).expect("it opens");
        let time = mapped.stamp.expect("a time").1;
        file.set_modified(time + std::time::Duration::from_secs(1))
            .expect("set");
        let changed = format!("{} was changed while it was in use", path.display());
        assert_eq!(mapped.check(), Err(changed.clone()));
        file.set_len(90).expect("cut");
        let shorter = format!("{changed}: it had 100 bytes and has 90");
        assert_eq!(mapped.check(), Err(shorter));
        let FileBytes::Mapped(mapped) = map(&path).expect("a file") else {
            panic!("it is mapped");
        };
        fs::rename(&other, &path).expect("renamed");
        mapped.check().expect("its file is as it was");
    }

    #[test]
    fn what_is_read_of_a_file_that_was_cut_short_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("short.gguf");
        let written: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        fs::write(&path, &written).expect("the folder is writable");
        let FileBytes::Mapped(mapped) = map(&path).expect("a file") else {
            panic!("it is mapped");
        };
        let mut out = [0; 300];
        for offset in [0, 1, 4000, 9700] {
            mapped.read_at(offset, &mut out).expect("it is there");
            assert_eq!(out, written[offset..offset + 300]);
            mapped.release();
            assert_eq!(mapped[offset..offset + 300], out);
        }
        let file = File::options().write(true).open(&path).expect("a file");
        file.set_len(5000).expect("it is cut");
        assert_eq!(mapped.read_at(4700, &mut out), Ok(()));
        assert_eq!(
            mapped.read_at(4701, &mut out),
            Err(format!(
                "{} has not the 300 bytes at 4701 any more: it was cut short while it was read",
                path.display()
            ))
        );
    }
}
