//! Two parts of the same contract: choices, weights and operations that correspond.

use std::collections::{HashMap, HashSet};

use crate::diagram::{Drawing, End, Op, Part, PartOption, Weight};

use super::align::{Aligner, rejoin};
use super::features::weight_key;
use super::{Level, OpPair, OptionPair, Pair, PartPair, Role, WeightPair};

/// An operation that is the same.
const EQUAL: u32 = 8;
/// One that has another offset or factor of its own.
const ALIKE: u32 = 5;

/// What two drawings have to do with each other.
pub(super) struct Context<'a> {
    /// What alignments of the whole comparison may still cost.
    pub(super) aligner: &'a Aligner,
    symbolic: [bool; 2],
}

impl<'a> Context<'a> {
    pub(super) fn new(aligner: &'a Aligner, a: &Drawing, b: &Drawing) -> Self {
        Self {
            aligner,
            symbolic: [a.is_symbolic, b.is_symbolic],
        }
    }

    /// Whether one side has a file and the other does not.
    fn is_mixed(&self) -> bool {
        self.symbolic[0] != self.symbolic[1]
    }

    /// What it means that two numbers have different texts. A symbol and a number cannot be compared.
    pub(super) fn texts(&self, a: &str, b: &str) -> Level {
        let is_name = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_');
        match self.symbolic {
            _ if a == b => Level::Same,
            [false, false] => Level::Numbers,
            [true, true] if is_name(a) && is_name(b) && !is_digits(a) && !is_digits(b) => {
                Level::Names
            }
            [true, true] => Level::Numbers,
            _ => Level::Same,
        }
    }
}

fn is_digits(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// Stages of the model, matched by what they are.
pub(super) fn stages<'d>(context: &Context<'_>, a: &'d [Part], b: &'d [Part]) -> Vec<PartPair<'d>> {
    let same = |i: usize, j: usize| u32::from(a[i].kind == b[j].kind);
    let rows = context.aligner.align(a.len(), b.len(), &same);
    let pair = |row: Pair<usize>| {
        let part = Pair {
            a: row.a.map(|i| &a[i]),
            b: row.b.map(|j| &b[j]),
        };
        pair_part(context, part, part.map(|_| Role::Block))
    };
    rows.into_iter().map(pair).collect()
}

/// Two parts of the same contract, or one.
pub(super) fn pair_part<'d>(
    context: &Context<'_>,
    part: Pair<&'d Part>,
    role: Pair<Role>,
) -> PartPair<'d> {
    let none: &'d [Op] = &[];
    let of_a = part.a.map_or(none, |part| &part.ops);
    let of_b = part.b.map_or(none, |part| &part.ops);
    let ops = ops(context, part, of_a, of_b);
    PartPair {
        is_rewired: part.matched().is_some_and(|(a, b)| is_rewired(a, b, &ops)),
        ops: ops.into_iter().map(|(_, op)| op).collect(),
        options: part
            .matched()
            .map_or_else(Vec::new, |(a, b)| options(context, a, b)),
        weights: weights(context, part),
        part,
        role,
    }
}

/// Choices that both have and that differ. What only one has follows from another that differs.
fn options<'d>(context: &Context<'_>, a: &'d Part, b: &'d Part) -> Vec<OptionPair<'d>> {
    let mut of_b: HashMap<&str, &'d PartOption> = b
        .options
        .iter()
        .map(|option| (option.name.as_str(), option))
        .collect();
    let level = |a: &PartOption, b: &PartOption| match a.is_number {
        _ if a.is_off != b.is_off => Level::Computation,
        // A file decides what another definition leaves to its file.
        _ if a.is_open != b.is_open && context.is_mixed() => Level::Same,
        // A number that does nothing has no size.
        true if a.is_off => Level::Same,
        true => context.texts(&a.value, &b.value),
        false if a.value == b.value => Level::Same,
        false => Level::Computation,
    };
    let pairs = a.options.iter().filter_map(|a| {
        let b = of_b.remove(a.name.as_str())?;
        let level = level(a, b);
        (level > Level::Same).then_some(OptionPair { a, b, level })
    });
    pairs.collect()
}

fn weights<'d>(context: &Context<'_>, part: Pair<&'d Part>) -> Vec<WeightPair<'d>> {
    let none: &'d [Weight] = &[];
    let of_a = part.a.map_or(none, |part| &part.weights);
    let of_b = part.b.map_or(none, |part| &part.weights);
    let kind = part.either().map_or("", |part| part.kind);
    let key = |weight: &'d Weight| weight_key(kind, &weight.key);
    let same = |i: usize, j: usize| u32::from(key(&of_a[i]) == key(&of_b[j]));
    let rows = context.aligner.align(of_a.len(), of_b.len(), &same);
    let rows = rejoin(rows, &|i| key(&of_a[i]), &|j| key(&of_b[j]));
    let pair = |row: Pair<usize>| {
        let weight = Pair {
            a: row.a.map(|i| &of_a[i]),
            b: row.b.map(|j| &of_b[j]),
        };
        let level = match weight.matched() {
            Some((a, b)) => weight_level(context, a, b),
            None => Level::Computation,
        };
        WeightPair { weight, level }
    };
    rows.into_iter().map(|(row, _)| pair(row)).collect()
}

