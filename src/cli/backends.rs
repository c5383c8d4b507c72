//! The option that names backend libraries, and the search for them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::Args;

use lab_base::ggml::{load_found, load_library};

use super::Failure;

/// Backends that are loaded while the program runs.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Backends {
    /// ggml backend library whose devices are used (docs/gpu.md); may be repeated; libraries next to the program and
    /// in the folder BENCH_BACKEND_DIR are loaded without it. `plain` = no library, but a slow float64 reference
    /// implementation of every operation, which is independent of the kernels
    #[arg(long, value_name = "FILE|plain", hide_short_help = true)]
    backend: Vec<PathBuf>,
}

impl Backends {
    /// Loads the named libraries, and once per process those that are found by the search.
    pub(super) fn load(&self) -> Result<(), Failure> {
        for path in self.backend.iter().filter(|path| !is_plain(path)) {
            load_library(path)?;
        }
        let _without_device = without_device();
        Ok(())
    }

    /// Whether the reference implementation by plain loops computes all operations.
    pub(super) fn are_plain(&self) -> bool {
        self.backend.iter().any(|path| is_plain(path))
    }
}

/// Loads the libraries that the search finds, once per process. Returns why some have no device here.
fn without_device() -> &'static [String] {
    static FOUND: OnceLock<Vec<String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut harmless = Vec::new();
        for error in load_found() {
            match error.is_harmless() {
                true => {
                    tracing::info!("{error}");
                    harmless.push(error.to_string());
                }
                false => tracing::warn!("{error}"),
            }
        }
        harmless
    })
}

pub(super) fn why_no_gpu() -> String {
    let built_in = cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan"));
    match without_device() {
        [] if built_in => "the program's GPU backend finds no device".to_owned(),
        [] => {
            "the program has no GPU backend, and there is none next to it (docs/gpu.md)".to_owned()
        }
        reasons => reasons.join("; "),
    }
}

fn is_plain(path: &Path) -> bool {
    path == Path::new("plain")
}
