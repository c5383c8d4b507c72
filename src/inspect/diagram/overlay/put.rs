//! Puts numbers on a drawing.

use super::super::{Drawing, Sample};
use super::place::{self, Finder};
use super::{Overlay, Place, Problem, notes, read};

impl Overlay {
    /// Writes every number, and the legend of the colours, to the drawing of `sample`. `model` is the name of the drawn
    /// model; the drawing may have another name. If the numbers belong to another model, a message says so; it is
    /// returned and also in the legend.
    ///
    /// # Errors
    /// The drawing has no sizes, or no number belongs to it.
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

    /// A message if the file names another model.
    fn other(&self, model: &str) -> Option<String> {
        let is_other = |of: &&str| !of.is_empty() && !model.is_empty() && *of != model;
        let of = self.of.as_deref().filter(is_other)?;
        let [of, model] = [of, model].map(read::short);
        Some(format!(
            "measured on {of} and drawn on {model}: the numbers may be another model's"
        ))
    }

    /// The box of each number, in the order of the file; `None` for a number that is in no box.
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
