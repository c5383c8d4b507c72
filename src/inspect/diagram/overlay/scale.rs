//! Ranges of numbers, one for each colour.
//!
//! Borders are geometric if no number is negative and the numbers span more than a factor of ten, otherwise equally
//! spaced. A border is exactly the number in its text, so that each number is in the range that the legend states for
//! its colour. Numbers so close that borders cannot be distinguished have fewer colours, down to one.

use super::super::boxes::{ColourRange, LEVELS};

/// Number of significant digits.
const DIGITS: usize = 3;
/// Errors below the largest one divided by this have the palest colour.
pub(super) const SPAN: f64 = 1e4;
/// [`SPAN`] of times: a box with less than a hundredth of the largest time is not looked for, and those near it are told
/// apart.
pub(super) const SPAN_OF_TIMES: f64 = 100.0;

/// The borders between colours, and the format of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    borders: Vec<f64>,
}

impl Scale {
    /// The colours of numbers, of which those below the largest one divided by `span` are alike.
    pub(super) fn new(values: &[f64], span: f64) -> Self {
        let finite = values.iter().copied().filter(|v| v.is_finite());
        let high = finite.clone().fold(f64::NEG_INFINITY, f64::max);
        let least = finite.fold(f64::INFINITY, f64::min);
        let low = match least >= 0.0 && high > 0.0 {
            true => least.max(high / span),
            false => least,
        };
        let border = |at: usize| {
            let share = at as f64 / LEVELS as f64;
            match low > 0.0 && high > 10.0 * low {
                true => low * (high / low).powf(share),
                false => low + (high - low) * share,
            }
        };
        let borders = (1..LEVELS).filter_map(|at| digits(border(at)).parse().ok());
        let mut borders: Vec<f64> = borders.filter(|b| *b > least && *b <= high).collect();
        borders.dedup();
        Self { borders }
    }

    /// The colour of a number, as an index.
    pub(super) fn level(&self, value: f64) -> usize {
        let below = self.borders.iter().filter(|border| **border <= value);
        match self.borders.len() {
            _ if value == f64::INFINITY => LEVELS - 1,
            0 => LEVELS / 2,
            n => below.count() * (LEVELS - 1) / n,
        }
    }

    pub(super) fn show(&self, value: f64) -> String {
        match value.is_finite() {
            true => digits(value),
            false => "no number".into(),
        }
    }

    /// The range of each colour, palest first.
    pub(super) fn shades(&self, values: &[f64]) -> Vec<ColourRange> {
        let show = |at: Option<usize>| Some(self.show(*self.borders.get(at?)?));
        let range = |at: usize| match (show(at.checked_sub(1)), show(Some(at))) {
            (Some(from), Some(to)) => format!("{from} to {to}"),
            (None, Some(to)) => format!("< {to}"),
            (Some(from), None) => format!("\u{2265} {from}"),
            (None, None) => {
                let about = values.first().map_or_else(String::new, |v| self.show(*v));
                format!("about {about}")
            }
        };
        let n = self.borders.len();
        let has_finite = values.iter().any(|v| v.is_finite());
        let finite = (0..=n).filter(|_| has_finite).map(|at| ColourRange {
            level: (at * (LEVELS - 1)).checked_div(n).unwrap_or(LEVELS / 2),
            text: range(at),
        });
        let infinite = values.contains(&f64::INFINITY).then(|| ColourRange {
            level: LEVELS - 1,
            text: "no number".into(),
        });
        finite.chain(infinite).collect()
    }
}

/// A number with its first digits, without trailing zeros.
pub(in crate::diagram) fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let trimmed = |text: &str| text.parse::<f64>().unwrap_or(value).to_string();
    let size = value.abs().log10().floor() as i32;
    if (-4..7).contains(&size) {
        let n = (DIGITS as i32 - 1 - size).clamp(0, 16) as usize;
        return trimmed(&format!("{value:.n$}"));
    }
    let text = format!("{value:.*e}", DIGITS - 1);
    let (number, power) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{}e{power}", trimmed(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_in_the_range_of_its_colour() {
        for values in [
            vec![1.0, 2.0, 3.0],
            vec![1e-9, 1e-3, 1.0],
            vec![-2.0, 0.0, 2.0],
            vec![0.0, 0.02, 50.0],
            vec![7.0, 7.1, 7.4],
            vec![1e-200, 1e200, f64::INFINITY],
        ] {
            let scale = Scale::new(&values, SPAN);
            let shades = scale.shades(&values);
            for value in &values {
                let level = scale.level(*value);
                let number = |text: &str| text.parse::<f64>().expect("a number");
                let holds = |shade: &ColourRange| {
                    let (from, to) = match shade.text.split_once(' ') {
                        Some(("<", to)) => (f64::NEG_INFINITY, number(to)),
                        Some(("\u{2265}", from)) => (number(from), f64::MAX),
                        Some(("no", _)) => (f64::INFINITY, f64::INFINITY),
                        Some((from, to)) => (number(from), number(to.trim_start_matches("to "))),
                        None => panic!("{}", shade.text),
                    };
                    from <= *value && *value <= to
                };
                // An infinite value has the colour of the largest numbers.
                let mut of_level = shades.iter().filter(|shade| shade.level == level);
                assert!(of_level.any(holds), "{value} of {level} in {shades:?}");
            }
        }
    }

    #[test]
    fn large_times_are_told_apart() {
        let scale = Scale::new(&[0.001, 5.0, 10.0, 20.0], SPAN_OF_TIMES);
        let levels = [5.0, 10.0, 20.0].map(|time| scale.level(time));
        assert!(
            levels.is_sorted() && levels[0] < levels[1] && levels[1] < levels[2],
            "{levels:?}"
        );
    }

    #[test]
    fn close_numbers_have_fewer_colours() {
        let texts = |values: &[f64]| -> Vec<String> {
            let shades = Scale::new(values, SPAN).shades(values).into_iter();
            shades.map(|shade| shade.text).collect()
        };
        assert_eq!(texts(&[7.0; 3]), ["about 7"]);
        assert_eq!(texts(&[7.0, 7.000_1]), ["about 7"]);
        let close = "< 7.01, 7.01 to 7.02, \u{2265} 7.02";
        assert_eq!(texts(&[7.0, 7.02]).join(", "), close);
        assert_eq!(texts(&[1.0, 9.0]).len(), LEVELS);
    }
}
