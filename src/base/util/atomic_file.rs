//! Files and folders that are written atomically: they appear under their names only when they are complete.
//!
//! Until then a file lies next to its target as `NAME.PID-N.part`, locked by its writer. An incomplete file is removed
//! when its value is dropped, at a signal (`remove_incomplete`), or by the next writer of the same name, which finds it
//! unlocked. An existing file is replaced only if the caller says so (`OutputPath`), an input (`inputs`) never. A target
//! that is not a regular file, such as a pipe or a terminal, is written in place, and so are the standard streams of
//! this process, whatever they lead to.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::inputs::refuse_input;
use super::lock::lock;

static INCOMPLETE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Where an output goes.
#[derive(Clone, Copy, Debug)]
pub struct OutputPath<'p> {
    pub path: &'p Path,
    /// Whether a file that is there already is replaced; otherwise it stays, and writing is refused.
    pub replaces: bool,
}

impl<'p, P: AsRef<Path> + ?Sized> From<&'p P> for OutputPath<'p> {
    /// A file that is there already stays.
    fn from(path: &'p P) -> Self {
        let (path, replaces) = (path.as_ref(), false);
        Self { path, replaces }
    }
}

impl<'p> OutputPath<'p> {
    /// A file that is there already is replaced.
    pub fn replacing(path: &'p Path) -> Self {
        let replaces = true;
        Self { path, replaces }
    }

    /// Refuses a target that may not be written: an input, a folder, or a file that is there already.
    ///
    /// # Errors
    /// The target is refused; the error does not have its path.
    pub fn check(self) -> io::Result<()> {
        let path = self.path;
        if stream(path).is_some() {
            return Ok(());
        }
        refuse_input(path)?;
        let is_special = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) => !found.is_file(),
            Err(_) => false,
        };
        // A link that leads nowhere has the name too.
        let is_kept = !self.replaces && !is_special;
        match is_kept && fs::symlink_metadata(path).is_ok() {
            true => Err(taken()),
            false => Ok(()),
        }
    }
}

/// The message about an output whose name is taken.
pub const IS_THERE: &str = "is there already; --force replaces it";

/// Whether a target is stdout.
pub fn is_stdout(target: &Path) -> bool {
    let names = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
    cfg!(unix) && names.iter().any(|name| target == Path::new(name))
}

/// The standard stream that a target names. It may lead to a file, which is then neither replaced nor opened anew: what
/// else is written to the stream stays in its place.
#[cfg(unix)]
fn stream(target: &Path) -> Option<io::Result<File>> {
    use std::os::fd::AsFd as _;
    let names = ["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"];
    let owned = match target {
        target if is_stdout(target) => io::stdout().as_fd().try_clone_to_owned(),
        target if names.iter().any(|name| target == Path::new(name)) => {
            io::stderr().as_fd().try_clone_to_owned()
        }
        _ => return None,
    };
    Some(owned.map(File::from))
}

#[cfg(not(unix))]
fn stream(_: &Path) -> Option<io::Result<File>> {
    None
}

fn taken() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, IS_THERE)
}

/// Renames a file unless the new name is taken.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => return Err(taken()),
            // Not every file system has such a rename.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            done => return Ok(done?),
        }
    }
    match fs::symlink_metadata(to) {
        Ok(_) => Err(taken()),
        Err(_) => fs::rename(from, to),
    }
}

/// A file or folder under a temporary name. Dropping it removes the file or folder with its contents.
struct Temporary {
    path: PathBuf,
    /// The open file that holds the lock; `None` where there are no locks.
    _lock: Option<File>,
}

