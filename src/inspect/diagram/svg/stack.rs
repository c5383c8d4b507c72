//! The whole model: its input, the stack with its pattern, its output; and all kinds of layers on one page.

use super::fragment::Fragment;
use super::layer::{self, Detail, OUT, SPINE, badge, on_streams, stream};
use super::overlay;
use super::shape::{GAP as CHAIN_GAP, Link, cell, chain, label, tip};
use super::text::{TextStyle, cut, wrap};
use super::unit_box::{card, cost_text, single};
use crate::diagram::boxes::dims;
use crate::diagram::{Drawing, LayerKind, LayerPattern, SourceRows, TowerDrawing, UnitBox};
use lab_base::util::wording::{self, capital};
use lab_core::arch::Mode;

/// Width of a card, and of one of several cards side by side.
const ROOM: f64 = 440.0;
const BRANCH: f64 = 280.0;
/// Width to the left of a repeated fragment, for the number of repetitions.
const SIDE: f64 = 74.0;
/// Maximum number of lines of a name.
const NAMES: usize = 3;
/// Width of the column beside the stack.
const NOTES: f64 = 330.0;
/// The classes of cells, by the kind of the layer.
const KINDS: [&str; 4] = ["k0", "k1", "k2", "k3"];
/// Maximum width of a row of kinds.
const MAX_ROW: f64 = 3000.0;
/// Maximum width of the legend above the kinds.
pub(in crate::diagram) const LEGEND: f64 = 1000.0;

/// The whole model: input, stack with the pattern of its layers, head, and the scenes of its execution.
/// Towers of the model follow, each like a model of its own.
pub fn stack(drawing: &Drawing) -> Fragment {
    let towers = drawing.towers.iter();
    let all = std::iter::once(drawing).chain(towers.map(|tower| &tower.drawing));
    framed(beside(all.map(whole).collect()))
}

/// Drawings beside each other.
fn beside(mut all: Vec<Fragment>) -> Fragment {
    match all.len() {
        1 => all.swap_remove(0),
        _ => Fragment::wrapped(all, (64.0, 0.0), f64::INFINITY),
    }
}

fn whole(drawing: &Drawing) -> Fragment {
    let (mut column, notes) = (column(drawing), notes(drawing));
    let x = column.w + 40.0;
    let mut page = heading(drawing, x + NOTES);
    page.skip(10.0);
    column.h = column.h.max(notes.h);
    column.put(notes, x, 0.0);
    page.add(0.0, column);
    if !drawing.scenes.is_empty() {
        page.skip(30.0);
        page.write(0.0, TextStyle::Heading, "How it is executed");
        page.skip(14.0);
        page.add(0.0, super::execution(drawing, x + NOTES));
    }
    page
}

fn room(drawing: &Drawing) -> f64 {
    let slots = drawing.kinds.iter().flat_map(|kind| &kind.slots);
    let most = slots.map(|slot| slot.branches.len()).max().unwrap_or(1);
    ROOM.max(SPINE + OUT + most as f64 * BRANCH)
}

/// The input, the layers and the output, one below the other along the hidden state.
pub(in crate::diagram) fn column(drawing: &Drawing) -> Fragment {
    let tokens = match drawing.mode {
        Mode::Causal => "tokens so far",
        Mode::Diffusion => "tokens, some masked",
        Mode::Encoder => "tokens",
        Mode::Tower => "patches or frames",
    };
    let is_aside = |part: &&UnitBox| part.kind == "per_layer_input";
    let (aside, begin): (Vec<&UnitBox>, Vec<&UnitBox>) = drawing.begin.iter().partition(is_aside);
    let mut runs = PatternDrawer {
        drawing,
        room: room(drawing),
        is_shown: vec![false; drawing.kinds.len()],
    };
    let has_source = !drawing.source.is_empty();
    let is_of_tokens = drawing.source_rows == SourceRows::Tokens;
    let n_of_source = usize::from(has_source && is_of_tokens);
    let (of_source, begin) = begin.split_at(n_of_source.min(begin.len()));
    let source = has_source.then(|| source(of_source.first().copied(), &mut runs));
    let read = match drawing.mode {
        Mode::Tower => format!("{tokens}: T rows"),
        _ => format!("{tokens}: T token ids"),
    };
    let mut rows = vec![label(&read, "in")];
    rows.extend(begin.iter().map(|part| card(part, ROOM)));
    let before_layers = rows.len();
    let above = rows.iter().map(|row| row.h + CHAIN_GAP).sum::<f64>();
    rows.push(runs.all(&drawing.pattern, false));
    rows.extend(drawing.end.iter().map(|part| match part.kind {
        "norm" => single(part),
        _ => card(part, ROOM),
    }));
    rows.push(label(&output_words(drawing), "in"));
    let w = rows.iter().map(|row| row.w).fold(0.0, f64::max);
    for part in aside {
        rows.insert(before_layers, self::aside(part, w));
    }
    let of_tokens = drawing.towers.iter();
    let of_tokens = of_tokens.filter(|_| drawing.source_rows != SourceRows::Tower);
    for tower in of_tokens.rev() {
        rows.insert(before_layers, of_tower(tower, w));
    }
    let rows = chain(rows, Link::Spine);
    match source {
        Some(source) => handed_over(source, rows, above + 30.0),
        None => rows,
    }
}

