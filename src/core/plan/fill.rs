//! Distributes layers over devices so that each part fits.
//!
//! Pure: a function answers whether a part fits, so tests use simulated devices. Layers lie on devices in their order,
//! the last ones first: a split is a number of layers for each device, the head included, and the remaining layers stay
//! on the processor.

/// Answers whether a device's part of a split fits there.
pub type FitsFn<'a, E> = &'a mut dyn FnMut(&[usize], usize) -> Result<bool, E>;

/// The split with the maximum number of layers out of `n` that fit; the first devices are filled first. All its parts
/// may be 0.
pub fn fill<E>(n: usize, n_devices: usize, fits: FitsFn<'_, E>) -> Result<Vec<usize>, E> {
    // From the last device on, which gives the maximum number of layers: no device could hold one more of the earlier
    // layers.
    let mut split = vec![0; n_devices];
    let mut left = n;
    for device in (0..n_devices).rev() {
        let n_here = largest(left, &mut |k| {
            let mut split = split.clone();
            split[device] = k;
            fits(&split, device)
        })?;
        split[device] = n_here;
        left -= n_here;
    }
    // The same number of layers, from the first device on.
    let mut packed = vec![0; n_devices];
    let mut left = n - left;
    for device in 0..n_devices {
        let last = n_devices - 1;
        let n_here = largest(left, &mut |k| {
            let mut split = packed.clone();
            split[last] += left - k;
            split[device] = k + if device == last { left - k } else { 0 };
            fits(&split, device)
        })?;
        packed[device] = n_here;
        left -= n_here;
    }
    // A part may need more memory beside other parts, so a layer may be left over: then the first split counts.
    Ok(if left == 0 { packed } else { split })
}

/// The split in proportion to `shares` with the maximum number of layers out of `n` that fit on the devices.
pub fn fill_shares<E>(n: usize, shares: &[f64], fits: FitsFn<'_, E>) -> Result<Vec<usize>, E> {
    let n = largest(n, &mut |n| all_fit(&split(n, shares), fits))?;
    Ok(split(n, shares))
}

