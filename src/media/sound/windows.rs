//! A sound that is longer than what its tower reads: one window of frames after another.
//!
//! The spectrogram is that of the whole sound, with silence after it, so that the values of a window depend on the loudest frame of the
//! sound and not on where the window starts.

use std::sync::OnceLock;

use super::prepare::{FrameValues, frames_in, prepare};
use super::resample::resample;
use super::{Sound, SoundError, SoundLimits, SoundRules};
use crate::Prepared;

/// A sound, and the windows that a tower reads of it.
pub struct SoundWindows {
    rules: SoundRules,
    limits: SoundLimits,
    /// At the rate of the rules.
    sound: Sound,
    /// The frames of the whole sound, once they are needed.
    whole: OnceLock<FrameValues>,
}

impl SoundWindows {
    /// The windows of a sound, for rules that truncate a sound to one window.
    ///
    /// # Errors
    /// The sound is empty or too long, or the rules have no window.
    pub fn new(
        sound: &Sound,
        rules: &SoundRules,
        limits: &SoundLimits,
    ) -> Result<Self, SoundError> {
        rules.check()?;
        let samples = resample(sound, rules.sampling_rate, limits)?.into_owned();
        if samples.is_empty() {
            return Err(SoundError::Empty("it has no samples".to_owned()));
        }
        if rules.samples.truncate == 0 {
            return Err(SoundError::Rule {
                key: "samples.truncate",
                found: "0".to_owned(),
                expected: "the length of a window".to_owned(),
            });
        }
        Ok(Self {
            rules: rules.clone(),
            limits: *limits,
            sound: Sound {
                rate: rules.sampling_rate,
                samples,
            },
            whole: OnceLock::new(),
        })
    }

    fn hop(&self) -> usize {
        self.rules
            .spectrogram
            .as_ref()
            .map_or(1, |spectrum| spectrum.hop_length)
    }

    /// The number of frames of the sound, at least one.
    #[must_use]
    pub fn n_frames(&self) -> usize {
        (self.sound.samples.len() / self.hop()).max(1)
    }

    /// The number of frames of a window.
    #[must_use]
    pub fn n_of_window(&self) -> usize {
        frames_in(self.rules.samples.truncate, &self.rules).max(1)
    }

    /// The time from one frame to the next, in seconds.
    #[must_use]
    pub fn frame_seconds(&self) -> f64 {
        self.hop() as f64 / f64::from(self.rules.sampling_rate)
    }

    /// The length of the sound, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.sound.samples.len() as f64 / f64::from(self.rules.sampling_rate)
    }

    /// Whether the sound is one window.
    #[must_use]
    pub fn is_one(&self) -> bool {
        self.sound.samples.len() <= self.rules.samples.truncate
    }

    /// The window that starts at a frame, prepared. The first one of a sound that fits into it is what [`prepare`] makes of the sound.
    ///
    /// # Errors
    /// The sound is too long for its frames to be computed.
    pub fn at(&self, frame: usize) -> Result<Prepared, SoundError> {
        if frame == 0 && self.is_one() {
            return prepare(&self.sound, &self.rules, &self.limits);
        }
        let whole = match self.whole.get() {
            Some(whole) => whole,
            None => {
                let window = self.rules.samples.truncate;
                let whole = FrameValues::of_whole(&self.sound.samples, window, &self.rules)?;
                self.whole.get_or_init(|| whole)
            }
        };
        whole.window(frame, self.n_of_window(), &self.rules)
    }
}
