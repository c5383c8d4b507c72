//! Exponentials of logits relative to a maximum, and their sum, in f64.
//!
//! The exponential is implemented here by plain multiplications and additions, so that the compiler vectorises it and
//! the bits are the same on every machine (libm's differ). The promise that a seed reproduces a text relies on this.

use std::f64::consts::LOG2_E;

/// Below this the exponential counts as 0; at this value it is still a normal number, 3e-308.
const LOWEST: f64 = -708.0;

/// `e^x` for `x <= 0`, with a relative error below 1e-14; 0 for `x` below -708.
#[inline(always)]
pub(super) fn exp(x: f64) -> f64 {
    // Adding 1.5 * 2^52 rounds to an integer and leaves it in the lowest bits.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    // ln 2 in two parts, the first with enough zero bits that `n * LN2_HIGH` is exact.
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;

    // e^x = 2^n * e^r with |r| <= ln(2) / 2.
    let shifted = x * LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;

    // Taylor series by Horner's rule: the first omitted term is below 7e-15.
    let mut series = INVERSE_FACTORIALS[0];
    for c in &INVERSE_FACTORIALS[1..] {
        series = series * r + c;
    }

    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    // A mask instead of a branch, which would prevent vectorisation.
    let mask = u64::from(x >= LOWEST).wrapping_neg();
    f64::from_bits((series * power).to_bits() & mask)
}

/// 1/11!, 1/10!, ... 1/0!.
const INVERSE_FACTORIALS: [f64; 12] = {
    let mut table = [1.0; 12];
    let mut factorial = 1.0;
    let mut i = 1;
    while i < 12 {
        factorial *= i as f64;
        table[11 - i] = 1.0 / factorial;
        i += 1;
    }
    table
};

pub(super) fn sum_exp(logits: &[f32], max: f32) -> f64 {
    const LANES: usize = 8;
    let max = f64::from(max);
    let (blocks, rest) = logits.as_chunks::<LANES>();

    let mut lanes = [0.0; LANES];
    for block in blocks {
        for (lane, &logit) in lanes.iter_mut().zip(block) {
            *lane += exp(f64::from(logit) - max);
        }
    }
    let tail: f64 = rest.iter().map(|&l| exp(f64::from(l) - max)).sum();
    lanes.iter().sum::<f64>() + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_agrees_with_libm() {
        for i in 0..=7_080_000 {
            let x = f64::from(i) * -1e-4;
            let error = exp(x) / x.exp() - 1.0;
            assert!(error.abs() < 1e-14, "{x}: {error}");
        }
    }

    #[test]
    fn exponential_is_exact_at_its_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(-709.0), 0.0);
        assert_eq!(exp(f64::from(f32::MIN)), 0.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(f64::from(f32::MIN) * 2.0), 0.0);
    }

    #[test]
    fn sum_is_that_of_the_terms() {
        let logits: Vec<f32> = (0..1003).map(|i| (i * 37 % 101) as f32 * -0.3).collect();
        let terms: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        assert!((sum_exp(&logits, 0.0) / terms - 1.0).abs() < 1e-14);
        assert_eq!(sum_exp(&[], 0.0), 0.0);
        assert_eq!(sum_exp(&[f32::NEG_INFINITY; 9], 0.0), 0.0);
    }
}
