//! `bench engine`: the engine process of one model, which `bench serve` starts. Hidden: its form is no promise.
//!
//! It ends when its standard input closes, which the server holds open as long as it lives.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::api::{self, Access, Pool, Report};
use crate::engine::serving::Served;
use crate::files::models::{self, Source};

use super::serve::{self, Signals};
use super::{Failure, output};

/// Time for the body of a request, which the server has read.
const READ_TIME: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub(super) struct EngineArgs {
    /// Name under which the model is served
    #[arg(long)]
    pub(super) name: String,
    /// Path of the socket to listen on
    socket: PathBuf,
    #[command(flatten)]
    serve: serve::Args,
}

/// The command that starts the engine process of a model with these options, apart from its socket.
pub(super) fn command(name: &str, source: &Source, options: &[OsString]) -> Command {
    let with = |option: &str, value: &std::ffi::OsStr| {
        let mut option = OsString::from(option);
        option.push(value);
        option
    };
    let mut command = Command::new(program());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::arg0(&mut command, "bench");
    command.arg("engine").args(options);
    command.arg(with("--name=", name.as_ref()));
    match source {
        Source::Shipped(models::SHIPPED) => {}
        Source::Shipped(name) => {
            command.arg(with("--model=", name.as_ref()));
        }
        Source::File(path) => {
            command.arg(with("--model=", path.as_os_str()));
        }
    }
    command
}

/// This program, even where another has taken its place on disk.
fn program() -> PathBuf {
    let own = Path::new("/proc/self/exe");
    match own.exists() {
        true => own.to_owned(),
        false => std::env::current_exe().unwrap_or_else(|_| "bench".into()),
    }
}

pub(super) fn run(args: &EngineArgs) -> Result<(), Failure> {
    crate::ggml::return_large_memory();
    end_with_server(args.socket.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    // The server ends this process: where a signal comes to all processes of a service, it first lets
    // requests come to their end.
    let entered = runtime.enter();
    let _signals = Signals::new()?;
    drop(entered);
    let source = Source::of(args.serve.model.as_deref());
    let served = match load(args, &source) {
        Ok(served) => served,
        Err(error) => {
            let fault = serve::fault(error);
            return report(&Report::Failed {
                message: fault.message,
                lacks_memory: fault.lacks_memory,
            });
        }
    };
    let ready = Report::ready(&served);
    let pool = Arc::new(Pool::of_engine(served, source));
    let app = api::app(pool, Access::default(), READ_TIME)?;
    let serving = api::serve_socket(&args.socket, app, || {
        report(&ready).map_err(std::io::Error::other)
    });
    Ok(runtime.block_on(serving)?)
}

fn load(args: &EngineArgs, source: &Source) -> Result<Served, Failure> {
    let mut served = serve::start(&args.serve, source)?;
    served.name.clone_from(&args.name);
    Ok(served)
}

fn report(report: &Report) -> Result<(), Failure> {
    output::line(serde_json::to_string(report)?)
}

/// Ends this process, whatever it does, when its standard input closes.
fn end_with_server(socket: PathBuf) -> std::io::Result<()> {
    let wait = move || {
        let mut input = std::io::stdin().lock();
        while matches!(input.read(&mut [0; 64]), Ok(1..)) {}
        if let Some(folder) = socket.parent() {
            let _ = std::fs::remove_file(&socket);
            let _ = std::fs::remove_dir(folder);
        }
        end_at_once();
    };
    let thread = std::thread::Builder::new().name("life line".into());
    thread.spawn(wait).map(drop)
}

/// Without destructors, which would wait for a computation or meet one.
fn end_at_once() {
    #[cfg(unix)]
    {
        use rustix::process::{Signal, getpid, kill_process};
        let _ = kill_process(getpid(), Signal::KILL);
    }
    std::process::abort();
}
