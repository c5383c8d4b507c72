//! What a picture shows, in two sentences or three, for those who do not see it. What is said here is
//! read aloud, so that it names what there is and not how it is drawn.

use crate::common::wording::{bytes, capital, count};
use crate::inspect::diagram::compare::{Comparison, Level};
use crate::inspect::diagram::kinds::Times;
use crate::inspect::diagram::{Drawing, Kind, Run};

/// Pieces of a pattern that are named, at most.
const RUNS: usize = 8;
/// Who drew it.
const DRAWN: &str = "Drawn by bench from the plan that runs.";

/// `what` a picture of a drawing shows.
pub(super) fn drawing(drawing: &Drawing, what: &str) -> String {
    let model = match drawing.name == drawing.arch {
        true => drawing.name.clone(),
        false => format!("{} (architecture {})", drawing.name, drawing.arch),
    };
    let mode = crate::inspect::describe::mode(drawing.mode);
    let mut times = Times::new(drawing.is_symbolic);
    let pattern = pattern(drawing, &drawing.pattern, &mut times, false);
    let mut out = format!("{model}: {mode}. {}: {pattern}.", capital(what));
    if let Some(cost) = drawing.cost.filter(|_| !drawing.is_symbolic) {
        let (weights, bytes) = (count(cost.params), bytes(cost.bytes));
        let layers = counted(drawing.layers.len(), "layer");
        out += &format!(" {layers} and {weights} weights in {bytes}.");
    }
    if let Some(legend) = &drawing.overlay {
        out += &format!(" Colours tell of {}.", legend.title);
    }
    format!("{out} {DRAWN}")
}

/// One kind of layers, whichever model has it.
pub(super) fn kind(kind: &Kind) -> String {
    let blocks = kind.slots.iter().map(|slot| slot.branches.len()).sum();
    let blocks = counted(blocks, "block");
    format!(
        "One kind of layers, {}: {blocks}, down to operations and weights. {DRAWN}",
        kind.label
    )
}

/// Two drawings side by side.
pub(super) fn comparison(comparison: &Comparison) -> String {
    let [a, b] = comparison.names();
    let of = |level: Level| comparison.sentences(level).len();
    let found = match [Level::Computation, Level::Sizes, Level::Names].map(of) {
        [0, 0, 0] => "They are the same".to_owned(),
        [0, sizes, _] => format!("Both compute the same, {sizes} sizes differ"),
        [n, sizes, _] => format!("{n} differences in what is computed, {sizes} in sizes"),
    };
    format!(
        "{a} and {b} side by side: two stacks with the differing parts marked, and a list of the differences. \
         {found}. Drawn by bench from the plans that run."
    )
}

/// The order of layers in words.
fn pattern(drawing: &Drawing, all: &[Run], times: &mut Times, is_inner: bool) -> String {
    let mut one = |run: &Run| match run {
        Run::Layers { kind, count } => {
            let label = drawing.kinds.get(*kind).map_or("", |kind| &kind.label);
            let often = times.next(*count, is_inner);
            format!("{often} {label}").trim_start().to_owned()
        }
        Run::Repeat { count, of } => {
            let often = times.next(*count, is_inner);
            format!("{often} ({})", pattern(drawing, of, times, true))
        }
    };
    let mut texts: Vec<String> = all.iter().take(RUNS).map(&mut one).collect();
    if all.len() > RUNS {
        texts.push(format!("{} more", all.len() - RUNS));
    }
    texts.join(", then ")
}

fn counted(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        _ => format!("{n} {what}s"),
    }
}
