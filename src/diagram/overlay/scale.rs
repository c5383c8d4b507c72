//! Ranges of numbers with round borders, one for each colour.
//!
//! Numbers within one power of ten are cut into equal steps, others into steps that grow: 1, 2, 5, 10,
//! or whole powers of ten where that is needed to reach the smallest. A border is the number that its
//! text says, so that each number is in the range that the legend tells of its colour. Numbers that lie
//! so close that borders cannot be told have fewer colours, down to one.

use super::{LEVELS, Shade};

/// Digits of a number, and the most where borders of colours would look alike.
const DIGITS: [usize; 2] = [3, 9];
/// What is infinite.
const INFINITE: &str = "not finite";

/// Colours with what they stand for, and how numbers are written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    /// The least number of each colour, ascending.
    shades: Vec<(f64, Shade)>,
    n_digits: usize,
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
        let has_infinite = values.contains(&f64::INFINITY);
        if low > high {
            let shade = shade(LEVELS - 1, format!("all are {INFINITE}"));
            return Self::of(vec![(f64::NEG_INFINITY, shade)], DIGITS[0]);
        }
        let [fewest, most] = DIGITS;
        if low == high {
            return Self::one(&digits(low, fewest), has_infinite, fewest);
        }
        let differ = |n: usize| digits(low, n) != digits(high, n);
        let least = finite.filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
        let found = if low >= 0.0 && (high >= 10.0 * least || low == 0.0) {
            let borders = growing(least, high, is_fine);
            let first = borders.first().copied().unwrap_or_default();
            told(&borders, first)
        } else {
            match differ(most) {
                true => equal(low, high),
                false => None,
            }
        };
        if let Some((borders, n_digits)) = found {
            return Self::of(ranges(&borders, n_digits), n_digits);
        }
        // Rounding grows with its number, so what is between two that look alike looks like them.
        let alike = (fewest..=most).rev().find(|n| !differ(*n));
        let n_digits = alike.unwrap_or(fewest);
        let text = format!("about {}", digits(high, n_digits));
        Self::one(&text, has_infinite, n_digits)
    }

    fn of(shades: Vec<(f64, Shade)>, n_digits: usize) -> Self {
        Self { shades, n_digits }
    }

    /// All finite numbers have one colour.
    fn one(text: &str, has_infinite: bool, n_digits: usize) -> Self {
        let least = f64::NEG_INFINITY;
        let shades = match has_infinite {
            true => vec![
                (least, shade(0, format!("all others are {text}"))),
                (f64::INFINITY, shade(LEVELS - 1, INFINITE.into())),
            ],
            false => vec![(least, shade(LEVELS / 2, format!("all are {text}")))],
        };
        Self::of(shades, n_digits)
    }

    /// The colour of a number; what is infinite has the last one.
    pub(super) fn level(&self, value: f64) -> usize {
        let mut shades = self.shades.iter().rev();
        let found = shades.find(|(least, _)| value >= *least);
        found.map_or(0, |(_, shade)| shade.level)
    }

    /// What each colour stands for.
    pub(super) fn shades(&self) -> Vec<Shade> {
        self.shades.iter().map(|(_, shade)| shade.clone()).collect()
    }

    /// A number with as many digits as the borders need.
    pub(super) fn show(&self, value: f64) -> String {
        digits(value, self.n_digits)
    }
}

fn shade(level: usize, text: String) -> Shade {
    Shade { level, text }
}

/// The colours between some borders, from the palest to the last one however few they are.
fn ranges(borders: &[f64], n_digits: usize) -> Vec<(f64, Shade)> {
    let n = borders.len();
    let show = |at: usize| digits(borders[at], n_digits);
    let range = |at: usize| match at {
        0 => (f64::NEG_INFINITY, format!("< {}", show(0))),
        at if at == n => (borders[at - 1], format!("\u{2265} {}", show(at - 1))),
        at => (borders[at - 1], format!("{} to {}", show(at - 1), show(at))),
    };
    let all = (0..=n).map(|at| {
        let (least, text) = range(at);
        (least, shade(at * (LEVELS - 1) / n, text))
    });
    all.collect()
}

