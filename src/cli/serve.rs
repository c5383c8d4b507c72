//! `bench serve`: the HTTP server.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use clap::builder::{OsStringValueParser, TypedValueParser as _};

use lab_base::util::limited_read::{self, MAX_DEFINITION};
use lab_base::util::wording::bytes;
use lab_core::arch::nearest;
use lab_core::artifacts::store::{self, ArtifactStore};
use lab_core::artifacts::vectors::VectorStore;
use lab_core::engine::{DraftOptions, Limits, PrefixStoreOptions, StartError, ends_in_vectors};
use lab_core::model::{self, Options};
use lab_core::models::lora::AdapterSource;
use lab_core::models::{self, ModelSource, OpenedModel};
use lab_hub::{Cache, Settings};
use lab_server::http::transport::{self, ListenAddress, Listener, TlsFiles};
use lab_server::served::{Progress, ServedModel};
use lab_server::{
    Access, AllowedHost, ApiKeys, BatchStore, Collection, EngineProcess, EngineProcessConfig,
    FileStore, HostMode, LoadError, LoadLimits, LoadRequest, Loader, MediaAccess, PageOrigin,
    PagePolicy, Pool, PoolConfig, StartedEngine, Strictness, TrustedProxy, UnloadedModel,
};

use super::diffusion::DiffusionOptions;
use super::kv_events::KvEventOptions;
use super::options::{LoadDefaults, LoadOptions, ModelArg};
use super::values::{byte_count, positive, seconds, some_tokens};
use super::{Failure, engine_process, kv_events, output, service_manager};

