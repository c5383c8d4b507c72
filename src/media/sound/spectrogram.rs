//! The spectrogram of a piece: its frames, one column of bands each.

use realfft::RealFftPlanner;

use super::SoundError;
use super::filters::{Band, bands, window};
use super::rules::{LogFloor, PadMode, Preemphasis, Spectrogram, Spectrum};

/// The logarithms of the bands, frame by frame, shifted and clamped, of `samples` followed by zeros up to `length`.
pub(super) fn spectrogram(
    samples: &[f32],
    length: usize,
    rules: &Spectrogram,
    rate: u32,
) -> Result<Vec<f32>, SoundError> {
    let Some(frames) = frames(length, rules) else {
        let padding = rules.pad_left + rules.pad_right;
        return Err(SoundError::TooShort {
            found: samples.len(),
            rate,
            least: rules.frame_length().saturating_sub(padding).max(1),
        });
    };
    let padded = pad(samples, length, rules, rate)?;
    let bands = bands(&rules.mel, rules.n_fft, rate);
    // The window stands in the middle; where it stands in the FFT has no effect on absolute values.
    let offset = (rules.frame_length() - rules.win_length) / 2;
    let window: Vec<f64> = window(rules.window, rules.win_length, rules.periodic)
        .into_iter()
        .map(|weight| weight * rules.scale)
        .collect();
    let fft = RealFftPlanner::<f64>::new().plan_fft_forward(rules.n_fft);
    let (mut buffer, mut spectrum) = (fft.make_input_vec(), fft.make_output_vec());
    let mut scratch = fft.make_scratch_vec();
    let mut bins = vec![0.0; spectrum.len()];
    let mut values = Vec::with_capacity(frames * bands.len());
    for frame in 0..frames {
        let start = frame * rules.hop_length + offset;
        fill(
            &padded[start..start + rules.win_length],
            &window,
            rules,
            &mut buffer,
        );
        fft.process_with_scratch(&mut buffer, &mut spectrum, &mut scratch)
            .expect("buffers of the plan's lengths");
        for (bin, number) in bins.iter_mut().zip(&spectrum) {
            *bin = match rules.spectrum {
                Spectrum::Power => number.norm_sqr(),
                Spectrum::Magnitude => number.norm(),
            };
        }
        values.extend(
            bands
                .iter()
                .map(|band| logarithm(band, &bins, rules) as f32),
        );
    }
    shift(&mut values, rules);
    Ok(values)
}

/// The number of frames of `length` samples; none if there are too few for one.
pub(super) fn frames(length: usize, rules: &Spectrogram) -> Option<usize> {
    let padded = rules.pad_left + length + rules.pad_right;
    let room = padded.checked_sub(rules.frame_length())?;
    Some((room / rules.hop_length + 1).saturating_sub(rules.drop_last))
}

/// The samples with what stands before and after them.
fn pad(
    samples: &[f32],
    length: usize,
    rules: &Spectrogram,
    rate: u32,
) -> Result<Vec<f32>, SoundError> {
    let mut padded = vec![0.0; rules.pad_left + length + rules.pad_right];
    let sound = &mut padded[rules.pad_left..][..length];
    sound[..samples.len()].copy_from_slice(samples);
    if rules.preemphasis != 0.0 && rules.preemphasis_of == Preemphasis::Sound {
        for i in (1..samples.len()).rev() {
            sound[i] -= rules.preemphasis as f32 * sound[i - 1];
        }
    }
    if rules.pad_mode == PadMode::Reflect {
        let most = rules.pad_left.max(rules.pad_right);
        if length <= most {
            return Err(SoundError::TooShort {
                found: samples.len(),
                rate,
                least: most + 1,
            });
        }
        for i in 0..rules.pad_left {
            padded[i] = padded[2 * rules.pad_left - i];
        }
        let end = rules.pad_left + length;
        for i in 0..rules.pad_right {
            padded[end + i] = padded[end - 2 - i];
        }
    }
    Ok(padded)
}

/// Writes a frame under its window, and zeros after it.
fn fill(frame: &[f32], window: &[f64], rules: &Spectrogram, buffer: &mut [f64]) {
    let mean = match rules.remove_dc_offset {
        true => frame.iter().map(|&sample| f64::from(sample)).sum::<f64>() / frame.len() as f64,
        false => 0.0,
    };
    let factor = match rules.preemphasis_of {
        Preemphasis::Frame => rules.preemphasis,
        Preemphasis::Sound => 0.0,
    };
    let mut before = f64::from(frame[0]) - mean;
    let (taken, rest) = buffer.split_at_mut(frame.len());
    for ((place, &sample), weight) in taken.iter_mut().zip(frame).zip(window) {
        let sample = f64::from(sample) - mean;
        *place = (sample - factor * before) * weight;
        before = sample;
    }
    rest.fill(0.0);
}

fn logarithm(band: &Band, bins: &[f64], rules: &Spectrogram) -> f64 {
    let bins = &bins[band.first..][..band.weights.len()];
    let energy: f64 = band
        .weights
        .iter()
        .zip(bins)
        .map(|(weight, bin)| weight * bin)
        .sum();
    let floor = rules.log.mel_floor;
    let energy = match rules.log.floor {
        LogFloor::Raise => energy.max(floor),
        LogFloor::Add => energy + floor,
    };
    if rules.log.decimal {
        energy.log10()
    } else {
        energy.ln()
    }
}

fn shift(values: &mut [f32], rules: &Spectrogram) {
    let floor = match rules.dynamic_range {
        Some(range) => values.iter().copied().fold(f32::NEG_INFINITY, f32::max) - range as f32,
        None => f32::NEG_INFINITY,
    };
    let (add, divide) = (rules.add as f32, rules.divide as f32);
    for value in values {
        *value = (value.max(floor) + add) / divide;
    }
}
