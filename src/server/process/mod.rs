//! Engine processes: a model that is loaded in a process of its own, and the life of that process.
//!
//! The interface is HTTP. `bench engine` (hidden, the same executable) loads one model as the server would and serves
//! it with the same router on a Unix-domain socket in a private folder; the server passes the body of a request on
//! unchanged and streams back the bytes of the answer (`forward`). The alternative, an interface at the engine's handle
//! (tokens in, events out), would need a second form of requests, sampling parameters, constraints, log-probabilities
//! and denoising steps, and a vocabulary in both processes. It would also leave templates, tokenizers and grammars,
//! which read untrusted input, in the server. Here nothing of a request is implemented twice, and an event is encoded
//! once. The server keeps what does not belong to one model: access, bodies and their limits, the list of models,
//! loading, eviction, and the sum of the metrics.
//!
//! Three threads attend a process: one waits for its end, one checks that it still answers (`watchdog`), one forwards
//! the lines of its standard error (`lines`).
//!
//! Invariants: the process ends with its [`Process`], by SIGKILL, so that all its memory is freed; it ends when its
//! standard input closes, so that it never outlives the server, however the server ends; everyone who waits for it
//! learns how it died. Not here: when a process is started, and the answers to requests.

pub(crate) mod forward;
mod lines;
mod watchdog;

use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use lab_base::util::atomic_file::temporary_error;
use lab_base::util::lock::lock;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::watch::Sender;

use crate::http::transport::ConnectionPool;
use crate::served::ServedModel;

/// Maximum wait for the exit status of a process whose connection broke.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum wait for the end of a process: freeing hundreds of gigabytes takes a while.
const LONGEST: Duration = Duration::from_secs(60);
/// Maximum length of the path of the socket's folder: the path of a socket is limited to about 100 bytes.
const MAX_PATH: usize = 60;

/// Maximum wait for the last lines of a process that ended: a child of it may hold its standard error open.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Why a model could not be loaded.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// The message for the log.
    pub message: String,
    /// Whether freeing memory would help.
    pub lacks_memory: bool,
    /// Whether the engine process died while loading.
    pub is_death: bool,
}

impl LoadError {
    /// A fault that free memory would not prevent.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            lacks_memory: false,
            is_death: false,
        }
    }
}

/// A report from an engine process to the server: a line of JSON on its standard output. The last one is the result of
/// loading.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadReport {
    /// The model is being loaded.
    Loading {
        /// Bytes loaded so far.
        loaded: u64,
        /// Total bytes.
        total: u64,
    },
    /// The model is served; the value holds its properties.
    Ready(Value),
    /// The model could not be loaded.
    Failed {
        /// The reason.
        message: String,
        /// Whether freeing memory would help.
        lacks_memory: bool,
    },
}

impl LoadReport {
    /// The report that this model is served.
    pub fn ready(served: &ServedModel) -> Self {
        Self::Ready(served.properties())
    }
}

/// How an engine process is started and watched.
pub struct EngineProcessConfig {
    /// The command; the path of the socket is added as its last argument.
    pub command: Command,
    /// Time without an answer after which the process is ended; 0 for never.
    pub hang_time: Duration,
    /// Time without progress after which a load is ended, and also the limit of a step, which the process itself
    /// checks; 0 for no limit.
    pub step_time: Duration,
    /// Time for the process to end by itself, because it has something to write; 0 if it has nothing.
    pub end_time: Duration,
    /// Called with each line of the process's standard error.
    pub on_line: LineCallback,
}

/// A receiver of lines without their line ends.
pub type LineCallback = Box<dyn FnMut(&[u8]) + Send>;

type EndCallback = Box<dyn FnOnce(&str) + Send>;

struct ChildState {
    child: Mutex<Child>,
    end: Mutex<ChildEnd>,
    /// How the process ended. It is set after the callback was called.
    ended: Sender<Option<String>>,
    /// Whether the process was given up because it cannot be ended: its connections stay open.
    is_lost: Sender<bool>,
}

