//! A comparison in words: Markdown that can be pasted, with numbers only where both have files.

use std::fmt::Write;

use super::pattern::pattern;
use super::{Comparison, Finding, Level, Side, Told};
use crate::wording::{bytes, capital, listed};

/// Rows of names, at most.
const NAMES: usize = 24;
/// Places of a difference that are named, at most.
const PLACES: usize = 3;

impl Finding {
    /// The difference as a sentence; `names` are those of A and B.
    pub fn sentence(&self, names: &[String; 2]) -> String {
        let [a, b] = names;
        let text = match &self.told {
            Told::Only(side, text) => format!("only {} {text}", names[*side as usize]),
            Told::Does([does_a, does_b]) => format!("{a} {does_a}; {b} {does_b}"),
            Told::Has(what, [has_a, has_b]) => format!("{what}: {has_a} in {a}, {has_b} in {b}"),
        };
        match self.place() {
            place if place.is_empty() => format!("{}.", self.begin(&text)),
            place => format!("{}: {text}.", capital(&place)),
        }
    }

    /// A sentence begins with a large letter, a name as it is.
    fn begin(&self, text: &str) -> String {
        match self.told {
            Told::Does(_) => text.to_owned(),
            _ => capital(text),
        }
    }

    /// Where it is, in words.
    pub fn place(&self) -> String {
        match self.places.len() {
            n if n > PLACES => {
                let named = self.places[..PLACES - 1].join(", ");
                format!("{named} and {} more", n + 1 - PLACES)
            }
            _ => listed(&self.places),
        }
    }
}

/// The comparison as Markdown.
pub fn summary(comparison: &Comparison<'_>) -> String {
    let names = comparison.names();
    let findings = comparison.findings();
    let of = |level: Level| {
        findings
            .iter()
            .filter(move |finding| finding.level == level)
    };
    let mut out = format!("# {} and {}\n\n", shown(&names[0]), shown(&names[1]));
    line(&mut out, &counted(comparison));
    kinds(&mut out, comparison, &names);
    let mut section = |title: &str, rows: Vec<String>| {
        if !rows.is_empty() {
            line(&mut out, &format!("\n## {title}\n"));
            rows.iter().for_each(|row| line(&mut out, row));
        }
    };
    let differing = of(Level::Computation).map(|finding| finding.sentence(&names));
    let mut differing: Vec<String> = differing
        .map(|text| format!("- {}", shown(&text)))
        .collect();
    if differing.is_empty() {
        differing.push("Nothing: both compute the same.".into());
    }
    section("What is computed otherwise", differing);
    section("Other numbers", table(&names, &number_rows(comparison)));
    let all: Vec<[String; 3]> = of(Level::Names).map(row).collect();
    let more = all.len().saturating_sub(NAMES);
    let mut rows = table(&names, &all[..all.len().min(NAMES)]);
    if more > 0 {
        rows.push(format!("\n{more} more names differ."));
    }
    section("Other names for the same", rows);
    out
}

/// Numbers that are other ones, of the whole models and of their parts: what, in A, in B.
fn number_rows(comparison: &Comparison<'_>) -> Vec<[String; 3]> {
    let mut rows = model_rows(comparison);
    let findings = comparison.findings();
    let numbers = findings.iter().filter(|f| f.level == Level::Numbers);
    rows.extend(numbers.map(row));
    rows
}

fn line(out: &mut String, text: &str) {
    let written = writeln!(out, "{text}");
    debug_assert!(written.is_ok(), "writing to a string does not fail");
}

/// A text of a definition or file in one line, without what a terminal would obey.
fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => out.push(c),
            '\n' | '\r' | '\t' => out.push(' '),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

