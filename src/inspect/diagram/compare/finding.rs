//! One difference of two drawings, and how much it matters.

use crate::common::wording::{capital, listed};

/// How much a difference matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something else is computed.
    Computation,
    /// The same is computed with other numbers.
    Sizes,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// Where it is: slots and parts, with the number of the kind of layers if there are several.
    pub places: Vec<String>,
    /// What differs.
    pub what: String,
    /// Its value on each side; none where that side does not have it.
    pub of: [Option<String>; 2],
}

impl Finding {
    /// The difference in a sentence.
    pub fn sentence(&self, [a, b]: [&str; 2]) -> String {
        const SHOWN: usize = 4;
        let mut places = self.places.clone();
        if places.len() > SHOWN + 1 {
            let more = places.split_off(SHOWN).len();
            places.push(format!("{more} more"));
        }
        let of = |name: &str, value: &str| match value {
            "" => format!("only in {name}"),
            value => format!("only in {name}: {value}"),
        };
        let values = match &self.of {
            [Some(in_a), Some(in_b)] => format!("{in_a} in {a}, {in_b} in {b}"),
            [Some(value), None] => of(a, value),
            [None, Some(value)] => of(b, value),
            [None, None] => String::new(),
        };
        format!("{}: {}: {values}", capital(&listed(&places)), self.what)
    }
}
