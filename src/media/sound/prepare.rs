//! From a sound to what a tower reads, and to the rows that it takes in a prompt.

use std::borrow::Cow;

use super::resample::resample;
use super::rules::{
    MAX_ROWS, MAX_VALUES, MAX_WORK, Normalise, Order, Real, RowCount, Samples, SoundRules,
    Variance, within,
};
use super::spectrogram::{frames, spectrogram};
use super::{Sound, SoundError, SoundLimits};
use crate::{Piece, Prepared, RowSource, View};

/// Prepares a sound. There is one view for each piece of the sound that the tower reads by itself.
///
/// # Errors
/// The sound is empty, too long or too short, or a rule is out of its range.
pub fn prepare(
    sound: &Sound,
    rules: &SoundRules,
    limits: &SoundLimits,
) -> Result<Prepared, SoundError> {
    prepare_beside(sound, 0, rules, limits)
}

/// Prepares a sound of a prompt in which the longest one has `longest` samples at the rate of the rules; that number changes the
/// result where the rules pad to it.
///
/// # Errors
/// Those of [`prepare`].
pub fn prepare_beside(
    sound: &Sound,
    longest: usize,
    rules: &SoundRules,
    limits: &SoundLimits,
) -> Result<Prepared, SoundError> {
    rules.check()?;
    let samples = resample(sound, rules.sampling_rate, limits)?;
    let mut samples = &*samples;
    if samples.is_empty() {
        return Err(SoundError::Empty("it has no samples".to_owned()));
    }
    if rules.samples.truncate > 0 {
        samples = &samples[..samples.len().min(rules.samples.truncate)];
    }
    let mut views = Vec::new();
    let split = if rules.samples.split == 0 {
        samples.len()
    } else {
        rules.samples.split
    };
    let longest = if rules.samples.pad_to_longest {
        longest
    } else {
        0
    };
    check_size(samples.len(), split.max(longest), rules)?;
    for (at, piece) in samples.chunks(split).enumerate() {
        let start = (at * split) as f64 / f64::from(rules.sampling_rate);
        frames_of(piece, longest, rules)?.views(rules, start, &mut views);
    }
    laid_out(views, rules)
}

/// What stands in the prompt for views.
fn laid_out(views: Vec<View>, rules: &SoundRules) -> Result<Prepared, SoundError> {
    let rows = views.iter().map(|view| view.grid[0]);
    within("rows", rows.fold(0, usize::saturating_add), 0..=MAX_ROWS)?;
    if views.is_empty() {
        return Err(SoundError::Empty(
            "it is shorter than what the tower reads at once".to_owned(),
        ));
    }
    let rows: Vec<RowSource> = views
        .iter()
        .enumerate()
        .flat_map(|(view, made)| (0..made.grid[0]).map(move |row| RowSource::View { view, row }))
        .collect();
    let grid = [1, 1, rows.len()];
    let text = |text: &String| (!text.is_empty()).then(|| Piece::Text(text.clone()));
    let layout = text(&rules.layout.before)
        .into_iter()
        .chain([Piece::Rows { rows, grid }])
        .chain(text(&rules.layout.after))
        .collect();
    Ok(Prepared { views, layout })
}

/// The frames of a piece, one after the other.
pub(super) struct FrameValues {
    values: Vec<f32>,
    /// Values of a frame.
    bands: usize,
    /// The number of frames that count as sound: the first ones.
    real: usize,
}

impl FrameValues {
    fn len(&self) -> usize {
        self.values.len() / self.bands
    }

    /// The frames of a whole sound, with zeros after it for a window that starts at its end.
    pub(super) fn of_whole(
        samples: &[f32],
        window: usize,
        rules: &SoundRules,
    ) -> Result<Self, SoundError> {
        let whole = SoundRules {
            samples: Samples {
                pad_to: samples.len() + window,
                ..Samples::default()
            },
            ..rules.clone()
        };
        check_size(samples.len(), samples.len(), &whole)?;
        frames_of(samples, 0, &whole)
    }

