//! Media that requests name by an address or a path: which of them are read, and how much of each.
//!
//! Nothing is read unless the server's options allow it. An address is fetched (`fetch`) from allowed hosts alone, a file is
//! read from one folder alone. Not here: media within requests, and decoding.

mod fetch;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub use fetch::AllowedHost;
use fetch::Fetcher;

/// Which media may be read that a request names.
#[derive(Debug, Default)]
pub struct MediaAccess {
    fetcher: Option<Fetcher>,
    /// The folder whose files may be read, without symbolic links in its path.
    folder: Option<PathBuf>,
}

/// The reason why a named medium is not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MediaAccessError {
    #[error(
        "this server fetches no addresses (`--media-fetch HOST` allows a host); send the medium as a data URL"
    )]
    NoFetch,
    #[error(
        "this server reads no files (`--media-dir DIR` allows those of a folder); send the medium as a data URL"
    )]
    NoFolder,
    #[error("the address is none of `http` or `https` with a host")]
    Address,
    #[error("the host `{0}` is not allowed (`--media-fetch`)")]
    Host(String),
    #[error("the host `{0}` has no public address")]
    Private(String),
    #[error("the address leads to more than {0} others, one after another")]
    Redirects(usize),
    #[error("the server of the address answers with status {0}")]
    Status(u16),
    #[error("the server of the address sends `{0}`, expected a picture or a sound")]
    Type(String),
    #[error("fetching the address failed: {0}")]
    Transport(String),
    #[error("it was not fetched within {0} seconds")]
    Time(u64),
    #[error("it has more than {0} bytes")]
    TooLarge(u64),
    #[error("the folder of `--media-dir` has no such file")]
    NoFile,
    #[error("the file cannot be read: {0}")]
    File(io::Error),
}

impl MediaAccess {
    /// Allows to fetch from these hosts, and to read the files of a folder.
    ///
    /// # Errors
    /// The folder does not exist.
    pub fn new(hosts: &[AllowedHost], folder: Option<&Path>) -> io::Result<Self> {
        let in_place = |folder: &Path| {
            let place = folder.canonicalize().and_then(|folder| {
                let is_folder = folder.is_dir();
                is_folder
                    .then_some(folder)
                    .ok_or_else(|| io::ErrorKind::NotADirectory.into())
            });
            place.map_err(|error| io::Error::other(format!("{}: {error}", folder.display())))
        };
        Ok(Self {
            fetcher: (!hosts.is_empty()).then(|| Fetcher::new(hosts)),
            folder: folder.map(in_place).transpose()?,
        })
    }

    /// The bytes of a medium that an address (`http`, `https`, `file`) or a path names, of at most `max_bytes`. Blocks, for an
    /// address until `end` at most.
    pub(crate) fn read(
        &self,
        name: &str,
        max_bytes: u64,
        end: Instant,
    ) -> Result<Vec<u8>, MediaAccessError> {
        let path = match name.split_once(':') {
            Some((scheme, path)) if scheme.eq_ignore_ascii_case("file") => {
                let path = path
                    .strip_prefix("//localhost/")
                    .map_or(path, |_| &path[11..]);
                &decoded(path.strip_prefix("//").unwrap_or(path))
            }
            Some((scheme, _)) if is_scheme(scheme) => {
                let fetcher = self.fetcher.as_ref().ok_or(MediaAccessError::NoFetch)?;
                return fetcher.fetch(name, max_bytes, end);
            }
            _ => name,
        };
        self.file(Path::new(path), max_bytes)
    }

    fn file(&self, path: &Path, max_bytes: u64) -> Result<Vec<u8>, MediaAccessError> {
        let folder = self.folder.as_ref().ok_or(MediaAccessError::NoFolder)?;
        // Without links, so that none leads out of the folder. What is outside is not told from what does not exist.
        let path = folder.join(path).canonicalize();
        let path = path.map_err(|_| MediaAccessError::NoFile)?;
        // A pipe or a device may never end.
        if !path.starts_with(folder) || !path.is_file() {
            return Err(MediaAccessError::NoFile);
        }
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(max_bytes + 1).read_to_end(&mut bytes))
            .map_err(MediaAccessError::File)?;
        match bytes.len() as u64 > max_bytes {
            true => Err(MediaAccessError::TooLarge(max_bytes)),
            false => Ok(bytes),
        }
    }
}

/// Whether the text before a colon is a scheme, and not the start of a path. One letter is a drive of Windows.
fn is_scheme(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    text.len() > 1 && text.as_bytes()[0].is_ascii_alphabetic() && text.bytes().all(is_part)
}

/// The text of a path in an address: `%20` and others are bytes.
fn decoded(path: &str) -> String {
    let (mut out, mut rest) = (Vec::with_capacity(path.len()), path.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(access: &MediaAccess, name: &str) -> Result<Vec<u8>, String> {
        let read = access.read(name, 4, Instant::now() + Duration::from_secs(5));
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_read_without_the_options() {
        let none = MediaAccess::default();
        for (name, option) in [
            ("http://example.com/a.png", "--media-fetch"),
            ("HTTPS://example.com/a.png", "--media-fetch"),
            ("ftp://example.com/a.png", "--media-fetch"),
            ("file:///etc/passwd", "--media-dir"),
            ("/etc/passwd", "--media-dir"),
            ("a.png", "--media-dir"),
        ] {
            let error = read(&none, name).expect_err(name);
            assert!(error.contains(option), "{name}: {error}");
        }
    }

    #[test]
    fn files_are_those_of_the_folder() {
        let outside = tempfile::tempdir().expect("a folder");
        let folder = outside.path().join("media");
        std::fs::create_dir_all(folder.join("sub")).expect("it is written");
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(outside.path().join(name), bytes).expect("it is written");
        };
        write("secret", b"no");
        write("media/a b", b"yes");
        write("media/sub/c", b"sub");
        write("media/large", b"12345");
        let access = MediaAccess::new(&[], Some(&folder)).expect("a folder");
        let full = folder.canonicalize().expect("it exists");
        let full = full.to_str().expect("a text");
        for (name, bytes) in [
            ("a b".to_owned(), "yes"),
            ("file:a%20b".to_owned(), "yes"),
            (format!("file://{full}/a%20b"), "yes"),
            (format!("file://localhost{full}/a b"), "yes"),
            (format!("{full}/sub/c"), "sub"),
            ("sub/../sub/c".to_owned(), "sub"),
        ] {
            assert_eq!(
                read(&access, &name).as_deref(),
                Ok(bytes.as_bytes()),
                "{name}"
            );
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::symlink;
            symlink(outside.path().join("secret"), folder.join("link")).expect("a link");
            symlink(outside.path(), folder.join("up")).expect("a link");
        }
        let secret = format!("{full}/../secret");
        for name in [
            "../secret",
            &secret,
            "link",
            "up/secret",
            "sub",
            "none",
            "",
            "/dev/zero",
        ] {
            let error = read(&access, name).expect_err(name);
            assert!(error.contains("no such file"), "{name}: {error}");
        }
        let error = read(&access, "large").expect_err("too large");
        assert!(error.contains("more than 4 bytes"), "{error}");
        assert!(MediaAccess::new(&[], Some(&folder.join("a b"))).is_err());
    }
}