/// The part that reads the source: its tokens or rows, its layers, and the result that it passes on.
fn source(embed: Option<&UnitBox>, runs: &mut PatternDrawer<'_>) -> Fragment {
    let of_tower = runs.drawing.towers.first().map(|tower| {
        let (reads, name) = (tower.reads, &tower.drawing.arch);
        format!("the source: T rows that the tower `{name}` makes of {reads}")
    });
    let of_tower = of_tower.unwrap_or_else(|| "the source: T rows of a tower".into());
    let layers = runs.all(&runs.drawing.source, false);
    let made = match runs.drawing.source_rows {
        SourceRows::Target => "of each token a vector, which the layers read",
        _ => "of each token of it a vector: keys and values, made once",
    };
    let mut rows = match (embed, runs.drawing.source_rows) {
        (Some(embed), _) => vec![
            label("the source, all of it: T token ids", "in"),
            card(embed, ROOM),
        ],
        (None, SourceRows::Target) => vec![label(
            "hidden states of the model that is drafted for: T rows",
            "in",
        )],
        (None, _) => vec![label(&of_tower, "in")],
    };
    rows.extend([layers, label(made, "in")]);
    chain(rows, Link::Spine)
}

/// The part that reads the source, beside the part whose layers attend to it. An arrow leads from the end of the first
/// to those layers, at `into`.
fn handed_over(source: Fragment, rest: Fragment, into: f64) -> Fragment {
    const GAP: f64 = 60.0;
    const BEND: f64 = 22.0;
    let left = source.w + GAP;
    let ([_, out], end) = (source.ports(), source.h);
    let mut fragment = Fragment::new(left + rest.w, rest.h.max(end + BEND + 2.0));
    let ports = rest.ports().map(|port| left + port);
    let (x, y) = (source.w + GAP / 2.0, end + BEND);
    let path = [(out, end), (out, y), (x, y), (x, into), (left, into)];
    fragment.line(&path, "wire");
    tip(&mut fragment, (left, into), (1.0, 0.0));
    fragment.put(source, 0.0, 0.0);
    fragment.put(rest, left, 0.0);
    fragment.ports = Some(ports);
    fragment
}

/// A part beside the hidden state, which it reads and does not change.
fn aside(part: &UnitBox, w: f64) -> Fragment {
    let middle = (w / 2.0).round();
    let left = middle + 30.0;
    let card = card(part, w - left - 24.0);
    let mut fragment = Fragment::new(w, card.h);
    fragment.line(&[(middle, 0.0), (middle, card.h)], "spine");
    let y = (card.h / 2.0).round();
    fragment.line(&[(middle, y), (left, y)], "wire");
    fragment.put(card, left, 0.0);
    fragment
}

/// A tower beside the hidden state, into which its rows go.
fn of_tower(tower: &TowerDrawing, w: f64) -> Fragment {
    const PAD: f64 = 14.0;
    let middle = (w / 2.0).round();
    let left = middle + 30.0;
    let mut card = Fragment::new(w - left - 24.0 - PAD, 8.0);
    let title = format!(
        "{}: the tower `{}`",
        capital(tower.reads),
        tower.drawing.arch
    );
    card.write(PAD, TextStyle::Title, &title);
    for line in &tower.goes {
        card.write(PAD, TextStyle::Line, line);
    }
    card.skip(8.0);
    card.w += PAD;
    card.frame(10.0, "run");
    let frame = card.items.pop();
    card.items.splice(..0, frame);
    let mut fragment = Fragment::new(w, card.h);
    fragment.line(&[(middle, 0.0), (middle, card.h)], "spine");
    let y = (card.h / 2.0).round();
    fragment.line(&[(left, y), (middle + 4.0, y)], "wire");
    tip(&mut fragment, (middle + 4.0, y), (-1.0, 0.0));
    fragment.put(card, left, 0.0);
    fragment
}