impl Temporary {
    /// Creates a file or folder next to `target`, under an unused name.
    fn new<T>(target: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(Self, T)> {
        let name = target
            .file_name()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "names no file"))?;
        remove_left(target, name);
        for attempt in 0u32.. {
            let mut part = name.to_owned();
            part.push(format!(".{}-{attempt}.part", std::process::id()));
            let path = target.with_file_name(part);
            // With this lock held, a signal handler finds either no file or one that is registered for removal.
            let mut incomplete = lock(&INCOMPLETE);
            match make(&path) {
                Ok(made) => {
                    incomplete.insert(path.clone());
                    let lock = File::open(&path).ok().filter(|file| file.lock().is_ok());
                    if !path.exists() {
                        // Another writer of the same name removed the file before it was locked.
                        incomplete.remove(&path);
                        continue;
                    }
                    return Ok((Self { path, _lock: lock }, made));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let folder = folder_of(target).display();
                    return Err(io::Error::new(
                        error.kind(),
                        format!("there is no folder {folder}"),
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let mut incomplete = lock(&INCOMPLETE);
        // A failed removal must not hide the first error. After a rename there is nothing to remove.
        let _ = remove(&self.path);
        incomplete.remove(&self.path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}

/// Removes unlocked files and folders that earlier writers of this name left.
fn remove_left(target: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(folder_of(target)) else {
        return;
    };
    let is_left = |entry: &fs::DirEntry| {
        let found = entry.file_name();
        let rest = found.as_encoded_bytes();
        let rest = rest.strip_prefix(name.as_encoded_bytes());
        let id = rest.and_then(|rest| rest.strip_prefix(b".")?.strip_suffix(b".part"));
        let is_id = |id: &[u8]| {
            let mut numbers = id.split(|byte| *byte == b'-');
            let is_number = |n: &[u8]| !n.is_empty() && n.iter().all(u8::is_ascii_digit);
            numbers.clone().count() == 2 && numbers.all(is_number)
        };
        id.is_some_and(is_id)
    };
    for entry in entries.flatten().filter(is_left) {
        let path = entry.path();
        let is_plain = entry
            .file_type()
            .is_ok_and(|ty| ty.is_file() || ty.is_dir());
        // The lock is held until the file is removed: a writer that has just created it waits for the lock.
        let held = File::open(&path).ok().filter(|_| is_plain);
        if held.as_ref().is_some_and(|file| file.try_lock().is_ok()) {
            let _ = remove(&path);
        }
    }
}

/// A file that gets its name when it is finished.
pub struct PartFile {
    out: BufWriter<File>,
    /// `None` where the target is written in place.
    temporary: Option<Temporary>,
    target: PathBuf,
    replaces: bool,
}

impl PartFile {
    /// A file that will be the target, or the file that the target links to.
    ///
    /// # Errors
    /// As [`Target::check`], or the target cannot be written.
    pub fn new<'p>(target: impl Into<OutputPath<'p>>) -> io::Result<Self> {
        let target = target.into();
        let (path, replaces) = (target.path, target.replaces);
        if let Some(stream) = stream(path) {
            return Ok(Self {
                out: BufWriter::new(stream?),
                temporary: None,
                target: path.to_owned(),
                replaces,
            });
        }
        target.check()?;
        let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        let linked = is_link.then(|| fs::canonicalize(path).ok()).flatten();
        let target = linked.unwrap_or_else(|| path.to_owned());
        let before = fs::metadata(&target).ok();
        let (temporary, file) = match before.as_ref().is_none_or(fs::Metadata::is_file) {
            true => {
                let (temporary, file) = Temporary::new(&target, |path| File::create_new(path))?;
                if let Some(before) = before {
                    // The permissions of the old file are kept, as if it were written in place. Not every file system
                    // supports them.
                    let _ = file.set_permissions(before.permissions());
                }
                (Some(temporary), file)
            }
            false => (None, File::options().write(true).open(&target)?),
        };
        Ok(Self {
            out: BufWriter::with_capacity(1 << 20, file),
            temporary,
            target,
            replaces,
        })
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// The open file, for formats whose writers seek back.
    pub fn file(&mut self) -> &mut (impl Write + Seek) {
        &mut self.out
    }

    /// Renames the file to its target.
    ///
    /// # Errors
    /// The bytes cannot be written, or the file cannot be renamed, perhaps because the name was taken meanwhile. A file
    /// of this name is then unchanged.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        if self.temporary.is_some() {
            self.out.get_ref().sync_all()?;
        }
        let target = self.place()?;
        sync_folder(&target);
        Ok(())
    }

    /// As `finish`, but the system decides when the bytes reach the disk. Returns the path.
    pub fn place(mut self) -> io::Result<PathBuf> {
        self.out.flush()?;
        if let Some(temporary) = &self.temporary {
            match self.replaces {
                false => rename_new(&temporary.path, &self.target)?,
                true => {
                    refuse_input(&self.target)?;
                    fs::rename(&temporary.path, &self.target)?;
                }
            }
        }
        Ok(std::mem::take(&mut self.target))
    }
}

/// Writes a whole file whose contents can be made again.
pub fn write<'p>(target: impl Into<OutputPath<'p>>, bytes: &[u8]) -> io::Result<()> {
    let mut part = PartFile::new(target)?;
    part.write(bytes)?;
    part.place().map(drop)
}

/// An error of the folder `place` of temporary files, with its path and what sets it.
pub fn temporary_error(place: &Path, error: &io::Error) -> io::Error {
    let place = place.display();
    let text =
        format!("temporary files in {place}: {error}; the variable TMPDIR sets another folder");
    io::Error::new(error.kind(), text)
}

/// A folder under a temporary name. Dropping the value removes it with its contents.
pub struct PartFolder(Temporary);

impl PartFolder {
    /// A folder next to `target`.
    pub fn new(target: &Path) -> io::Result<Self> {
        let (temporary, ()) = Temporary::new(target, |path| fs::create_dir(path))?;
        Ok(Self(temporary))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

impl AsRef<Path> for PartFolder {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

/// Syncs the folder, so that the new name reaches the disk. Failure is ignored: the file is complete
/// either way, and not every file system supports it.
pub fn sync_folder(target: &Path) {
    let _ = File::open(folder_of(target)).and_then(|folder| folder.sync_all());
}

pub fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Removes all incomplete files and folders. While the returned value exists no new one begins: it is for the end of a
/// process.
pub fn remove_incomplete() -> impl Sized {
    /// Another thread may create a file in a folder while the folder is removed.
    const ATTEMPTS: usize = 10;
    let incomplete = lock(&INCOMPLETE);
    for path in incomplete.iter() {
        let _ = (0..ATTEMPTS).any(|_| {
            let _ = remove(path);
            !path.exists()
        });
    }
    incomplete
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::inputs::InputGuard;

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).expect("a folder");
        let mut names: Vec<_> = names
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_not_finished_goes_away() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("model");
        let part = PartFolder::new(&target).expect("a writable folder");
        let other = PartFolder::new(&target).expect("another name");
        fs::write(part.path().join("file"), "text").expect("a writable folder");
        fs::rename(other.path(), &target).expect("a free name");
        drop((part, other));
        let mut file = PartFile::new(&folder.path().join("file")).expect("a writable folder");
        file.write(b"half").expect("written");
        drop(file);
        assert_eq!(names(folder.path()), ["model"]);
    }

    #[test]
    fn what_an_ended_process_left_is_removed_by_the_next_writer() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        for name in [
            "a.1-0.part",
            "b.1-0.part",
            "a.1.part",
            "a.x-0.part",
            "aa.1-0.part",
        ] {
            fs::write(at(name), "left").expect("a writable folder");
        }
        fs::create_dir(at("a.2-3.part")).expect("a writable folder");
        fs::write(at("a.2-3.part/model"), "left").expect("a writable folder");
        let held = File::create(at("a.3-0.part")).expect("a writable folder");
        held.lock().expect("a lock");
        write(&at("a"), b"new").expect("a writable folder");
        assert_eq!(
            names(folder.path()),
            [
                "a",
                "a.1.part",
                "a.3-0.part",
                "a.x-0.part",
                "aa.1-0.part",
                "b.1-0.part"
            ]
        );
    }

    #[test]
    fn the_file_before_stays_until_the_new_one_is_complete() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("file");
        write(&target, b"before").expect("a writable folder");
        let mut part = PartFile::new(OutputPath::replacing(&target)).expect("a writable folder");
        part.write(b"after").expect("written");
        assert_eq!(fs::read(&target).expect("a file"), b"before");
        part.finish().expect("a free name");
        assert_eq!(fs::read(&target).expect("a file"), b"after");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_file_that_is_there_is_replaced_only_if_that_is_said() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("file");
        let mut late = PartFile::new(&target).expect("a free name");
        late.write(b"late").expect("written");
        write(&target, b"first").expect("a free name");
        let early = write(&target, b"second").expect_err("it is there");
        for error in [early, late.finish().expect_err("it is there")] {
            assert_eq!(error.to_string(), IS_THERE);
        }
        assert_eq!(fs::read(&target).expect("a file"), b"first");
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            std::os::unix::fs::symlink("nowhere", &link).expect("a free name");
            let error = write(&link, b"text").expect_err("a link");
            assert_eq!(error.to_string(), IS_THERE);
            fs::remove_file(&link).expect("a link");
        }
        write(OutputPath::replacing(&target), b"second").expect("it is replaced");
        assert_eq!(fs::read(&target).expect("a file"), b"second");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link_and_a_mode_stays() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (target, link) = (folder.path().join("file"), folder.path().join("link"));
        write(&target, b"before").expect("a writable folder");
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).expect("an own file");
        std::os::unix::fs::symlink("file", &link).expect("a free name");
        write(OutputPath::replacing(&link), b"after").expect("a writable folder");
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!(fs::read(&target).expect("a file"), b"after");
        let mode = fs::metadata(&target).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        write(Path::new("/dev/null"), b"text").expect("a device");
        let null = fs::metadata("/dev/null").expect("a device");
        assert!(!null.is_file(), "a device is not replaced");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_is_read_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("file");
        write(&target, b"input").expect("a writable folder");
        let file = File::open(&target).expect("a file");
        let both = (
            InputGuard::new(&file, &target),
            InputGuard::new(&file, &target),
        );
        drop(both.0);
        let error = write(OutputPath::replacing(&target), b"output").expect_err("an input");
        assert!(error.to_string().contains("is an input"), "{error}");
        assert_eq!(fs::read(&target).expect("a file"), b"input");
        drop(both.1);
        write(OutputPath::replacing(&target), b"output").expect("no input any more");
    }
}
