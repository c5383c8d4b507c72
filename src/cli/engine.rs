//! `bench engine`: the engine process of one model, started by `bench serve`. Hidden, because its interface may change.
//!
//! The process ends when its standard input closes, which the server holds open while it lives.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;

use lab_base::ggml::end_process;
use lab_core::engine::Handle;
use lab_core::models::ModelSource;
use lab_server::http::transport;
use lab_server::served::ServedModel;
use lab_server::{Access, LoadReport, Pool};

use super::serve::{self, Signals};
use super::{Failure, kv_events, log, output};

/// Maximum time to read the body of a request, which the server has read already.
const READ_TIME: Duration = Duration::from_secs(600);
/// Minimum time between two progress reports of a load.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(super) struct EngineArgs {
    /// Name under which the model is served
    #[arg(long)]
    pub(super) name: String,
    /// Scale of an adapter that a request has set; may be repeated
    #[arg(long, value_name = "ID=SCALE", value_parser = scale)]
    scale: Vec<(usize, f32)>,
    /// Whether none is set but those of `--scale`
    #[arg(long)]
    only_scales: bool,
    /// Adapter that a request has loaded; may be repeated
    #[arg(long, num_args = 2, value_names = ["NAME", "PATH"], allow_hyphen_values = true)]
    adapter: Vec<String>,
    /// The context length is for several models, and is cut where the model has fewer positions
    #[arg(long)]
    shared_ctx: bool,
    /// Write the log in colour
    #[arg(long)]
    pub(super) colour: bool,
    /// Folder in which results are kept
    #[arg(long)]
    kept: PathBuf,
    /// Path of the socket to listen on
    socket: PathBuf,
    #[command(flatten)]
    serve: serve::Args,
}

fn scale(text: &str) -> Result<(usize, f32), String> {
    let parts = text.split_once('=');
    let parsed = parts.and_then(|(id, scale)| Some((id.parse().ok()?, scale.parse().ok()?)));
    parsed.ok_or_else(|| format!("expected an id and a scale, found `{text}`"))
}

pub(super) fn run(mut args: EngineArgs) -> Result<(), Failure> {
    args.serve.is_shared = args.shared_ctx;
    lab_base::ggml::return_large_memory();
    let engine = Arc::new(OnceLock::new());
    end_with_server(args.socket.clone(), Arc::clone(&engine))?;
    let runtime = transport::runtime()?;
    // The server ends this process. If a service manager signals all processes of a service, the server first completes
    // running requests, so signals are ignored here.
    let entered = runtime.enter();
    let _signals = Signals::new()?;
    drop(entered);
    let source = ModelSource::of(args.serve.model.path());
    let served = match load(&args, &source) {
        Ok(served) => served,
        Err(error) => {
            let fault = serve::fault(error);
            return report(&LoadReport::Failed {
                message: fault.message,
                lacks_memory: fault.lacks_memory,
            });
        }
    };
    let ready = LoadReport::ready(&served);
    // It is set once.
    let _ = engine.set(served.handle.clone());
    let pool = Pool::of_engine(served, source, args.serve.strictness());
    let pool = Arc::new(pool);
    end_with_files(&pool)?;
    let app = lab_server::app(pool, Access::default(), READ_TIME)?;
    // Accepting runs on the threads of the connections: on this one, each connection would wake another thread.
    let ready = move || report(&ready).map_err(std::io::Error::other);
    let serving = transport::serve_socket(args.socket.clone(), app, Box::new(ready));
    let serving = runtime.spawn(serving);
    Ok(runtime.block_on(serving)??)
}

fn load(args: &EngineArgs, source: &ModelSource) -> Result<ServedModel, Failure> {
    let mut reported: Option<Instant> = None;
    let progress = move |loaded, total| {
        if loaded == total || reported.is_none_or(|reported| reported.elapsed() >= PAUSE) {
            reported = Some(Instant::now());
            // If the server does not read, it has ended, and this process will end too.
            let _ = report(&LoadReport::Loading { loaded, total });
        }
    };
    let mut served = serve::start(&args.serve, source, args.kept.clone(), Box::new(progress))?;
    served.name.clone_from(&args.name);
    for adapter in args.adapter.chunks_exact(2) {
        let loaded = served.load_adapter(&adapter[0], Path::new(&adapter[1]));
        loaded.map_err(Failure::msg)?;
    }
    if args.only_scales {
        served.handle.adapters().set(&args.scale)?;
    }
    Ok(served)
}

fn report(report: &LoadReport) -> Result<(), Failure> {
    output::line(serde_json::to_string(report)?)
}

/// Ends this process when its standard input closes: at once, or when its prefix cache is written.
fn end_with_server(socket: PathBuf, engine: Arc<OnceLock<Handle>>) -> std::io::Result<()> {
    let wait = move || {
        let mut input = std::io::stdin().lock();
        while matches!(input.read(&mut [0; 64]), Ok(1..)) {}
        if let Some(engine) = engine.get() {
            engine.flush();
            kv_events::end();
        }
        if let Some(folder) = socket.parent() {
            let _ = std::fs::remove_file(&socket);
            let _ = std::fs::remove_dir(folder);
        }
        log::flush();
        end_process(1);
    };
    let thread = std::thread::Builder::new().name("life line".into());
    thread.spawn(wait).map(drop)
}

/// Ends this process when the file of its model is changed in place or an RPC worker is lost. The server starts another
/// at the next request.
fn end_with_files(pool: &Arc<Pool>) -> std::io::Result<()> {
    /// Time between two checks.
    const PERIOD: Duration = Duration::from_millis(250);
    let pool = Arc::downgrade(pool);
    let watch = move || {
        while let Some(pool) = pool.upgrade() {
            if let Err(what) = pool.check() {
                tracing::error!("{what}");
                // Time for running requests to learn the failure from their passes.
                std::thread::sleep(PERIOD);
                end_process(match what {
                    lab_core::engine::Failure::Lost(_) => lab_server::EXIT_WORKER_LOST,
                    _ => lab_server::EXIT_MODEL_CHANGED,
                });
            }
            drop(pool);
            std::thread::sleep(PERIOD);
        }
    };
    let thread = std::thread::Builder::new().name("files".into());
    thread.spawn(watch).map(drop)
}
