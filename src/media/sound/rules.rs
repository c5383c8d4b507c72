//! The rules by which a processor prepares sounds, as data.
//!
//! They are steps in a fixed order, each of which may be left out: samples are cut and padded; a spectrogram is made of them, its bands
//! are put on the mel scale, its logarithm is taken; values are clamped, shifted and normalised; frames are padded, put side by side and
//! cut into views; and the rows that a tower makes of the frames are counted. Names are those of transformers, where it has one.

use serde::Deserialize;

use super::SoundError;

/// No sound has more values than this, whether samples or a spectrogram: 512 MiB.
pub(super) const MAX_VALUES: usize = 1 << 27;
/// All FFTs of a sound have together no more values than this: those of ten hours with frames of 512 every 160 samples.
pub(super) const MAX_WORK: usize = 1 << 31;
/// No sound takes more tokens of a prompt than this.
pub(super) const MAX_ROWS: usize = 1 << 22;
const MAX_FFT: usize = 1 << 16;
const MAX_BANDS: usize = 1024;
const MAX_STEPS: usize = 64;

/// The rules of a processor for sounds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoundRules {
    /// The text of a rendered prompt in whose place a sound stands; empty if it is no part of the prompt.
    #[serde(default)]
    pub marker: String,
    /// The token that holds the place of a row.
    #[serde(default)]
    pub row_token: String,
    /// Samples a second.
    pub sampling_rate: u32,
    /// What is done with the samples.
    #[serde(default)]
    pub samples: Samples,
    /// The spectrogram; without it the tower reads samples, which are then frames of one value.
    pub spectrogram: Option<Spectrogram>,
    /// The frames that the tower reads.
    #[serde(default)]
    pub frames: Frames,
    /// Values of each band get the mean 0 and the deviation 1.
    pub normalise: Option<Normalise>,
    /// The rows that the tower makes of them.
    #[serde(default)]
    pub rows: Rows,
    /// What stands in the prompt.
    #[serde(default)]
    pub layout: PromptLayout,
}

/// What stands in the prompt in place of a sound.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptLayout {
    /// Text with special tokens before the rows.
    pub before: String,
    /// Text with special tokens after the rows.
    pub after: String,
}

/// What is done with samples. Lengths are numbers of samples; 0 does nothing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Samples {
    /// What is beyond this length is dropped.
    pub truncate: usize,
    /// The sound is cut into pieces of this length, and each is prepared by itself.
    pub split: usize,
    /// A shorter piece gets zeros at its end, which count as sound.
    pub min_length: usize,
    /// A shorter piece gets zeros at its end, which do not count as sound.
    pub pad_to: usize,
    /// A piece gets zeros at its end up to a multiple, which do not count as sound.
    pub pad_to_multiple_of: usize,
    /// The sound gets zeros at its end up to the length of the longest one of its prompt. The tower reads them as sound; they
    /// become no rows of the prompt.
    pub pad_to_longest: bool,
}

/// The spectrogram: how a frame of samples becomes a column of values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spectrogram {
    /// Samples are multiplied by this first.
    #[serde(default = "one")]
    pub scale: f64,
    /// The window.
    #[serde(default)]
    pub window: Window,
    /// Whether the window is one period of a longer one, and so ends before its last zero.
    #[serde(default = "yes")]
    pub periodic: bool,
    /// The length of the window, which stands in the middle of its frame.
    pub win_length: usize,
    /// The length of a frame, if not that of the window: a frame is made where so many samples are left.
    pub frame_length: Option<usize>,
    /// Samples from one frame to the next.
    pub hop_length: usize,
    /// The length of the FFT. Zeros follow a shorter frame.
    pub n_fft: usize,
    /// What stands before the first sample and after the last.
    #[serde(default)]
    pub pad_mode: PadMode,
    /// The number of samples before the first one.
    #[serde(default)]
    pub pad_left: usize,
    /// The number of samples after the last one.
    #[serde(default)]
    pub pad_right: usize,
    /// The mean of a frame is subtracted from it.
    #[serde(default)]
    pub remove_dc_offset: bool,
    /// The part of the sample before it that is subtracted from each sample.
    #[serde(default)]
    pub preemphasis: f64,
    /// Where that is done.
    #[serde(default)]
    pub preemphasis_of: Preemphasis,
    /// What is taken of the complex numbers of the FFT.
    pub spectrum: Spectrum,
    /// The bands.
    pub mel: Mel,
    /// The logarithm.
    pub log: Log,
    /// So many frames at the end are dropped, and have no part in the largest value.
    #[serde(default)]
    pub drop_last: usize,
    /// Values lower than the largest one by more than this are raised to it.
    pub dynamic_range: Option<f64>,
    /// It is added to each value.
    #[serde(default)]
    pub add: f64,
    /// Each value is divided by it after that.
    #[serde(default = "one")]
    pub divide: f64,
}

fn one() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