/// How a process ended, and the callback for it.
#[derive(Default)]
struct ChildEnd {
    how: Option<String>,
    /// Why the server is ending the process; `None` if it ends by itself.
    kill_reason: Option<String>,
    call: Option<EndCallback>,
}

/// An engine process. Dropping this ends it.
pub struct EngineProcess {
    pub(crate) name: String,
    pub(crate) id: u32,
    _folder: TempDir,
    pub(crate) connections: Arc<ConnectionPool>,
    /// The properties of the model that are known once it is loaded.
    pub(crate) about: Value,
    life: Arc<ChildState>,
    end_time: Duration,
}

/// A private folder for the socket. Dropping it removes it.
fn socket_folder() -> io::Result<TempDir> {
    let usual = std::env::temp_dir();
    let base = match usual.as_os_str().len() <= MAX_PATH {
        true => usual,
        false => PathBuf::from("/tmp"),
    };
    let prefix = format!("bench-{}-", std::process::id());
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    let folder = builder.prefix(&prefix).tempdir_in(&base);
    folder.map_err(|error| temporary_error(&base, &error))
}

impl ChildState {
    fn child(&self) -> MutexGuard<'_, Child> {
        lock(&self.child)
    }

    fn end(&self) -> MutexGuard<'_, ChildEnd> {
        lock(&self.end)
    }

    /// Waits for the end of the process and for its last lines. The process stays unreaped until the lock is held, so
    /// that a kill cannot hit another process with its id.
    fn supervise(&self, id: u32, lines: &mpsc::Receiver<()>) {
        wait_unreaped(id);
        let status = self.child().wait();
        let _ = lines.recv_timeout(LAST_LINES);
        let how = status.map_or_else(|error| error.to_string(), how);
        self.conclude(how);
    }

    /// Records how the process ended, once, and notifies those who wait.
    fn conclude(&self, how: String) {
        let mut end = self.end();
        if end.how.is_some() {
            return;
        }
        let how = end.kill_reason.take().unwrap_or(how);
        end.how = Some(how.clone());
        let call = end.call.take();
        drop(end);
        if let Some(call) = call {
            call(&how);
        }
        self.ended.send_replace(Some(how));
    }

    fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    fn kill(&self) {
        // A process that has ended needs no kill.
        let _ = self.child().kill();
    }

    /// Ends a process that does not end by itself. A process that cannot be ended, because it waits for a device, is
    /// abandoned after `patience`.
    fn give_up(&self, why: String, patience: Duration) {
        self.end().kill_reason = Some(why.clone());
        let started = Instant::now();
        while !self.has_ended() && started.elapsed() < patience {
            self.kill();
            std::thread::sleep(Duration::from_millis(5));
        }
        if !self.has_ended() {
            self.conclude(why);
            self.is_lost.send_replace(true);
        }
    }
}

/// Waits until a child of this process has ended, but leaves its status to be read.
#[cfg(unix)]
fn wait_unreaped(id: u32) {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) else {
        return;
    };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(error) = waitid(WaitId::Pid(pid), options) {
        if error != rustix::io::Errno::INTR {
            return;
        }
    }
}

#[cfg(not(unix))]
fn wait_unreaped(_id: u32) {}

/// Exit code of an engine process whose model's file was changed in place.
pub const EXIT_MODEL_CHANGED: i32 = 9;

/// Exit code of an engine process that lost an RPC worker.
pub const EXIT_WORKER_LOST: i32 = 10;