/// A picture with a margin around it.
pub(super) fn framed(inner: Fragment) -> Fragment {
    const MARGIN: f64 = 24.0;
    let mut page = Fragment::new(inner.w + 2.0 * MARGIN, inner.h + 2.0 * MARGIN);
    page.put(inner, MARGIN, MARGIN);
    page
}

fn output_words(drawing: &Drawing) -> String {
    let ops = drawing.parts().flat_map(|part| &part.ops);
    let last = ops.filter(|op| !op.result.is_empty()).last();
    let dims = last.map(|op| dims(&op.result)).unwrap_or_default();
    let what = match drawing.mode {
        Mode::Encoder => "a vector for each token",
        Mode::Tower => "rows for another model",
        Mode::Causal => "logits of each next token",
        Mode::Diffusion => "logits of each masked token",
    };
    format!("{what}: {dims}")
}

/// The name, and the properties of the whole model.
pub(super) fn heading(drawing: &Drawing, room: f64) -> Fragment {
    let mut fragment = Fragment::new(room, 0.0);
    for line in wrap(&drawing.name, TextStyle::Heading, room)
        .iter()
        .take(NAMES)
    {
        fragment.write(0.0, TextStyle::Heading, line);
    }
    let facts = drawing.facts.iter();
    let facts = facts.map(|(name, value)| format!("{name} {value}"));
    let mut facts: Vec<String> = facts.collect();
    if drawing.name != drawing.arch {
        facts.insert(0, format!("architecture {}", drawing.arch));
    }
    if drawing.is_symbolic {
        let text = "no model file: sizes are the definition's parameters, T is the number of tokens; the layers are an example";
        facts.push(text.into());
    }
    fragment.write(0.0, TextStyle::Line, &facts.join(" \u{b7} "));
    fragment.skip(8.0);
    fragment
}

/// The fragments of a pattern. Each kind of layers is drawn where it occurs first.
struct PatternDrawer<'d> {
    drawing: &'d Drawing,
    room: f64,
    is_shown: Vec<bool>,
}

impl PatternDrawer<'_> {
    fn all(&mut self, runs: &[LayerPattern], is_inner: bool) -> Fragment {
        let fragments = runs.iter().map(|run| self.one(run, is_inner));
        chain(fragments.collect(), Link::Spine)
    }

    fn one(&mut self, run: &LayerPattern, is_inner: bool) -> Fragment {
        let (LayerPattern::Layers { count, .. } | LayerPattern::Repeat { count, .. }) = run;
        let times = match (run, is_inner) {
            (LayerPattern::Layers { count: 1, .. }, true) => String::new(),
            _ => format!("{count} \u{d7}"),
        };
        match run {
            LayerPattern::Layers { kind, .. } => {
                let is_known = std::mem::replace(&mut self.is_shown[*kind], true);
                let kind = &self.drawing.kinds[*kind];
                let inner = match is_known {
                    true => again(kind, self.room),
                    false => layer(kind, self.room),
                };
                repeated(inner, &times, "run")
            }
            LayerPattern::Repeat { of, .. } => repeated(self.all(of, true), &times, "repeat"),
        }
    }
}

/// A frame around a fragment, with the number of repetitions.
fn repeated(inner: Fragment, times: &str, class: &'static str) -> Fragment {
    const PAD: f64 = 12.0;
    let mut fragment = Fragment::new(inner.w + SIDE + 2.0 * PAD, inner.h + 2.0 * PAD);
    fragment.frame(12.0, class);
    let (middle, y) = (PAD + (SIDE - 10.0) / 2.0, fragment.h / 2.0 + 7.0);
    fragment.middle(middle, y, TextStyle::Heading, times);
    fragment.put(inner, SIDE + PAD, PAD);
    fragment
}

/// A reference to a kind of layer that was drawn above.
fn again(kind: &LayerKind, room: f64) -> Fragment {
    let mut fragment = Fragment::new(room, 40.0);
    fragment.put(badge(kind, 32.0), 0.0, 4.0);
    let text = format!("{}, as above", kind.label);
    let text = cut(&text, TextStyle::Line, room - 50.0);
    fragment.start(46.0, 25.0, TextStyle::Line, &text);
    fragment.grouped("kind", &kind.id)
}

