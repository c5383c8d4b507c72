//! Which sampling rates and samples a sound may have.

use super::SoundError;

/// Rates of files.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;
/// Far beyond any sound, and as far below what a sum of them can express.
const LOUDEST: f32 = 1e30;

/// Refuses what no sound has, and what would make a huge one of it.
pub(super) fn check_rate(rate: u32) -> Result<(), SoundError> {
    if RATES.contains(&rate) {
        return Ok(());
    }
    Err(SoundError::Rate {
        found: rate,
        least: *RATES.start(),
        most: *RATES.end(),
    })
}

/// Whether all samples are numbers of a size to calculate with.
pub(super) fn check_samples(samples: &[f32]) -> Result<(), SoundError> {
    // Also false for what is not a number.
    let is_sample = |sample: &f32| sample.abs() <= LOUDEST;
    match samples.iter().position(|sample| !is_sample(sample)) {
        Some(index) => Err(SoundError::NoSample(index)),
        None => Ok(()),
    }
}