/// The exit status of a process in words.
fn how(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use rustix::process::Signal;
        use std::os::unix::process::ExitStatusExt;
        let known = [
            (Signal::ABORT, "SIGABRT, an assertion in native code failed"),
            (
                Signal::BUS,
                "SIGBUS, a mapped file was truncated or its disk failed",
            ),
            (Signal::SEGV, "SIGSEGV, a fault in native code"),
            (
                Signal::ILL,
                "SIGILL, an instruction that this processor lacks",
            ),
            (Signal::FPE, "SIGFPE, a fault in native code"),
            (Signal::KILL, "SIGKILL, by the system if memory ran out"),
        ];
        if let Some(signal) = status.signal() {
            let words = known.iter().find(|(of, _)| of.as_raw() == signal);
            return words.map_or_else(|| format!("signal {signal}"), |(_, words)| (*words).into());
        }
    }
    match status.code() {
        Some(EXIT_MODEL_CHANGED) => "the file of the model was changed in place".into(),
        Some(EXIT_WORKER_LOST) => "an RPC worker was lost".into(),
        Some(code) => format!("it ended with code {code}"),
        None => status.to_string(),
    }
}

impl EngineProcess {
    /// Starts the process of a model and waits until the model is loaded. `progress` is called with the bytes
    /// loaded so far and the total.
    ///
    /// # Errors
    /// The process cannot be started, reports that the model cannot be loaded, or dies.
    pub fn start(
        name: &str,
        launch: EngineProcessConfig,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let fault = |error: io::Error| LoadError::new(format!("no engine process: {error}"));
        let EngineProcessConfig {
            mut command,
            hang_time,
            step_time,
            end_time,
            on_line,
        } = launch;
        let folder = socket_folder().map_err(fault)?;
        let socket = folder.path().join("socket");
        command.arg(&socket);
        // A separate process group: the terminal's keys and hang-up signal only reach the server, which completes
        // running requests.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        // A debugger that the backtrace starts would keep the process from ending.
        command.env("GGML_NO_BACKTRACE", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().map_err(fault)?;
        let (id, output, errors) = (child.id(), child.stdout.take(), child.stderr.take());
        let mut process = Self {
            name: name.to_owned(),
            id,
            connections: ConnectionPool::new(socket),
            _folder: folder,
            about: Value::Null,
            end_time,
            life: Arc::new(ChildState {
                child: Mutex::new(child),
                end: Mutex::default(),
                ended: Sender::new(None),
                is_lost: Sender::new(false),
            }),
        };
        let lines = lines::forward_lines(errors, on_line).map_err(fault)?;
        let life = Arc::clone(&process.life);
        thread("supervisor", move || life.supervise(id, &lines)).map_err(fault)?;
        match process.loaded(output, progress, step_time).map_err(fault)? {
            Some(LoadReport::Ready(about)) => {
                process.about = about;
                tracing::info!(target: "server", model = name, pid = id, "an engine process serves it");
                process.watch(hang_time, step_time).map_err(fault)?;
                Ok(process)
            }
            Some(LoadReport::Failed {
                message,
                lacks_memory,
            }) => Err(LoadError {
                lacks_memory,
                ..LoadError::new(message)
            }),
            Some(LoadReport::Loading { .. }) | None => {
                let how = process.wait();
                Err(LoadError {
                    is_death: true,
                    ..LoadError::new(format!(
                        "its engine process died while the model was loaded: {how}"
                    ))
                })
            }
        }
    }

    /// The last report of a load. A load without progress for `limit` is ended.
    fn loaded(
        &self,
        output: Option<ChildStdout>,
        progress: &mut dyn FnMut(u64, u64),
        limit: Duration,
    ) -> io::Result<Option<LoadReport>> {
        let last = Arc::new(watchdog::LastProgress::new());
        if !limit.is_zero() {
            let (life, last) = (Arc::clone(&self.life), Arc::clone(&last));
            thread("watch", move || last.watch(&life, limit))?;
        }
        let end = report(output, &mut |loaded, total| {
            last.set(Some(Instant::now()));
            progress(loaded, total);
        });
        last.set(None);
        Ok(end)
    }

    /// Starts the watchdog, which checks that the process answers and reports no stall.
    fn watch(&self, hang_time: Duration, step_time: Duration) -> io::Result<()> {
        if hang_time.is_zero() {
            return Ok(());
        }
        let (life, socket) = (Arc::clone(&self.life), self.connections.socket().to_owned());
        thread("watch", move || {
            if let Err(error) = watchdog::watch(&life, &socket, hang_time, step_time) {
                tracing::warn!(%error, "an engine process is not watched");
            }
        })
    }

    /// Waits for the end of the process. If it keeps running it is killed, and abandoned if that fails.
    fn wait(&self) -> String {
        let started = Instant::now();
        loop {
            if let Some(how) = self.life.ended.borrow().clone() {
                return how;
            }
            match started.elapsed() {
                time if time > LONGEST => self.life.give_up("it cannot be ended".into(), PATIENCE),
                time if time > PATIENCE => self.life.kill(),
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the process and waits until its memory is freed.
    pub(super) fn end(&self) {
        if !self.end_time.is_zero() {
            // Its standard input closes.
            drop(self.life.child().stdin.take());
            let started = Instant::now();
            while !self.life.has_ended() && started.elapsed() < self.end_time {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.life.kill();
        self.wait();
    }

    /// Calls back when the process has ended, with how it ended; at once if it already has.
    pub(super) fn on_end(&self, call: impl FnOnce(&str) + Send + 'static) {
        let mut end = self.life.end();
        match end.how.clone() {
            None => end.call = Some(Box::new(call)),
            Some(how) => {
                drop(end);
                call(&how);
            }
        }
    }

    /// Waits until the process is given up without having ended, which breaks no connection.
    pub(super) fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut is_lost = self.life.is_lost.subscribe();
        async move {
            if is_lost.wait_for(|is_lost| *is_lost).await.is_err() {
                // The process was dropped, so that nothing waits for it.
                std::future::pending().await
            }
        }
    }

    /// How the process died. To be called when its connection broke.
    pub(super) async fn death(&self) -> String {
        let mut ended = self.life.ended.subscribe();
        let known = tokio::time::timeout(PATIENCE, ended.wait_for(Option::is_some)).await;
        let known = known.ok().and_then(|how| how.ok()?.clone());
        known.unwrap_or_else(|| "its connection broke, and its exit was not seen".into())
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.life.kill();
    }
}

/// The last report of a load; `None` if the process dies before it.
fn report(output: Option<ChildStdout>, progress: &mut dyn FnMut(u64, u64)) -> Option<LoadReport> {
    let mut lines = BufReader::new(output?).lines();
    loop {
        let line = lines.next()?.ok()?;
        match serde_json::from_str(&line).ok()? {
            LoadReport::Loading { loaded, total } => progress(loaded, total),
            end => return Some(end),
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(work).map(drop)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// The state of a process that nobody waits for: it seems to run on, whatever is done to it.
    fn endless() -> ChildState {
        let child = Command::new("sleep").arg("60").spawn();
        ChildState {
            child: Mutex::new(child.expect("it starts")),
            end: Mutex::default(),
            ended: Sender::new(None),
            is_lost: Sender::new(false),
        }
    }

    #[test]
    fn a_process_that_cannot_be_ended_is_left_behind() {
        let (life, (tell, told)) = (endless(), mpsc::channel());
        life.end().call = Some(Box::new(move |how| {
            let _ = tell.send(how.to_owned());
        }));
        life.give_up("it hangs".into(), Duration::from_millis(50));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["it hangs"]);
        assert!(*life.is_lost.borrow());
        // A later end of the process changes nothing.
        life.conclude("SIGKILL".into());
        assert_eq!(life.ended.borrow().as_deref(), Some("it hangs"));
        assert!(!life.child().wait().expect("it has ended").success());
    }

    #[test]
    fn one_that_can_be_ended_is_not_lost() {
        let life = Arc::new(endless());
        let (of_thread, id) = (Arc::clone(&life), life.child().id());
        let (_, lines) = mpsc::channel();
        let supervisor = std::thread::spawn(move || of_thread.supervise(id, &lines));
        life.give_up("it hangs".into(), PATIENCE);
        supervisor.join().expect("it lives");
        assert!(!*life.is_lost.borrow());
        assert_eq!(life.ended.borrow().as_deref(), Some("it hangs"));
    }
}