    /// The window of `n` frames from a frame on, prepared. What is beyond the end is zero.
    pub(super) fn window(
        &self,
        from: usize,
        n: usize,
        rules: &SoundRules,
    ) -> Result<Prepared, SoundError> {
        let (start, end) = (from.min(self.len()), (from + n).min(self.len()));
        let mut values = self.values[start * self.bands..end * self.bands].to_vec();
        values.resize(n * self.bands, 0.0);
        let window = Self {
            values,
            bands: self.bands,
            real: self.real.saturating_sub(from).min(n),
        };
        let mut views = Vec::new();
        window.views(rules, from as f64 * frame_seconds(rules), &mut views);
        laid_out(views, rules)
    }
}

/// The number of samples of a piece with what is padded.
fn padded(piece: usize, rules: &SoundRules) -> usize {
    let samples = &rules.samples;
    piece
        .max(samples.min_length)
        .max(samples.pad_to)
        .next_multiple_of(samples.pad_to_multiple_of.max(1))
}

/// The number of frames of so many samples, before frames are padded.
pub(super) fn frames_in(samples: usize, rules: &SoundRules) -> usize {
    match &rules.spectrogram {
        Some(spectrum) => frames(samples, spectrum).unwrap_or(0),
        None => samples,
    }
}

/// The time from one frame to the next, before frames are stacked, in seconds.
fn frame_seconds(rules: &SoundRules) -> f64 {
    let hop = rules.spectrogram.as_ref().map_or(1, |of| of.hop_length);
    hop as f64 / f64::from(rules.sampling_rate)
}

/// Whether what the rules make of so many samples, in pieces of `split`, is of a size to compute with.
fn check_size(samples: usize, split: usize, rules: &SoundRules) -> Result<(), SoundError> {
    let pieces = samples.div_ceil(split);
    let length = padded(split, rules);
    within("samples", pieces.saturating_mul(length), 0..=MAX_VALUES)?;
    let (frames, bands) = match &rules.spectrogram {
        Some(spectrum) => {
            let frames = frames_in(length, rules);
            let work = pieces * frames;
            within(
                "spectrogram.hop_length",
                work.saturating_mul(spectrum.n_fft),
                0..=MAX_WORK,
            )?;
            (frames, spectrum.mel.bands)
        }
        None => (length, 1),
    };
    let frames = frames.next_multiple_of(rules.frames.pad_to_multiple_of);
    let values = pieces.saturating_mul(frames).saturating_mul(bands);
    within("frames", values, 0..=MAX_VALUES)
}

/// Makes the frames of a piece beside a sound of `longest` samples.
fn frames_of(piece: &[f32], longest: usize, rules: &SoundRules) -> Result<FrameValues, SoundError> {
    let sound = piece.len().max(rules.samples.min_length);
    let length = padded(piece.len().max(longest), rules);
    let (values, bands, hop, room) = match &rules.spectrogram {
        Some(spectrum) => {
            let values = spectrogram(piece, length, spectrum, rules.sampling_rate)?;
            let room = (spectrum.pad_left + sound).checked_sub(spectrum.frame_length());
            (values, spectrum.mel.bands, spectrum.hop_length, room)
        }
        None => {
            let mut values = piece.to_vec();
            values.resize(length, 0.0);
            (values, 1, 1, sound.checked_sub(1))
        }
    };
    let frames = values.len() / bands;
    let real = match rules.frames.real {
        Real::All if longest > piece.len() => frames_in(padded(piece.len(), rules), rules),
        Real::All => frames,
        Real::Begun => sound.div_ceil(hop),
        Real::Completed => sound / hop,
        Real::Whole => room.map_or(0, |room| room / hop + 1),
    };
    let mut made = FrameValues {
        values,
        bands,
        real: real.min(frames),
    };
    if let Some(normalise) = &rules.normalise {
        normalised(&mut made, normalise);
    }
    if rules.frames.zero_rest {
        made.values[made.real * bands..].fill(0.0);
    }
    Ok(made)
}

