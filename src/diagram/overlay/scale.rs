//! Ranges of numbers with round borders, one for each colour.
//!
//! Numbers within one power of ten are cut into equal steps, others into steps that grow: 1, 2, 5, 10,
//! or whole powers of ten where that is needed to reach the smallest.

use super::LEVELS;

/// Borders between the colours, ascending.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    borders: Vec<f64>,
}

impl Scale {
    /// A scale for `values`. With `is_fine` the smallest may share a colour, so that the large ones differ.
    pub(super) fn new(values: &[f64], is_fine: bool) -> Self {
        let finite = values.iter().copied().filter(|v| v.is_finite());
        let (low, high) = finite
            .clone()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
                (a.min(v), b.max(v))
            });
        let least = finite.filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
        let borders = if low > high {
            growing(1.0, 1.0, is_fine)
        } else if low >= 0.0 && high > 0.0 && (high >= 10.0 * least || low == high || low == 0.0) {
            growing(least, high, is_fine)
        } else {
            equal(low, high)
        };
        Self { borders }
    }

    /// The colour of a number; what is infinite has the last one.
    pub(super) fn level(&self, value: f64) -> usize {
        self.borders
            .iter()
            .filter(|border| value >= **border)
            .count()
    }

    /// What each colour stands for, written by `show`.
    pub(super) fn ranges(&self, show: &dyn Fn(f64) -> String) -> Vec<String> {
        let shown: Vec<String> = self.borders.iter().map(|border| show(*border)).collect();
        let first = shown.first().map(|border| format!("< {border}"));
        let inner = shown
            .windows(2)
            .map(|pair| format!("{} to {}", pair[0], pair[1]));
        let last = shown.last().map(|border| format!("\u{2265} {border}"));
        first.into_iter().chain(inner).chain(last).collect()
    }
}

/// Borders of the form 1, 2, 5 times a power of ten, or powers of ten with as many between as are needed.
fn growing(least: f64, high: f64, is_fine: bool) -> Vec<f64> {
    let n = LEVELS as i32 - 1;
    let fine = |at: i32| power([1, 2, 5][at.rem_euclid(3) as usize], at.div_euclid(3));
    let last = |border: &dyn Fn(i32) -> f64, from: i32| {
        let mut at = from;
        while border(at + 1) <= high {
            at += 1;
        }
        at
    };
    // Below the least number that a double can be.
    let top = last(&fine, 3 * -325);
    if is_fine || fine(top - n) <= least {
        return (top - n + 1..=top).map(fine).collect();
    }
    let mut each = 1;
    loop {
        let border = |at: i32| power(1, at * each);
        let top = last(&border, -325 / each - 1);
        if border(top - n) <= least || each > 81 {
            return (top - n + 1..=top).map(border).collect();
        }
        each += 1;
    }
}

/// Borders at equal distances.
fn equal(low: f64, high: f64) -> Vec<f64> {
    let n = LEVELS as i32;
    let least = (high / f64::from(n) - low / f64::from(n)).max(f64::MIN_POSITIVE);
    let start = match least > f64::MIN_POSITIVE {
        true => least,
        false => high.abs().max(1.0) / 10.0,
    };
    let mut at = 3 * start.log10().floor() as i32;
    loop {
        let step = power([1, 2, 5][at.rem_euclid(3) as usize], at.div_euclid(3));
        let first = (low / step).floor() + 1.0;
        if step >= start && (first + f64::from(n - 1)) * step > high {
            return (0..n - 1).map(|i| (first + f64::from(i)) * step).collect();
        }
        at += 1;
    }
}

/// The double next to a decimal number.
fn power(digit: i32, exponent: i32) -> f64 {
    format!("{digit}e{exponent}").parse().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[f64], is_fine: bool, expected: &[&str]) {
        let scale = Scale::new(values, is_fine);
        assert_eq!(scale.ranges(&|v| format!("{v:e}")), expected);
    }

    #[test]
    fn borders_are_round() {
        let steps = [
            "< 2e-1",
            "2e-1 to 5e-1",
            "5e-1 to 1e0",
            "1e0 to 2e0",
            "2e0 to 5e0",
            "5e0 to 1e1",
            "1e1 to 2e1",
            "2e1 to 5e1",
            "\u{2265} 5e1",
        ];
        check(&[0.0001, 71.0], true, &steps);
        let powers = [
            "< 1e-7",
            "1e-7 to 1e-6",
            "1e-6 to 1e-5",
            "1e-5 to 1e-4",
            "1e-4 to 1e-3",
            "1e-3 to 1e-2",
            "1e-2 to 1e-1",
            "1e-1 to 1e0",
            "\u{2265} 1e0",
        ];
        check(&[2e-8, 0.0, 3.0], false, &powers);
        let equal = [
            "< -1.5e0",
            "-1.5e0 to -1e0",
            "-1e0 to -5e-1",
            "-5e-1 to 0e0",
            "0e0 to 5e-1",
            "5e-1 to 1e0",
            "1e0 to 1.5e0",
            "1.5e0 to 2e0",
            "\u{2265} 2e0",
        ];
        check(&[-2.0, 1.9], false, &equal);
    }

    #[test]
    fn every_number_has_a_colour_and_larger_ones_no_paler_one() {
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as f64 / f64::from(1u32 << 31)
        };
        for round in 0..500 {
            let span = [1.0, 3.0, 40.0, 290.0][round % 4];
            let sign: f64 = if round % 3 == 0 { -1.0 } else { 1.0 };
            let mut values: Vec<f64> = (0..1 + round % 7)
                .map(|_| sign.powi(round as i32) * 10f64.powf(span * (next() * 2.0 - 1.0)))
                .collect();
            values.sort_by(f64::total_cmp);
            let scale = Scale::new(&values, round % 2 == 0);
            assert_eq!(scale.borders.len(), LEVELS - 1, "{values:?}");
            assert!(
                scale.borders.is_sorted_by(|a, b| a < b),
                "{scale:?} {values:?}"
            );
            let levels: Vec<usize> = values.iter().map(|v| scale.level(*v)).collect();
            assert!(levels.is_sorted() && levels[levels.len() - 1] < LEVELS);
            assert_eq!(scale.level(f64::INFINITY), LEVELS - 1);
        }
    }

    #[test]
    fn strange_numbers_have_a_scale() {
        for values in [
            &[][..],
            &[0.0],
            &[5.0],
            &[-5.0],
            &[1e300, -1e300],
            &[5e-324],
            &[0.0, 5e-324, 1e300],
        ] {
            let scale = Scale::new(values, false);
            assert_eq!(scale.ranges(&|v| v.to_string()).len(), LEVELS, "{values:?}");
            assert!(values.iter().all(|v| scale.level(*v) < LEVELS));
        }
    }
}