/// Borders that are at least `step` apart as the fewest digits say them that do so, and how many these
/// are; none if there is no border or no text of it.
fn told(borders: &[f64], step: f64) -> Option<(Vec<f64>, usize)> {
    let read = |border: f64, n: usize| digits(border, n).parse::<f64>().ok();
    let with = |n: usize| {
        let is_near = |border: &f64, read: &f64| (read - border).abs() <= 1e-3 * step;
        let near = |border: &f64| read(*border, n).filter(|read| is_near(border, read));
        let told: Option<Vec<f64>> = borders.iter().map(near).collect();
        told.map(|told| (told, n))
    };
    let [fewest, most] = DIGITS;
    let found = (fewest..=most).find_map(with)?;
    (!borders.is_empty()).then_some(found)
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
    // Below the least number that a double can be there are no borders.
    let all = |border: &dyn Fn(i32) -> f64, top: i32| {
        let borders = (top - n + 1..=top).map(border);
        borders.filter(|border| *border > 0.0).collect()
    };
    let top = last(&fine, 3 * -325);
    if is_fine || fine(top - n) <= least {
        return all(&fine, top);
    }
    let mut each = 1;
    loop {
        let border = |at: i32| power(1, at * each);
        let top = last(&border, -325 / each - 1);
        if border(top - n) <= least || each > 81 {
            return all(&border, top);
        }
        each += 1;
    }
}

/// Borders at equal distances, as they are told; of numbers that lie too close for all colours those
/// borders that part them, if there are any.
fn equal(low: f64, high: f64) -> Option<(Vec<f64>, usize)> {
    let n = LEVELS as i32;
    let least_double = f64::from_bits(1);
    let start = (high / f64::from(n) - low / f64::from(n)).max(least_double);
    let mut at = 3 * start.log10().floor() as i32;
    let mut is_narrow = false;
    loop {
        let step = power([1, 2, 5][at.rem_euclid(3) as usize], at.div_euclid(3));
        at += 1;
        let first = (low / step).floor() + 1.0;
        if step < start || (first + f64::from(n - 1)) * step <= high {
            continue;
        }
        let borders = (0..n - 1).map(|i| (first + f64::from(i)) * step);
        let borders: Vec<f64> = match is_narrow {
            false => borders.collect(),
            true => borders.filter(|b| low < *b && *b <= high).collect(),
        };
        if borders.is_empty() {
            return None;
        }
        if let Some(told) = told(&borders, step) {
            return Some(told);
        }
        is_narrow = true;
    }
}

/// The double next to a decimal number.
fn power(digit: i32, exponent: i32) -> f64 {
    format!("{digit}e{exponent}").parse().unwrap_or(0.0)
}

/// A number of `n` digits, with a power of ten where that is shorter.
fn digits(value: f64, n: usize) -> String {
    // Zero has no sign.
    let value = value + 0.0;
    let size = value.abs();
    if value.is_infinite() {
        return "no number".into();
    }
    if size != 0.0 && !(1e-3..1e4).contains(&size) {
        let text = format!("{value:.*e}", n - 2);
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", trimmed(digits));
    }
    let before = match size {
        0.0 => 0,
        _ => size.log10().floor() as i32,
    };
    let places = (n as i32 - 1 - before).max(0) as usize;
    trimmed(&format!("{value:.places$}")).to_owned()
}

