//! The watchdog of an engine process: a process that hangs is ended, as if it had died.
//!
//! While a process loads, it reports its progress. Afterwards the watchdog asks its HTTP side for `/health` over one
//! connection that stays open. That side computes nothing, so it answers at once, however long a prefill or a queue is;
//! it also reports whether a step of the engine exceeds its time limit. Not here: what happens to the requests of the
//! process.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lab_base::util::lock::lock;

use super::ChildState;

/// Minimum and maximum time between two checks.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(3)];
/// Maximum time to wait for an answer, in effect unlimited.
const MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The time of the last progress of a load; `None` after its end.
pub(crate) struct LastProgress(Mutex<Option<Instant>>);

impl LastProgress {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Some(Instant::now())))
    }

    /// Records progress, or with `None` the end of the load.
    pub(crate) fn set(&self, at: Option<Instant>) {
        *lock(&self.0) = at;
    }

    /// Waits for the end of the load, and ends a process that made no progress for `limit`.
    pub(crate) fn watch(&self, life: &ChildState, limit: Duration) {
        while !life.has_ended() {
            let last = *lock(&self.0);
            match last {
                None => return,
                Some(last) if last.elapsed() > limit => {
                    let why = format!(
                        "loading made no progress for {limit:?} (--step-time), and the process was killed"
                    );
                    return life.give_up(why, super::PATIENCE);
                }
                Some(_) => std::thread::sleep(pause(limit)),
            }
        }
    }
}

/// Time between two checks that is short enough to detect a silence of `limit`.
fn pause(limit: Duration) -> Duration {
    let [shortest, longest] = PAUSES;
    (limit / 10).clamp(shortest, longest)
}

/// Checks until the process ends. Ends it if it does not answer for `limit` or reports a stall.
#[cfg(unix)]
pub(crate) fn watch(life: &ChildState, socket: &Path, limit: Duration, step_time: Duration) {
    let pause = pause(limit);
    let time = limit.min(MAX).saturating_sub(pause);
    let mut line = line::HealthCheck::new(socket);
    loop {
        std::thread::sleep(pause);
        if life.has_ended() {
            return;
        }
        let why = match line.answer(time) {
            line::Health::Ok => continue,
            line::Health::Stalled => format!(
                "a step took longer than {step_time:?} (--step-time), and the process was killed"
            ),
            line::Health::Silent => {
                format!("it did not answer for {limit:?} (--hang-time), and the process was killed")
            }
        };
        if !life.has_ended() {
            return life.give_up(why, super::PATIENCE);
        }
    }
}

#[cfg(not(unix))]
pub(crate) fn watch(_life: &ChildState, _socket: &Path, _limit: Duration, _step_time: Duration) {}

#[cfg(unix)]
mod line {
    use std::io::{self, ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::time::{Duration, Instant};

    /// Extra time for an answer: after a halt of the whole machine, the answer may be on its way.
    const GRACE: Duration = Duration::from_secs(1);
    /// Maximum size of the head of an answer, in bytes.
    const MAX: usize = 64 << 10;

    /// The result of a health check.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum Health {
        /// The process is well, or the connection broke, which is no silence.
        Ok,
        /// A step exceeds its time limit.
        Stalled,
        /// No answer came in time.
        Silent,
    }

    /// The connection for health checks.
    pub(crate) struct HealthCheck<'a> {
        socket: &'a Path,
        stream: Option<UnixStream>,
    }

    impl<'a> HealthCheck<'a> {
        pub(crate) fn new(socket: &'a Path) -> Self {
            Self {
                socket,
                stream: None,
            }
        }

        /// The result of a check with a time limit.
        pub(crate) fn answer(&mut self, limit: Duration) -> Health {
            match self.ask(limit) {
                Ok(head) if head.starts_with(b"HTTP/1.1 503 ") => Health::Stalled,
                Ok(_) => Health::Ok,
                Err(error) => {
                    self.stream = None;
                    match error.kind() {
                        ErrorKind::WouldBlock | ErrorKind::TimedOut => Health::Silent,
                        _ => Health::Ok,
                    }
                }
            }
        }

        /// Sends the request and returns the head of the answer.
        fn ask(&mut self, limit: Duration) -> io::Result<Vec<u8>> {
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
            Ok(head)
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
            let mut line = HealthCheck::new(&path);
            let answers = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut part = [0; 1024];
                for status in ["200 OK", "503 Service Unavailable"] {
                    let n = stream.read(&mut part).expect("a question");
                    assert!(part[..n].starts_with(b"HEAD /health "));
                    for piece in [&format!("HTTP/1.1 {status}\r\nx: y\r\n"), "\r\n"] {
                        stream.write_all(piece.as_bytes()).expect("written");
                    }
                }
                drop(stream);
                listener
            });
            let limit = Duration::from_secs(20);
            assert_eq!(line.answer(limit), Health::Ok);
            assert_eq!(line.answer(limit), Health::Stalled);
            let listener = answers.join().expect("it lives");
            assert_eq!(line.answer(limit), Health::Ok, "the connection broke");
            let started = Instant::now();
            assert_eq!(line.answer(Duration::from_millis(100)), Health::Silent);
            assert!(started.elapsed() < Duration::from_secs(15));
            drop(listener);
            assert_eq!(line.answer(limit), Health::Ok, "nobody listens");
        }
    }
}
