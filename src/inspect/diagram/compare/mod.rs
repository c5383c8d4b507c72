//! Two drawings compared: which kinds of layers, slots and parts belong together, and what differs.
//!
//! Kinds are matched by their labels and blocks, slots by their names, branches by their blocks.
//! What can differ is what the definition says: options, weights, wiring; that a weight follows from an
//! option is no difference of its own. A difference is reported once with all its places, and swapping the two
//! drawings swaps the sides of each difference and changes nothing else.

mod walk;

use std::collections::HashMap;
use std::fmt::Write;

use super::Drawing;
use super::overlay::{Home, Note, annotate};
use crate::common::wording::{capital, escaped, listed};
use walk::Comparer;

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

/// What two drawings have in common and what not.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Both, with a note at each part and slot that differs: the numbers of its findings.
    pub drawings: [Drawing; 2],
    /// Parts that belong together, as places in [`Drawing::parts`].
    pub parts: Vec<[Option<usize>; 2]>,
    /// All differences, those in what is computed first.
    pub findings: Vec<Finding>,
}

/// A title and its lines, each with the number of a difference if it names one.
pub type Section = (&'static str, Vec<(Option<usize>, String)>);

impl Comparison {
    /// Compares two drawings.
    pub fn new(a: &Drawing, b: &Drawing) -> Self {
        let mut comparer = Comparer::new([a, b]);
        let kinds = comparer.kinds();
        comparer.stages(|drawing| &drawing.begin, "before the layers");
        for (nth, pair) in kinds.iter().enumerate() {
            comparer.place = match kinds.len() {
                1 => String::new(),
                _ => format!("kind {}, ", nth + 1),
            };
            comparer.kind(*pair);
        }
        comparer.place.clear();
        comparer.stages(|drawing| &drawing.end, "after the layers");
        comparer.sizes();
        let mut found = comparer.found;
        found.sort_by_key(|(finding, _)| finding.level);
        let mut drawings = [a.clone(), b.clone()];
        for (side, drawing) in drawings.iter_mut().enumerate() {
            drawing.overlay = None;
            note(drawing, side, &found);
        }
        Self {
            drawings,
            parts: comparer.parts,
            findings: found.into_iter().map(|(finding, _)| finding).collect(),
        }
    }

    /// What the two are called; equal names get a letter.
    pub fn names(&self) -> [String; 2] {
        let [a, b] = self.drawings.each_ref().map(|drawing| drawing.name.clone());
        match a == b {
            true => [format!("{a} (A)"), format!("{b} (B)")],
            false => [a, b],
        }
    }

    /// The differences of a level in sentences, with their numbers.
    pub fn sentences(&self, level: Level) -> Vec<(usize, String)> {
        let names = self.names();
        let [a, b] = names.each_ref().map(String::as_str);
        let numbered = (1..).zip(&self.findings).filter(|(_, f)| f.level == level);
        numbered.map(|(n, f)| (n, f.sentence([a, b]))).collect()
    }

    /// What differs, by levels: a title, and lines with the numbers of differences. A line without a number
    /// says that nothing differs in what is computed.
    pub fn sections(&self) -> Vec<Section> {
        let levels = [
            (Level::Computation, "What is computed"),
            (Level::Sizes, "Sizes"),
        ];
        let sections = levels.map(|(level, title)| {
            let is_same = level == Level::Computation && self.is_same();
            let same = is_same.then(|| (None, "Both compute the same.".to_owned()));
            let lines = self
                .sentences(level)
                .into_iter()
                .map(|(n, text)| (Some(n), text));
            (title, same.into_iter().chain(lines).collect::<Vec<_>>())
        });
        let sections = sections.into_iter();
        sections.filter(|(_, lines)| !lines.is_empty()).collect()
    }

    /// Whether both compute the same, but for sizes.
    pub fn is_same(&self) -> bool {
        !self.findings.iter().any(|f| f.level == Level::Computation)
    }
}

/// Marks what differs in a drawing.
fn note(drawing: &mut Drawing, side: usize, found: &[(Finding, Vec<[Option<Home>; 2]>)]) {
    let mut marks: HashMap<Home, (Vec<String>, bool)> = HashMap::new();
    for (n, (_, spots)) in (1..).zip(found) {
        for pair in spots {
            if let Some(spot) = pair[side] {
                let mark = marks.entry(spot).or_default();
                mark.0.push(n.to_string());
                mark.1 |= pair[1 - side].is_none();
            }
        }
    }
    annotate(drawing, |home, _| {
        let Some((numbers, is_alone)) = marks.get(&home) else {
            return Note::default();
        };
        let (what, class) = match (is_alone, side) {
            (false, _) => ("differs", "hot ne"),
            (true, 0) => ("only here", "hot oa"),
            (true, _) => ("only here", "hot ob"),
        };
        Note {
            text: format!("{what}: {}", numbers.join(", ")),
            class,
            ..Note::default()
        }
    });
}

/// The comparison as Markdown, with texts of files escaped.
pub fn summary(comparison: &Comparison) -> String {
    let text = |text: &str| escaped(text).replace('|', "\\|");
    let [a, b] = comparison.names().map(|name| text(&name));
    let mut out = format!("# {a} and {b}\n\n| | {a} | {b} |\n|---|---|---|\n");
    let [of_a, of_b] = comparison.drawings.each_ref();
    let mut row = |name: &str, values: [&str; 2]| {
        let [name, a, b] = [name, values[0], values[1]].map(text);
        let _ = writeln!(out, "| {name} | {a} | {b} |");
    };
    row("architecture", [&of_a.arch, &of_b.arch]);
    for (name, value) in &of_a.facts {
        let other = of_b.facts.iter().find(|(other, _)| other == name);
        row(name, [value, other.map_or("", |(_, value)| value)]);
    }
    for (title, lines) in comparison.sections() {
        let _ = write!(out, "\n## {title}\n\n");
        for (n, line) in lines {
            let n = n.map(|n| format!("{n}. ")).unwrap_or_default();
            let _ = writeln!(out, "{n}{}", escaped(&line));
        }
    }
    out
}