/// Whether every device's part of a split fits.
pub fn all_fit<E>(split: &[usize], fits: FitsFn<'_, E>) -> Result<bool, E> {
    for device in 0..split.len() {
        if !fits(split, device)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The largest fitting number up to `most`, by bisection: if a number fits, all smaller ones are assumed to fit.
pub fn largest<E>(most: usize, fits: &mut dyn FnMut(usize) -> Result<bool, E>) -> Result<usize, E> {
    if most == 0 || fits(most)? {
        return Ok(most);
    }
    let (mut fitting, mut too_many) = (0, most);
    while fitting + 1 < too_many {
        let middle = fitting.midpoint(too_many);
        if fits(middle)? {
            fitting = middle;
        } else {
            too_many = middle;
        }
    }
    Ok(fitting)
}

/// Splits `n` in proportion to shares: the sums of the parts up to each are rounded, so that the parts
/// add up to `n`.
pub fn split(n: usize, shares: &[f64]) -> Vec<usize> {
    let total: f64 = shares.iter().sum();
    let (mut sum, mut before) = (0.0, 0);
    let part = |share: &f64| {
        sum += share;
        let end = (n as f64 * sum / total).round() as usize;
        let part = end - before;
        before = end;
        part
    };
    shares.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills simulated devices with layers of these bytes; every device that computes also needs `scratch`.
    fn filled(layers: &[u64], scratch: u64, free: &[u64]) -> Vec<usize> {
        fill(layers.len(), free.len(), &mut |split, device| {
            let end = layers.len() - split[device + 1..].iter().sum::<usize>();
            let part = &layers[end - split[device]..end];
            let taken = part.iter().sum::<u64>() + if part.is_empty() { 0 } else { scratch };
            Ok::<_, ()>(taken <= free[device])
        })
        .expect("nothing fails")
    }

    /// Bytes of the layers, scratch bytes, free bytes of the devices, and the expected split.
    type Case = (&'static [u64], u64, &'static [u64], &'static [usize]);

    #[test]
    fn devices_are_filled_to_the_last_byte_and_no_further() {
        const EVEN: [u64; 5] = [10; 5];
        const UNEQUAL: [u64; 5] = [40, 5, 5, 30, 20];
        let cases: [Case; 14] = [
            // Layers that fit exactly, with one byte too few, with the bytes of one layer, with none.
            (&EVEN, 7, &[57], &[5]),
            (&EVEN, 7, &[56], &[4]),
            (&EVEN, 7, &[17], &[1]),
            (&EVEN, 7, &[16], &[0]),
            (&EVEN, 7, &[0], &[0]),
            // The first device is filled first; the next ones get the remaining layers.
            (&EVEN, 7, &[57, 57], &[5, 0]),
            (&EVEN, 7, &[47, 57], &[4, 1]),
            (&EVEN, 7, &[27, 37], &[2, 3]),
            (&EVEN, 7, &[27, 17, 27], &[2, 1, 2]),
            // A device without layers is skipped.
            (&EVEN, 7, &[6, 57], &[0, 5]),
            (&EVEN, 7, &[27, 6, 17], &[2, 0, 1]),
            // Layers of unequal size are counted from the last one; the largest stays on the processor.
            (&UNEQUAL, 0, &[60], &[4]),
            (&UNEQUAL, 0, &[10, 50], &[2, 2]),
            (&UNEQUAL, 0, &[9, 50], &[1, 2]),
        ];
        for (layers, scratch, free, expected) in cases {
            let found = filled(layers, scratch, free);
            assert_eq!(found, expected, "{layers:?} + {scratch} in {free:?}");
        }
        assert_eq!(filled(&[], 0, &[10]), [0]);
        assert_eq!(filled(&EVEN, 0, &[]), [0usize; 0]);
    }

    /// Compares with all splits: the maximum number of layers, on the first devices if several splits have it.
    #[test]
    fn no_split_holds_more_layers() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let layers: Vec<u64> = (0..random(7)).map(|_| 1 + random(20)).collect();
            let free = [random(60), random(60)];
            let found = filled(&layers, 3, &free);
            let sum = |part: &[u64]| match part {
                [] => 0,
                part => 3 + part.iter().sum::<u64>(),
            };
            let mut best = [0, 0];
            for b in 0..=layers.len() {
                for a in 0..=layers.len() - b {
                    let end = layers.len() - b;
                    let fits =
                        sum(&layers[end - a..end]) <= free[0] && sum(&layers[end..]) <= free[1];
                    let is_better = (a + b, a) > (best[0] + best[1], best[0]);
                    if fits && is_better {
                        best = [a, b];
                    }
                }
            }
            assert_eq!(found, best, "{layers:?} in {free:?}");
        }
    }

    #[test]
    fn given_shares_are_kept() {
        let mut fits =
            |split: &[usize], device: usize| Ok::<_, ()>(split[device] <= [4, 1][device]);
        assert_eq!(fill_shares(10, &[1.0, 1.0], &mut fits), Ok(vec![2, 1]));
        assert_eq!(fill_shares(10, &[4.0, 1.0], &mut fits), Ok(vec![4, 1]));
        assert_eq!(fill_shares(10, &[0.0, 1.0], &mut fits), Ok(vec![0, 1]));
    }

    #[test]
    fn parts_follow_the_shares_and_add_up() {
        assert_eq!(split(10, &[1.0, 1.0]), [5, 5]);
        assert_eq!(split(10, &[3.0, 1.0]), [8, 2]);
        assert_eq!(split(3, &[1.0, 1.0]), [2, 1]);
        assert_eq!(split(1, &[0.0, 1.0]), [0, 1]);
        assert_eq!(split(0, &[2.0]), [0]);
        assert_eq!(split(7, &[]), [0usize; 0]);
    }
}
