//! The option that names backend libraries, and the search for them.

use std::path::{Path, PathBuf};
use std::sync::Once;

use clap::Args;

use crate::ggml::{load_found, load_library};

use super::Failure;

/// Backends that are loaded while the program runs.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Backends {
    /// ggml backend library whose devices are used (docs/gpu.md); may be repeated; libraries next to the program and
    /// in the folder BENCH_BACKEND_DIR are loaded without it. `plain` = no library, but a slow float64 reference
    /// implementation of every operation, which is independent of the kernels
    #[arg(long, value_name = "FILE|plain")]
    backend: Vec<PathBuf>,
}

impl Backends {
    /// Loads the named libraries, and once per process those that are found by the search.
    ///
    /// # Errors
    /// A named library cannot be loaded. A found library that cannot be loaded is only logged.
    pub(super) fn load(&self) -> Result<(), Failure> {
        for path in self.backend.iter().filter(|path| !is_plain(path)) {
            load_library(path)?;
        }
        static FOUND: Once = Once::new();
        FOUND.call_once(|| {
            for error in load_found() {
                match error.is_harmless() {
                    true => tracing::info!("{error}"),
                    false => tracing::warn!("{error}"),
                }
            }
        });
        Ok(())
    }

    /// Whether the reference implementation by plain loops computes all operations.
    pub(super) fn are_plain(&self) -> bool {
        self.backend.iter().any(|path| is_plain(path))
    }
}

fn is_plain(path: &Path) -> bool {
    path == Path::new("plain")
}