/// How much is the same, in words.
fn counted(comparison: &Comparison<'_>) -> String {
    let (mut same, mut all) = (0, 0);
    for pair in comparison.parts() {
        all += 1;
        same += usize::from(pair.level() < Level::Computation);
    }
    let whose = match (comparison.a.is_symbolic, comparison.b.is_symbolic) {
        (true, true) => "Two definitions, without numbers",
        (false, false) => "Two models with their numbers",
        _ => "A model and a definition; their numbers are not compared",
    };
    format!("{whose}. {same} of {all} parts compute the same.")
}

/// The kinds of layers of both, where there are several.
fn kinds(out: &mut String, comparison: &Comparison<'_>, names: &[String; 2]) {
    if comparison.kinds.len() < 2 {
        return;
    }
    line(out, "\nKinds of layers:\n");
    let rows = comparison.kinds.iter().enumerate().map(|(at, pair)| {
        let label = |kind: Option<&crate::diagram::Kind>| {
            kind.map_or_else(|| "\u{2013}".to_owned(), |kind| kind.label.clone())
        };
        [
            format!("kind {}", at + 1),
            label(pair.kind.a),
            label(pair.kind.b),
        ]
    });
    let mut rows: Vec<[String; 3]> = rows.collect();
    let [a, b] = [Side::A, Side::B].map(|side| pattern(comparison, side, true));
    rows.push(["order".into(), a, b]);
    table(names, &rows).iter().for_each(|row| line(out, row));
}

/// A difference as a row: what, in A, in B.
fn row(finding: &Finding) -> [String; 3] {
    let place = finding.place();
    let (what, [a, b]) = match &finding.told {
        Told::Has(what, values) => (what.clone(), values.clone()),
        Told::Does(values) => (String::new(), values.clone()),
        Told::Only(side, text) => {
            let mut values = [String::new(), String::new()];
            values[*side as usize].clone_from(text);
            (String::new(), values)
        }
    };
    let parts = [place, what].map(|text| Some(text).filter(|text| !text.is_empty()));
    let what: Vec<String> = parts.into_iter().flatten().collect();
    [what.join(": "), a, b]
}

/// Numbers of the whole models that are other ones; none without files: what, in A, in B.
pub fn model_rows(comparison: &Comparison<'_>) -> Vec<[String; 3]> {
    let (a, b) = (comparison.a, comparison.b);
    if a.is_symbolic || b.is_symbolic {
        return Vec::new();
    }
    let mut rows: Vec<[String; 3]> = Vec::new();
    for (name, value) in &a.facts {
        let other = b.facts.iter().find(|(other, _)| other == name);
        let other = other.map_or_else(|| "\u{2013}".to_owned(), |(_, value)| value.clone());
        rows.push([name.clone(), value.clone(), other]);
    }
    let new = b
        .facts
        .iter()
        .filter(|(name, _)| a.facts.iter().all(|(own, _)| own != name));
    rows.extend(new.map(|(name, value)| [name.clone(), "\u{2013}".into(), value.clone()]));
    let size = |n: Option<u64>| n.map_or_else(|| "\u{2013}".to_owned(), bytes);
    let kept = [&a.kept, &b.kept];
    let [x, y] = kept.map(|kept| size(kept.per_token));
    rows.push(["cache for each token".into(), x, y]);
    let [x, y] = kept.map(|kept| size(kept.in_window));
    rows.push(["cache for each token in the window".into(), x, y]);
    let [x, y] = kept.map(|kept| size(kept.per_sequence));
    rows.push(["state for each text".into(), x, y]);
    rows.retain(|[_, x, y]| x != y);
    rows
}

/// Rows as a table; none without rows.
fn table(names: &[String; 2], rows: &[[String; 3]]) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let cell = |text: &str| shown(text).replace('|', "\\|");
    let mut out = vec![
        format!("| | {} | {} |", cell(&names[0]), cell(&names[1])),
        "|---|---|---|".to_owned(),
    ];
    out.extend(
        rows.iter()
            .map(|[what, a, b]| format!("| {} | {} | {} |", cell(what), cell(a), cell(b))),
    );
    out
}
