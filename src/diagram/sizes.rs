//! Sizes as text: numbers of a file, or symbols that hold for every made-up model.
//!
//! Nothing is guessed from one number. A graph is built at several points: two numbers of tokens, and,
//! without a file, models that differ in one parameter each. A size is called by an expression only if
//! the expression has the size's value at every point.

use crate::arch::expr::Value;
use crate::arch::{ArchDef, Resolved};
use crate::ggml::Step;
use crate::plan::{Plan, Unit};

/// A model for whose graph sizes are known.
pub(super) struct Point {
    pub(super) plan: Plan,
    pub(super) steps: Vec<Step>,
    pub(super) n_tokens: u64,
}

/// A name and its value at each point.
#[derive(Clone, Debug)]
struct Symbol {
    text: String,
    values: Vec<u64>,
    is_name: bool,
}

/// Texts of sizes.
pub(super) struct Sizes<'a> {
    pub(super) points: &'a [Point],
    is_symbolic: bool,
    global: Vec<Symbol>,
}

/// Symbols that hold within a unit, best first.
pub(super) struct Symbols(Vec<Symbol>);

impl<'a> Sizes<'a> {
    pub(super) fn new(points: &'a [Point], def: &ArchDef, is_symbolic: bool) -> Self {
        let mut global = vec![named("T", points, |point| Some(point.n_tokens))];
        global.push(named("n_embd", points, |point| Some(point.plan.n_embd)));
        global.push(named("n_vocab", points, |point| Some(point.plan.n_vocab)));
        for name in def.params.keys().filter(|_| is_symbolic) {
            global.push(named(name, points, |point| {
                match point.plan.params.get(name)? {
                    Value::Int(value) => u64::try_from(*value).ok(),
                    _ => None,
                }
            }));
        }
        let mut global: Vec<Symbol> = global.into_iter().flatten().collect();
        // What no point changes may be a coincidence.
        global.retain(|symbol| symbol.values.iter().any(|v| *v != symbol.values[0]));
        Self {
            points,
            is_symbolic,
            global,
        }
    }

    /// What sizes within a unit may be called: `labels` are the texts of its options.
    pub(super) fn symbols(&self, path: &str, labels: &dyn Fn(&str) -> Option<String>) -> Symbols {
        let units: Option<Vec<&Unit>> = self
            .points
            .iter()
            .map(|point| unit_at(&point.plan, path))
            .collect();
        let Some(units) = units.filter(|_| self.is_symbolic) else {
            return Symbols(self.global.clone());
        };
        let mut own = Vec::new();
        for (at, spec) in units[0].contract.0.options.iter().enumerate() {
            let values: Option<Vec<u64>> = units
                .iter()
                .map(|unit| match unit.options[at] {
                    Resolved::Int(value) => Some(value),
                    _ => None,
                })
                .collect();
            if let Some(values) = values {
                own.push(Symbol {
                    text: labels(spec.name).unwrap_or_else(|| spec.name.to_owned()),
                    values,
                    is_name: true,
                });
            }
        }
        own.retain(|symbol| symbol.values.iter().all(|v| *v > 0));
        let varied = |symbol: &Symbol| symbol.values.iter().any(|v| *v != symbol.values[0]);
        let mut all: Vec<Symbol> = self.global[..self.global.len().min(2)].to_vec();
        all.extend(own.iter().filter(|s| varied(s)).cloned());
        all.extend(self.global.iter().skip(2).cloned());
        all.extend(combined(&own, &self.global));
        all.extend(own.iter().filter(|s| !varied(s)).cloned());
        Symbols(all)
    }

    /// Dimensions of a step, ggml order, without trailing ones.
    pub(super) fn of_step(&self, at: usize, symbols: &Symbols) -> Vec<String> {
        let shape = self.points[0].steps[at].shape;
        let rank = shape.iter().rposition(|n| *n != 1).map_or(1, |at| at + 1);
        let rank = (rank..=4)
            .find(|rank| {
                let rest = |p: &Point| p.steps[at].shape[*rank..].iter().all(|n| *n == 1);
                self.points.iter().all(rest)
            })
            .unwrap_or(4);
        (0..rank)
            .map(|dim| {
                let values = self.points.iter().map(|p| p.steps[at].shape[dim]);
                self.text(&values.collect::<Vec<u64>>(), symbols)
            })
            .collect()
    }

    /// Dimensions of a tensor of the plan.
    pub(super) fn of_tensor(&self, at: usize, symbols: &Symbols) -> Vec<String> {
        let rank = self.points[0].plan.tensors[at].shape.len();
        (0..rank)
            .map(|dim| {
                let values: Option<Vec<u64>> = self
                    .points
                    .iter()
                    .map(|p| p.plan.tensors.get(at)?.shape.get(dim).copied())
                    .collect();
                values.map_or_else(|| UNKNOWN.into(), |values| self.text(&values, symbols))
            })
            .collect()
    }