/// The tables of the configuration file with the options of single models: `[per_model.NAME]`.
pub(super) const PER_MODEL: &str = "per_model";
/// Time for an engine process to write its prefix cache when it ends.
const CACHE_TIME: Duration = Duration::from_secs(20);
/// Time for an engine process to say that its prefix cache is gone.
const EVENTS_TIME: Duration = Duration::from_secs(2);
/// Maximum number of texts that a pooling model reads at once, if a pass can hold them.
const READ_AT_ONCE: usize = 64;
/// Recurrent-state checkpoints of a model, unless an option says otherwise.
pub(super) const CHECKPOINTS: usize = 16;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) model: ModelArg,
    /// Folder whose models are served, each loaded at its first request; without DIR the models in the cache of the
    /// Hugging Face Hub (`bench list`)
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        default_missing_value = "",
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        conflicts_with_all = ["model", "model_path", "lora"]
    )]
    models: Option<PathBuf>,
    /// Folder whose adapters (LoRA) clients may load and unload while the server runs (`/v1/load_lora_adapter`), and choose
    /// by their names; unknown names of models are refused then
    #[arg(long, value_name = "DIR")]
    lora_dir: Option<PathBuf>,
    /// Maximum number of loaded models, 1 or more: the least recently used one that no request uses is unloaded for
    /// another; default: as many as fit into memory
    #[arg(long, value_name = "N")]
    max_loaded: Option<NonZeroUsize>,
    /// Number of seconds without requests after which a model is unloaded; 0 = at once; default: never
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    idle_time: Option<Duration>,
    /// Number of seconds in which requests are still accepted after the first signal, while `/readyz` has status 503, so that
    /// load balancers send them elsewhere
    #[arg(long, default_value = "0", value_name = "SECONDS", value_parser = seconds)]
    drain_time: Duration,
    /// Watchdog: kill an engine process that answers no health check for this many seconds; a long prefill does not
    /// delay the answer; 0 = no watchdog, and no limit of a step
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds)]
    hang_time: Duration,
    /// Watchdog: kill an engine process when one step, or loading without progress, takes longer than this many
    /// seconds, for example because an RPC worker or a driver does not answer; 0 = no limit; no effect with
    /// `--hang-time 0`
    #[arg(long, default_value = "300", value_name = "SECONDS", value_parser = seconds)]
    step_time: Duration,
    /// Load models into the server's own process, so that a crash of the engine ends the server; default: one engine
    /// process for each model
    #[arg(long)]
    in_process: bool,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 = any free port
    #[arg(long, default_value_t = 11116)]
    port: u16,
    /// Address to listen on in place of `--host` and `--port`: IP:PORT, or unix:PATH for a socket in the file system, with
    /// `,mode=0600` to let only the own user connect; may be repeated; default: the sockets that systemd opened, if any
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["host", "port"])]
    listen: Vec<ListenAddress>,
    /// Certificate with its chain (PEM), for TLS; read again when it changes and on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Maximum number of sequences in a batch, 1 or more; each has the full context length (`--ctx`)
    #[arg(
        long,
        default_value = "4",
        value_name = "N",
        value_parser = positive,
        alias = "max-num-seqs"
    )]
    parallel: usize,
    /// Maximum number of requests in the queue, 1 or more; further ones are refused with status 429
    #[arg(long, default_value = "64", value_name = "N", value_parser = positive)]
    queue: usize,
    /// Size of the KV cache that all requests share, in bytes, such as 512M or 4G; default: a whole context
    /// for each parallel request
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    cache: Option<u64>,
    /// Folder in which prefixes are kept that leave the KV cache, also for the next server; it is made if it is not there; whoever
    /// can write to it can change completions; default: none
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Maximum size of the files in `--cache-dir` together, in bytes: the least recently used are removed for new ones
    #[arg(long, default_value = "50G", value_name = "BYTES", value_parser = byte_count)]
    cache_disk: u64,
    /// Maximum size of prefixes that leave the KV cache and are kept in memory, for each model, in bytes; of use where the KV
    /// cache is on a GPU; 0 = none
    #[arg(long, default_value = "0", value_name = "BYTES", value_parser = byte_count)]
    cache_host: u64,
    /// Folder of the files to which clients save the prefixes of slots (`POST /slots/{id}?action=save`); default: they cannot
    #[arg(long, value_name = "DIR")]
    slot_save_path: Option<PathBuf>,
    #[command(flatten)]
    kv_events: KvEventOptions,
    /// Maximum number of recurrent-state checkpoints in the prefix cache; 0 = off
    #[arg(long, default_value_t = CHECKPOINTS, value_name = "N")]
    checkpoints: usize,
    /// Chunked prefill: maximum number of prefill tokens per step while other sequences decode, 1 or more; default: 128,
    /// with layers on GPUs or RPC workers 512
    #[arg(long, value_name = "N", value_parser = some_tokens)]
    prompt_batch: Option<usize>,
    /// Speculative decoding: `auto`, `off`, a maximum number of draft tokens of a sequence per step, and drafters: `lookup` (in the
    /// sequence), `shared` (in recent answers to the same client), `model` (a drafter with weights); default: `model`, and all
    /// of them for requests that ask for drafts
    #[arg(long, value_name = "auto|off|N|DRAFTER,...")]
    draft: Option<DraftOptions>,
    /// Maximum size of the values that one request captures (`lab`), in bytes; 0 = captures are refused
    #[arg(long, default_value = "64M", value_name = "BYTES", value_parser = byte_count)]
    lab_bytes: u64,
    /// Size of captured values, in bytes, above which a response names a file with them (`/v1/lab/artifacts`)
    /// in place of the values; 0 = always a file
    #[arg(long, default_value = "8M", value_name = "BYTES", value_parser = byte_count)]
    lab_inline: u64,
    /// Maximum size of all files of captured values (`/v1/lab/artifacts`), in bytes, at least `--lab-bytes`: the oldest
    /// are removed for a new one
    #[arg(long, default_value = "1G", value_name = "BYTES", value_parser = byte_count)]
    lab_artifacts: u64,
    /// Number of seconds after which a file of captured values is removed; 0 = it expires at once
    #[arg(long, default_value = "3600", value_name = "SECONDS", value_parser = seconds)]
    lab_time: Duration,
    /// File with steering vectors (GGUF control vector or safetensors), a sparse autoencoder or tuned-lens
    /// translators (safetensors); lab requests refer to the file by its name without extension; may be repeated
    #[arg(long, value_name = "FILE")]
    lab_vectors: Vec<PathBuf>,
    /// Maximum size of a request that uploads vectors (`POST /v1/lab/vectors`), in bytes, at least 16M
    #[arg(long, default_value = "64M", value_name = "BYTES", value_parser = byte_count)]
    lab_upload: u64,
    /// Maximum size of all responses that `/v1/responses` stores, in bytes: the least recently used are removed for a new
    /// one; they are kept in memory until the server ends; 0 = none are stored
    #[arg(long, default_value = "64M", value_name = "BYTES", value_parser = byte_count)]
    response_store: u64,
    /// Folder in which the files and batches of clients are kept (`/v1/files`, `/v1/batches`), also for the next server;
    /// default: a folder that is removed when the server ends
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Maximum size of these files together, in bytes; further ones are refused
    #[arg(long, default_value = "1G", value_name = "BYTES", value_parser = byte_count)]
    file_bytes: u64,
    /// Host from which pictures and sounds are fetched that requests name by an address, such as example.com or
    /// example.com:8080; `*` = all with public addresses; may be repeated; default: nothing is fetched
    #[arg(long, value_name = "HOST")]
    media_fetch: Vec<AllowedHost>,
    /// Folder whose files requests may name as pictures and sounds, as `file:` addresses or paths; default: no files are read
    #[arg(long, value_name = "DIR")]
    media_dir: Option<PathBuf>,
    /// Maximum time in the queue in seconds, above 0; then the request fails with status 503; default: no limit
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    queue_time: Option<Duration>,
    /// Maximum time from a request's first step to the end of its completion in seconds, above 0; then the request
    /// fails with status 504; default: no limit
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    answer_time: Option<Duration>,
    /// API key that clients must send, as `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`; may be
    /// repeated
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with API keys, one per line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// API key that may do everything; where there are API keys, loading and unloading models and adapters, downloads and
    /// the end of the server need one; may be repeated
    #[arg(long, value_name = "KEY")]
    admin_key: Vec<String>,
    /// File with names, hashes and roles of API keys (docs/serving.md), read again when it changes and on SIGHUP
    #[arg(long, value_name = "FILE.toml")]
    keys: Option<PathBuf>,
    /// Let everyone who reaches an address other than loopback use the server without an API key
    #[arg(long)]
    no_api_key: bool,
    /// Origin of web pages that may use the server, such as https://chat.example; `*` = all; pages of localhost and of
    /// desktop programs always may; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Origin that the chat page may ask besides its own, such as https://mcp.example, for MCP servers elsewhere; may be
    /// repeated
    #[arg(long, value_name = "ORIGIN")]
    page_connect: Vec<PageOrigin>,
    /// Host name to accept in the `Host` header while the server has no API keys (protection against DNS rebinding);
    /// IP addresses, localhost, the name of this machine and names that end in .localhost, .local or .internal are always
    /// accepted; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Proxy whose `X-Forwarded-For`, `-Proto`, `-Host` and `-Prefix` are believed: an address, a network such as 10.0.0.0/8, or
    /// `unix` for all that connect to a socket in the file system; may be repeated; default: none, not even this machine
    #[arg(long, value_name = "CIDR")]
    trusted_proxy: Vec<TrustedProxy>,
    /// Refuse fields of requests that are not known, with status 400; default: they have no effect, and the response
    /// header `x-bench-ignored` names them
    #[arg(long)]
    strict_fields: bool,
    /// Refuse requests that name another model than the only one, with status 404; default: it answers to every name,
    /// and the response header `x-bench-model` says so
    #[arg(long)]
    strict_model: bool,
    /// Maximum time to receive the headers of a request, and again its body, in seconds, above 0
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds)]
    read_time: Duration,
    /// Maximum time without progress in sending an answer, because the client does not read it, in seconds, above 0;
    /// then its connection ends
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds)]
    write_time: Duration,
    /// Configuration file (TOML); keys are option names with `_` for `-`, such as `hang_time = 60`; environment
    /// variables such as BENCH_HANG_TIME override the file, and command-line options override both
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print every setting with its origin, and end
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    diffusion: DiffusionOptions,
    #[command(flatten)]
    load: LoadOptions,
    /// What configuration adds.
    #[arg(skip)]
    pub(super) layers: ConfigLayers,
    /// The options of a model as a command line, for its engine process.
    #[arg(skip)]
    pub(super) line: Vec<OsString>,
    /// Whether `--ctx` is for several models and is cut where one has fewer positions. Set in engine processes.
    #[arg(skip)]
    pub(super) is_shared: bool,
}

