//! The comparison of two drawings: their matching parts and their differences.

use std::collections::HashMap;

use super::super::Drawing;
use super::super::legend::Note;
use super::super::overlay::{Home, annotate};
use super::walk::Comparer;
use super::{Finding, Level};

/// The comparison of two drawings: their matching parts and their differences.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Both drawings. Each part and slot that differs has a note with the numbers of its findings.
    pub drawings: [Drawing; 2],
    /// Pairs of matching parts, as indices in [`Drawing::parts`]; `None` if a side lacks the part.
    pub parts: Vec<[Option<usize>; 2]>,
    /// All differences, those in the computation first.
    pub findings: Vec<Finding>,
}

/// A title and its lines, each with the number of the difference that it describes, if any.
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

    /// The names of the two drawings; equal names get a letter.
    pub fn names(&self) -> [String; 2] {
        let [a, b] = self.drawings.each_ref().map(|drawing| drawing.name.clone());
        match a == b {
            true => [format!("{a} (A)"), format!("{b} (B)")],
            false => [a, b],
        }
    }

    /// The differences of a level as sentences, with their numbers.
    pub fn sentences(&self, level: Level) -> Vec<(usize, String)> {
        let names = self.names();
        let [a, b] = names.each_ref().map(String::as_str);
        let numbered = (1..).zip(&self.findings).filter(|(_, f)| f.level == level);
        numbered.map(|(n, f)| (n, f.sentence([a, b]))).collect()
    }

    /// The differences by level: a title, and lines with the numbers of differences. A line without a number says that
    /// the computations are the same.
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

    /// Whether both compute the same except for sizes.
    pub fn is_same(&self) -> bool {
        !self.findings.iter().any(|f| f.level == Level::Computation)
    }
}

/// Marks the differences in a drawing.
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
