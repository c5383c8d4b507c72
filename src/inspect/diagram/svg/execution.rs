//! Scenes as cards with a title, a sentence, a picture and numbers, in rows of equal height.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::fragment::{DrawItem, Fragment, Point, Rect};
use super::shape::{cell, drum, graph, label, square, tip, toward};
use super::text::{TextStyle, cut, width};
use crate::diagram::{
    BytesHeld, BytesRead, Drawing, MASK_TOKENS, Scene, ScenePicture, TEXT_TOKENS,
};
use lab_base::util::wording::bytes;
use lab_core::plan::Pooling;

/// Minimum and maximum width of a card, the gap between cards, and the padding inside them.
const MIN_CARD: f64 = 280.0;
const MAX_CARD: f64 = 460.0;
const GAP: f64 = 16.0;
const PAD: f64 = 12.0;
/// Width of a picture.
const ROOM: f64 = MIN_CARD - 2.0 * PAD;
/// Side length of a token's box.
const SIDE: f64 = 18.0;

/// A word, followed by the letters of kinds of layers.
fn lettered(drawing: &Drawing, word: &str, kinds: &[usize]) -> String {
    let letters = kinds.iter().filter_map(|kind| drawing.kinds.get(*kind));
    let letters: Vec<&str> = letters.map(|kind| kind.letter.as_str()).collect();
    format!("{word} {}", letters.join(", "))
}