impl Args {
    /// The place whose models are served, if it is not one model.
    fn collection(&self) -> Option<Collection> {
        let folder = self.models.as_ref()?;
        Some(match folder.as_os_str().is_empty() {
            true => Collection::Cache(Cache::new(Settings::from_env().cache)),
            false => Collection::Folder(folder.clone()),
        })
    }

    fn is_shared(&self) -> bool {
        self.is_shared || self.models.is_some()
    }

    /// What is refused rather than served as well as possible.
    pub(super) fn strictness(&self) -> Strictness {
        Strictness {
            fields: self.strict_fields,
            model: self.strict_model,
        }
    }
}

/// The settings of the layers that are not command-line options.
#[derive(Debug, Default)]
pub(super) struct ConfigLayers {
    /// Further names of models.
    pub(super) aliases: BTreeMap<String, String>,
    /// The options of models that have a table of their own.
    pub(super) per_model: BTreeMap<String, Args>,
    pub(super) path: PathBuf,
    /// Warnings, for when the log is started.
    pub(super) warnings: Vec<String>,
}

impl ConfigLayers {
    /// Refuses tables of models that are not served.
    pub(super) fn check_models(&self, sources: &[ModelSource]) -> Result<(), Failure> {
        let known = models::by_name(sources.to_vec());
        let known: Vec<&str> = known.keys().map(String::as_str).collect();
        let fault = |name: &String| {
            let hint = match (nearest(name, known.iter().copied()), self.aliases.get(name)) {
                (Some(near), _) => format!("did you mean `{PER_MODEL}.{near}`?"),
                (None, Some(own)) => format!("`{name}` is an alias; expected `{PER_MODEL}.{own}`"),
                (None, None) => {
                    let shown = &known[..known.len().min(10)];
                    format!("expected one of {}", shown.join(", "))
                }
            };
            let path = self.path.display();
            format!("{path}: `{PER_MODEL}.{name}`: no model of this name is served; {hint}")
        };
        let own = self.per_model.keys();
        let unknown = own.filter(|name| !known.contains(&name.as_str()));
        match unknown.map(fault).collect::<Vec<_>>() {
            faults if faults.is_empty() => Ok(()),
            faults => Err(Failure::msg(faults.join("\n"))),
        }
    }
}

