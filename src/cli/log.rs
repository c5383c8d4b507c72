//! The log: its destination and its format.

use std::fmt;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use lab_base::util::lock::lock;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FmtSpan, Writer};
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriter};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use super::Failure;
use super::output::AppendedFile;

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
#[command(next_help_heading = "Log")]
pub(super) struct LogOptions {
    /// Log level: error, warn, info, debug, trace, or a filter by module; `phase=trace` logs the time
    /// of each part of an engine step; default: warn, and in `serve` a line for each request
    #[arg(long, global = true, value_name = "LEVEL", hide_short_help = true)]
    log_level: Option<String>,
    /// Form of the log: text, or one JSON object per line
    #[arg(
        long,
        global = true,
        default_value = "text",
        value_name = "text|json",
        hide_short_help = true
    )]
    log_format: LogFormat,
    /// File to which messages are appended; default: stderr
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    log: Option<AppendedFile>,
}

/// The kind of process that writes a log.
pub(super) enum LogProcess {
    Command,
    /// A server, with a line for each request.
    Server,
    /// The engine process of a model. Its lines have the model's name.
    Engine {
        name: String,
        /// Whether the server writes to a terminal.
        is_ansi: bool,
    },
}

pub(super) fn start_log(options: &LogOptions, of_whom: LogProcess) -> Result<(), Failure> {
    let usual = match of_whom {
        LogProcess::Server | LogProcess::Engine { .. } => {
            "warn,request=info,server=info,symphonia=off"
        }
        LogProcess::Command => "warn,symphonia=off",
    };
    let is_command = matches!(of_whom, LogProcess::Command);
    let is_server = matches!(of_whom, LogProcess::Server);
    let level = options.log_level.as_deref().unwrap_or(usual);
    let filter =
        EnvFilter::try_new(level).map_err(|e| anyhow::anyhow!("--log-level `{level}`: {e}"))?;
    let (writer, is_ansi) = match &options.log {
        Some(path) => {
            let file = LogFile::open(path);
            let file = file.map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
            (BoxMakeWriter::new(file), false)
        }
        None => {
            let is_ansi = match of_whom {
                LogProcess::Engine { is_ansi, .. } => is_ansi,
                _ => std::io::stderr().is_terminal(),
            };
            (BoxMakeWriter::new(std::io::stderr), is_ansi)
        }
    };
    let format = options.log_format;
    let marks = match of_whom {
        LogProcess::Engine { name, .. } => Some(marks_of(&name)),
        LogProcess::Server | LogProcess::Command => None,
    };
    let writer = EngineLog {
        inner: writer,
        is_json: matches!(format, LogFormat::Json),
        marks,
    };
    // Who sets a level or a file reads a log; everybody else reads what is wrong.
    let is_plain = is_command && options.log.is_none() && options.log_level.is_none();
    let layer = tracing_subscriber::fmt::layer()
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(is_ansi)
        .with_writer(writer);
    let layer = match format {
        LogFormat::Text if is_plain => layer.event_format(PlainFormat).boxed(),
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let layers = [Some(layer.with_filter(filter).boxed()), spans(is_command)?];
    let layers: Vec<_> = layers.into_iter().flatten().collect();
    tracing_subscriber::registry().with(layers).init();
    if is_server && has_collector() && cfg!(not(feature = "otel")) {
        tracing::warn!(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and this program was built without the feature `otel`: no spans are sent"
        );
    }
    Ok(())
}

/// Whether the environment names a collector of spans.
fn has_collector() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_off = std::env::var("OTEL_SDK_DISABLED");
    let is_off = is_off.is_ok_and(|off| off.eq_ignore_ascii_case("true"));
    let names = [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ];
    !is_off && names.into_iter().any(is_set)
}

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// What makes spans of the lines of requests, if the environment names a collector.
#[cfg(feature = "otel")]
fn spans(is_command: bool) -> Result<Option<BoxedLayer>, Failure> {
    match has_collector() && !is_command {
        true => Ok(Some(super::spans::layer()?.boxed())),
        false => Ok(None),
    }
}

