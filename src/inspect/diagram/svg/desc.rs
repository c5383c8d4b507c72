//! What a picture shows, in two sentences or three, for those who do not see it. What is said here is
//! read aloud, so that it names what there is and not how it is drawn.

use crate::common::wording::{bytes, capital, count};
use crate::inspect::diagram::compare::{Comparison, Level};
use crate::inspect::diagram::{Drawing, Kind};

/// Kinds of layers that are named, at most.
const KINDS: usize = 8;
/// Who drew it.
const DRAWN: &str = "Drawn by bench from the plan that runs.";

/// `what` a picture of a drawing shows.
pub(super) fn drawing(drawing: &Drawing, what: &str) -> String {
    let model = match drawing.name == drawing.arch {
        true => drawing.name.clone(),
        false => format!("{} (architecture {})", drawing.name, drawing.arch),
    };
    let mode = crate::inspect::describe::mode(drawing.mode);
    let labels = drawing.kinds.iter().map(|kind| kind.label.clone());
    let mut named: Vec<String> = labels.take(KINDS).collect();
    let more = drawing.kinds.len() - named.len();
    named.extend((more > 0).then(|| format!("{more} more")));
    let mut out = format!("{model}: {mode}. {}: {}.", capital(what), named.join("; "));
    if let Some(cost) = drawing.cost.filter(|_| !drawing.is_symbolic) {
        let (weights, bytes) = (count(cost.params), bytes(cost.bytes));
        let n = drawing.layers.len();
        let s = if n == 1 { "" } else { "s" };
        out += &format!(" {n} layer{s} and {weights} weights in {bytes}.");
    }
    if let Some(legend) = &drawing.overlay {
        out += &format!(" Colours tell of {}.", legend.title);
    }
    format!("{out} {DRAWN}")
}

/// One kind of layers, whichever model has it.
pub(super) fn kind(kind: &Kind) -> String {
    let label = &kind.label;
    format!("One kind of layers, down to operations and weights: {label}. {DRAWN}")
}

/// Two drawings side by side.
pub(super) fn comparison(comparison: &Comparison) -> String {
    let [a, b] = comparison.names();
    let of = |level: Level| comparison.sentences(level).len();
    let found = match [Level::Computation, Level::Sizes].map(of) {
        [0, 0] => "They are the same".to_owned(),
        [0, sizes] => format!("Both compute the same, {sizes} sizes differ"),
        [n, sizes] => format!("{n} differences in what is computed, {sizes} in sizes"),
    };
    format!(
        "{a} and {b} side by side: two stacks with the differing parts marked, and a list of the differences. \
         {found}. Drawn by bench from the plans that run."
    )
}
