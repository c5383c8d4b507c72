//! Models by name: `bench pull`, `list` and `rm`, and the download of a model that a command names.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use lab_base::util::lock::lock;
use lab_base::util::wording::bytes;
use lab_core::models::ModelSource;
use lab_hub::{Cache, CachedModel, Hub, HubError, ModelName, Settings};

use super::{Failure, output};

/// Seconds between two lines about a download where there is no terminal for a bar.
const LINE_SECONDS: u64 = 10;

#[derive(Debug, ClapArgs)]
pub(super) struct PullArgs {
    /// OWNER/REPO[:QUANT][@REVISION], such as owner/model or owner/model-GGUF:Q4_K_M
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ModelName>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ListArgs {
    /// Write a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct RemoveArgs {
    /// The models, by their names in `bench list`
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ModelName>,
}

/// What a download shows: a bar on a terminal, else lines of the log.
struct DownloadProgress {
    name: String,
    bar: ProgressBar,
    /// The time of the last line; none: a bar is shown.
    line: Option<Mutex<Instant>>,
}

impl DownloadProgress {
    fn new(name: &ModelName) -> Self {
        let bar = ProgressBar::no_length();
        let style = "downloading {msg} {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(name.to_string());
        let has_bar = std::io::stderr().is_terminal();
        Self {
            name: name.to_string(),
            bar,
            line: (!has_bar).then(|| Mutex::new(Instant::now())),
        }
    }
}

impl lab_hub::Progress for DownloadProgress {
    fn start(&self, total: u64, present: u64) {
        self.bar.set_length(total);
        self.bar.set_position(present);
        self.bar.reset_eta();
        if self.line.is_some() && present < total {
            let (name, left) = (&self.name, bytes(total - present));
            tracing::info!("downloading {name}: {left}");
        }
    }

    fn advance(&self, received: i64) {
        match received {
            0.. => self.bar.inc(received.unsigned_abs()),
            _ => self.bar.dec(received.unsigned_abs()),
        }
        if let Some(line) = &self.line {
            let mut last = lock(line);
            if last.elapsed().as_secs() >= LINE_SECONDS {
                *last = Instant::now();
                let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
                tracing::info!(
                    "downloading {}: {} of {}",
                    self.name,
                    bytes(done),
                    bytes(all)
                );
            }
        }
    }
}

/// Downloads what is missing of a model in the newest state of its revision, or only if the cache does not have the model.
fn pulled(name: &ModelName, is_update: bool) -> Result<CachedModel, HubError> {
    let hub = Hub::new(Settings::from_env());
    let progress = DownloadProgress::new(name);
    let model = match is_update {
        true => hub.pull(name, &progress),
        false => hub.find_or_pull(name, &progress),
    };
    progress.bar.finish_and_clear();
    model
}

/// The model that a command names: a built-in one, a path, or else the name of a repository, which is downloaded unless the
/// cache has it. Without a text the default model.
pub(super) fn model_source(text: Option<&Path>) -> Result<ModelSource, Failure> {
    let source = ModelSource::of(text);
    let Some((path, text)) = source.file().and_then(|path| Some((path, path.to_str()?))) else {
        return Ok(source);
    };
    let is_file_name = !text.contains(':')
        && [".gguf", ".safetensors", ".json"]
            .iter()
            .any(|ending| text.ends_with(ending));
    if path.exists() || is_file_name || !ModelName::is_name(text) {
        return Ok(source);
    }
    match pulled(&text.parse()?, false) {
        Ok(model) => Ok(lab_server::cached_source(model)),
        Err(error @ (HubError::RepoNotFound { .. } | HubError::Offline { .. })) => {
            anyhow::bail!("no file or folder `{text}`, and {error}")
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a text is the name of a model in the cache.
pub(super) fn is_cached(text: &str) -> bool {
    let name = ModelName::is_name(text).then(|| text.parse().ok());
    let cache = Cache::new(Settings::from_env().cache);
    name.flatten()
        .is_some_and(|name| cache.find(&name).is_some())
}

pub(super) fn pull(args: &PullArgs) -> Result<(), Failure> {
    for name in &args.names {
        let model = pulled(name, true)?;
        output::line(format!(
            "{}: {}, {}",
            model.name,
            bytes(model.bytes),
            model.path.display()
        ))?;
    }
    Ok(())
}

/// How long ago a time was, in its largest unit: `3 days ago`.
fn age(time: SystemTime) -> String {
    let seconds = time.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    let units = [(86_400, "day"), (3600, "hour"), (60, "minute")];
    let Some((length, unit)) = units.into_iter().find(|(length, _)| seconds >= *length) else {
        return "now".to_owned();
    };
    match seconds / length {
        1 => format!("1 {unit} ago"),
        n => format!("{n} {unit}s ago"),
    }
}

pub(super) fn list(args: &ListArgs) -> Result<(), Failure> {
    let cache = Cache::new(Settings::from_env().cache);
    let models = cache.list();
    if args.json {
        let models = models.iter().map(|model| {
            let modified = model.modified.and_then(|m| m.duration_since(UNIX_EPOCH).ok());
            json!({
                "name": model.name.to_string(), "commit": model.commit, "path": model.path, "bytes": model.bytes,
                "modified": modified.map(|m| m.as_secs()),
            })
        });
        return output::json(&models.collect::<Vec<_>>());
    }
    if models.is_empty() {
        let folder = cache.folder().display();
        return output::line(format!(
            "no models in {folder}; `bench pull OWNER/REPO` downloads one"
        ));
    }
    let names: Vec<String> = models.iter().map(|m| m.name.to_string()).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    for (model, name) in models.iter().zip(&names) {
        let size = bytes(model.bytes);
        let modified = model.modified.map_or_else(String::new, age);
        output::line(format!("{name:width$}  {size:>9}  {modified}"))?;
    }
    Ok(())
}

pub(super) fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    let cache = Cache::new(Settings::from_env().cache);
    for name in &args.names {
        let removed = cache.remove(name)?;
        output::line(format!("{name}: {} freed", bytes(removed.bytes)))?;
    }
    Ok(())
}
