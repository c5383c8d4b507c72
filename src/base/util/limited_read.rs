//! Files and lines that are read whole, up to a limit, whatever the path leads to.
//!
//! A device without end is an error. A pipe without a writer reads as empty: opening it does not block. Not here: files
//! of weights, which are mapped.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

use super::inputs::remember;

/// Maximum size of a definition, a map or a configuration of this program, in bytes.
pub const MAX_DEFINITION: u64 = 512 << 10;
/// Maximum size of other texts, such as messages and prompts, in bytes.
pub const MAX_TEXT: u64 = 64 << 20;

/// Opens a file for reading. Opening a pipe does not block.
#[cfg(unix)]
pub fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::{OFlags, fcntl_setfl};
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)?;
    // Opening does not block, but reading waits for a writer that has the pipe open.
    fcntl_setfl(&file, OFlags::empty())?;
    remember(&file, path);
    Ok(file)
}

#[cfg(not(unix))]
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    remember(&file, path);
    Ok(file)
}

/// The bytes of a file.
///
/// # Errors
/// The file cannot be read, or has more than `limit` bytes.
pub fn bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    all(open(path)?, limit)
}

/// The bytes of an input up to its end.
pub fn all(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(too_large(limit)),
        false => Ok(bytes),
    }
}

pub fn text(path: &Path, limit: u64) -> io::Result<String> {
    utf8(bytes(path, limit)?)
}

pub fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!("not UTF-8 at byte {at}");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

fn too_large(limit: u64) -> io::Error {
    let message = format!("more than {limit} bytes");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

/// The next line without its end, or why it is refused; `None` at the end of the file. Reading goes on after a refused
/// line.
pub fn line(from: &mut impl BufRead, limit: u64) -> io::Result<Option<Result<String, String>>> {
    let mut line = Vec::new();
    if from.take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.len() as u64 == limit && line.last() != Some(&b'\n') {
        from.skip_until(b'\n')?;
        return Ok(Some(Err(format!("the line has {limit} bytes or more"))));
    }
    for end in [b'\n', b'\r'] {
        line.pop_if(|last| *last == end);
    }
    let text = String::from_utf8(line).map_err(|_| "the line is not UTF-8".into());
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_their_limit() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a");
        std::fs::write(&path, "1234").expect("written");
        assert_eq!(text(&path, 4).expect("four bytes"), "1234");
        let error = text(&path, 3).expect_err("too large");
        assert_eq!(error.to_string(), "more than 3 bytes");
        std::fs::write(&path, b"ab\xff").expect("written");
        let error = text(&path, 9).expect_err("not a text");
        assert_eq!(error.to_string(), "not UTF-8 at byte 2");
        assert!(text(folder.path(), 9).is_err(), "a folder");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn devices_and_pipes_end() {
        let error = bytes(Path::new("/dev/zero"), 1 << 20).expect_err("no end");
        assert_eq!(error.to_string(), "more than 1048576 bytes");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo runs").success());
        assert_eq!(bytes(&pipe, 9).expect("nobody writes"), b"");
        // Reading waits for the data of an open writer.
        let reader = open(&pipe).expect("it opens");
        let writer = File::options().write(true).open(&pipe).expect("it opens");
        let slow = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            io::Write::write_all(&mut &writer, b"late")
        });
        let mut found = String::new();
        (&reader).read_to_string(&mut found).expect("read");
        assert_eq!(found, "late");
        slow.join().expect("it lives").expect("written");
    }

    #[test]
    fn a_bad_line_is_one_line() {
        let text = [
            &b"one\r\n"[..],
            b"\xff\n",
            b"0123456789\n",
            b"two\n\n0123456\nthree",
        ]
        .concat();
        let mut from = &text[..];
        let mut lines = Vec::new();
        while let Some(found) = line(&mut from, 8).expect("bytes") {
            lines.push(found.map_err(|_| ()));
        }
        let ok = |text: &str| Ok(text.to_owned());
        let expected = [
            ok("one"),
            Err(()),
            Err(()),
            ok("two"),
            ok(""),
            ok("0123456"),
            ok("three"),
        ];
        assert_eq!(lines, expected);
    }
}
