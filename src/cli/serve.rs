//! `bench serve`: the HTTP server.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args as ClapArgs;

use crate::api::{self, Loader, Pool};
use crate::engine::Limits;
use crate::models::{self, Source};
use crate::serving::Served;
use crate::weights::TensorType;

use super::options::{Defaults, LoadOptions};
use super::{Failure, output};

/// Longest context taken from a file without being asked for.
pub(super) const MAX_CTX: usize = 4096;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The model; default: the one built in
    #[arg(short, long, value_name = "MODEL", conflicts_with = "models")]
    model: Option<PathBuf>,
    /// Folder whose models are served, each loaded when it is first asked for
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 11116)]
    port: u16,
    /// Answers generated at once; each has a context of its own
    #[arg(long, default_value_t = 4, value_name = "N")]
    parallel: usize,
    /// Requests that may wait
    #[arg(long, default_value_t = 64, value_name = "N")]
    queue: usize,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let sources = match &args.models {
        Some(folder) => models::list(folder)?,
        None => vec![Source::of(args.model.as_deref())],
    };
    if sources.is_empty() {
        anyhow::bail!("there is no model to serve: no .gguf file in the folder");
    }
    let (host, port, is_folder) = (args.host, args.port, args.models.is_some());
    let loader: Loader = Arc::new(move |source| start(&args, source).map_err(|e| format!("{e:#}")));
    let pool = Arc::new(Pool::new(sources, loader));
    if !is_folder {
        // The one model is loaded before the port answers, so that a fault is told here.
        pool.load_all().map_err(|e| anyhow::anyhow!("{e}"))?;
    }

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((host, port))
            .await
            .map_err(|e| anyhow::anyhow!("{host}:{port}: {e}"))?;
        output::line(format!("listening on http://{}", listener.local_addr()?))?;
        axum::serve(listener, api::app(pool))
            .with_graceful_shutdown(interrupted())
            .await?;
        Ok(())
    })
}

fn start(args: &Args, source: &Source) -> Result<Served, Failure> {
    let opened = args.load.open(source)?;
    if args.load.check_tensors {
        super::inspect::check_tensors(&opened)?;
    }
    let defaults = Defaults {
        kv_type: TensorType::F16,
        flash_attn: true,
        max_ctx: MAX_CTX,
        n_batch: 512,
    };
    let mut options = args.load.resolve(&opened, defaults);
    let n_parallel = args.parallel.max(1);
    let limits = Limits {
        n_ctx: options.n_ctx,
        n_parallel,
        n_queue: args.queue.max(1),
    };
    options.n_ctx *= n_parallel;
    options.n_seqs = n_parallel;
    tracing::info!(model = opened.name, "loading");
    Ok(Served::start(opened, options, limits, Box::new(|_, _| {}))?)
}

async fn interrupted() {
    // Without a handler the default one ends the process, which is just as well.
    let _ = tokio::signal::ctrl_c().await;
}
