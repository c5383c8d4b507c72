//! Pseudorandom numbers that are the same on every machine.

/// SplitMix64 (Steele et al. 2014): a bijection of 64-bit numbers that scatters its argument.
pub fn scatter(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The values at the indices `places` of the random sequence `stream`. Each is the sum of four uniform 16-bit numbers,
/// scaled to this mean and standard deviation.
pub fn normals(stream: u64, places: std::ops::Range<u64>, mean: f64, deviation: f64) -> Vec<f32> {
    /// The mask of two of the four numbers.
    const PAIR: u64 = 0xffff_0000_ffff;
    let value = |place| {
        let bits = scatter(stream ^ scatter(place));
        let pairs = (bits & PAIR) + ((bits >> 16) & PAIR);
        let sum = (pairs >> 32) + (pairs & 0xffff_ffff);
        // Four uniform numbers on [0, 1) have the mean 2 and the variance 1/3.
        let normal = (sum as f64 / 65536.0 - 2.0) * 3f64.sqrt();
        (mean + deviation * normal) as f32
    };
    places.map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_mean_and_deviation() {
        let values = normals(7, 0..100_000, 0.0, 1.0);
        let n = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.01, "{variance}");
        let moved = normals(7, 5..7, 1.0, 0.5);
        for (moved, value) in moved.iter().zip(&values[5..]) {
            assert!(
                (moved - (1.0 + 0.5 * value)).abs() < 1e-6,
                "{moved} of {value}"
            );
        }
    }
}