/// The options of the models that have none of their own, and of those that have; and whether they may be for several models.
fn options_of_models(args: &Args) -> impl Iterator<Item = (&Args, bool)> {
    let own = args.layers.per_model.values().map(|own| (own, false));
    own.chain([(args, args.models.is_some())])
}

/// The sockets on which clients connect.
fn listeners(args: &Args) -> Result<Vec<Listener>, Failure> {
    #[cfg(unix)]
    let mut all = Listener::inherited().map_err(|e| anyhow::anyhow!("LISTEN_FDS: {e}"))?;
    #[cfg(not(unix))]
    let mut all: Vec<Listener> = Vec::new();
    let own = match (args.listen.as_slice(), all.is_empty()) {
        ([], true) => vec![ListenAddress::Tcp((args.host, args.port).into())],
        (own, _) => own.to_vec(),
    };
    for address in &own {
        let bound = Listener::bind(address).map_err(|e| {
            let is_taken = e.kind() == std::io::ErrorKind::AddrInUse;
            let hint = match address {
                ListenAddress::Tcp(_) if is_taken && args.listen.is_empty() => {
                    "; --port N takes another one"
                }
                _ => "",
            };
            anyhow::anyhow!("{address}: {e}{hint}")
        })?;
        all.push(bound);
    }
    Ok(all)
}

