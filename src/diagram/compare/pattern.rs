//! The order of the kinds of layers, as text.

use crate::diagram::Run;

use super::{Comparison, Side};

/// The kinds of a side's layers by their numbers; `counts` says how often, as far as there is a file.
pub(super) fn pattern(comparison: &Comparison<'_>, side: Side, counts: bool) -> String {
    let drawing = comparison.drawing(side);
    let has_counts = counts && !drawing.is_symbolic;
    runs(comparison, side, &drawing.pattern, has_counts, false)
}

fn runs(
    comparison: &Comparison<'_>,
    side: Side,
    all: &[Run],
    counts: bool,
    is_inner: bool,
) -> String {
    let times = |count: usize| match (counts, is_inner && count == 1) {
        (_, true) => String::new(),
        (true, _) => format!("{count} \u{d7} "),
        (false, _) => "n \u{d7} ".into(),
    };
    let one = |run: &Run| match run {
        Run::Layers { kind, count } => {
            format!("{}kind {}", times(*count), comparison.number(side, *kind))
        }
        Run::Repeat { count, of } => {
            format!(
                "{}[{}]",
                times(*count),
                runs(comparison, side, of, counts, true)
            )
        }
    };
    let texts: Vec<String> = all.iter().map(one).collect();
    texts.join(", ")
}
