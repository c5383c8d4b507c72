//! The comparison of two drawings: their matching parts and their differences, also as Markdown.

use std::collections::HashMap;
use std::fmt::Write;

use super::super::Drawing;
use super::super::legend::BoxNote;
use super::super::overlay::{BoxId, annotate};
use super::comparer::Comparer;
use super::difference::{DifferenceLevel, DrawingDifference};
use lab_base::util::wording::escaped;

/// The comparison of two drawings: their matching parts and their differences.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Both drawings. Each part and slot that differs has a note with the numbers of its findings.
    pub drawings: [Drawing; 2],
    /// Pairs of matching parts, as indices in [`Drawing::parts`]; `None` if a side lacks the part.
    pub parts: Vec<[Option<usize>; 2]>,
    /// All differences, those in the computation first.
    pub findings: Vec<DrawingDifference>,
}

/// A title and its lines, each with the number of the difference that it describes, if any.
pub type SummarySection = (&'static str, Vec<(Option<usize>, String)>);

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

    /// The differences by level: a title, and lines with the numbers of differences. A line without a number says that
    /// the computations are the same.
    pub fn sections(&self) -> Vec<SummarySection> {
        let names = self.names();
        let names = names.each_ref().map(String::as_str);
        let lines = |level: DifferenceLevel| {
            let numbered = (1..).zip(&self.findings).filter(|(_, f)| f.level == level);
            let lines = numbered.map(|(n, finding)| (Some(n), finding.sentence(names)));
            lines.collect::<Vec<_>>()
        };
        let [mut computation, sizes] =
            [DifferenceLevel::Computation, DifferenceLevel::Sizes].map(lines);
        if computation.is_empty() {
            computation.push((None, "Both compute the same.".to_owned()));
        }
        let mut sections = vec![("What is computed", computation), ("Sizes", sizes)];
        sections.retain(|(_, lines)| !lines.is_empty());
        sections
    }
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

fn note(
    drawing: &mut Drawing,
    side: usize,
    found: &[(DrawingDifference, Vec<[Option<BoxId>; 2]>)],
) {
    let mut marks: HashMap<BoxId, (Vec<String>, bool)> = HashMap::new();
    for (n, (_, spots)) in (1..).zip(found) {
        for pair in spots {
            if let Some(spot) = pair[side] {
                let mark = marks.entry(spot).or_default();
                mark.0.push(n.to_string());
                mark.1 |= pair[1 - side].is_none();
            }
        }
    }
    annotate(drawing, |box_id, _| {
        let Some((numbers, is_alone)) = marks.get(&box_id) else {
            return BoxNote::default();
        };
        let (what, class) = match (is_alone, side) {
            (false, _) => ("differs", "hot ne"),
            (true, 0) => ("only here", "hot oa"),
            (true, _) => ("only here", "hot ob"),
        };
        BoxNote {
            text: format!("{what}: {}", numbers.join(", ")),
            class,
            ..BoxNote::default()
        }
    });
}