fn weight_level(context: &Context<'_>, a: &Weight, b: &Weight) -> Level {
    if a.is_shared != b.is_shared {
        return Level::Computation;
    }
    let names = if a.name == b.name {
        Level::Same
    } else {
        Level::Names
    };
    let dims = a.shape.iter().zip(&b.shape);
    let dims = dims.map(|(a, b)| context.texts(a, b));
    let types = match a.types == b.types || a.types.is_empty() || b.types.is_empty() {
        true => Level::Same,
        false => Level::Numbers,
    };
    dims.chain([names, types]).max().unwrap_or(Level::Same)
}

/// What an operation is to another: what is computed, and with which weights.
#[derive(PartialEq, Eq, Hash)]
struct Sort<'d> {
    ops: &'d [String],
    weights: Vec<&'d str>,
    sign: Option<&'static str>,
}

fn sort<'d>(part: Option<&'d Part>, op: &'d Op) -> Sort<'d> {
    let key = |at: &usize| {
        let part = part?;
        let weight = part.weights.get(*at)?;
        Some(weight_key(part.kind, &weight.key))
    };
    let sign = match op.shape {
        crate::diagram::OpShape::Sign(sign) => Some(sign),
        _ => None,
    };
    Sort {
        ops: &op.ops,
        weights: op.weights.iter().filter_map(key).collect(),
        sign,
    }
}

/// Operations by their places, and as such.
fn ops<'d>(
    context: &Context<'_>,
    part: Pair<&'d Part>,
    a: &'d [Op],
    b: &'d [Op],
) -> Vec<(Pair<usize>, OpPair<'d>)> {
    let of_a: Vec<Sort<'d>> = a.iter().map(|op| sort(part.a, op)).collect();
    let of_b: Vec<Sort<'d>> = b.iter().map(|op| sort(part.b, op)).collect();
    let score = |i: usize, j: usize| {
        let (a, b) = (&of_a[i], &of_b[j]);
        let leads = a.ops.first() == b.ops.first() && a.sign == b.sign;
        let weights = a.weights.first() == b.weights.first() && !a.weights.is_empty();
        // One that may read a weight or not; a product by a weight is another than one of two values.
        let is_product = a.ops.first().is_some_and(|op| op.starts_with("MUL"));
        let optional = a.weights.is_empty() != b.weights.is_empty();
        let is_alike = weights || optional && !is_product && a.sign.is_none();
        match a == b {
            true => EQUAL,
            false if leads && is_alike => ALIKE,
            false => 0,
        }
    };
    let rows = context.aligner.align(a.len(), b.len(), &score);
    let sort_a = |i: usize| sort(part.a, &a[i]);
    let sort_b = |j: usize| sort(part.b, &b[j]);
    let rows = rejoin(rows, &sort_a, &sort_b);
    let pair = |(row, is_moved): (Pair<usize>, bool)| {
        let level = match row.matched() {
            Some((i, j)) if is_moved || of_a[*i] != of_b[*j] => Level::Computation,
            Some((i, j)) => titles(context, &a[*i].title, &b[*j].title),
            None => Level::Computation,
        };
        let op = Pair {
            a: row.a.map(|i| &a[i]),
            b: row.b.map(|j| &b[j]),
        };
        (
            row,
            OpPair {
                op,
                level,
                is_moved,
            },
        )
    };
    rows.into_iter().map(pair).collect()
}

/// Titles of equal operations differ in a factor or a name.
fn titles(context: &Context<'_>, a: &str, b: &str) -> Level {
    context.texts(a, b).min(Level::Numbers)
}

/// Whether operations that both have read other ones that both have.
fn is_rewired(a: &Part, b: &Part, rows: &[(Pair<usize>, OpPair<'_>)]) -> bool {
    let is_whole = rows.iter().all(|(row, _)| row.matched().is_some());
    if !is_whole {
        return false;
    }
    let to_b: HashMap<usize, usize> = rows
        .iter()
        .filter_map(|(row, _)| Some((row.a?, row.b?)))
        .collect();
    let outside = |end: &End| matches!(end, End::Outside(_));
    let place = |end: &End| match end {
        End::Op(at) => Some(*at),
        End::Outside(_) => None,
    };
    let of_a: HashSet<(Option<usize>, Option<usize>)> = a
        .edges
        .iter()
        .map(|edge| {
            let from = place(&edge.from).and_then(|at| to_b.get(&at).copied());
            (from, to_b.get(&edge.to).copied())
        })
        .collect();
    let of_b: HashSet<(Option<usize>, Option<usize>)> = b
        .edges
        .iter()
        .map(|edge| (place(&edge.from), Some(edge.to)))
        .collect();
    let inputs = |part: &Part| part.edges.iter().filter(|edge| outside(&edge.from)).count();
    of_a != of_b || inputs(a) != inputs(b)
}
