//! Sounds: files are decoded, brought to a sampling rate, and prepared for a tower by the rules of a processor.
//!
//! A sound has one channel: the mean of those of its file.

mod decode;
mod error;
mod filters;
mod prepare;
mod range;
mod resample;
mod rules;
mod spectrogram;
#[cfg(test)]
mod tests;
mod windows;

pub use decode::decode;
pub use error::SoundError;
pub use prepare::{prepare, prepare_beside};
pub use resample::resample;
pub use rules::SoundRules;
pub use windows::SoundWindows;

/// Limits of a sound, whatever its file or its rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoundLimits {
    /// The number of samples of one channel, at the rate of the file and at that of the tower.
    pub samples: usize,
}

impl Default for SoundLimits {
    /// 512 MiB: 50 minutes at 44.1 kHz, and more than two hours at 16 kHz.
    fn default() -> Self {
        Self { samples: 1 << 27 }
    }
}

/// A sound of one channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Sound {
    /// Samples a second.
    pub rate: u32,
    /// The samples, mostly in -1..=1, all finite.
    pub samples: Vec<f32>,
}