/// The shape of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// A raised cosine.
    #[default]
    Hann,
    /// A raised cosine on a step of 0.08.
    Hamming,
    /// The Hann window to the power of 0.85, as in Kaldi.
    Povey,
}

/// What stands around a sound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PadMode {
    /// Zeros.
    #[default]
    Constant,
    /// The sound backwards, without the sample at the edge.
    Reflect,
}

/// Where samples are emphasised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preemphasis {
    /// In each frame: its first sample is taken for the one before it.
    #[default]
    Frame,
    /// In the whole sound: before its first sample is silence.
    Sound,
}

/// What is taken of the complex numbers of an FFT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spectrum {
    /// The absolute value.
    Magnitude,
    /// Its square.
    Power,
}

/// Triangular bands, equally wide on a mel scale.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mel {
    /// The number of bands.
    pub bands: usize,
    /// The scale.
    pub scale: MelScale,
    /// In hertz: where the first band begins.
    #[serde(default)]
    pub min_frequency: f64,
    /// In hertz: where the last band ends.
    pub max_frequency: f64,
    /// On which axis the sides of the triangles are straight.
    #[serde(default)]
    pub triangles: Triangles,
    /// Whether bands have equal areas (`norm="slaney"` in transformers) and not equal heights.
    #[serde(default)]
    pub equal_areas: bool,
}

/// From hertz to mel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MelScale {
    /// Linear up to 1000 Hz, logarithmic above.
    Slaney,
    /// 2595 log10(1 + f / 700).
    Htk,
    /// 1127 ln(1 + f / 700).
    Kaldi,
}

/// An axis on which the sides of triangles are straight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Triangles {
    /// Frequency.
    #[default]
    Hertz,
    /// The mel scale.
    Mel,
}

/// The logarithm of a band.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Whether it is the decimal one; otherwise the natural one.
    #[serde(default)]
    pub decimal: bool,
    /// How it is kept from minus infinity.
    pub floor: LogFloor,
    /// By which value, above 0.
    pub mel_floor: f64,
}

/// How a logarithm is kept from minus infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFloor {
    /// Lower values are raised to it.
    Raise,
    /// It is added to all values.
    Add,
}

/// The frames that a tower reads.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Frames {
    /// Which frames count as sound.
    pub real: Real,
    /// Whether the tower reads those frames alone, although the processor gives it all.
    pub only_real: bool,
    /// Whether the values of the other frames are 0.
    pub zero_rest: bool,
    /// Frames of zeros follow up to a multiple of this.
    pub pad_to_multiple_of: usize,
    /// So many frames are put side by side; those left over are dropped.
    pub stack: usize,
    /// A view has so many frames, and the last one what is left; 0 for one view of each piece.
    pub split: usize,
    /// The order of the values.
    pub order: Order,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            real: Real::All,
            only_real: false,
            zero_rest: false,
            pad_to_multiple_of: 1,
            stack: 1,
            split: 0,
            order: Order::Frames,
        }
    }
}

/// Which frames count as sound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Real {
    /// All.
    #[default]
    All,
    /// One for each hop that the sound begins.
    Begun,
    /// One for each hop that the sound completes.
    Completed,
    /// Those of which no sample is padding at the end.
    Whole,
}

/// The order of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One frame after the other.
    #[default]
    Frames,
    /// One band after the other.
    Bands,
}

/// How values are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalise {
    /// It keeps the divisor from zero.
    pub epsilon: f64,
    /// Whether it is added to the variance; otherwise to the deviation.
    pub epsilon_in_root: bool,
    /// What the sum of squares is divided by.
    pub variance: Variance,
}

/// What a sum of squares is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variance {
    /// The number of values.
    Population,
    /// One less.
    Sample,
}

/// The number of rows that a tower makes of the frames of a view.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rows {
    /// Which frames are counted.
    pub of: RowCount,
    /// The tower reads windows of so many frames, each by itself; 0 for one.
    pub window: usize,
    /// The number of frames is raised to a multiple of this.
    pub pad_to_multiple_of: usize,
    /// What the tower does with the frames, as far as it changes their number.
    pub steps: Vec<Convolution>,
}

/// Which frames become rows of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowCount {
    /// Those that count as sound.
    #[default]
    Real,
    /// All.
    All,
}

/// A convolution, a pooling, or frames put side by side: `(n + 2 padding - kernel) / stride + 1` rows of n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convolution {
    /// Its length.
    pub kernel: usize,
    /// From one to the next.
    #[serde(default = "single")]
    pub stride: usize,
    /// Zeros on each side.
    #[serde(default)]
    pub padding: usize,
}

fn single() -> usize {
    1
}

impl Rows {
    /// The number of rows of `frames`.
    pub(super) fn count(&self, frames: usize) -> usize {
        let window = if self.window == 0 {
            frames.max(1)
        } else {
            self.window
        };
        let of = |frames: usize| {
            let frames = frames.next_multiple_of(self.pad_to_multiple_of.max(1));
            self.steps.iter().fold(frames, |rows, step| {
                match (rows + 2 * step.padding).checked_sub(step.kernel) {
                    Some(room) if rows > 0 => room / step.stride + 1,
                    _ => 0,
                }
            })
        };
        frames / window * of(window) + of(frames % window)
    }
}

