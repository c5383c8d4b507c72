//! Numbers and lists as text for people. Knows nothing of models.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;

/// A float, rounded to its significant digits.
pub fn tidy(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value < 0.0 {
            "\u{2212}\u{221e}".into()
        } else {
            value.to_string()
        };
    }
    let size = value.abs().log10().floor() as i32;
    if !(-4..7).contains(&size) {
        return format!("{value:.3e}");
    }
    let digits = (4 - size).clamp(0, 8) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A count in short form: `4096`, `6.70 B`.
pub fn count(n: u64) -> String {
    let scaled = |unit: f64, name: &str| format!("{} {name}", three(n as f64 / unit));
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => scaled(1e3, "K"),
        1_000_000..1_000_000_000 => scaled(1e6, "M"),
        _ => scaled(1e9, "B"),
    }
}

/// A size in binary units.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(power) = n.checked_ilog2().map_or(0, |bits| bits / 10).checked_sub(1) else {
        return format!("{n} B");
    };
    let unit = UNITS[power as usize];
    let value = n as f64 / 1024f64.powi(power as i32 + 1);
    format!("{} {unit}", three(value))
}

/// A line in rows of at most `width` characters, broken at spaces; rows after the first are indented. A word that is
/// longer than a row stays whole.
pub fn wrapped(line: &str, width: usize, indent: usize) -> String {
    let indent = if 2 * indent > width { 0 } else { indent };
    let (mut out, mut row, mut gap) = (String::new(), 0, 0);
    for (i, word) in line.split(' ').enumerate() {
        gap += usize::from(i > 0);
        let n = word.chars().count();
        if n == 0 {
            continue;
        }
        if row > 0 && row + gap + n > width {
            out.push('\n');
            (row, gap) = (0, indent);
        }
        out.extend(std::iter::repeat_n(' ', gap));
        out.push_str(word);
        row += gap + n;
        gap = 0;
    }
    out
}

/// A share of a whole, in per cent.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 9.95 => format!("{p:.0} %"),
        p if p >= 0.05 => format!("{p:.1} %"),
        p if p > 0.0 => "< 0.1 %".into(),
        _ => "0 %".into(),
    }
}

fn three(value: f64) -> String {
    let digits = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// Items as a list in a sentence: `a`, `a and b`, `a, b and c`.
pub fn listed<T: Display>(items: &[T]) -> String {
    let mut out = String::new();
    for (i, item) in items.iter().enumerate() {
        let between = match i {
            0 => "",
            i if i + 1 == items.len() => " and ",
            _ => ", ",
        };
        out += between;
        out += &item.to_string();
    }
    out
}

/// The text with a capital first letter.
pub fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars).collect()
}

/// A title inside a sentence: its first letter is lower case, unless it begins with an abbreviation.
pub fn uncapital(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

/// Untrusted text within a line, escaped so that it cannot move the cursor of a terminal.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

/// A path or name with its layer numbers (`blk.3.`, `layers.3.`) replaced by `*`, and the first of these numbers.
pub fn without_layer(text: &str) -> (String, Option<usize>) {
    let mut out = String::with_capacity(text.len());
    let mut layer = None;
    for (i, part) in text.split('.').enumerate() {
        out.push_str(if i == 0 { "" } else { "." });
        // `1.5` is a number, and the 1 in `blk.1` is the number of a layer.
        let is_place = i > 0
            && !out
                .trim_end_matches('.')
                .ends_with(|c: char| c.is_ascii_digit());
        let end = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        match part[..end].parse().ok().filter(|_| is_place) {
            Some(number) => {
                layer = layer.or(Some(number));
                out.push('*');
                out.push_str(&part[end..]);
            }
            None => out.push_str(part),
        }
    }
    (out, layer)
}

/// Merges texts that differ only in the layer into the first of them, with the layers of the others.
///
/// `key` returns the part of a text that is compared, and its layer.
pub fn by_layer<'t, T: AsRef<str>>(
    texts: &'t [T],
    key: &dyn Fn(&str) -> (String, Option<usize>),
) -> Vec<String> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut folded: Vec<(&'t str, usize, BTreeSet<usize>)> = Vec::new();
    for text in texts {
        let (form, layer) = key(text.as_ref());
        let place = *places.entry(form).or_insert_with(|| {
            folded.push((text.as_ref(), 0, layer.into_iter().collect()));
            folded.len() - 1
        });
        let (_, n, layers) = &mut folded[place];
        *n += 1;
        layers.extend(layer);
    }
    let told = |(text, n, others): (&str, usize, BTreeSet<usize>)| {
        let own = key(text).1;
        let others: Vec<usize> = others
            .into_iter()
            .filter(|layer| Some(*layer) != own)
            .collect();
        match (n, others.is_empty()) {
            (1, _) => text.to_owned(),
            (n, true) => format!("{text} ({n} times)"),
            _ => format!("{text} (the same in {})", layers(&others, usize::MAX)),
        }
    };
    folded.into_iter().map(told).collect()
}

