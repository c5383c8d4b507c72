//! Formats the numbers of boxes as words and colours.

use std::collections::BTreeSet;

use super::super::legend::{COLD, HOT, Legend, Note};
use super::place::{Home, Sum, Sums, annotate, holders};
use super::read::short;
use super::scale::Scale;
use super::{Overlay, Rule};
use crate::common::wording::{capital, percent};
use crate::files::models::few;
use crate::inspect::diagram::Drawing;

/// Writes the combined numbers of each box and the legend, which begins with `lines`.
pub(super) fn write(overlay: &Overlay, sums: &Sums, lines: Vec<String>, drawing: &mut Drawing) {
    let writer = Writer::new(overlay, sums);
    let first = overlay.first.as_ref().map(|first| short(&first.path));
    let marked = sums.first.map(|place| holders(drawing, place));
    let marked = marked.unwrap_or_default();
    let note = |home: Home, n_layers: usize| Note {
        first: first.clone().filter(|_| marked.contains(&home)),
        ..writer.note(sums.boxes.get(&home), n_layers > 1)
    };
    annotate(drawing, note);
    let layers = (0..drawing.layers.len()).map(|at| note(Home::Layer(at), 1));
    drawing.overlay = Some(Legend {
        layers: layers.collect(),
        ..writer.legend(overlay, sums, lines)
    });
}

/// The formatter of numbers.
struct Writer {
    rule: Rule,
    scale: Scale,
    /// The numbers of the boxes, in the unit.
    values: Vec<f64>,
    /// The unit, by which numbers are divided.
    unit: f64,
    unit_name: &'static str,
    /// The sum of all numbers of the file, in boxes or outside.
    total: f64,
}

impl Writer {
    fn new(overlay: &Overlay, sums: &Sums) -> Self {
        let values = sums.boxes.values().map(|sum| sum.value);
        let (unit, unit_name) = match values.clone().fold(0.0, f64::max) {
            _ if overlay.rule == Rule::Largest => (1.0, ""),
            s if s >= 1.0 => (1.0, "s"),
            s if s >= 1e-3 => (1e-3, "ms"),
            _ => (1e-6, "\u{b5}s"),
        };
        let mut values: Vec<f64> = values.map(|value| value / unit).collect();
        values.sort_by(f64::total_cmp);
        Self {
            rule: overlay.rule,
            scale: Scale::new(&values),
            values,
            unit,
            unit_name,
            total: overlay.numbers.iter().map(|number| number.value).sum(),
        }
    }

    /// A number with its unit; times have their share, other numbers their layer if there are several.
    fn note(&self, sum: Option<&Sum>, has_layers: bool) -> Note {
        let Some(Sum { value, layer }) = sum.copied() else {
            return Note {
                class: COLD,
                ..Note::default()
            };
        };
        let short = self.short(value);
        let level = self.scale.level(value / self.unit);
        Note {
            text: match (self.rule, layer.filter(|_| has_layers)) {
                (Rule::Time, _) => self.time(value),
                (Rule::Largest, Some(layer)) => format!("{short} in layer {layer}"),
                (Rule::Largest, None) => short.clone(),
            },
            short,
            level: Some(level),
            class: HOT[level],
            first: None,
        }
    }

    /// A number without its unit. A time that is very small compared with the others is an upper bound.
    fn short(&self, value: f64) -> String {
        const LEAST: f64 = 0.001;
        match value / self.unit {
            v if self.rule == Rule::Time && v > 0.0 && v < LEAST => format!("< {LEAST}"),
            v => self.scale.show(v),
        }
    }

    fn time(&self, seconds: f64) -> String {
        let share = percent(seconds / self.total.max(f64::MIN_POSITIVE));
        format!("{} {} \u{b7} {share}", self.short(seconds), self.unit_name)
    }

    fn legend(&self, overlay: &Overlay, sums: &Sums, mut lines: Vec<String>) -> Legend {
        let show = |value: f64| self.scale.show(value);
        lines.push(match self.rule {
            Rule::Time => format!(
                "{} {} in all; a box has the time of all its layers together",
                show(self.total / self.unit),
                self.unit_name
            ),
            Rule::Largest => "a box has the largest number of its values and layers".into(),
        });
        lines.extend(self.outside(sums));
        let first = overlay.first.as_ref().map(|first| {
            let above = first.tolerance.map(show);
            let above = above.map(|above| format!(" by more than {above}"));
            let place = sums.first.map_or(", in no box", |_| "");
            let (above, path) = (above.unwrap_or_default(), short(&first.path));
            format!("first value that differs{above}: {path}{place}")
        });
        let quantity = capital(&overlay.quantity);
        Legend {
            title: match self.unit_name {
                "" => quantity,
                unit => format!("{quantity}, in {unit}"),
            },
            shades: self.scale.shades(&self.values),
            lines,
            first,
            layers: Vec::new(),
        }
    }

    /// The numbers that are in no box, in words.
    fn outside(&self, sums: &Sums) -> Option<String> {
        let n = sums.outside.len();
        let mut known = BTreeSet::new();
        let paths = sums.outside.iter().map(|(path, _)| match path.as_str() {
            "" => "rows chosen for the result".to_owned(),
            path => short(path),
        });
        let paths = paths.filter(|path| known.insert(path.clone()));
        let named = few(&paths.collect::<Vec<_>>());
        let time: f64 = sums.outside.iter().map(|(_, value)| value).sum();
        match (n, self.rule) {
            (0, _) => None,
            (_, Rule::Time) => Some(format!("in no box: {} ({named})", self.time(time))),
            (1, _) => Some(format!("1 number is in no box: {named}")),
            (n, _) => Some(format!("{n} numbers are in no box: {named}")),
        }
    }
}