/// Small boxes with their meanings, in a line.
fn legend(meanings: &[(&'static str, &str)]) -> Fragment {
    let entries = meanings.iter().map(|(class, text)| {
        let mut entry = cell(11.0, class, "");
        entry.w = 15.0 + width(text, TextStyle::Small);
        entry.start(15.0, 9.5, TextStyle::Small, text);
        entry
    });
    Fragment::wrapped(entries.collect(), (12.0, 4.0), f64::MAX)
}

/// Boxes from left to right, at a distance of `each` pixels.
fn cells(side: f64, each: f64, all: &[(&'static str, String)]) -> Fragment {
    let all = all.iter().map(|(class, text)| cell(side, class, text));
    Fragment::wrapped(all.collect(), (each - side, 0.0), f64::MAX)
}

/// A thin straight arrow along an axis.
fn arrow(fragment: &mut Fragment, from: Point, to: Point) {
    fragment.line(&[from, to], "wire");
    tip(fragment, to, toward(from, to));
}

/// A drum with a name, and the letters of its layers if these are not all.
fn kept(drawing: &Drawing, name: &str, kinds: &[usize]) -> Fragment {
    let mut fragment = Fragment::new(62.0, 44.0);
    drum(&mut fragment, 6.0);
    let is_all = kinds.is_empty() || kinds.len() == drawing.kinds.len();
    let y = if is_all { 30.0 } else { 24.0 };
    fragment.middle(31.0, y, TextStyle::Line, name);
    if !is_all {
        let of = cut(&lettered(drawing, "of", kinds), TextStyle::Small, 56.0);
        fragment.middle(31.0, y + 13.0, TextStyle::Small, &of);
    }
    fragment
}

/// The scenes of the execution, as cards in rows of `room` pixels.
pub fn execution(drawing: &Drawing, room: f64) -> Fragment {
    let room = room.max(MIN_CARD);
    let most = (((room + GAP) / (MIN_CARD + GAP)) as usize).max(1);
    // The minimum number of rows, with about the same number of cards in each.
    let n_rows = drawing.scenes.len().div_ceil(most).max(1);
    let each = drawing.scenes.len().div_ceil(n_rows).max(1);
    let rows = drawing.scenes.chunks(each);
    let rows = rows.map(|now| row(drawing, now, room)).collect();
    Fragment::wrapped(rows, (0.0, GAP), room)
}

/// Cards side by side, with equal heights.
fn row(drawing: &Drawing, scenes: &[Scene], room: f64) -> Fragment {
    let n = scenes.len().max(1) as f64;
    let w = ((room - GAP * (n - 1.0)) / n).floor().min(MAX_CARD);
    let card = |scene| card(drawing, scene, w - 2.0 * PAD);
    let cards: Vec<Fragment> = scenes.iter().map(card).collect();
    let h = cards.iter().map(|card| card.h).fold(0.0, f64::max);
    let cards = cards.into_iter().map(|card| {
        let mut framed = Fragment::new(w, h + 2.0 * PAD);
        framed.frame(10.0, "frame");
        framed.put(card, PAD, PAD);
        framed
    });
    Fragment {
        w: room,
        ..Fragment::wrapped(cards.collect(), (GAP, 0.0), room)
    }
}

/// The card of a scene: its title, its layers, a sentence, its picture and its numbers.
fn card(drawing: &Drawing, scene: &Scene, room: f64) -> Fragment {
    let mut fragment = Fragment::new(room, 0.0);
    fragment.write(0.0, TextStyle::Title, &scene.title);
    let layers = match scene.kinds.len() {
        0 => String::new(),
        n if n == drawing.kinds.len() => "all layers".into(),
        _ => lettered(drawing, "layers", &scene.kinds),
    };
    fragment.write(0.0, TextStyle::Small, &layers);
    fragment.skip(4.0);
    fragment.write(0.0, TextStyle::Line, &scene.line);
    fragment.skip(14.0);
    let picture = picture(drawing, &scene.picture, room);
    fragment.add(((room - picture.w) / 2.0).round(), picture);
    fragment.skip(10.0);
    for fact in &scene.facts {
        fragment.write(0.0, TextStyle::Small, fact);
    }
    fragment
}

fn picture(drawing: &Drawing, picture: &ScenePicture, room: f64) -> Fragment {
    match picture {
        ScenePicture::Prefill(kinds) => prefill(drawing, kinds),
        ScenePicture::Decode(kinds) => decode(drawing, kinds),
        ScenePicture::Whole { seen, pooling } => whole(seen, *pooling),
        ScenePicture::Denoising => denoising(),
        ScenePicture::State => state(),
        ScenePicture::Window { rule, evicts, rows } => window(rule, *evicts, rows),
        ScenePicture::Shared(loans) => shared(drawing, loans),
        ScenePicture::Latent(row) => latent(*row),
        ScenePicture::Experts(numbers) => experts(*numbers),
        ScenePicture::Reads(read) => reads(read, room),
        ScenePicture::Keeps(held) => keeps(held, room),
    }
}

type Cell = (&'static str, String);

/// Tokens that are labelled with their numbers.
fn numbered(class: &'static str, numbers: Range<u32>) -> Vec<Cell> {
    numbers.map(|n| (class, n.to_string())).collect()
}

/// Tokens side by side, below a caption.
fn tokens(word: &str, side: f64, all: &[Cell]) -> Fragment {
    let row = cells(side, side + 3.0, all);
    titled(word, row)
}

/// A fragment below a caption, if there is one.
fn titled(word: &str, inner: Fragment) -> Fragment {
    let mut fragment = Fragment::new(width(word, TextStyle::Small).max(inner.w), 0.0);
    fragment.skip(if word.is_empty() { 0.0 } else { 16.0 });
    fragment.middle(fragment.w / 2.0, 10.0, TextStyle::Small, word);
    fragment.add((fragment.w - inner.w) / 2.0, inner);
    fragment
}

/// A pass: its input, the layers, and its output; with the memory that it writes and, unless it is the first, reads.
fn pass(
    drawing: &Drawing,
    mut fragments: Vec<Fragment>,
    out: Fragment,
    kinds: &[Vec<usize>; 2],
    is_read: bool,
) -> Fragment {
    let named = ["keys", "states"].into_iter().zip(kinds);
    let named = named.filter(|(_, kinds)| !kinds.is_empty());
    let drums = named.map(|(name, kinds)| kept(drawing, name, kinds));
    let drums: Vec<Fragment> = drums.collect();
    fragments.extend(drums.iter().filter(|_| is_read).cloned());
    let layers = fragments.len();
    fragments.extend([label("all layers", "wbox"), out]);
    fragments.extend(drums);
    let into = (0..layers).map(|at| (at, layers));
    let out = (layers + 1..fragments.len()).map(|at| (layers, at));
    let arrows: Vec<(usize, usize)> = into.chain(out).collect();
    graph(fragments, &arrows).0
}

/// A prompt in two passes.
fn prefill(drawing: &Drawing, kinds: &[Vec<usize>; 2]) -> Fragment {
    let passes = [("1st pass", 1..5), ("2nd pass", 5..8)];
    let passes = passes.map(|(word, all)| tokens(word, SIDE, &numbered("tok", all)));
    let next = tokens("next token", SIDE, &numbered("now", 8..9));
    pass(drawing, passes.into(), next, kinds, false)
}

/// The last token by itself, and the token that it yields.
fn decode(drawing: &Drawing, kinds: &[Vec<usize>; 2]) -> Fragment {
    let all = [numbered("gone", 6..9), numbered("now", 9..10)].concat();
    let last = tokens("read before", SIDE, &all);
    let next = tokens("read next", SIDE, &numbered("tok", 10..11));
    pass(drawing, vec![last], next, kinds, true)
}

/// A text whose tokens attend to each other, and its vectors, or the tokens for its masks.
fn whole(seen: &[Range<u32>], pooling: Option<Pooling>) -> Fragment {
    /// Number of tokens of the text that are not masks.
    const PROMPT: u32 = 3;
    let n = seen.len() as u32;
    let masked = |class: &'static str, text: &str| {
        let masks = (PROMPT..n).map(|_| (class, text.to_owned()));
        [numbered("tok", 1..PROMPT + 1), masks.collect()].concat()
    };
    let (all, out) = if pooling.is_some() {
        let vectors = ["a vector for each token", "one vector"];
        (
            numbered("tok", 1..n + 1),
            vectors.map(|it| label(it, "in")).into(),
        )
    } else {
        let logits = tokens("logits", SIDE, &masked("now", ""));
        (masked("gone", "?"), vec![logits])
    };
    let mut fragments = vec![
        tokens("", SIDE, &all),
        titled("attention mask", mask(seen)),
        label("all layers", "wbox"),
    ];
    fragments.extend(out);
    let arrows = [(0, 2), (1, 2), (2, 3), (3, 4)];
    let n_arrows = fragments.len() - 1;
    graph(fragments, &arrows[..n_arrows]).0
}

/// The attention mask: queries downwards, keys to the right; attended keys are filled.
fn mask(seen: &[Range<u32>]) -> Fragment {
    const CELL: f64 = 5.0;
    let side = CELL * f64::from(MASK_TOKENS);
    let mut fragment = Fragment::new(side, side);
    fragment.frame(1.0, "cell");
    for (query, keys) in (0u32..).zip(seen) {
        let [x, y, n] = [keys.start, query, keys.end - keys.start].map(|n| f64::from(n) * CELL);
        fragment.push(DrawItem::Box(Rect::new(x, y, n, CELL), 0.0, "seen"));
    }
    fragment
}

/// A text over several passes: tokens fixed by the last pass are filled, masked ones have a question mark.
fn denoising() -> Fragment {
    /// The step that unmasks each position of the completion, and the number of positions that are denoised together.
    const STEPS: [usize; 8] = [2, 1, 1, 2, 3, 4, 4, 3];
    const BLOCK: usize = 4;
    const CELL: f64 = 15.0;
    const NAMES: f64 = 42.0;
    let mut fragment = Fragment::default();
    for pass in 0..=4 {
        let state = |step: &usize| match step.cmp(&pass) {
            Ordering::Greater => ("gone", "?".to_owned()),
            Ordering::Equal => ("now", String::new()),
            Ordering::Less => ("tok", String::new()),
        };
        let prompt = vec![("tok", String::new()); 3];
        let mut groups = vec![("prompt".to_owned(), prompt)];
        for (nth, block) in (1..).zip(STEPS.chunks(BLOCK)) {
            groups.push((format!("block {nth}"), block.iter().map(state).collect()));
        }
        let (name, is_first) = match pass {
            0 => ("start".to_owned(), true),
            n => (format!("step {n}"), false),
        };
        let groups = groups.iter().map(|(word, all)| {
            let word = if is_first { word } else { "" };
            tokens(word, CELL, all)
        });
        let row = Fragment::wrapped(groups.collect(), (6.0, 0.0), f64::MAX);
        fragment.start(0.0, fragment.h + row.h - 3.0, TextStyle::Small, &name);
        fragment.add(NAMES, row);
        fragment.skip(6.0);
    }
    let meanings = [("now", "new"), ("tok", "known"), ("gone", "masked")];
    fragment.add(NAMES, legend(&meanings));
    fragment
}

/// A state that is passed from token to token; only the last one is kept.
fn state() -> Fragment {
    const TOKENS: usize = 5;
    const EACH: f64 = 52.0;
    const BOX: f64 = 30.0;
    let mut fragment = Fragment::new((TOKENS - 1) as f64 * EACH + BOX, 86.0);
    for at in 0..TOKENS {
        let x = at as f64 * EACH;
        let middle = x + BOX / 2.0;
        let token = cell(SIDE, "tok", &(at + 1).to_string());
        fragment.put(token, middle - SIDE / 2.0, 0.0);
        arrow(&mut fragment, (middle, SIDE), (middle, 38.0));
        let class = if at + 1 == TOKENS { "keep" } else { "gone" };
        fragment.put(cell(BOX, class, ""), x, 38.0);
        if at > 0 {
            arrow(&mut fragment, (x - EACH + BOX, 53.0), (x, 53.0));
        }
    }
    fragment.start(0.0, 83.0, TextStyle::Small, "replaced");
    fragment.end(fragment.w, 83.0, TextStyle::Small, "kept");
    fragment
}

/// The keys that the last tokens of a text attend to, with a row for each token.
fn window(rule: &str, evicts: bool, rows: &[(u32, Range<u32>)]) -> Fragment {
    const NAMES: f64 = 54.0;
    const EACH: f64 = 20.0;
    let x = |key: u32| NAMES + f64::from(key) * EACH;
    let mut fragment = Fragment::new(x(TEXT_TOKENS), 0.0);
    for (query, keys) in rows {
        let name = format!("token {}", query + 1);
        fragment.start(0.0, fragment.h + 13.0, TextStyle::Small, &name);
        let last = if evicts { query + 1 } else { TEXT_TOKENS };
        let row = (0..last).map(|key| {
            let class = match (key == *query, keys.contains(&key), evicts) {
                (true, ..) => "now",
                (_, true, _) => "keep",
                (_, false, true) => "gone",
                (_, false, false) => "tok",
            };
            (class, String::new())
        });
        fragment.add(NAMES, cells(SIDE, EACH, &row.collect::<Vec<_>>()));
        fragment.skip(4.0);
    }
    if rule == "chunked" {
        let begins: BTreeSet<u32> = rows.iter().map(|(_, keys)| keys.start).collect();
        for x in begins.into_iter().map(|at| x(at) - 1.0) {
            fragment.line(&[(x, -4.0), (x, fragment.h + 2.0)], "cut");
        }
    }
    let unseen = match evicts {
        true => ("gone", "evicted"),
        false => ("tok", "masked"),
    };
    fragment.skip(8.0);
    let meanings = [("now", "itself"), ("keep", "visible"), unseen];
    fragment.add(NAMES, legend(&meanings));
    fragment
}

/// The layers that read the caches of others.
fn shared(drawing: &Drawing, loans: &BTreeMap<usize, Vec<usize>>) -> Fragment {
    /// Maximum number of readers that are drawn one by one, and of caches that are drawn.
    const READERS: usize = 4;
    const LOANS: usize = 3;
    let kind = |layer: &usize| drawing.layers.get(*layer).copied().unwrap_or(0);
    let loans = loans.iter().take(LOANS).map(|(owner, readers)| {
        let mut readers: Vec<usize> = readers.iter().map(kind).collect();
        // Without a file, the number of readers is unknown.
        if drawing.is_symbolic {
            readers.dedup();
        }
        let word = match readers.len().saturating_sub(READERS) {
            0 => "read by".to_owned(),
            more => format!("read by {more} more and"),
        };
        readers.truncate(READERS);
        let keys = kept(drawing, "keys", &[]);
        let writer = lettered(drawing, "written by", &[kind(owner)]);
        let readers = lettered(drawing, &word, &readers);
        let fragments = vec![label(&writer, "in"), keys, label(&readers, "in")];
        graph(fragments, &[(0, 1), (1, 2)]).0
    });
    Fragment::wrapped(loans.collect(), (24.0, 14.0), ROOM)
}

/// Heads above the one row that they read, with the part of it that is also the values.
fn latent(row: Option<(u64, u64)>) -> Fragment {
    const HEADS: usize = 6;
    let w = ROOM - 20.0;
    // Without numbers, the share of the values is fixed.
    let share = row.map_or(0.75, |(k, v)| v as f64 / k.max(1) as f64);
    let end = w * share.clamp(0.0, 1.0);
    let mut one = Fragment::new(w, 46.0);
    one.push(DrawItem::Box(Rect::new(0.0, 0.0, w, 20.0), 3.0, "keep"));
    one.line(&[(end, 0.0), (end, 20.0)], "cut");
    one.middle(w / 2.0, 14.0, TextStyle::Small, "one row");
    one.line(&[(0.0, 27.0), (end, 27.0)], "wire");
    one.start(0.0, 42.0, TextStyle::Small, "also the values");
    one.end(w, 42.0, TextStyle::Small, "all of it: keys");
    let mut head = Fragment::new(12.0, 12.0);
    head.push(DrawItem::Circle(6.0, 6.0, 6.0, "dot"));
    let heads = std::iter::repeat_n(head, HEADS);
    let arrows: Vec<(usize, usize)> = (0..HEADS).map(|at| (at, HEADS)).collect();
    graph(heads.chain([one]).collect(), &arrows).0
}

/// A token, the router, and the experts, some of which are selected.
fn experts(numbers: Option<(u64, u64)>) -> Fragment {
    /// Maximum number of experts that are drawn.
    const EXPERTS: u64 = 512;
    let shown = numbers.unwrap_or((2, 8)).1.clamp(1, EXPERTS) as usize;
    let columns = match shown {
        0..=8 => shown,
        n => (3.0 * n as f64).sqrt().ceil() as usize,
    };
    let each = (ROOM / columns as f64).floor().min(23.0);
    let side = each - if each < 9.0 { 1.0 } else { 3.0 };
    // The used experts depend on the token, so they are spread over the grid.
    let filled = (numbers.unwrap_or((2, 8)).0 as usize).min(shown);
    let used = (0..filled).map(|i| (i * shown + shown / 2) / filled % shown);
    let used: Vec<usize> = used.collect();
    let rows = shown.div_ceil(columns);
    let mut grid = Fragment::new(columns as f64 * each - (each - side), rows as f64 * each);
    for i in 0..shown {
        let (x, y) = ((i % columns) as f64 * each, (i / columns) as f64 * each);
        let class = if used.contains(&i) { "key" } else { "cell" };
        grid.push(DrawItem::Box(square(x, y, side), 1.0, class));
    }
    let fragments = vec![label("a token", "in"), label("router", "pill"), grid];
    graph(fragments, &[(0, 1), (1, 2)]).0
}

/// A bar: its name, and its parts as classes and bytes.
type Bar = (String, Vec<(&'static str, u64)>);

fn sum((_, parts): &Bar) -> u64 {
    parts.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
}

/// Groups of bars, one below the other, each with its title.
fn bars(groups: &[(&str, Vec<Bar>)], room: f64) -> Fragment {
    /// Widths for names and for numbers, height of a bar, and distance from one bar to the next.
    const NAMES: f64 = 118.0;
    const NUMBERS: f64 = 64.0;
    const BAR: f64 = 12.0;
    const LINE: f64 = 19.0;
    let most = groups.iter().flat_map(|(_, bars)| bars).map(sum).max();
    let scale = (room - NAMES - NUMBERS) / most.unwrap_or(0).max(1) as f64;
    let mut fragment = Fragment::new(room, 0.0);
    for (title, bars) in groups.iter().filter(|(_, bars)| !bars.is_empty()) {
        fragment.skip(if fragment.h > 0.0 { 4.0 } else { 0.0 });
        fragment.write(0.0, TextStyle::Name, title);
        fragment.skip(if title.is_empty() { 0.0 } else { 3.0 });
        for bar in bars {
            let y = fragment.h;
            let name = cut(&bar.0, TextStyle::Small, NAMES - 6.0);
            fragment.start(0.0, y + 10.0, TextStyle::Small, &name);
            let mut x = NAMES;
            for (class, n) in bar.1.iter().filter(|(_, n)| *n > 0) {
                let w = (*n as f64 * scale).max(1.0);
                fragment.push(DrawItem::Box(Rect::new(x, y, w, BAR), 1.0, class));
                x += w;
            }
            fragment.end(room, y + 10.0, TextStyle::Small, &bytes(sum(bar)));
            fragment.skip(LINE);
        }
    }
    fragment
}

fn reads(read: &BytesRead, room: f64) -> Fragment {
    let weights = read.weights.iter();
    let weights = weights.map(|(name, n)| (name.clone(), vec![("bar1", *n)]));
    let keys = read.keys.iter();
    let keys = keys.map(|(tokens, n)| (tokens_text(*tokens), vec![("bar2", *n)]));
    let states = (read.states > 0).then(|| ("states".to_owned(), vec![("bar3", read.states)]));
    let groups = [
        ("Weights", weights.collect()),
        ("Keys and values, after", keys.collect()),
        ("", states.into_iter().collect()),
    ];
    bars(&groups, room)
}

/// The bytes that are kept for a text.
fn keeps(held: &[BytesHeld], room: f64) -> Fragment {
    let parts = |held: &BytesHeld| {
        let sizes = [held.all, held.window, held.state];
        let parts = ["bar1", "bar2", "bar3"].into_iter().zip(sizes);
        (tokens_text(held.tokens), parts.collect())
    };
    let all: Vec<Bar> = held.iter().map(parts).collect();
    let names = ["all keys", "window", "states"];
    let first = all.first().map_or(&[][..], |(_, parts)| parts);
    let present = first.iter().zip(names).filter(|((_, n), _)| *n > 0);
    let present: Vec<_> = present.map(|((class, _), name)| (*class, name)).collect();
    let mut fragment = bars(&[("Context of", all)], room);
    if present.len() > 1 {
        fragment.skip(4.0);
        fragment.add(0.0, legend(&present));
    }
    fragment
}

fn tokens_text(n: u64) -> String {
    match n {
        1 => "1 token".into(),
        n => format!("{n} tokens"),
    }
}