/// The API keys of the options and the files. `open`: an address that others than programs on this machine reach.
fn keys(args: &Args, open: Option<&Listener>) -> Result<ApiKeys, Failure> {
    let mut keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = limited_read::text(path, MAX_DEFINITION);
        let text = text.map_err(|error| output::at(path, error))?;
        let lines = text.lines().map(str::trim);
        let is_key = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let before = keys.len();
        keys.extend(lines.filter(is_key).map(str::to_owned));
        if keys.len() == before {
            anyhow::bail!("{}: contains no API keys", path.display());
        }
    }
    if keys
        .iter()
        .chain(&args.admin_key)
        .any(|key| key.trim().is_empty())
    {
        anyhow::bail!("--api-key, --admin-key: a key is empty");
    }
    let keys = ApiKeys::new(&keys, &args.admin_key, args.keys.as_deref()).map_err(Failure::msg)?;
    if let Some(open) = open.filter(|_| keys.is_empty() && !args.no_api_key) {
        let option = match (args.listen.as_slice(), open.address()) {
            ([], ListenAddress::Tcp(address)) => format!("--host {}", address.ip()),
            (_, address) => format!("--listen {address}"),
        };
        anyhow::bail!(
            "{option}: everyone who reaches this address could use the server; set --api-key, or --no-api-key if that is wanted"
        );
    }
    Ok(keys)
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    if args.print_config {
        return Ok(());
    }
    for warning in &args.layers.warnings {
        tracing::warn!("{warning}");
    }
    lab_base::ggml::return_large_memory();
    for (own, is_collection) in options_of_models(&args) {
        own.kv_events.check(is_collection).map_err(Failure::msg)?;
    }
    allow_connections();
    // The port is open before anything else is done, so that one in use is known at once.
    let listeners = listeners(&args)?;
    let open = listeners.iter().find(|listener| !listener.is_local());
    let keys = Arc::new(keys(&args, open)?);
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let files = TlsFiles::open(certificate.clone(), key.clone());
            Some(Arc::new(files.map_err(Failure::msg)?))
        }
        _ => None,
    };
    let access = Access::new(
        Arc::clone(&keys),
        args.cors_origin.clone(),
        args.allow_host.clone(),
    )
    .behind(args.trusted_proxy.clone());
    let collection = args.collection();
    let sources = match &collection {
        Some(collection) => collection.list()?,
        None => vec![args.model.source()?],
    };
    // Into an empty cache, clients may pull.
    if sources.is_empty() && !matches!(collection, Some(Collection::Cache(_))) {
        anyhow::bail!(
            "--models: no model in the folder: expected a .gguf model file or a Hugging Face folder"
        );
    }
    args.layers.check_models(&sources)?;
    let is_collection = collection.is_some();
    let drain_time = args.drain_time;
    let times = transport::ConnectionTimeouts {
        read: args.read_time,
        write: args.write_time,
    };
    // Clients with a key may manage models; without keys, only clients on this machine.
    let is_managed = !keys.is_empty() || open.is_none();
    // The folder is removed when the server ends.
    let kept = store::temporary()?;
    let pool = Arc::new(pool_of(args, sources, is_managed, kept.as_ref())?);
    let runtime = transport::runtime()?;
    let app = lab_server::app(Arc::clone(&pool), access, times.read)?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::new()?;
        reload_on_hangup(&keys, tls.as_ref())?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let addresses = listeners.iter().map(|listener| match listener.address() {
            ListenAddress::Tcp(address) => format!("{scheme}://{address}"),
            unix @ ListenAddress::Unix(..) => unix.to_string(),
        });
        let addresses: Vec<String> = addresses.collect();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        // Before anyone can ask for the state.
        let loaded = (!is_collection).then(|| pool.load_all());
        // Accepting runs on the threads of the connections: on this one, each connection would wake another thread.
        let serving = tokio::spawn(transport::serve(listeners, tls, app, times, stopped));
        service_manager::watch();
        // Requests wait until the only model is loaded.
        let ready = async {
            if let Some(loaded) = loaded {
                loaded.await.map_err(Failure::msg)?;
            }
            for address in &addresses {
                output::line(format!("listening on {address}"))?;
            }
            service_manager::tell("READY=1");
            std::future::pending::<Result<(), Failure>>().await
        };
        tokio::select! {
            served = serving => Ok(served??),
            failed = ready => failed,
            () = async {
                tokio::select! {
                    () = signals.next() => {
                        service_manager::tell("STOPPING=1");
                        pool.drain();
                        if !drain_time.is_zero() {
                            tracing::info!(target: "server", "/readyz says so, and requests are accepted for {drain_time:?}");
                        }
                        tokio::select! {
                            () = tokio::time::sleep(drain_time) => {}
                            () = signals.next() => {}
                        }
                    }
                    () = pool.quit() => {}
                }
                tracing::info!(target: "server", "requests under way are completed; a signal ends at once");
                let _ = stop.send(());
                signals.next().await;
            } => Err(anyhow::anyhow!("ended by a signal; requests under way were cut off")),
        }
    });
    runtime.shutdown_background();
    // This also writes the last lines of the engine processes to the log.
    pool.end();
    kv_events::end();
    ended
}

/// Reads the keys and the certificate again on SIGHUP. A server in a terminal without such files ends with it.
#[cfg(unix)]
fn reload_on_hangup(keys: &Arc<ApiKeys>, tls: Option<&Arc<TlsFiles>>) -> std::io::Result<()> {
    use std::io::IsTerminal as _;
    use tokio::signal::unix::{SignalKind, signal};
    if std::io::stdin().is_terminal() && !keys.has_file() && tls.is_none() {
        return Ok(());
    }
    let (mut hangup, keys) = (signal(SignalKind::hangup())?, Arc::clone(keys));
    let tls = tls.cloned();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            service_manager::reloading();
            keys.reload();
            if let Some(tls) = &tls {
                tls.reload();
            }
            service_manager::tell("READY=1");
        }
    });
    Ok(())
}

