//! A difference between two drawings.

use lab_base::util::wording::{capital, listed};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceLevel {
    /// The computation differs.
    Computation,
    /// The computation is the same with other numbers.
    Sizes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrawingDifference {
    pub level: DifferenceLevel,
    /// Where the difference is: slots and parts, with the number of the kind of layers if there are several.
    pub places: Vec<String>,
    pub what: String,
    /// The value on each side; `None` if a side lacks the property.
    pub of: [Option<String>; 2],
}

impl DrawingDifference {
    /// The difference as a sentence.
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
