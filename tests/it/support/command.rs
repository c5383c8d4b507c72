//! The program run as a user runs it, and places for what it writes.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use lab_core::models::Definitions;

/// What the program said, and how it ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Whether it succeeded.
    pub(crate) fn is_fine(&self) -> bool {
        self.code == 0
    }
}

/// Commands that compute with a model.
const COMPUTING: [&[&str]; 12] = [
    &["arch", "prove"],
    &["chat"],
    &["compare"],
    &["lab", "attention"],
    &["lab", "collect"],
    &["lab", "direction"],
    &["lab", "drift"],
    &["lab", "lens"],
    &["lab", "patch"],
    &["lab", "run"],
    &["logits"],
    &["run"],
];

/// The program with these arguments. A command that computes gets one thread unless a number is given: the
/// threads of a graph wait for each other without sleeping, and tests at the same time use the other cores.
pub(crate) fn program(arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    let arguments: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
    let computing = COMPUTING.iter().find(|words| {
        let first = arguments.iter().take(words.len());
        first.eq(words.iter())
    });
    let (words, rest) = arguments.split_at(computing.map_or(0, |words| words.len()));
    command.args(words);
    let has_threads = rest
        .iter()
        .any(|word| *word == "--threads" || *word == "-t");
    if computing.is_some() && !has_threads {
        command.args(["--threads", "1"]);
    }
    command.args(rest);
    command
}

/// Runs the program.
pub(crate) fn bench(arguments: &[impl AsRef<OsStr>]) -> Ran {
    ended(&mut program(arguments))
}

/// Runs the program in a folder.
pub(crate) fn bench_in(folder: &Path, arguments: &[impl AsRef<OsStr>]) -> Ran {
    ended(program(arguments).current_dir(folder))
}

/// What a command said once it has ended; all of it has to be UTF-8.
pub(crate) fn ended(command: &mut Command) -> Ran {
    let output = command.output().expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Ran {
        code: output.status.code().expect("an exit code"),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// The output of the program, which must succeed.
#[track_caller]
pub(crate) fn printed(arguments: &[&str]) -> String {
    let ran = bench(arguments);
    assert!(ran.is_fine(), "{arguments:?}: {}", ran.err);
    ran.out
}

/// Runs the program, which must end with this code and a message with these parts.
#[track_caller]
pub(crate) fn check_refused(arguments: &[&str], code: i32, parts: &[&str]) {
    let ran = bench(arguments);
    let message = ran.err;
    assert_eq!(ran.code, code, "{arguments:?}: {message}");
    for part in parts {
        assert!(
            message.contains(part),
            "{arguments:?}: `{part}` is not in: {message}"
        );
    }
}

/// A folder that is gone at the end.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch folder")
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are UTF-8")
}

/// A small model file of an architecture, made by the program with further arguments.
pub(crate) fn made_up(folder: &Path, arch: &str, arguments: &[&str]) -> PathBuf {
    let path = folder.join(format!("{arch}.gguf"));
    printed(&[&["synth", arch, "--force", "-o", text(&path)], arguments].concat());
    path
}

/// A port of 127.0.0.1 for a process that is started with its number. No other test is given it while this value lives: a socket is bound to it and
/// does not listen, which keeps the system from choosing the port, and lets a socket with `SO_REUSEADDR` be bound to it.
pub(crate) struct Port {
    pub(crate) number: u16,
    _bound: OwnedFd,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        use rustix::net::{
            AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
        };
        let kind = (
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
        );
        let bound = socket_with(kind.0, kind.1, kind.2, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&bound, true).expect("it is a socket");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        bind(&bound, &any).expect("a free port");
        let found = getsockname(&bound).expect("it is bound");
        let found = SocketAddr::try_from(found).expect("an address of the internet");
        Self {
            number: found.port(),
            _bound: bound,
        }
    }
}

/// Raises the limit on open files, and so on connections, to the system's maximum.
pub(crate) fn allow_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).expect("the limit may be raised");
}

/// What is built in.
pub(crate) fn definitions() -> Definitions {
    static ALL: LazyLock<Definitions> =
        LazyLock::new(|| Definitions::open(&[]).expect("the built-in definitions are readable"));
    ALL.clone()
}
