//! Files to which whole lines are added, also after the writer was interrupted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Number of bytes that are read at a time.
const PIECE: u64 = 64 << 10;

/// Cuts a file after its last line end: what follows is a line that was not written whole.
///
/// # Errors
/// The file cannot be read or shortened.
pub fn cut_partial_line(file: &mut File) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut end = length;
    let mut piece = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(PIECE);
        piece.clear();
        file.seek(SeekFrom::Start(start))?;
        file.by_ref().take(end - start).read_to_end(&mut piece)?;
        if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    match end < length {
        true => file.set_len(end),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_stay() {
        let long = "x".repeat(3 * PIECE as usize);
        for (before, after) in [
            ("", ""),
            ("a", ""),
            ("a\n", "a\n"),
            ("a\nb", "a\n"),
            (&format!("a\n{long}"), "a\n"),
            (&format!("{long}\nb"), &format!("{long}\n")),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("f");
            std::fs::write(&path, before).expect("written");
            let file = File::options().read(true).write(true).open(&path);
            cut_partial_line(&mut file.expect("it opens")).expect("cut");
            let left = std::fs::read_to_string(&path).expect("text");
            assert!(left == after, "{} {}", before.len(), left.len());
        }
    }
}
