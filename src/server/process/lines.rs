//! The lines that a process writes to its standard error.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc;

use super::{LineCallback, thread};

/// Maximum part of a line that is forwarded at once, in bytes.
const MAX: u64 = 64 << 10;

/// Forwards lines as they arrive, without their line ends, on a separate thread. The channel closes after the last
/// line.
pub(crate) fn forward_lines(
    output: Option<impl Read + Send + 'static>,
    on_line: LineCallback,
) -> io::Result<mpsc::Receiver<()>> {
    let (end, ended) = mpsc::channel();
    let read = move || {
        let _ = output.map(|output| each(output, on_line));
        drop::<mpsc::Sender<()>>(end);
    };
    thread("lines", read)?;
    Ok(ended)
}

fn each(output: impl Read, mut on_line: impl FnMut(&[u8])) -> io::Result<()> {
    let (mut output, mut line) = (BufReader::new(output), Vec::new());
    while output.by_ref().take(MAX).read_until(b'\n', &mut line)? > 0 {
        on_line(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_by_one_and_long_ones_in_parts() {
        let mut long = vec![b'x'; MAX as usize + 5];
        long.extend(b"\n\nlast");
        let mut found = Vec::new();
        each([&b"one\n"[..], &long].concat().as_slice(), |line| {
            found.push(line.to_vec());
        })
        .expect("it is read");
        let sizes: Vec<usize> = found.iter().map(Vec::len).collect();
        assert_eq!(sizes, [3, MAX as usize, 5, 0, 4]);
        assert_eq!((&found[0][..], &found[4][..]), (&b"one"[..], &b"last"[..]));
    }
}
