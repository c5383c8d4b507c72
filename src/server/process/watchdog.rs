//! The watchdog of an engine process: a process that hangs is ended, as if it had died.
//!
//! While a process loads, it reports its progress. Afterwards the watchdog asks its HTTP side for `/health` over one
//! connection that stays open. That side computes nothing, so it answers at once, however long a prefill or a queue is;
//! it also reports whether a step of the engine exceeds its time limit. Not here: what happens to the requests of the
//! process.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use futures_util::StreamExt as _;
use tokio::runtime::{Builder, Handle};

use lab_base::util::lock::lock;

use super::ChildState;
use crate::http::transport::{ConnectionPool, send};

const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(3)];
/// Extra time for an answer: after a halt of the whole machine, the answer may be on its way.
const GRACE: Duration = Duration::from_secs(1);
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

fn pause(limit: Duration) -> Duration {
    let [shortest, longest] = PAUSES;
    (limit / 10).clamp(shortest, longest)
}

/// Checks until the process ends. Ends it if it does not answer for `limit` or reports a stall.
pub(crate) fn watch(
    life: &ChildState,
    socket: &Path,
    limit: Duration,
    step_time: Duration,
) -> io::Result<()> {
    let pause = pause(limit);
    let time = limit.min(MAX).saturating_sub(pause);
    // Threads and connections of its own, so that a busy server does not make a process look silent.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let connections = ConnectionPool::new(socket.to_owned());
    loop {
        std::thread::sleep(pause);
        if life.has_ended() {
            return Ok(());
        }
        let why = match runtime.block_on(health(&connections, time)) {
            Health::Ok => continue,
            Health::Stalled => format!(
                "a step took longer than {step_time:?} (--step-time), and the process was killed"
            ),
            Health::Silent => {
                format!("it did not answer for {limit:?} (--hang-time), and the process was killed")
            }
        };
        if !life.has_ended() {
            life.give_up(why, super::PATIENCE);
            return Ok(());
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Health {
    /// The process is well, or the connection broke, which is no silence.
    Ok,
    /// A step exceeds its time limit.
    Stalled,
    /// No answer came in time.
    Silent,
}

async fn health(connections: &Arc<ConnectionPool>, limit: Duration) -> Health {
    let asked = async {
        let connection = connections.open(&Handle::current()).await.ok()?;
        let request = super::forward::local_request(Method::HEAD, "/health");
        let (head, answer) = send(Arc::clone(connections), connection, request)
            .await
            .ok()?;
        // The end of the answer leaves its connection to the next check.
        answer
            .into_stream()
            .for_each(|_| std::future::ready(()))
            .await;
        Some(head.status)
    };
    match tokio::time::timeout(limit + GRACE, asked).await {
        Ok(Some(StatusCode::SERVICE_UNAVAILABLE)) => Health::Stalled,
        Ok(_) => Health::Ok,
        Err(_) => Health::Silent,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn silence_is_told_from_answers_and_from_broken_connections() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("it is free");
        let connections = ConnectionPool::new(path);
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
            let _ = stream.read(&mut part);
            drop(stream);
            listener
        });
        let limit = Duration::from_secs(20);
        assert_eq!(health(&connections, limit).await, Health::Ok);
        assert_eq!(health(&connections, limit).await, Health::Stalled);
        assert_eq!(health(&connections, limit).await, Health::Ok, "it broke");
        let listener = answers.join().expect("it lives");
        let limit = Duration::from_millis(100);
        assert_eq!(health(&connections, limit).await, Health::Silent);
        drop(listener);
        assert_eq!(
            health(&connections, limit).await,
            Health::Ok,
            "nobody listens"
        );
    }
}