/// A kind of layer: the hidden state, and the branches that leave and rejoin it.
fn layer(kind: &LayerKind, room: f64) -> Fragment {
    let cost = kind.cost.as_ref().map(cost_text).unwrap_or_default();
    let mut fragment = layer::heading(kind, 32.0, room, &[(TextStyle::Small, cost)]);
    for slot in on_streams(&kind.slots, Detail::cards(room)) {
        fragment.add(0.0, slot);
    }
    fragment.add(0.0, stream("", true));
    fragment.grouped("kind", &kind.id)
}

pub(in crate::diagram) fn notes(drawing: &Drawing) -> Fragment {
    let mut fragment = Fragment::new(NOTES, 0.0);
    if let Some(legend) = &drawing.overlay {
        fragment.add(0.0, overlay::legend(legend, NOTES));
        fragment.skip(14.0);
    }
    if !drawing.layers.is_empty() {
        strip(&mut fragment, drawing);
        fragment.skip(18.0);
    }
    for kind in &drawing.kinds {
        let name = format!("{}: {}", kind.letter, kind.label);
        fragment.write(0.0, TextStyle::Name, &name);
    }
    let amounts = drawing.kept.amounts();
    if !amounts.is_empty() {
        fragment.skip(10.0);
        fragment.write(0.0, TextStyle::Title, "Memory between passes");
    }
    for line in &amounts {
        fragment.write(0.0, TextStyle::Line, line);
    }
    if drawing.kept.per_token.or(drawing.kept.in_window).is_some() {
        fragment.write(0.0, TextStyle::Small, "KV cache of 16 bits");
    }
    fragment
}

/// A cell for every layer, with the letter of its kind.
fn strip(fragment: &mut Fragment, drawing: &Drawing) {
    const CELL: f64 = 19.0;
    /// Width of a cell with a number.
    const NOTED: f64 = 79.0;
    fragment.write(0.0, TextStyle::Title, "Layers, in order");
    fragment.skip(4.0);
    if drawing.is_symbolic {
        let text = "how many there are, and of which kind, is for the model file to say; this is an example";
        fragment.write(0.0, TextStyle::Small, text);
        fragment.skip(4.0);
    }
    let notes = drawing.overlay.as_ref().map(|legend| &legend.layers);
    let cells = drawing.layers.iter().enumerate().map(|(at, kind)| {
        let letter = &drawing.kinds[*kind].letter;
        match notes.and_then(|notes| notes.get(at)) {
            Some(note) => overlay::cell(NOTED, CELL, letter, note),
            None => cell(CELL, KINDS[kind % 4], letter),
        }
    });
    fragment.add(0.0, Fragment::wrapped(cells.collect(), (3.0, 3.0), NOTES));
}

/// All kinds of layers, with their operations and weights; then those of the towers.
pub fn layers(drawing: &Drawing) -> Fragment {
    let mut all = all_kinds(drawing);
    for tower in &drawing.towers {
        all.skip(48.0);
        all.add(0.0, all_kinds(&tower.drawing));
    }
    framed(all)
}

fn all_kinds(drawing: &Drawing) -> Fragment {
    let kinds = drawing.kinds.iter();
    let columns = kinds.map(|kind| layer::kind(kind, Some(&layers_of(drawing, kind))));
    let columns = columns.chain([layer::stages(drawing)]).collect();
    let page = Fragment::wrapped(columns, (56.0, 48.0), MAX_ROW);
    let mut all = heading(drawing, page.w.max(600.0));
    if let Some(own) = &drawing.overlay {
        all.skip(6.0);
        all.add(0.0, overlay::legend(own, all.w.min(LEGEND)));
        all.skip(8.0);
    }
    all.skip(16.0);
    all.add(0.0, page);
    all
}

/// The layers of a kind, in words; empty if they are unknown.
pub(in crate::diagram) fn layers_of(drawing: &Drawing, kind: &LayerKind) -> String {
    let (n, n_all) = (kind.layers.len(), drawing.layers.len());
    let which = wording::layers(&kind.layers, n_all);
    match (drawing.is_symbolic, drawing.kinds.len()) {
        (true, 1) => "all layers".into(),
        (true, _) => String::new(),
        (false, _) => format!("{n} of {n_all} layers: {which}"),
    }
}