#[cfg(not(unix))]
fn reload_on_hangup(_: &Arc<ApiKeys>, _: Option<&Arc<TlsFiles>>) -> std::io::Result<()> {
    Ok(())
}

/// Raises the limit on open files, and so on connections, to the system's maximum.
fn allow_connections() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::info!(%error, "the number of open files stays limited");
        }
    }
}

/// Handlers for SIGINT (Ctrl-C) and SIGTERM (service managers). While they exist, these signals do not end the process.
pub(super) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(super) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        // If the handler cannot be installed, the default one ends the process, which is acceptable.
        let _ = tokio::signal::ctrl_c().await;
    }
}

/// The pool of models. `is_managed`: requests may load and unload them.
fn pool_of(
    mut args: Args,
    sources: Vec<ModelSource>,
    is_managed: bool,
    kept: &Path,
) -> Result<Pool, Failure> {
    let ConfigLayers {
        aliases, per_model, ..
    } = std::mem::take(&mut args.layers);
    let has_processes = cfg!(unix) && !args.in_process;
    let mut config = PoolConfig {
        mode: if has_processes {
            HostMode::Server
        } else {
            HostMode::InProcess
        },
        aliases,
        collection: args.collection(),
        lora_dir: args.lora_dir.clone(),
        opener: None,
        is_managed,
        strictness: args.strictness(),
        limits: LoadLimits {
            max_loaded: args.max_loaded.map(NonZeroUsize::get),
            idle: args.idle_time,
        },
        upload_bytes: usize::try_from(args.lab_upload).unwrap_or(usize::MAX),
        batches: Some(batches(&args, kept)?),
        response_bytes: usize::try_from(args.response_store).unwrap_or(usize::MAX),
        artifacts: Some(artifacts(&args, kept.to_owned())?),
        vectors: vectors(&args, kept)?,
        page: PagePolicy::new(&args.page_connect),
    };
    // The options of the models that have some of their own, and those of the others.
    let settings = Arc::new((per_model, args));
    let (of_loader, kept) = (Arc::clone(&settings), kept.to_owned());
    let loader: Loader = Arc::new(move |request| {
        let args = of_loader.0.get(request.name).unwrap_or(&of_loader.1);
        match has_processes {
            true => start_process(args, request, &kept).map(StartedEngine::Process),
            false => start_here(args, request, &kept).map_err(fault),
        }
    });
    config.opener = Some(Arc::new(move |name, source| {
        let args = settings.0.get(name).unwrap_or(&settings.1);
        opened(args, source).map_err(|error| error.to_string())
    }));
    Pool::new(sources, loader, config).map_err(Failure::msg)
}

/// The files and batches of clients, for a server with these options.
fn batches(args: &Args, kept: &Path) -> Result<BatchStore, Failure> {
    let folder = args.files.clone().unwrap_or_else(|| kept.join("files"));
    let place = folder.display().to_string();
    let files = FileStore::open(folder, args.file_bytes);
    // One sequence is always left for other requests.
    let n_turns = args.parallel.saturating_sub(1).max(1);
    let batches = files.and_then(|files| BatchStore::open(files, n_turns));
    batches.map_err(|e| anyhow::anyhow!("--files {place}: {e}"))
}

/// The vectors that requests may name, for a server with these options.
fn vectors(args: &Args, kept: &Path) -> Result<Arc<VectorStore>, Failure> {
    let folder = Some(kept.join("vectors"));
    let vectors = VectorStore::new(&args.lab_vectors, folder, args.lab_artifacts);
    Ok(Arc::new(
        vectors.map_err(|e| anyhow::anyhow!("--lab-vectors: {e}"))?,
    ))
}

/// The storage of results, for a server with these options.
fn artifacts(args: &Args, folder: PathBuf) -> Result<ArtifactStore, Failure> {
    if args.lab_artifacts < args.lab_bytes {
        let (all, one) = (args.lab_artifacts, args.lab_bytes);
        anyhow::bail!("--lab-artifacts: {all} bytes, expected at least {one} (--lab-bytes)");
    }
    Ok(ArtifactStore::new(
        folder,
        store::ArtifactLimits {
            bytes: args.lab_artifacts,
            time: args.lab_time,
            inline: args.lab_inline,
        },
    ))
}

