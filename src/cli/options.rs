//! Options that several commands share, and the values that they resolve to.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriter};

use crate::arch::Library;
use crate::blocks::REGISTRY;
use crate::files::lora;
use crate::files::models::{self, Definitions, Opened, Source};
use crate::files::quantise::TYPES;
use crate::model::{Model, Options};
use crate::weights::{self, Checked, TensorType};

use super::Failure;
use super::output::AppendedFile;
use super::placement::PlacementOptions;

/// Parses a number that is 1 or more.
pub(super) fn positive(text: &str) -> Result<usize, String> {
    let found = text.parse().ok().filter(|n| *n > 0);
    found.ok_or_else(|| format!("expected a number, 1 or more, found `{text}`"))
}

/// Parses a number of seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let found = text
        .parse()
        .ok()
        .and_then(|s| Duration::try_from_secs_f64(s).ok());
    found.ok_or_else(|| format!("expected a number of seconds, found `{text}`"))
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Where messages go.
#[derive(Debug, Args)]
pub(super) struct LogOptions {
    /// Log level: error, warn, info, debug, trace, or a filter by module; `phase=trace` logs the time
    /// of each part of an engine step; default: warn, and in `serve` a line for each request
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Log")]
    log_level: Option<String>,
    /// Form of the log: text, or one JSON object per line
    #[arg(
        long,
        global = true,
        default_value = "text",
        value_name = "text|json",
        help_heading = "Log"
    )]
    log_format: LogFormat,
    /// File to which messages are appended; default: stderr
    #[arg(long, global = true, value_name = "FILE", help_heading = "Log")]
    log: Option<AppendedFile>,
}

/// The kind of process that writes a log.
pub(super) enum Logs {
    /// A command.
    Command,
    /// A server, with a line for each request.
    Server,
    /// The engine process of a model. Its lines have the model's name.
    Engine {
        /// The name of the model.
        name: String,
        /// Whether the server writes to a terminal.
        is_ansi: bool,
    },
}

