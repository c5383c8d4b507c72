//! The order of the kinds of layers, as text.

use crate::diagram::Run;
use crate::diagram::kinds::Times;

use super::{Comparison, Side};

/// The kinds of a side's layers by their numbers; `counts` says how often, as far as there is a file.
pub(super) fn pattern(comparison: &Comparison<'_>, side: Side, counts: bool) -> String {
    let drawing = comparison.drawing(side);
    let mut times = Times::new(!counts || drawing.is_symbolic);
    runs(comparison, side, &drawing.pattern, &mut times, false)
}

fn runs(
    comparison: &Comparison<'_>,
    side: Side,
    all: &[Run],
    times: &mut Times,
    is_inner: bool,
) -> String {
    let mut one = |run: &Run| match run {
        Run::Layers { kind, count } => {
            let often = times.next(*count, is_inner);
            let kind = comparison.number(side, *kind);
            format!("{often} kind {kind}").trim_start().to_owned()
        }
        Run::Repeat { count, of } => {
            let often = times.next(*count, is_inner);
            let inner = runs(comparison, side, of, times, true);
            format!("{often} [{inner}]").trim_start().to_owned()
        }
    };
    let texts: Vec<String> = all.iter().map(&mut one).collect();
    texts.join(", ")
}
