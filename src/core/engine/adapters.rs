//! The adapters of an engine's model, and their scales for requests that set none.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use lab_base::util::lock::lock;

use crate::model::LoadedAdapter;

use super::rejected::Rejected;

/// Adapters by their ids, which are their positions on the command line.
#[derive(Debug, Default)]
pub struct Adapters {
    paths: Vec<PathBuf>,
    scales: Mutex<Vec<f32>>,
}

impl Adapters {
    pub(super) fn new(loaded: &[LoadedAdapter]) -> Self {
        Self {
            paths: loaded.iter().map(|a| a.path.clone()).collect(),
            scales: Mutex::new(loaded.iter().map(|a| a.scale).collect()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<f32>> {
        lock(&self.scales)
    }

    /// The path of each adapter's file, and its scale for requests that set none.
    pub fn all(&self) -> Vec<(&Path, f32)> {
        let scales = self.lock();
        let paths = self.paths.iter().map(PathBuf::as_path);
        paths.zip(scales.iter().copied()).collect()
    }

    /// Sets the scales for later requests that set none. Adapters that `named` leaves out are off.
    ///
    /// # Errors
    /// An id is unknown, or a scale is not a finite number.
    pub fn set(&self, named: &[(usize, f32)]) -> Result<(), Rejected> {
        let scales = self.named(named)?;
        *self.lock() = scales;
        Ok(())
    }

    /// The scale of each adapter for a request: the scales that it sets, or the defaults.
    pub(super) fn of(&self, named: Option<&[(usize, f32)]>) -> Result<Vec<f32>, Rejected> {
        match named {
            Some(named) => self.named(named),
            None => Ok(self.lock().clone()),
        }
    }

    fn named(&self, named: &[(usize, f32)]) -> Result<Vec<f32>, Rejected> {
        let refuse = |message: String| Rejected::field("lora", message);
        let mut scales = vec![0.0; self.paths.len()];
        for (id, scale) in named {
            if !scale.is_finite() {
                return Err(refuse(format!(
                    "the scale of adapter {id} is not a finite number"
                )));
            }
            let n = scales.len();
            let place = scales.get_mut(*id);
            *place
                .ok_or_else(|| refuse(format!("there is no adapter {id}; the model has {n}")))? =
                *scale;
        }
        Ok(scales)
    }
}
