//! How `bench serve` starts the engine process of a model (`bench engine`), and passes its log on.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use lab_core::models::{self, ModelSource};
use lab_server::{LineCallback, LoadRequest};

use super::{log, output};

/// The command that starts the engine process of a model with these options, without the path of its socket. The
/// process keeps results in the folder `kept`.
/// `is_shared`: the options are for several models.
pub(super) fn command(
    wanted: &LoadRequest<'_>,
    options: &[OsString],
    kept: &Path,
    is_shared: bool,
) -> Command {
    let with = |option: &str, value: &std::ffi::OsStr| {
        let mut option = OsString::from(option);
        option.push(value);
        option
    };
    let mut command = Command::new(program());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::arg0(&mut command, "bench");
    command.arg("engine").args(options);
    // Its options are on its command line; secrets of the server are not for it.
    for name in ["BENCH_API_KEY", "BENCH_API_KEY_FILE"] {
        command.env_remove(name);
    }
    command.arg(with("--name=", wanted.name.as_ref()));
    command.arg(with("--kept=", kept.as_os_str()));
    match wanted.source {
        ModelSource::BuiltIn(models::DEFAULT_MODEL) => {}
        ModelSource::BuiltIn(name) => {
            command.arg(with("--model=", name.as_ref()));
        }
        ModelSource::File(path) | ModelSource::Named { path, .. } => {
            command.arg(with("--model=", path.as_os_str()));
        }
    }
    if let Some(scales) = &wanted.scales {
        command.arg("--only-scales");
        let scales = scales
            .iter()
            .map(|(id, scale)| format!("--scale={id}={scale}"));
        command.args(scales);
    }
    for adapter in &wanted.adapters {
        command.args(["--adapter", &adapter.name, &adapter.path]);
    }
    if is_shared {
        command.arg("--shared-ctx");
    }
    if std::io::stderr().is_terminal() {
        command.arg("--colour");
    }
    command
}

/// A writer for the standard error of a model's engine process. Lines of its log are written as they are; others, such
/// as an assertion of ggml, become lines of this log with the model's name.
pub(super) fn relay(name: &str) -> LineCallback {
    let name = name.to_owned();
    let (end, start) = log::marks_of(&name);
    let name = log::in_log(&name);
    Box::new(move |line| {
        if line.ends_with(end.as_bytes()) || line.starts_with(start.as_bytes()) {
            // One write per line, because other threads write there too. A failure cannot be reported anywhere.
            let _ = std::io::stderr().write_all(&[line, b"\n"].concat());
            return;
        }
        let text = String::from_utf8_lossy(line);
        let text = output::escape_controls(text.trim_end());
        if !text.is_empty() {
            tracing::warn!(target: "engine", engine = %name, "{text}");
        }
    })
}

/// The executable of this process, even if it was replaced on disk.
fn program() -> PathBuf {
    let own = Path::new("/proc/self/exe");
    match own.exists() {
        true => own.to_owned(),
        false => std::env::current_exe().unwrap_or_else(|_| "bench".into()),
    }
}
