//! Bytes as bars. All bars of a picture have the same scale, and each shows its number.

use super::super::fragment::{DrawItem, Fragment, Rect};
use super::super::text::{TextStyle, cut};
use super::legend;
use crate::diagram::{BytesHeld, BytesRead};
use lab_base::util::wording::bytes;

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

pub(super) fn reads(read: &BytesRead, room: f64) -> Fragment {
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
pub(super) fn keeps(held: &[BytesHeld], room: f64) -> Fragment {
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