const MAX_PIECES: usize = 12;

/// Layers of `n_all` as text: `every layer`, `every 4th layer from 3`, `layers 0\u{2013}2, 7`.
pub fn layers(layers: &[usize], n_all: usize) -> String {
    if layers.len() == n_all {
        return "every layer".into();
    }
    if let [first, second, .., last] = *layers {
        let step = second - first;
        let is_even = layers.windows(2).all(|pair| pair[1] - pair[0] == step);
        if step > 1 && first < step && is_even && last + step >= n_all {
            let ending = match (step % 10, step % 100) {
                (_, 11..=13) => "th",
                (2, _) => "nd",
                (3, _) => "rd",
                (1, _) => "st",
                _ => "th",
            };
            return format!("every {step}{ending} layer from {first}");
        }
    }
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in layers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *at => *last = *at,
            _ => runs.push((*at, *at)),
        }
    }
    let run = |(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}\u{2013}{last}"),
    };
    let mut shown: Vec<String> = runs.iter().take(MAX_PIECES).map(run).collect();
    if runs.len() > MAX_PIECES {
        shown.push(format!("\u{2026} ({} in all)", layers.len()));
    }
    let plural = if layers.len() == 1 { "" } else { "s" };
    format!("layer{plural} {}", shown.join(", "))
}

pub(crate) fn json_kind(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_say_something() {
        let cases = [
            (0.125, "0.125"),
            (1.0, "1"),
            (-6.0, "-6"),
            (1.0 / 3.0, "0.33333"),
            (1e-5, "1.000e-5"),
            (10_000.0, "10000"),
            (f64::NEG_INFINITY, "\u{2212}\u{221e}"),
        ];
        for (value, text) in cases {
            assert_eq!(tidy(value), text);
        }
        let counts = [
            (9_999, "9999"),
            (12_345, "12.3 K"),
            (999_999, "1000 K"),
            (6_700_000_000, "6.70 B"),
        ];
        for (n, text) in counts {
            assert_eq!(count(n), text);
        }
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.50 KiB"),
            (1 << 20, "1.00 MiB"),
            (5 << 40, "5.00 TiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (n, text) in sizes {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn layers_are_told_in_the_shortest_way() {
        assert_eq!(layers(&[0, 1, 2], 3), "every layer");
        assert_eq!(layers(&[3, 7, 11], 12), "every 4th layer from 3");
        assert_eq!(layers(&[0], 3), "layer 0");
        assert_eq!(layers(&[0, 1, 2, 5, 7], 9), "layers 0\u{2013}2, 5, 7");
        // A step that ends early, or could have begun earlier, is not a pattern.
        assert_eq!(layers(&[3, 7], 12), "layers 3, 7");
        assert_eq!(layers(&[5, 9], 12), "layers 5, 9");
        let many: Vec<usize> = (0..100).map(|i| 3 * i + i % 2).collect();
        assert!(layers(&many, 400).ends_with(", \u{2026} (100 in all)"));
    }

    #[test]
    fn what_differs_in_the_layer_alone_is_told_once() {
        let cases = [
            ("blk.12.attn_q.bias", "blk.*.attn_q.bias", Some(12)),
            (
                "enc.blk.0.x: `enc.blk.0.y`",
                "enc.blk.*.x: `enc.blk.*.y`",
                Some(0),
            ),
            ("layers.3: 1.5 of 0.25", "layers.*: 1.5 of 0.25", Some(3)),
            ("output.bias", "output.bias", None),
            ("", "", None),
        ];
        for (text, form, layer) in cases {
            assert_eq!(without_layer(text), (form.to_owned(), layer));
        }
        let names = [
            "blk.0.a", "blk.0.b", "blk.1.a", "c", "blk.2.a", "blk.4.a", "c",
        ];
        let told = by_layer(&names, &without_layer);
        let expected = [
            "blk.0.a (the same in layers 1\u{2013}2, 4)",
            "blk.0.b",
            "c (2 times)",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn lists_end_with_and() {
        assert_eq!(listed::<&str>(&[]), "");
        assert_eq!(listed(&["a"]), "a");
        assert_eq!(listed(&["a", "b"]), "a and b");
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
    }

    #[test]
    fn sentences_begin_large() {
        assert_eq!((capital("each"), capital("")), ("Each".into(), "".into()));
    }

    #[test]
    fn a_line_is_wrapped_at_spaces() {
        let line = "/set       set a field of the requests";
        let rows = "/set       set a field\n           of the\n           requests";
        assert_eq!(wrapped(line, 24, 11), rows);
        let narrow = "/set       set a\nfield of the\nrequests";
        assert_eq!(wrapped(line, 20, 11), narrow);
        assert_eq!(wrapped(line, 80, 11), line);
        assert_eq!(wrapped("a bbbbbbbb c", 4, 0), "a\nbbbbbbbb\nc");
        assert_eq!(wrapped("a b c", 3, 9), "a b\nc");
        assert_eq!(wrapped("", 3, 0), "");
    }
}