#[cfg(not(feature = "otel"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature it may fail")]
fn spans(_: bool) -> Result<Option<BoxedLayer>, Failure> {
    Ok(None)
}

/// Sends the spans that are left. To be called before a process ends.
pub(super) fn flush() {
    #[cfg(feature = "otel")]
    super::spans::flush();
}

/// A file to which messages are appended. Where it was moved or removed, such as by logrotate, a new one is begun.
struct LogFile {
    path: PathBuf,
    state: Mutex<LogFileState>,
}

struct LogFileState {
    file: Arc<File>,
    looked: Instant,
}

/// The path of the log is looked at no more often.
const LOOK: Duration = Duration::from_secs(1);

impl LogFile {
    fn open(path: &Path) -> std::io::Result<Self> {
        let state = LogFileState {
            file: appended(path)?,
            looked: Instant::now(),
        };
        Ok(Self {
            path: path.to_owned(),
            state: Mutex::new(state),
        })
    }
}

fn appended(path: &Path) -> std::io::Result<Arc<File>> {
    let file = File::options().create(true).append(true).open(path)?;
    Ok(Arc::new(file))
}

/// Whether a path leads to another file than this one, or to none.
#[cfg(unix)]
fn is_elsewhere(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let of = |about: std::fs::Metadata| (about.dev(), about.ino());
    let there = std::fs::metadata(path).ok().map(of);
    file.metadata().is_ok_and(|own| there != Some(of(own)))
}

#[cfg(not(unix))]
fn is_elsewhere(path: &Path, _: &File) -> bool {
    !path.exists()
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Arc<File>;

    fn make_writer(&'a self) -> Arc<File> {
        let mut state = lock(&self.state);
        if state.looked.elapsed() >= LOOK {
            state.looked = Instant::now();
            // Without a new file, messages go to the old one.
            if is_elsewhere(&self.path, &state.file)
                && let Ok(file) = appended(&self.path)
            {
                state.file = file;
            }
        }
        Arc::clone(&state.file)
    }
}

/// The form of a command's messages, without time and module: `warning: TEXT`, or `warning: ggml: TEXT`.
struct PlainFormat;

impl<S, N> FormatEvent<S, N> for PlainFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let name = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "note",
        };
        write!(writer, "{name}: ")?;
        // A name that is not that of a module says who speaks, such as ggml.
        let target = event.metadata().target();
        if !target.contains("::") && !target.starts_with("lab_") {
            write!(writer, "{target}: ")?;
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// The marks of an engine process's log: the end of each text line, and the start of each JSON line.
pub(super) fn marks_of(name: &str) -> (String, String) {
    let quoted = serde_json::Value::from(name);
    let own = in_log(name);
    (format!(" engine={own}"), format!("{{\"engine\":{quoted},"))
}

/// The name of a model in a line of text. Control characters are escaped: a name is that of a file and may be anything.
pub(super) fn in_log(name: &str) -> String {
    let escaped = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    name.chars().map(escaped).collect()
}

/// A log whose lines have the name of an engine process, if there is one.
struct EngineLog {
    inner: BoxMakeWriter,
    is_json: bool,
    marks: Option<(String, String)>,
}

struct EngineLogLine<'a> {
    out: Box<dyn Write + 'a>,
    log: &'a EngineLog,
}

impl<'a> MakeWriter<'a> for EngineLog {
    type Writer = EngineLogLine<'a>;

    fn make_writer(&'a self) -> EngineLogLine<'a> {
        EngineLogLine {
            out: Box::new(self.inner.make_writer()),
            log: self,
        }
    }
}

impl Write for EngineLogLine<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_adds_no_line_and_no_control_character_to_the_log() {
        let (end, start) = marks_of("a\u{1b}[2J\nb");
        assert_eq!(end, " engine=a\\u{1b}[2J\\nb");
        assert!(!start.contains(char::is_control), "{start}");
    }
}
