//! The column beside the stack: every layer as a cell, names of kinds, sums over all weights.

use std::collections::{BTreeMap, BTreeSet};

use super::overlay;
use super::scene::{Item, Piece, Rect};
use super::text::Style;
use crate::inspect::diagram::Drawing;

/// Width of the column.
pub(super) const NOTES: f64 = 330.0;

/// The column beside the stack.
pub(super) fn notes(drawing: &Drawing) -> Piece {
    let mut piece = Piece::new(NOTES, 0.0);
    let mut y: f64 = 0.0;
    if let Some(legend) = &drawing.overlay {
        let legend = overlay::legend(legend, NOTES);
        let h = legend.h;
        piece.put(legend, 0.0, y);
        y += h + 14.0;
    }
    if !drawing.layers.is_empty() {
        let strip = strip(drawing);
        let h = strip.h;
        piece.put(strip, 0.0, y);
        y += h + 18.0;
    }
    let mut lines: Vec<(String, Style)> = Vec::new();
    for kind in &drawing.kinds {
        lines.push((format!("{}: {}", kind.letter, kind.label), Style::Name));
        lines.extend(
            kind.when
                .iter()
                .map(|when| (format!("where {when}"), Style::Small)),
        );
    }
    let kept = drawing.kept.amounts();
    if !kept.is_empty() {
        lines.push(("Memory between passes".into(), Style::Title));
        lines.extend(kept.into_iter().map(|text| (text, Style::Line)));
        if drawing.kept.per_token.or(drawing.kept.in_window).is_some() {
            lines.push(("KV cache of 16 bits".into(), Style::Small));
        }
    }
    if drawing.cost.is_some() {
        lines.push(("Where the bytes are".into(), Style::Title));
        for (name, share) in shares(drawing) {
            lines.push((format!("{name}: {:.1} %", share * 100.0), Style::Line));
        }
    }
    for (title, texts) in [
        ("Other models of this architecture have", &drawing.absent),
        ("Used where a file has them", &drawing.optional),
    ] {
        if !texts.is_empty() {
            lines.push((title.into(), Style::Title));
            lines.extend(texts.iter().map(|text| (text.clone(), Style::Small)));
        }
    }
    for (text, style) in lines {
        if style == Style::Title {
            y += 10.0;
        }
        y = piece.rows((0.0, y), &text, style, NOTES);
    }
    piece.h = y;
    piece
}

/// Shares of the bytes by what they are for, largest first.
fn shares(drawing: &Drawing) -> Vec<(&str, f64)> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for part in drawing.parts() {
        // What several parts share counts for the first.
        let own = part.weights.iter().filter(|w| seen.insert(w.tensors[0]));
        let own = own.filter_map(|w| w.cost.as_ref()).map(|cost| cost.share);
        *sums.entry(&part.purpose).or_default() += own.sum::<f64>();
    }
    let mut sums: Vec<(&str, f64)> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums.retain(|(_, share)| *share >= 0.0005);
    sums
}

/// Every layer as a cell with the letter of its kind.
fn strip(drawing: &Drawing) -> Piece {
    const CELL: f64 = 22.0;
    /// Width of a cell with a number.
    const NOTED: f64 = 82.0;
    let mut piece = Piece::new(NOTES, 0.0);
    let mut y = Style::Title.leading();
    piece.start(0.0, y - 5.0, Style::Title, "Layers, in order");
    y += 4.0;
    if drawing.is_symbolic {
        let text = "how many there are, and of which kind, is for the model file to say; this is an example";
        y = piece.rows((0.0, y), text, Style::Small, NOTES);
        y += 4.0;
    }
    let cell = if drawing.overlay.is_some() {
        NOTED
    } else {
        CELL
    };
    let columns = (NOTES / cell) as usize;
    for (at, kind) in drawing.layers.iter().enumerate() {
        let (x, y) = (
            (at % columns) as f64 * cell,
            y + (at / columns) as f64 * CELL,
        );
        let cell = Rect::new(x, y, cell - 3.0, CELL - 3.0);
        let letter = &drawing.kinds[*kind].letter;
        let note = drawing
            .overlay
            .as_ref()
            .and_then(|legend| legend.layers.get(at));
        if let Some(note) = note {
            piece.put(overlay::cell(cell, letter, note), 0.0, 0.0);
            continue;
        }
        let class = ["k0", "k1", "k2", "k3"][kind % 4];
        piece.push(Item::Box(cell, 3.0, class));
        piece.middle(x + (CELL - 3.0) / 2.0, y + 13.5, Style::Small, letter);
    }
    piece.h = y + drawing.layers.len().div_ceil(columns) as f64 * CELL;
    piece
}