/// Without zeros behind the last digit that says something.
fn trimmed(text: &str) -> &str {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(scale: &Scale) -> Vec<String> {
        scale.shades().into_iter().map(|shade| shade.text).collect()
    }

    fn check(values: &[f64], is_fine: bool, expected: &[&str]) {
        assert_eq!(texts(&Scale::new(values, is_fine)), expected);
    }

    #[test]
    fn borders_are_round() {
        let steps = [
            "< 0.2",
            "0.2 to 0.5",
            "0.5 to 1",
            "1 to 2",
            "2 to 5",
            "5 to 10",
            "10 to 20",
            "20 to 50",
            "\u{2265} 50",
        ];
        check(&[0.0001, 71.0], true, &steps);
        let powers = [
            "< 1e-7",
            "1e-7 to 1e-6",
            "1e-6 to 1e-5",
            "1e-5 to 1e-4",
            "1e-4 to 0.001",
            "0.001 to 0.01",
            "0.01 to 0.1",
            "0.1 to 1",
            "\u{2265} 1",
        ];
        check(&[2e-8, 0.0, 3.0], false, &powers);
        let equal = [
            "< -1.5",
            "-1.5 to -1",
            "-1 to -0.5",
            "-0.5 to 0",
            "0 to 0.5",
            "0.5 to 1",
            "1 to 1.5",
            "1.5 to 2",
            "\u{2265} 2",
        ];
        check(&[-2.0, 1.9], false, &equal);
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [
            0.0, -0.0, 1.0, 12.3456, 123.456, 0.5, 0.001, 0.012345, 9999.0, 1e4, 1.25e-7, -2.5,
        ];
        let expected = [
            "0", "0", "1", "12.3", "123", "0.5", "0.001", "0.0123", "9999", "1e4", "1.2e-7", "-2.5",
        ];
        assert_eq!(shown.map(|value| digits(value, DIGITS[0])), expected);
    }

    #[test]
    fn equal_numbers_have_one_colour_that_says_which() {
        for is_fine in [false, true] {
            check(&[7.0, 7.0, 7.0], is_fine, &["all are 7"]);
            check(&[-2.5], is_fine, &["all are -2.5"]);
            check(&[0.0, -0.0], is_fine, &["all are 0"]);
            check(&[1e300; 2], is_fine, &["all are 1e300"]);
            let some = [7.0, f64::INFINITY, 7.0];
            check(&some, is_fine, &["all others are 7", "not finite"]);
            check(&[f64::INFINITY], is_fine, &["all are not finite"]);
            check(&[], is_fine, &["all are not finite"]);
        }
        assert_eq!(Scale::new(&[7.0], false).level(7.0), LEVELS / 2);
        let scale = Scale::new(&[7.0, f64::INFINITY], false);
        assert_eq!(
            [7.0, f64::INFINITY].map(|v| scale.level(v)),
            [0, LEVELS - 1]
        );
        let level = Scale::new(&[f64::INFINITY], false).level(f64::INFINITY);
        assert_eq!(level, LEVELS - 1);
    }

    #[test]
    fn close_numbers_have_as_many_colours_as_borders_can_be_told() {
        let nine = Scale::new(&[7.0, 7.0004], false);
        assert_eq!(nine.shades().len(), LEVELS);
        assert_eq!(nine.show(7.00005), "7.00005");
        let few = [
            "< 7.00000001",
            "7.00000001 to 7.00000002",
            "\u{2265} 7.00000002",
        ];
        check(&[7.0, 7.000_000_012, 7.000_000_025], false, &few);
        let scale = Scale::new(&[7.0, 7.000_000_025], false);
        let levels = [7.0, 7.000_000_012, 7.000_000_025].map(|v| scale.level(v));
        assert_eq!(levels, [0, LEVELS / 2, LEVELS - 1]);
        check(&[7.0, 7.000_000_000_4], false, &["all are about 7"]);
        check(&[-7.0, -7.000_000_000_4], false, &["all are about -7"]);
        // They differ in the last digit that is shown, but no border is between them.
        let apart = [7.000_000_004, 7.000_000_005_6];
        check(&apart, true, &["all are about 7"]);
        // A tie, which is rounded to the even digit.
        let tie = [128.015_625, 128.015_625_6];
        check(&tie, false, &["all are about 128.0156"]);
    }

    /// What a text says of the numbers of its colour: the first, the one behind the last, and whether
    /// they only look like both.
    fn said(text: &str) -> (f64, f64, bool) {
        let number = |text: &str| text.parse::<f64>().expect("a number");
        if let Some(to) = text.strip_prefix("< ") {
            return (f64::NEG_INFINITY, number(to), false);
        }
        if let Some(from) = text.strip_prefix("\u{2265} ") {
            return (number(from), f64::INFINITY, false);
        }
        if let Some((from, to)) = text.split_once(" to ") {
            return (number(from), number(to), false);
        }
        if text.ends_with(INFINITE) {
            return (f64::INFINITY, f64::INFINITY, false);
        }
        let one = number(text.rsplit(' ').next().expect("a word"));
        (one, one, true)
    }

    fn check_said(values: &[f64], is_fine: bool) -> Result<(), TestCaseError> {
        let scale = Scale::new(values, is_fine);
        let shades = scale.shades();
        prop_assert!(!shades.is_empty() && shades.len() <= LEVELS, "{shades:?}");
        for pair in shades.windows(2) {
            prop_assert!(pair[0].level < pair[1].level, "{shades:?}");
            let [a, b] = [said(&pair[0].text), said(&pair[1].text)];
            prop_assert!(pair[0].text != pair[1].text && a.0 < b.0, "{shades:?}");
            prop_assert!(b.0 == a.1 || a.2, "nothing lies between: {shades:?}");
        }
        for value in values {
            let level = scale.level(*value);
            let shade = shades.iter().find(|shade| shade.level == level);
            let text = &shade.expect("a colour of the legend").text;
            let (from, to, is_shown) = said(text);
            let is_in = match is_shown {
                true => digits(from, scale.n_digits) == scale.show(*value),
                false => from <= *value && (*value < to || to == f64::INFINITY),
            };
            prop_assert!(is_in, "{value} in `{text}`");
        }
        Ok(())
    }

    #[test]
    fn strange_numbers_have_a_scale() {
        for values in [
            &[][..],
            &[0.0],
            &[1e300, -1e300],
            &[5e-324],
            &[0.0, 5e-324],
            &[5e-324, 1e-323],
            &[-5e-324, 5e-324],
            &[0.0, 5e-324, 1e300],
            &[9_999.999_999_9, 10_000.000_01],
            &[0.000_999_999_999, 0.001],
        ] {
            for is_fine in [false, true] {
                check_said(values, is_fine).unwrap_or_else(|e| panic!("{values:?}: {e}"));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn each_number_is_in_the_range_that_its_colour_says(
            anchor in prop_oneof![
                Just(1.0), Just(0.0), Just(10.0), Just(128.015_625), -1e4..1e4, -1e300..1e300,
                (-300.0..300.0).prop_map(|power| 10f64.powf(power)),
            ],
            spread in -18.0..3.0,
            offsets in prop::collection::vec(-1.0..1.0, 1..12),
            has_infinite: bool,
            is_fine: bool,
        ) {
            let size = if anchor == 0.0 { 1.0 } else { anchor };
            let values = offsets.iter().map(|o| anchor + o * size * 10f64.powf(spread));
            let mut values: Vec<f64> = values.map(|v: f64| v.clamp(-1e300, 1e300)).collect();
            values.extend(has_infinite.then_some(f64::INFINITY));
            check_said(&values, is_fine)?;
        }

        #[test]
        fn numbers_of_any_size_are_in_their_ranges(
            mut values in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO, 1..8),
            is_fine: bool,
            is_positive: bool,
        ) {
            for value in &mut values {
                *value = value.clamp(-1e300, 1e300);
                if is_positive {
                    *value = value.abs();
                }
            }
            check_said(&values, is_fine)?;
        }
    }
}