/// Starts the log.
pub(super) fn start_log(options: &LogOptions, of_whom: Logs) -> Result<(), Failure> {
    let usual = match of_whom {
        Logs::Server | Logs::Engine { .. } => "warn,request=info,server=info",
        Logs::Command => "warn",
    };
    let level = options.log_level.as_deref().unwrap_or(usual);
    let filter =
        EnvFilter::try_new(level).map_err(|e| anyhow::anyhow!("--log-level `{level}`: {e}"))?;
    let (writer, is_ansi) = match &options.log {
        Some(path) => {
            let file = File::options().create(true).append(true).open(path);
            let file = file.map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
            (BoxMakeWriter::new(Arc::new(file)), false)
        }
        None => {
            let is_ansi = match of_whom {
                Logs::Engine { is_ansi, .. } => is_ansi,
                _ => std::io::stderr().is_terminal(),
            };
            (BoxMakeWriter::new(std::io::stderr), is_ansi)
        }
    };
    let format = options.log_format;
    let marks = match of_whom {
        Logs::Engine { name, .. } => Some(marks_of(&name)),
        Logs::Server | Logs::Command => None,
    };
    let writer = Named {
        inner: writer,
        is_json: matches!(format, LogFormat::Json),
        marks,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(is_ansi)
        .with_writer(writer);
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

/// The marks of an engine process's log: the end of each text line, and the start of each JSON line.
pub(super) fn marks_of(name: &str) -> (String, String) {
    let quoted = serde_json::Value::from(name);
    (format!(" engine={name}"), format!("{{\"engine\":{quoted},"))
}

/// A log whose lines have the name of an engine process, if there is one.
struct Named {
    inner: BoxMakeWriter,
    is_json: bool,
    marks: Option<(String, String)>,
}

/// A writer for one line.
struct NamedLine<'a> {
    out: Box<dyn Write + 'a>,
    log: &'a Named,
}

impl<'a> MakeWriter<'a> for Named {
    type Writer = NamedLine<'a>;

    fn make_writer(&'a self) -> NamedLine<'a> {
        NamedLine {
            out: Box::new(self.inner.make_writer()),
            log: self,
        }
    }
}

impl Write for NamedLine<'_> {
    /// Writes a line, which must be passed whole.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let Some((end, start)) = &self.log.marks else {
            return self.out.write(line);
        };
        let written = match line.strip_prefix(b"{").filter(|_| self.log.is_json) {
            Some(fields) => [start.as_bytes(), fields].concat(),
            None => [line.trim_ascii_end(), end.as_bytes(), b"\n"].concat(),
        };
        // One write per line, because other processes write there too.
        self.out.write_all(&written)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Where definitions come from.
#[derive(Debug, Args)]
pub(super) struct ArchOptions {
    /// Folder with more architecture definitions (NAME.arch.toml) and maps of Hugging Face folders
    /// (NAME.arch.stmap.toml); may be repeated
    #[arg(long, value_name = "DIR")]
    archs: Vec<PathBuf>,
}

impl ArchOptions {
    /// The embedded definitions, and those in the given folders.
    pub(super) fn library(&self) -> Result<Library, Failure> {
        Ok(Library::open(&REGISTRY, &self.archs)?)
    }
}

/// How models are opened.
#[derive(Debug, Args)]
pub(super) struct OpenOptions {
    #[command(flatten)]
    archs: ArchOptions,
    /// Ignore tensors and config.json keys of a Hugging Face folder that its map (NAME.arch.stmap.toml) does not
    /// mention; default: refuse the folder
    #[arg(long)]
    allow_unmapped: bool,
    /// Refuse a model with unused tensors or unused metadata keys of its architecture
    #[arg(long)]
    strict: bool,
}

impl OpenOptions {
    /// The definitions, maps and strictness with which models are opened.
    pub(super) fn definitions(&self) -> Result<Definitions, Failure> {
        Ok(Definitions {
            allow_unmapped: self.allow_unmapped,
            strict: self.strict,
            ..Definitions::open(&self.archs.archs)?
        })
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Which weights a model computes with, on how many threads.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model and compute")]
pub(super) struct ModelOptions {
    #[command(flatten)]
    pub(super) opening: OpenOptions,
    /// LoRA adapter: a GGUF file or a PEFT folder, and the scale of its updates (default 1; 0 = off); may be
    /// repeated
    #[arg(long, value_name = "FILE[=SCALE]")]
    lora: Vec<lora::Source>,
    /// Quantise weight matrices at load to this type: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or
    /// q6_k; default: as stored
    #[arg(long = "type", value_name = "TYPE", value_parser = matrix_type)]
    ty: Option<TensorType>,
    /// Check every weight for NaN and infinity first, and refuse a model that has any
    #[arg(long)]
    check_tensors: bool,
    /// Number of compute threads, 1 or more; default: one per core
    #[arg(long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
}

/// How a model is loaded and run.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("placement").multiple(true))]
pub(super) struct LoadOptions {
    #[command(flatten)]
    pub(super) model: ModelOptions,
    /// Context length in tokens, in `serve` of each request, 1 or more; default: that of the model, at most 4096; in
    /// `compare` and `logits` that of the model, in `perf` and `lab drift` what the measurement needs
    #[arg(long, value_name = "N")]
    pub(super) ctx: Option<usize>,
    /// Element type of the KV cache: any whose blocks divide a head, such as f32, f16, bf16, q8_0 or q4_0;
    /// default: f16, in `compare`, `logits` and `lab drift` f32
    #[arg(long, value_name = "TYPE")]
    kv_type: Option<TensorType>,
    /// Element type of the values in the KV cache; default: that of the keys
    #[arg(long, value_name = "TYPE")]
    v_type: Option<TensorType>,
    /// Flash attention: compute attention without storing the attention matrix, in less memory; default: on, in
    /// `compare`, `logits` and `lab drift` off
    #[arg(long, value_name = "on|off")]
    flash_attn: Option<Switch>,
    /// Batch-invariant results: the logits of a sequence are the same bits whatever else is in the batch and for any
    /// number of threads; prefill is slower for some weight types; default: off
    #[arg(long)]
    deterministic: bool,
    /// Name of one of the chat templates in the model; default: `tool_use` for requests with tools, else `default`
    #[arg(long, value_name = "NAME")]
    chat_template: Option<String>,
    #[command(flatten)]
    placement: PlacementOptions,
}

/// Parses an element type that matrices can be converted to.
pub(super) fn matrix_type(text: &str) -> Result<TensorType, String> {
    let found = text.parse().ok();
    let known = || TYPES.iter().map(|(ty, _)| *ty);
    match found.filter(|ty| known().any(|other| other == *ty)) {
        Some(ty) => Ok(ty),
        None => {
            let names: Vec<_> = known().map(TensorType::name).collect();
            Err(format!("expected one of {}", names.join(", ")))
        }
    }
}

/// Parses a number of bytes, plain or with a unit.
pub(super) fn byte_count(text: &str) -> Result<u64, String> {
    let fault = || format!("expected a number of bytes such as 512M or 4G, found `{text}`");
    let units = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let unit = units
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number: u64 = number.trim().parse().map_err(|_| fault())?;
    number.checked_mul(1 << shift).ok_or_else(fault)
}

/// A command's values for options that are not set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) kv_type: TensorType,
    pub(super) flash_attn: bool,
    /// Maximum context length that is taken from the file.
    pub(super) max_ctx: usize,
    /// Maximum number of tokens per pass.
    pub(super) n_batch: usize,
}

/// The source of the tokens of a command.
#[derive(Debug, Args)]
pub(super) struct SourceTokens {
    /// Token ids of the encoder input (source) of an encoder-decoder model, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    source: Vec<u32>,
}

impl SourceTokens {
    /// Number of tokens per pass that suffices for `n` tokens and for the source.
    pub(super) fn n_batch(&self, n: usize) -> usize {
        n.max(self.source.len())
    }

    /// Number of positions of the source in the cache.
    pub(super) fn len(&self) -> usize {
        self.source.len()
    }

    /// Sets the source as the default of the model.
    pub(super) fn set(&self, model: &mut Model) -> Result<(), Failure> {
        match self.source.is_empty() {
            true => Ok(()),
            false => Ok(model.set_default_source(&self.source)?),
        }
    }
}

impl ModelOptions {
    /// Opens a model, logs its warnings, and checks its weights if the options ask for it.
    pub(super) fn open(&self, source: &Source) -> Result<Opened, Failure> {
        let opened = self.open_with(source, &self.opening.definitions()?)?;
        self.check(&opened)?;
        Ok(opened)
    }

    /// [`Self::open`] with given definitions and without the check.
    pub(super) fn open_with(
        &self,
        source: &Source,
        definitions: &Definitions,
    ) -> Result<Opened, Failure> {
        let opened = models::open(source, definitions)?;
        let opened = match self.ty {
            Some(ty) => opened.quantised(ty)?,
            None => opened,
        };
        Ok(opened.adapted(&self.lora, source, definitions)?)
    }

    /// Refuses weights with NaN or infinity, if the options ask for the check.
    pub(super) fn check(&self, opened: &Opened) -> Result<(), Failure> {
        if !self.check_tensors {
            return Ok(());
        }
        let tensors = opened.plan.tensors.iter();
        let names: Vec<&str> = tensors.map(|t| t.name.as_str()).collect();
        let checked = weights::check(&opened.weights, &names)?;
        for (name, result) in names.iter().zip(checked) {
            if result == Checked::Missing {
                tracing::warn!(tensor = name, "not in the file, so not checked");
            }
        }
        Ok(())
    }

    /// Number of compute threads.
    pub(super) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(cores)
    }
}

impl LoadOptions {
    /// [`ModelOptions::open`], with the chat template of the options.
    pub(super) fn open(&self, source: &Source) -> Result<Opened, Failure> {
        Ok(self.templated(self.model.open(source)?))
    }

    /// [`ModelOptions::open_with`], with the chat template of the options.
    pub(super) fn open_with(
        &self,
        source: &Source,
        definitions: &Definitions,
    ) -> Result<Opened, Failure> {
        Ok(self.templated(self.model.open_with(source, definitions)?))
    }

    fn templated(&self, opened: Opened) -> Opened {
        Opened {
            template: self.chat_template.clone(),
            ..opened
        }
    }

    /// The context length, if it is set.
    pub(super) fn context(&self) -> Option<usize> {
        self.ctx
    }

    /// Places the layers of a model on devices, for a run with these options.
    pub(super) fn place(&self, opened: &mut Opened, options: &Options) -> Result<(), Failure> {
        self.placement.place(opened, options)
    }

    /// The options with which the model runs.
    pub(super) fn resolve(&self, opened: &Opened, defaults: Defaults) -> Options {
        let trained = usize::try_from(opened.plan.n_ctx_train).unwrap_or(usize::MAX);
        let trained = if trained == 0 {
            defaults.max_ctx
        } else {
            trained
        };
        let ty = self.kv_type.unwrap_or(defaults.kv_type);
        let n_ctx = self.ctx.unwrap_or(trained.min(defaults.max_ctx));
        Options {
            n_ctx,
            n_ctx_seq: n_ctx,
            n_seqs: 1,
            n_checkpoints: 0,
            // Every denoising step runs over the whole sequence, and a source must be read in one pass.
            n_batch: match (&opened.plan.diffusion, &opened.plan.source) {
                (None, None) => defaults.n_batch,
                _ => defaults.n_batch.max(n_ctx),
            },
            n_outputs: 0,
            n_threads: self.model.threads(),
            k_type: ty,
            v_type: self.v_type.unwrap_or(ty),
            flash_attn: self
                .flash_attn
                .map_or(defaults.flash_attn, |switch| switch == Switch::On),
            deterministic: self.deterministic,
            embeddings: false,
            non_causal: false,
            capture: false,
            plain: self.placement.is_plain(),
        }
    }

    /// Places the layers of a model and loads it with a progress bar.
    pub(super) fn load(&self, mut opened: Opened, options: Options) -> Result<Model, Failure> {
        self.place(&mut opened, &options)?;
        Self::load_placed(opened, options)
    }

    /// Loads a model with a progress bar.
    pub(super) fn load_placed(opened: Opened, options: Options) -> Result<Model, Failure> {
        let bar = progress_bar("loading", &opened.name);
        let Opened {
            plan,
            weights,
            adapters,
            ..
        } = opened;
        let model = Model::load_with(plan, &weights, &adapters, options, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        Ok(model?)
    }
}

/// A progress bar on stderr for loading or writing a model; hidden if stderr is not a terminal.
pub(super) fn progress_bar(what: &str, name: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{prefix} {msg} {bar:30} {bytes}/{total_bytes}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_prefix(what.to_owned());
    bar.set_message(name.to_owned());
    bar
}

/// Number of cores of the machine.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