    /// A size by its values at the points.
    pub(super) fn text(&self, values: &[u64], symbols: &Symbols) -> String {
        let constant = values.iter().all(|v| *v == values[0]);
        if constant && (!self.is_symbolic || values[0] == 1) {
            return values[0].to_string();
        }
        if let Some(symbol) = symbols.0.iter().find(|symbol| symbol.values == values) {
            return symbol.text.clone();
        }
        let named = symbols.0.iter().filter(|symbol| symbol.is_name);
        named
            .clone()
            .find_map(|symbol| multiple(symbol, values))
            .or_else(|| named.clone().find_map(|symbol| distance(symbol, values)))
            .unwrap_or_else(|| UNKNOWN.into())
    }
}

/// What stands for a size that no symbol fits.
const UNKNOWN: &str = "\u{2026}";

fn named(
    text: &str,
    points: &[Point],
    value: impl Fn(&Point) -> Option<u64>,
) -> Option<Symbol> {
    let values: Option<Vec<u64>> = points.iter().map(value).collect();
    values.map(|values| Symbol {
        text: text.to_owned(),
        values,
        is_name: true,
    })
}

/// Products, sums and differences of two options.
fn combined(own: &[Symbol], global: &[Symbol]) -> Vec<Symbol> {
    let mut out = Vec::new();
    let mut push = |text: String, values: Option<Vec<u64>>| {
        if let Some(values) = values {
            out.push(Symbol {
                text,
                values,
                is_name: false,
            });
        }
    };
    let each = |a: &Symbol, b: &Symbol, f: fn(u64, u64) -> Option<u64>| {
        let pairs = a.values.iter().zip(&b.values);
        pairs.map(|(a, b)| f(*a, *b)).collect::<Option<Vec<u64>>>()
    };
    for (i, a) in own.iter().enumerate() {
        for b in &own[i + 1..] {
            let (left, right) = (&a.text, &b.text);
            push(format!("{left}\u{b7}{right}"), each(a, b, u64::checked_mul));
            push(format!("{left}+{right}"), each(a, b, u64::checked_add));
            push(format!("{left}\u{2212}{right}"), each(a, b, u64::checked_sub));
            push(format!("{right}\u{2212}{left}"), each(b, a, u64::checked_sub));
            push(format!("{left}/{right}"), each(a, b, quotient));
            push(format!("{right}/{left}"), each(b, a, quotient));
        }
    }
    for a in own {
        for b in global {
            let (left, right) = (&a.text, &b.text);
            push(format!("{left}\u{b7}{right}"), each(a, b, u64::checked_mul));
            push(format!("{right}/{left}"), each(b, a, quotient));
        }
    }
    out
}

fn quotient(a: u64, b: u64) -> Option<u64> {
    (b > 1 && a.is_multiple_of(b)).then(|| a / b)
}

/// `3·n` if the values are three times those of a symbol at every point.
fn multiple(symbol: &Symbol, values: &[u64]) -> Option<String> {
    let factor = quotient(values[0], symbol.values[0])?;
    let pairs = values.iter().zip(&symbol.values);
    let holds = pairs.clone().all(|(v, s)| s.checked_mul(factor) == Some(*v));
    holds.then(|| format!("{factor}\u{b7}{}", symbol.text))
}

/// `n+3` or `n−1` if the values differ by that from a symbol's at every point.
fn distance(symbol: &Symbol, values: &[u64]) -> Option<String> {
    let signed = |v: u64| i64::try_from(v).ok();
    let step = signed(values[0])? - signed(symbol.values[0])?;
    let mut pairs = values.iter().zip(&symbol.values);
    let holds = pairs.all(|(v, s)| Some(step) == signed(*v).zip(signed(*s)).map(|(v, s)| v - s));
    let sign = if step < 0 { "\u{2212}" } else { "+" };
    let near = holds && step.unsigned_abs() <= 8;
    near.then(|| format!("{}{sign}{}", symbol.text, step.unsigned_abs()))
}

/// The unit at a path.
pub(super) fn unit_at<'p>(plan: &'p Plan, path: &str) -> Option<&'p Unit> {
    let blocks = plan.layers.iter().flat_map(|layer| &layer.slots);
    let blocks = blocks.flat_map(|slot| &slot.branches).map(|b| &b.block);
    let head = plan.head.iter().filter_map(|head| head.unit.as_ref());
    let stages = [&plan.embed].into_iter().chain(&plan.per_layer);
    stages
        .chain(head)
        .chain(blocks)
        .find(|unit| unit.path == path)
}