/// Gives the real frames of each band the mean 0 and the deviation 1.
fn normalised(frames: &mut FrameValues, rules: &Normalise) {
    let (bands, real) = (frames.bands, frames.real);
    let count = real as f64;
    let divisor = match rules.variance {
        Variance::Population => count,
        // Of a single value nothing is known; it is the mean and becomes 0.
        Variance::Sample => (count - 1.0).max(1.0),
    };
    for band in 0..bands {
        let of_band = || {
            frames.values[..real * bands]
                .iter()
                .skip(band)
                .step_by(bands)
                .map(|&value| f64::from(value))
        };
        let mean = of_band().sum::<f64>() / count.max(1.0);
        let variance =
            of_band().map(|value| (value - mean).powi(2)).sum::<f64>() / divisor.max(1.0);
        let deviation = match rules.epsilon_in_root {
            true => (variance + rules.epsilon).sqrt(),
            false => variance.sqrt() + rules.epsilon,
        };
        for value in frames.values.iter_mut().skip(band).step_by(bands) {
            *value = ((f64::from(*value) - mean) / deviation) as f32;
        }
    }
}

impl FrameValues {
    /// Pads, stacks and splits the frames, which start at a time in seconds, and appends the views that they make.
    fn views(mut self, rules: &SoundRules, start: f64, views: &mut Vec<View>) {
        let frames = &rules.frames;
        let padded = self.len().next_multiple_of(frames.pad_to_multiple_of);
        self.values.resize(padded * self.bands, 0.0);
        let stacked = padded / frames.stack;
        let bands = self.bands * frames.stack;
        self.values.truncate(stacked * bands);
        let real = (self.real / frames.stack).min(stacked);
        let split = if frames.split == 0 {
            stacked.max(1)
        } else {
            frames.split
        };
        let mut before = 0;
        for values in self.values.chunks(split * bands) {
            let made = values.len() / bands;
            let real = real.saturating_sub(before).min(made);
            let seconds = |n: usize| start + (n * frames.stack) as f64 * frame_seconds(rules);
            let begin = before;
            before += made;
            let counted = match rules.rows.of {
                RowCount::Real => real,
                RowCount::All => made,
            };
            let (values, shape) = match (rules.spectrogram.is_some(), frames.order) {
                (false, _) => (Cow::Borrowed(values), vec![made * bands]),
                (true, Order::Frames) => (Cow::Borrowed(values), vec![made, bands]),
                (true, Order::Bands) => (Cow::Owned(transposed(values, bands)), vec![bands, made]),
            };
            views.push(View {
                values: values.into_owned(),
                shape,
                patches: [real, 1, 1],
                grid: [rules.rows.count(counted), 1, 1],
                part: [seconds(begin), 0.0, seconds(begin + counted), 1.0],
            });
        }
    }
}

impl SoundRules {
    /// The values of a view as the rows of a tower, the cells of their grid (time, height, width), and how many frames count as sound
    /// where not all do. A row is a frame, or a single value where `width` is 1. None if the view does not have these values.
    #[must_use]
    pub fn tower_rows(
        &self,
        view: &View,
        width: usize,
    ) -> Option<(Vec<f32>, [usize; 3], Option<usize>)> {
        let bands = match *view.shape.as_slice() {
            [_] => self.frames.stack,
            [_, bands] if self.frames.order == Order::Frames => bands,
            [bands, _] => bands,
            _ => return None,
        };
        let frames = view.values.len() / bands.max(1);
        let real = view.patches[0].min(frames);
        let mut rows = match (view.shape.len(), self.frames.order) {
            (2, Order::Bands) => transposed(&view.values, frames),
            _ => view.values.clone(),
        };
        let read = if self.frames.only_real { real } else { frames };
        rows.truncate(read * bands);
        let cells = match width {
            1 if bands > 1 => [1, read, bands],
            _ if width == bands => [1, 1, read],
            _ => return None,
        };
        let is_masked =
            self.rows.of == RowCount::Real && real < read && !self.samples.pad_to_longest;
        (read > 0).then_some((rows, cells, is_masked.then_some(real)))
    }
}

/// The values of rows of `bands` values, band by band.
fn transposed(values: &[f32], bands: usize) -> Vec<f32> {
    let mut turned = Vec::with_capacity(values.len());
    for band in 0..bands {
        turned.extend(values.iter().skip(band).step_by(bands));
    }
    turned
}