#[expect(clippy::needless_pass_by_value, reason = "errors are mapped by it")]
pub(super) fn fault(error: Failure) -> LoadError {
    LoadError {
        lacks_memory: lacks_memory(&error),
        ..LoadError::new(error.to_string())
    }
}

/// Whether a load failed because memory is in use.
fn lacks_memory(error: &Failure) -> bool {
    use model::Error::{DeviceMemory, Memory};
    let is_memory = |cause: &model::Error| matches!(cause, Memory { .. } | DeviceMemory { .. });
    error.chain().any(|cause| match cause.downcast_ref() {
        Some(StartError::Load(cause)) => is_memory(cause),
        _ => cause.downcast_ref().is_some_and(is_memory),
    })
}

/// A model whose weights are not read, with the settings with which it would run.
fn opened(args: &Args, source: &ModelSource) -> Result<UnloadedModel, Failure> {
    let load = &args.load;
    let opened = load.open_with(source, &load.model.opening.definitions()?)?;
    let (options, limits) = settings_of(args, &opened, true)?;
    Ok(UnloadedModel {
        opened,
        options,
        limits,
    })
}

fn start_process(
    args: &Args,
    mut wanted: LoadRequest<'_>,
    kept: &Path,
) -> Result<EngineProcess, LoadError> {
    let launch = EngineProcessConfig {
        command: engine_process::command(&wanted, &args.line, kept, args.is_shared()),
        hang_time: args.hang_time,
        step_time: args.step_time,
        end_time: match args.cache_dir {
            None if args.kv_events.is_set() => EVENTS_TIME,
            None => Duration::ZERO,
            Some(_) => CACHE_TIME,
        },
        on_line: engine_process::relay(wanted.name),
    };
    EngineProcess::start(wanted.name, launch, &mut *wanted.progress)
}

fn start_here(args: &Args, wanted: LoadRequest<'_>, kept: &Path) -> Result<StartedEngine, Failure> {
    let served = start(args, wanted.source, kept.to_owned(), wanted.progress)?;
    for adapter in &wanted.adapters {
        let loaded = served.load_adapter(&adapter.name, Path::new(&adapter.path));
        loaded.map_err(Failure::msg)?;
    }
    if let Some(scales) = &wanted.scales {
        served.handle.adapters().set(scales)?;
    }
    Ok(served.into())
}

/// Loads a model. Results are kept in the folder `kept`; `progress` is called with the bytes loaded so far and the
/// total.
pub(super) fn start(
    args: &Args,
    source: &ModelSource,
    kept: PathBuf,
    progress: Progress,
) -> Result<ServedModel, Failure> {
    let vectors = vectors(args, &kept)?;
    let checked = vectors.check();
    checked.map_err(|e| anyhow::anyhow!("--lab-vectors: {e}"))?;
    let artifacts = artifacts(args, kept)?;
    let media_access = MediaAccess::new(&args.media_fetch, args.media_dir.as_deref());
    let media_access = media_access.map_err(|e| anyhow::anyhow!("--media-dir: {e}"))?;
    let mut opened = args.load.open(source)?;
    let (options, limits) = settings_of(args, &opened, false)?;
    args.load.place(&mut opened, &options)?;
    tracing::info!(model = opened.name, "loading");
    let store = PrefixStoreOptions {
        folder: args.cache_dir.clone(),
        disk_bytes: args.cache_disk,
        host_bytes: args.cache_host,
        slots: args.slot_save_path.clone(),
        identity: source.stamp().map_or([0; 32], |stamp| stamp.digest()),
        events: kv_events::start(&args.kv_events)?,
    };
    let mut served = ServedModel::start(opened, options, limits, store, progress)?;
    served.artifacts = Some(artifacts);
    served.media_access = Arc::new(media_access);
    served.vectors = vectors;
    let (source, definitions) = (source.clone(), args.load.model.opening.definitions()?);
    served.adapter_opener = Some(Box::new(move |path| {
        let opened = models::open(&source, &definitions).map_err(|error| error.to_string())?;
        let adapter = AdapterSource {
            path: path.to_owned(),
            scale: 0.0,
        };
        let adapted = opened.adapted(&[adapter], &source, &definitions);
        let mut adapted = adapted.map_err(|error| error.to_string())?;
        adapted
            .adapters
            .pop()
            .ok_or_else(|| "there is no adapter".into())
    }));
    Ok(served)
}

