//! The option that names backend libraries, and where they are searched for.

use std::path::PathBuf;
use std::sync::Once;

use clap::Args;

use crate::ggml::{load_found, load_library};

use super::Failure;

/// Backends that are loaded while the program runs.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Backends {
    /// Backend library whose devices are used (docs/gpu.md); may be repeated. Those next to the program and in
    /// the folder BENCH_BACKEND_DIR are found without it
    #[arg(long, value_name = "FILE")]
    backend: Vec<PathBuf>,
}

impl Backends {
    /// Loads the libraries that are named, and once those that are found.
    ///
    /// # Errors
    /// A library that is named and cannot be loaded. What is found and cannot be loaded is logged.
    pub(super) fn load(&self) -> Result<(), Failure> {
        for path in &self.backend {
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
}
