//! Puts numbers on a drawing, as words and colours.

use std::collections::BTreeSet;

use super::super::boxes::{BoxNote, COLD, HOT, Legend};
use super::super::{Drawing, TracedPlan};
use super::box_index::{BoxIndex, BoxValue, BoxValues, annotate, enclosing_boxes, sums};
use super::read::short;
use super::scale::{SPAN, SPAN_OF_TIMES, Scale};
use super::{Aggregation, BoxId, BoxInLayer, Overlay, OverlayError};
use lab_base::util::wording::{capital, percent};
use lab_core::models::abbreviated;

impl Overlay {
    /// Writes every number, and the legend of the colours, to the drawing of `sample`. `model` is the name of the drawn
    /// model; the drawing may have another name. If the numbers belong to another model, a message says so; it is
    /// returned and also in the legend.
    ///
    /// # Errors
    /// The drawing has no sizes, or no number belongs to it.
    pub fn apply(
        &self,
        drawing: &mut Drawing,
        sample: &TracedPlan,
        model: &str,
    ) -> Result<Option<String>, OverlayError> {
        if drawing.is_symbolic {
            let name = &drawing.name;
            return Err(OverlayError(format!(
                "numbers are shown on a model, and `{name}` is the name of a definition"
            )));
        }
        let sums = sums(self, drawing, sample);
        if sums.outside.len() == self.numbers.len() {
            return Err(self.elsewhere(drawing, sample));
        }
        let writer = NoteWriter::new(self, &sums);
        let first = self.first.as_ref().map(|first| short(&first.path));
        let marked = sums.first.map(|place| enclosing_boxes(drawing, place));
        let marked = marked.unwrap_or_default();
        let note = |box_id: BoxId, n_layers: usize| BoxNote {
            first: first.clone().filter(|_| marked.contains(&box_id)),
            ..writer.note(sums.boxes.get(&box_id), n_layers > 1)
        };
        annotate(drawing, note);
        let layers = (0..drawing.layers.len()).map(|at| note(BoxId::Layer(at), 1));
        let other = self.other(model);
        let measured = |of: &String| format!("measured on {}", short(of));
        drawing.overlay = Some(Legend {
            layers: layers.collect(),
            ..writer.legend(other.clone().or_else(|| self.of.as_ref().map(measured)))
        });
        Ok(other)
    }

    /// A message if the file names another model.
    fn other(&self, model: &str) -> Option<String> {
        let is_other = |of: &&str| !of.is_empty() && !model.is_empty() && *of != model;
        let of = self.of.as_deref().filter(is_other)?;
        let [of, model] = [of, model].map(short);
        Some(format!(
            "measured on {of} and drawn on {model}: the numbers may be another model's"
        ))
    }

    /// The box of each number, in the order of the file; `None` for a number that is in no box.
    pub fn places(&self, drawing: &Drawing, sample: &TracedPlan) -> Vec<Option<BoxInLayer>> {
        let finder = BoxIndex::new(drawing, sample);
        let places = self.numbers.iter().map(|number| finder.find(number));
        places.collect()
    }

    fn elsewhere(&self, drawing: &Drawing, sample: &TracedPlan) -> OverlayError {
        let (model, n) = (&drawing.name, sample.plan().layers.len());
        let known = drawing.parts().find_map(|part| part.paths.last());
        let known = known.map_or("", String::as_str);
        let found = short(self.numbers.first().map_or("", |n| &n.path));
        OverlayError(format!(
            "nothing of it belongs to `{model}`, which has {n} layers: expected paths such as \
             `{known}`, found `{found}`"
        ))
    }
}

/// The unit of a time in seconds, and its name.
fn unit_of(seconds: f64) -> (f64, &'static str) {
    match seconds {
        s if s >= 1.0 => (1.0, "s"),
        s if s >= 1e-3 => (1e-3, "ms"),
        _ => (1e-6, "\u{b5}s"),
    }
}

struct NoteWriter<'a> {
    overlay: &'a Overlay,
    sums: &'a BoxValues,
    scale: Scale,
    /// The numbers of the boxes, in the unit.
    values: Vec<f64>,
    unit: f64,
    unit_name: &'static str,
    /// The sum of all numbers of the file, in boxes or outside.
    total: f64,
}

