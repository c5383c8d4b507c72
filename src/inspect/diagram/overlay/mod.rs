//! Numbers of a model's values and places on its drawing: each box gets a colour and the number itself.
//!
//! [`Overlay::read`] knows five formats: the profiles of `bench perf --profile --json`, the reports of `bench
//! compare --json`, `bench lab drift --json` and `bench plan --json`, and an object of paths with numbers.
//! [`Overlay::put`] finds the box of each number and notes there, and in all that contains it, what it comes to: times add up, of other
//! quantities the largest stands for all and says its layer. Nothing is measured here and nothing has
//! coordinates. Every number of the file is in one box or named in the legend as outside.

mod notes;
mod place;
mod read;
mod scale;

use std::rc::Rc;

pub(super) use place::annotate;
pub use place::{Home, Place};
pub(super) use scale::digits;

use super::{Drawing, Sample};
use place::Finder;

/// What is shown on a drawing.
#[derive(Clone, Debug, PartialEq)]
pub struct Overlay {
    /// What is measured: `time of prefill 128 tokens`.
    pub quantity: String,
    /// How several numbers come to one.
    pub rule: Rule,
    /// The numbers, each at most [`LARGEST`] from zero, or infinite where a value was no number.
    pub numbers: Vec<Number>,
    /// The model of which the file speaks, if it says so.
    pub of: Option<String>,
    /// Of a comparison, the first value that differs.
    pub first: Option<First>,
}

/// How several numbers come to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// They are seconds and add up.
    Time,
    /// The largest stands for all.
    Largest,
}

/// The largest number that is shown, and the least with a minus.
pub const LARGEST: f64 = 1e300;

/// A number and what it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// Path of a value, a unit, a slot or a layer.
    pub path: String,
    /// The operation of the unit or place at the path, if it is one's.
    pub op: Option<Operation>,
    /// Seconds, or whatever the quantity is.
    pub value: f64,
}

/// An operation of a use of a unit or place: [`crate::ggml::GraphOp`] has the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The kind of block.
    pub kind: String,
    /// Which use of the kind and the path.
    pub nth: u64,
    /// Which of its operations, counted from 0 without those that only describe memory.
    pub at: usize,
    /// All of its operations, by their names; the same list for each.
    pub all: Rc<[String]>,
}

/// Why a file is none of numbers, or its numbers cannot be shown: what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Problem(String);

/// The first value that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct First {
    /// Its path.
    pub path: String,
    /// The NMSE above which a value differs.
    pub tolerance: Option<f64>,
}

/// What is noted at a box; by default nothing is shown on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Note {
    /// The number, with its unit; empty if there is none.
    pub text: String,
    /// The number alone.
    pub short: String,
    /// Which of the [`LEVELS`] colours, palest first; none without a number.
    pub level: Option<usize>,
    /// Its colour: classes of the style sheet; none if nothing is shown.
    pub class: &'static str,
    /// Where the first difference is, if it is in this box.
    pub first: Option<String>,
}

impl Note {
    /// All of it in words; empty if there is nothing.
    pub(super) fn sentence(&self) -> String {
        let first = self.first.as_ref();
        let first = first.map(|first| format!("first difference: {first}"));
        let number = (!self.text.is_empty()).then(|| self.text.clone());
        let both: Vec<String> = number.into_iter().chain(first).collect();
        both.join("; ")
    }
}

/// Colours of a scale.
pub const LEVELS: usize = 9;

/// Classes of boxes, palest first, and that of a box without a number.
pub(super) const HOT: [&str; LEVELS] = [
    "hot o0", "hot o1", "hot o2", "hot o3", "hot o4", "hot o5", "hot o6", "hot o7", "hot o8",
];
pub(super) const COLD: &str = "hot none";

/// A colour and the numbers that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shade {
    /// Which of the [`LEVELS`] colours.
    pub level: usize,
    /// Their range: `< 1`, `1 to 2`, or `about 7`.
    pub text: String,
}

/// What the colours of a drawing mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Legend {
    /// What is measured, with its unit.
    pub title: String,
    /// What each colour stands for, palest first; colours that stand for nothing are left out.
    pub shades: Vec<Shade>,
    /// Whether the numbers may be another model's, how they come together, and what is in no box.
    pub lines: Vec<String>,
    /// Of a comparison, what differs first.
    pub first: Option<String>,
    /// The note of each layer, counted over all stacks.
    pub layers: Vec<Note>,
}

impl Overlay {
    /// Notes every number on the drawing of `sample`, and what the colours mean. `model` is the name of
    /// the model that is drawn, whose drawing may be called otherwise. That the numbers are of another
    /// model comes back, and is a line of the legend.
    ///
    /// # Errors
    /// A drawing without sizes, or one to which no number belongs.
    pub fn put(
        &self,
        drawing: &mut Drawing,
        sample: &Sample,
        model: &str,
    ) -> Result<Option<String>, Problem> {
        if drawing.is_symbolic {
            let name = &drawing.name;
            return Err(Problem(format!(
                "numbers are shown on a model, and `{name}` is the name of a definition"
            )));
        }
        let sums = place::sums(self, drawing, sample);
        if sums.n_placed == 0 {
            return Err(self.elsewhere(drawing, sample));
        }
        let other = self.other(model);
        let measured = |of: &String| format!("measured on {}", read::short(of));
        let measured = other.clone().or_else(|| self.of.as_ref().map(measured));
        notes::write(self, &sums, measured.into_iter().collect(), drawing);
        Ok(other)
    }

    /// That the file speaks of another model, if it does.
    fn other(&self, model: &str) -> Option<String> {
        let is_other = |of: &&str| !of.is_empty() && !model.is_empty() && *of != model;
        let of = self.of.as_deref().filter(is_other)?;
        let [of, model] = [of, model].map(read::short);
        Some(format!(
            "measured on {of} and drawn on {model}: the numbers may be another model's"
        ))
    }

    /// The box of each number, in the order of the file; none for what is in no box.
    pub fn places(&self, drawing: &Drawing, sample: &Sample) -> Vec<Option<Place>> {
        let finder = Finder::new(drawing, sample);
        let places = self.numbers.iter().map(|number| finder.find(number));
        places.collect()
    }

    fn elsewhere(&self, drawing: &Drawing, sample: &Sample) -> Problem {
        let (model, n) = (&drawing.name, sample.plan().layers.len());
        let known = drawing.parts().find_map(|part| part.paths.last());
        let known = known.map_or("", String::as_str);
        let found = read::short(self.numbers.first().map_or("", |n| &n.path));
        Problem(format!(
            "nothing of it belongs to `{model}`, which has {n} layers: expected paths such as \
             `{known}`, found `{found}`"
        ))
    }
}