/// The options with which a model decodes `n_parallel` sequences at a time, within a cache of at most `cache` bytes.
pub(super) fn shared_options(
    load: &LoadOptions,
    opened: &OpenedModel,
    defaults: LoadDefaults,
    n_parallel: usize,
    cache: Option<u64>,
) -> Result<Options, Failure> {
    let mut options = load.resolve(opened, defaults)?;
    options.n_seqs = n_parallel;
    // A model that ends in vectors generates nothing: a text is read once, in one pass, and none of it is cached.
    let only_reads = ends_in_vectors(&opened.plan);
    if only_reads {
        options.n_seqs = n_parallel.max(READ_AT_ONCE);
        options.n_batch = options.n_batch.max(options.n_ctx);
    }
    let all = options.n_ctx.saturating_mul(options.n_seqs);
    let budget = match load.has_context() {
        true => None,
        false => load.cache_budget(opened, defaults)?,
    };
    options.n_ctx = match cache {
        _ if only_reads => 0,
        // At least a whole context; more than that takes half of what is left, since the prefix cache fills it in time.
        None => budget.map_or(all, |budget| {
            let fitting = options.n_ctx_within(&opened.plan, budget / 2);
            fitting.clamp(options.n_ctx.min(all), all)
        }),
        Some(most) => options.n_ctx_within(&opened.plan, most).min(all),
    };
    if options.n_ctx == 0 && !only_reads {
        anyhow::bail!(
            "--cache {}: too small for a single KV block of {} tokens, which takes {}",
            cache.map_or_else(String::new, bytes),
            lab_core::plan::BLOCK_LEN,
            options
                .bytes_of_block(&opened.plan)
                .map_or_else(|| "more".to_owned(), bytes),
        );
    }
    Ok(options)
}

/// Maximum number of tokens of a sequence.
pub(super) fn n_ctx_of(options: &Options) -> usize {
    match options.n_ctx {
        // Nothing is cached.
        0 => options.n_ctx_seq,
        n_ctx => options.n_ctx_seq.min(n_ctx),
    }
}

/// Prefill tokens of a step while other sequences decode: on the processor each takes as long as a sequence, on a device
/// this many take about half as long as the step.
const PROMPT_BATCH: usize = 128;
const PROMPT_BATCH_ON_DEVICES: usize = 512;

/// The options and limits with which a model runs.
fn settings_of(
    args: &Args,
    opened: &OpenedModel,
    is_described: bool,
) -> Result<(Options, Limits), Failure> {
    let defaults = LoadDefaults {
        is_cut: args.is_shared(),
        is_described,
        ..LoadDefaults::LOCAL
    };
    let mut options = shared_options(&args.load, opened, defaults, args.parallel, args.cache)?;
    options.n_checkpoints = args.checkpoints;
    let limits = Limits {
        lab_bytes: args.lab_bytes,
        n_ctx: n_ctx_of(&options),
        n_parallel: options.n_seqs,
        n_queue: args.queue,
        n_prefill: match args.prompt_batch {
            Some(n) => n,
            None if args.load.has_devices()? => PROMPT_BATCH_ON_DEVICES,
            None => PROMPT_BATCH,
        },
        drafts: args.draft.unwrap_or(DraftOptions::WEIGHTS),
        diffusion: args.diffusion.set(),
        queue_time: args.queue_time,
        answer_time: args.answer_time,
        step_time: (!args.step_time.is_zero()).then_some(args.step_time),
    };
    Ok((options, limits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_server::served;

    #[test]
    fn a_load_that_lacks_memory_is_told_from_others() {
        let memory = || model::Error::Memory {
            what: model::MemoryPurpose::Weights,
            needed: 2,
            available: 1,
        };
        let start = |cause| served::ServeError::new("m", StartError::Load(cause));
        assert!(fault(memory().into()).lacks_memory);
        assert!(fault(start(memory()).into()).lacks_memory);
        let other = fault(start(model::Error::NotDeterministic).into());
        assert!(!other.lacks_memory);
        assert_eq!(other.message.matches("not deterministic").count(), 1);
        assert!(!fault(anyhow::anyhow!("another")).lacks_memory);
    }
}
