//! What a picture shows, in two sentences or three, for those who do not see it. What is said here is
//! read aloud, so that it names what there is and not how it is drawn.

use crate::common::wording::{self, bytes, capital, count};
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
    let mut kinds = drawing.kinds.iter().map(|kind| match drawing.is_symbolic {
        true if kind.when.is_empty() => kind.label.clone(),
        true => format!("{} where {}", kind.label, kind.when.join(" and ")),
        false => {
            let layers = wording::layers(&kind.layers, drawing.layers.len());
            format!("{layers}: {}", kind.label)
        }
    });
    let mut named: Vec<String> = kinds.by_ref().take(KINDS).collect();
    let more = kinds.count();
    named.extend((more > 0).then(|| format!("{more} more")));
    let (what, named) = (capital(what), named.join("; "));
    let mut out = format!("{model}: {mode}. {what}: {named}.");
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

fn counted(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        _ => format!("{n} {what}s"),
    }
}
