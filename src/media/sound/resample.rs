//! Another sampling rate, by an FFT.
//!
//! The reference is soxr at its quality HQ, by which transformers reads files: frequencies up to nine tenths of the lower rate's half
//! are kept, and nothing above it remains.

use std::borrow::Cow;

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler, WindowFunction};

use super::range::{check_rate, check_samples};
use super::{Sound, SoundError, SoundLimits};

/// The length of a block of the FFT at the lower rate, if the ratio allows it. It determines the slope of the filter: with this length it
/// is that of the reference, longer blocks are steeper.
const BLOCK: usize = 320;

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The samples of a sound at a rate. There are `samples * rate / sound.rate` of them, rounded up.
///
/// # Errors
/// A rate is no sampling rate, there would be more samples than allowed, or one is not finite.
pub fn resample<'a>(
    sound: &'a Sound,
    rate: u32,
    limits: &SoundLimits,
) -> Result<Cow<'a, [f32]>, SoundError> {
    check_rate(sound.rate)?;
    check_rate(rate)?;
    let found = (sound.samples.len() as u64)
        .saturating_mul(rate.into())
        .div_ceil(sound.rate.into());
    if found > limits.samples as u64 {
        return Err(SoundError::TooLong {
            found,
            limit: limits.samples,
        });
    }
    check_samples(&sound.samples)?;
    if sound.rate == rate || sound.samples.is_empty() {
        return Ok(Cow::Borrowed(&sound.samples));
    }
    let (from, to) = (sound.rate as usize, rate as usize);
    let divisor = common_divisor(from, to);
    let (from, to) = (from / divisor, to / divisor);
    // Even: the filter delays by half a block, and half a sample cannot be taken off.
    let blocks = BLOCK.div_ceil(from.min(to)).next_multiple_of(2);
    let library = |error: &dyn std::fmt::Display| {
        SoundError::Format(format!("its rate cannot be changed: {error}"))
    };
    let mut resampler = Fft::<f32>::new_custom(
        sound.rate as usize,
        rate as usize,
        from * blocks,
        1,
        1,
        WindowFunction::BlackmanHarris2,
        FixedSync::Both,
    )
    .map_err(|error| library(&error))?;
    let input = InterleavedSlice::new(&sound.samples, 1, sound.samples.len())
        .map_err(|error| library(&error))?;
    let mut samples = resampler
        .process_all(&input, sound.samples.len(), None)
        .map_err(|error| library(&error))?
        .take_data();
    samples.resize(found as usize, 0.0);
    Ok(Cow::Owned(samples))
}