impl<'a> NoteWriter<'a> {
    fn new(overlay: &'a Overlay, sums: &'a BoxValues) -> Self {
        let values = sums.boxes.values().map(|sum| sum.value);
        let ((unit, unit_name), span) = match overlay.rule {
            Aggregation::Largest => ((1.0, ""), SPAN),
            Aggregation::Time => (unit_of(values.clone().fold(0.0, f64::max)), SPAN_OF_TIMES),
        };
        let mut values: Vec<f64> = values.map(|value| value / unit).collect();
        values.sort_by(f64::total_cmp);
        Self {
            overlay,
            sums,
            scale: Scale::new(&values, span),
            values,
            unit,
            unit_name,
            total: overlay.numbers.iter().map(|number| number.value).sum(),
        }
    }

    /// A number with its unit; times have their share, other numbers their layer if there are several.
    fn note(&self, sum: Option<&BoxValue>, has_layers: bool) -> BoxNote {
        let Some(&BoxValue { value, layer }) = sum else {
            return BoxNote {
                class: COLD,
                ..BoxNote::default()
            };
        };
        let short = self.short(value);
        let level = self.scale.level(value / self.unit);
        BoxNote {
            text: match (self.overlay.rule, layer.filter(|_| has_layers)) {
                (Aggregation::Time, _) => self.time(value),
                (Aggregation::Largest, Some(layer)) => format!("{short} in layer {layer}"),
                (Aggregation::Largest, None) => short.clone(),
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
            v if self.overlay.rule == Aggregation::Time && v > 0.0 && v < LEAST => {
                format!("< {LEAST}")
            }
            v => self.scale.show(v),
        }
    }

    fn time(&self, seconds: f64) -> String {
        let share = percent(seconds / self.total.max(f64::MIN_POSITIVE));
        format!("{} {} \u{b7} {share}", self.short(seconds), self.unit_name)
    }

    /// The legend, which begins with `line`, without the notes of layers.
    fn legend(&self, line: Option<String>) -> Legend {
        let show = |value: f64| self.scale.show(value);
        let (all, unit) = (show(self.total / self.unit), self.unit_name);
        let rule = match self.overlay.rule {
            Aggregation::Time => {
                let whole = self.overlay.whole.map_or_else(String::new, |whole| {
                    let (size, unit) = unit_of(whole);
                    format!("a pass takes {} {unit}; ", show(whole / size))
                });
                format!(
                    "{whole}{all} {unit} in all by single operations; a box has the time of all its layers together"
                )
            }
            Aggregation::Largest => "a box has the largest number of its values and layers".into(),
        };
        let first = self.overlay.first.as_ref().map(|first| {
            let above = first.tolerance.map(show);
            let above = above.map(|above| format!(" by more than {above}"));
            let place = self.sums.first.map_or(", in no box", |_| "");
            let (above, path) = (above.unwrap_or_default(), short(&first.path));
            format!("first value that differs{above}: {path}{place}")
        });
        let lines = [line, Some(rule), self.outside()];
        let quantity = capital(&self.overlay.quantity);
        Legend {
            title: match unit {
                "" => quantity,
                unit => format!("{quantity}, in {unit}"),
            },
            shades: self.scale.shades(&self.values),
            lines: lines.into_iter().flatten().collect(),
            first,
            layers: Vec::new(),
        }
    }

    /// The numbers that are in no box, in words.
    fn outside(&self) -> Option<String> {
        let outside = &self.sums.outside;
        let mut known = BTreeSet::new();
        let paths = outside.iter().map(|(path, _)| match path.as_str() {
            "" => "rows chosen for the result".to_owned(),
            path => short(path),
        });
        let paths = paths.filter(|path| known.insert(path.clone()));
        let named = abbreviated(&paths.collect::<Vec<_>>());
        let time: f64 = outside.iter().map(|(_, value)| value).sum();
        match (outside.len(), self.overlay.rule) {
            (0, _) => None,
            (_, Aggregation::Time) => Some(format!("in no box: {} ({named})", self.time(time))),
            (1, _) => Some(format!("1 number is in no box: {named}")),
            (n, _) => Some(format!("{n} numbers are in no box: {named}")),
        }
    }
}