pub(super) fn within(
    key: &'static str,
    found: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<(), SoundError> {
    if range.contains(&found) {
        return Ok(());
    }
    Err(SoundError::Rule {
        key,
        found: found.to_string(),
        expected: format!("{} to {}", range.start(), range.end()),
    })
}

fn finite(key: &'static str, found: f64, holds: bool, expected: &str) -> Result<(), SoundError> {
    if found.is_finite() && holds {
        return Ok(());
    }
    Err(SoundError::Rule {
        key,
        found: found.to_string(),
        expected: expected.to_owned(),
    })
}

impl SoundRules {
    /// Whether every number is in a range in which the steps are defined and bounded.
    pub(super) fn check(&self) -> Result<(), SoundError> {
        super::range::check_rate(self.sampling_rate)?;
        let samples = &self.samples;
        within("samples.truncate", samples.truncate, 0..=MAX_VALUES)?;
        within("samples.split", samples.split, 0..=MAX_VALUES)?;
        within("samples.min_length", samples.min_length, 0..=MAX_VALUES)?;
        within("samples.pad_to", samples.pad_to, 0..=MAX_VALUES)?;
        within(
            "samples.pad_to_multiple_of",
            samples.pad_to_multiple_of,
            0..=MAX_VALUES,
        )?;
        if let Some(spectrogram) = &self.spectrogram {
            spectrogram.check(self.sampling_rate)?;
        }
        let frames = &self.frames;
        within(
            "frames.pad_to_multiple_of",
            frames.pad_to_multiple_of,
            1..=MAX_VALUES,
        )?;
        within("frames.stack", frames.stack, 1..=MAX_BANDS)?;
        within("frames.split", frames.split, 0..=MAX_VALUES)?;
        if let Some(normalise) = &self.normalise {
            let epsilon = normalise.epsilon;
            finite(
                "normalise.epsilon",
                epsilon,
                epsilon > 0.0,
                "a number above 0",
            )?;
        }
        within("rows.window", self.rows.window, 0..=MAX_VALUES)?;
        within(
            "rows.pad_to_multiple_of",
            self.rows.pad_to_multiple_of,
            0..=MAX_VALUES,
        )?;
        within("rows.steps", self.rows.steps.len(), 0..=MAX_STEPS)?;
        for step in &self.rows.steps {
            within("rows.steps.kernel", step.kernel, 1..=MAX_FFT)?;
            within("rows.steps.stride", step.stride, 1..=MAX_FFT)?;
            within("rows.steps.padding", step.padding, 0..=step.kernel / 2)?;
        }
        Ok(())
    }
}

impl Spectrogram {
    /// The length of a frame, in samples.
    pub(super) fn frame_length(&self) -> usize {
        self.frame_length.unwrap_or(self.win_length)
    }

    fn check(&self, rate: u32) -> Result<(), SoundError> {
        within("spectrogram.win_length", self.win_length, 2..=MAX_FFT)?;
        within("spectrogram.n_fft", self.n_fft, self.win_length..=MAX_FFT)?;
        within(
            "spectrogram.frame_length",
            self.frame_length(),
            self.win_length..=MAX_FFT,
        )?;
        within("spectrogram.hop_length", self.hop_length, 1..=MAX_VALUES)?;
        within("spectrogram.pad_left", self.pad_left, 0..=MAX_FFT)?;
        within("spectrogram.pad_right", self.pad_right, 0..=MAX_FFT)?;
        let number = "a number";
        finite("spectrogram.scale", self.scale, true, number)?;
        finite("spectrogram.preemphasis", self.preemphasis, true, number)?;
        finite("spectrogram.add", self.add, true, number)?;
        finite(
            "spectrogram.divide",
            self.divide,
            self.divide != 0.0,
            "a number that is not 0",
        )?;
        let range = self.dynamic_range.unwrap_or(0.0);
        finite(
            "spectrogram.dynamic_range",
            range,
            range >= 0.0,
            "a number from 0",
        )?;
        let floor = self.log.mel_floor;
        finite(
            "spectrogram.log.mel_floor",
            floor,
            floor > 0.0,
            "a number above 0",
        )?;
        let mel = &self.mel;
        within("spectrogram.mel.bands", mel.bands, 1..=MAX_BANDS)?;
        let (low, high) = (mel.min_frequency, mel.max_frequency);
        finite(
            "spectrogram.mel.min_frequency",
            low,
            low >= 0.0,
            "a number from 0",
        )?;
        let most = f64::from(rate);
        finite(
            "spectrogram.mel.max_frequency",
            high,
            low < high && high <= most,
            "a frequency above the lowest",
        )
    }
}
