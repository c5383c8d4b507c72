//! Numbers of boxes as words and colours.

use super::place::{Home, Sum, Sums};
use super::read::short;
use super::scale::Scale;
use super::{Legend, Note, Overlay, Rule};
use crate::common::wording::{capital, percent};
use crate::inspect::diagram::Drawing;

/// Paths that are told of what is in no box.
const TOLD: usize = 4;

/// Notes what the numbers of each box come to, and the legend, which begins with `lines`.
pub(super) fn write(overlay: &Overlay, sums: &Sums, lines: Vec<String>, drawing: &mut Drawing) {
    let writer = Writer::new(overlay, sums);
    let first = overlay.first.as_ref().map(|first| short(&first.path));
    let home = sums.first.map(|(home, _)| home);
    let first_layer = sums.first.and_then(|(_, layer)| layer);
    let mark = |note: Note, is_here: bool| Note {
        first: first.clone().filter(|_| is_here),
        ..note
    };
    let kind_of_first = first_layer.map(|layer| drawing.layers[layer]);
    for (at, part) in drawing.parts_mut().enumerate() {
        let has_layers = part.paths.len() > 1;
        for (nth, op) in part.ops.iter_mut().enumerate() {
            let note = writer.note(&sums.ops[at][nth], has_layers);
            op.note = Some(mark(note, home == Some(Home::Op(at, nth))));
        }
        let note = writer.note(&sums.parts[at], has_layers);
        let is_here = matches!(home, Some(Home::Op(part, _) | Home::Part(part)) if part == at);
        part.note = Some(mark(note, is_here));
    }
    for (at, kind) in drawing.kinds.iter_mut().enumerate() {
        let has_layers = kind.layers.len() > 1;
        for (nth, slot) in kind.slots.iter_mut().enumerate() {
            let note = writer.note(&sums.slots[at][nth], has_layers);
            slot.note = Some(mark(note, home == Some(Home::Slot(at, nth))));
        }
        let note = writer.note(&sums.kinds[at], has_layers);
        kind.note = Some(mark(note, kind_of_first == Some(at)));
    }
    let layers = sums.layers.iter().enumerate();
    let layers = layers.map(|(at, sum)| mark(writer.note(sum, false), first_layer == Some(at)));
    let layers = layers.collect();
    drawing.overlay = Some(writer.legend(overlay, sums, lines, layers));
}

/// What numbers are written with.
struct Writer {
    rule: Rule,
    scale: Scale,
    /// In the unit.
    values: Vec<f64>,
    /// Numbers are divided by this.
    unit: f64,
    unit_name: &'static str,
    /// All numbers of the file, in or outside boxes.
    total: f64,
}

impl Writer {
    fn new(overlay: &Overlay, sums: &Sums) -> Self {
        let ops = sums.ops.iter().flatten();
        let slots = sums.slots.iter().flatten();
        let boxes = sums.parts.iter().chain(ops).chain(slots);
        let boxes = boxes.chain(&sums.kinds).chain(&sums.layers);
        let values: Vec<f64> = boxes.filter_map(|sum| sum.value).collect();
        let is_time = overlay.rule == Rule::Time;
        let most = values.iter().copied().fold(0.0, f64::max);
        let (unit, unit_name) = match most {
            _ if !is_time => (1.0, ""),
            s if s >= 1.0 => (1.0, "s"),
            s if s >= 1e-3 => (1e-3, "ms"),
            _ => (1e-6, "\u{b5}s"),
        };
        let values: Vec<f64> = values.iter().map(|value| value / unit).collect();
        Self {
            rule: overlay.rule,
            scale: Scale::new(&values),
            values,
            unit,
            unit_name,
            total: overlay.numbers.iter().map(|number| number.value).sum(),
        }
    }

    /// A number with its unit, and a share or a layer where there are several.
    fn note(&self, sum: &Sum, has_layers: bool) -> Note {
        let Some(value) = sum.value else {
            return Note::default();
        };
        let short = self.short(value);
        let text = match (self.rule, sum.layer.filter(|_| has_layers)) {
            (Rule::Time, _) => self.time(value),
            (Rule::Largest, Some(layer)) => format!("{short} in layer {layer}"),
            (Rule::Largest, None) => short.clone(),
        };
        Note {
            text,
            short,
            level: Some(self.scale.level(value / self.unit)),
            ..Note::default()
        }
    }

    /// A number alone; times that are nothing beside the others are not told exactly.
    fn short(&self, value: f64) -> String {
        const LEAST: f64 = 0.001;
        match value / self.unit {
            v if self.rule == Rule::Time && v > 0.0 && v < LEAST => format!("< {LEAST}"),
            v => self.scale.show(v),
        }
    }

    fn time(&self, seconds: f64) -> String {
        let share = seconds / self.total.max(f64::MIN_POSITIVE);
        format!(
            "{} {} \u{b7} {}",
            self.short(seconds),
            self.unit_name,
            percent(share)
        )
    }

    fn legend(
        &self,
        overlay: &Overlay,
        sums: &Sums,
        mut lines: Vec<String>,
        layers: Vec<Note>,
    ) -> Legend {
        let show = |value: f64| self.scale.show(value);
        let quantity = capital(&overlay.quantity);
        lines.push(match self.rule {
            Rule::Time => format!(
                "{} {} in all; a box has the time of all its layers together",
                show(self.total / self.unit),
                self.unit_name
            ),
            Rule::Largest => "a box has the largest number of its values and layers".into(),
        });
        if sums.n_otherwise > 0 {
            lines.push(format!(
                "uses that ran other operations than are drawn: {}; their time is the block's alone",
                sums.n_otherwise
            ));
        }
        lines.extend(self.outside(sums));
        let first = overlay.first.as_ref().map(|first| {
            let above = first
                .tolerance
                .map(|t| format!(" by more than {}", show(t)));
            let place = if sums.first.is_some() {
                ""
            } else {
                ", in no box"
            };
            format!(
                "first value that differs{}: {}{place}",
                above.unwrap_or_default(),
                short(&first.path)
            )
        });
        let unit = match self.unit_name {
            "" => String::new(),
            unit => format!(", in {unit}"),
        };
        Legend {
            title: format!("{quantity}{unit}"),
            shades: self.scale.shades(&self.values),
            lines,
            first,
            layers,
        }
    }

    /// What is in no box.
    fn outside(&self, sums: &Sums) -> Option<String> {
        let n = sums.outside.len();
        if n == 0 {
            return None;
        }
        let mut names: Vec<&str> = Vec::new();
        for (path, _) in &sums.outside {
            let name = if path.is_empty() {
                "rows chosen for the result"
            } else {
                path
            };
            if !names.contains(&name) {
                names.push(name);
            }
            if names.len() > TOLD {
                break;
            }
        }
        let more = if names.len() > TOLD { ", \u{2026}" } else { "" };
        let told = names.iter().take(TOLD).map(|name| short(name));
        let named = told.collect::<Vec<_>>().join(", ");
        let time: f64 = sums.outside.iter().map(|(_, value)| value).sum();
        Some(match self.rule {
            Rule::Time => format!("in no box: {} ({named}{more})", self.time(time)),
            Rule::Largest if n == 1 => format!("1 number is in no box: {named}"),
            Rule::Largest => format!("{n} numbers are in no box: {named}{more}"),
        })
    }
}
