//! Whether an engine process still answers: one that hangs is ended as if it had died.
//!
//! Its HTTP side is asked for its health over one connection that stays open. That side computes nothing, so it
//! answers at once however long a prefill or a queue is. Not here: what becomes of the requests that the process has.

use std::path::Path;
use std::time::Duration;

use super::Life;

/// Shortest and longest time between two questions.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(3)];
/// Longest time that is waited for an answer, which is as good as for ever.
const MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Asks until the process ends, or has not answered for `limit`, and ends it then.
#[cfg(unix)]
pub(super) fn watch(life: &Life, socket: &Path, limit: Duration) {
    let [shortest, longest] = PAUSES;
    let pause = (limit / 10).clamp(shortest, longest);
    let time = limit.min(MAX).saturating_sub(pause);
    let mut line = line::Line::new(socket);
    loop {
        std::thread::sleep(pause);
        if life.has_ended() {
            return;
        }
        if !line.is_answered(time) && !life.has_ended() {
            let why = format!("it did not answer for {limit:?} and was ended");
            return life.give_up(why);
        }
    }
}

#[cfg(not(unix))]
pub(super) fn watch(_life: &Life, _socket: &Path, _limit: Duration) {}

#[cfg(unix)]
mod line {
    use std::io::{self, ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::time::{Duration, Instant};

    /// What an answer gets beyond its time: where the whole machine was halted, it is on its way.
    const GRACE: Duration = Duration::from_secs(1);
    /// Longest head of an answer.
    const MAX: usize = 64 << 10;

    /// A connection for questions.
    pub(super) struct Line<'a> {
        socket: &'a Path,
        stream: Option<UnixStream>,
    }

    impl<'a> Line<'a> {
        pub(super) fn new(socket: &'a Path) -> Self {
            Self {
                socket,
                stream: None,
            }
        }

        /// Whether there is an answer in time, or the connection broke: that is no silence.
        pub(super) fn is_answered(&mut self, limit: Duration) -> bool {
            match self.ask(limit) {
                Ok(()) => true,
                Err(error) => {
                    self.stream = None;
                    !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
                }
            }
        }

        fn ask(&mut self, limit: Duration) -> io::Result<()> {
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => UnixStream::connect(self.socket)?,
            };
            stream.set_write_timeout(Some(limit))?;
            stream.write_all(b"HEAD /health HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
            let (mut head, mut part) = (Vec::new(), [0; 1024]);
            let (until, mut is_last) = (Instant::now() + limit, false);
            while !head.ends_with(b"\r\n\r\n") {
                let left = match is_last {
                    true => GRACE,
                    false => until
                        .saturating_duration_since(Instant::now())
                        .max(GRACE / 10),
                };
                stream.set_read_timeout(Some(left))?;
                match stream.read(&mut part) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(n) if head.len() + n <= MAX => head.extend_from_slice(&part[..n]),
                    Ok(_) => return Err(ErrorKind::InvalidData.into()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock && !is_last => {
                        is_last = true;
                    }
                    Err(error) => return Err(error),
                }
            }
            self.stream = Some(stream);
            Ok(())
        }
    }

    #[cfg(test)]
    mod tests {
        use std::os::unix::net::UnixListener;

        use super::*;

        #[test]
        fn silence_is_told_from_answers_and_from_broken_connections() {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("socket");
            let listener = UnixListener::bind(&path).expect("it is free");
            let mut line = Line::new(&path);
            let answers = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut part = [0; 1024];
                for _ in 0..2 {
                    let n = stream.read(&mut part).expect("a question");
                    assert!(part[..n].starts_with(b"HEAD /health "));
                    for piece in ["HTTP/1.1 200 OK\r\nx: y\r\n", "\r\n"] {
                        stream.write_all(piece.as_bytes()).expect("written");
                    }
                }
                drop(stream);
                listener
            });
            let limit = Duration::from_secs(20);
            assert!(line.is_answered(limit) && line.is_answered(limit));
            let listener = answers.join().expect("it lives");
            assert!(line.is_answered(limit), "the connection broke");
            let started = Instant::now();
            assert!(!line.is_answered(Duration::from_millis(100)));
            assert!(started.elapsed() < Duration::from_secs(15));
            drop(listener);
            assert!(line.is_answered(limit), "nobody listens");
        }
    }
}
