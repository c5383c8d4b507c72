//! Sizes as text: numbers of a file, or symbols that hold for every made-up model.
//!
//! Nothing is guessed from one number. A graph is built at several points: two numbers of tokens, and,
//! without a file, models that differ in one parameter each. A size is called by an expression only if
//! the expression has the size's value at every point.

use crate::arch::expr::Value;
use crate::arch::{ArchDef, Contract, OptionKind, OptionSpec, Resolved, Resource, StateSpec};
use crate::ggml::Step;
use crate::plan::{Plan, StatePlan, Unit};
use crate::wording;

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

/// Symbols that hold within a unit, best first, and its factors with their values.
pub(super) struct Symbols(Vec<Symbol>, Vec<(String, Vec<f64>)>);

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
            return Symbols(self.global.clone(), Vec::new());
        };
        let contract = units[0].contract.0;
        let label = |name: &str| labels(name).unwrap_or_else(|| name.to_owned());
        let mut own = Vec::new();
        let mut factors = Vec::new();
        for (at, spec) in contract.options.iter().enumerate() {
            let each = units.iter().map(|unit| &unit.options[at]);
            let ints = each.clone().map(|option| match option {
                Resolved::Int(value) => Some(*value),
                _ => None,
            });
            let floats = each.map(|option| match option {
                Resolved::Float(value) => Some(*value),
                _ => None,
            });
            if let (Some(values), false) = (ints.collect(), is_derived(spec)) {
                own.push(Symbol {
                    text: label(spec.name),
                    values,
                    is_name: true,
                });
            }
            if let Some(values) = floats.collect::<Option<Vec<f64>>>() {
                factors.push((label(spec.name), values));
            }
        }
        own.extend(self.turned(&units, labels));
        own.retain(|symbol| symbol.values.iter().all(|v| *v > 0));
        let varied = |symbol: &&Symbol| symbol.values.iter().any(|v| *v != symbol.values[0]);
        let (moving, still): (Vec<&Symbol>, Vec<&Symbol>) = own.iter().partition(varied);
        let moving: Vec<Symbol> = moving.into_iter().cloned().collect();
        let mut all: Vec<Symbol> = self.global[..self.global.len().min(2)].to_vec();
        all.extend(moving.iter().cloned());
        all.extend(self.global.iter().skip(2).cloned());
        // Other sizes may have the value of one that no point changes.
        let still = still.into_iter().filter(|symbol| symbol.values[0] > 1);
        all.extend(still.map(|symbol| Symbol {
            is_name: false,
            ..symbol.clone()
        }));
        all.extend(combined(&moving, &self.global));
        all.extend(self.contracted(&units, &label));
        Symbols(all, factors)
    }

    /// Elements that the rotations of a unit turn.
    fn turned(&self, units: &[&Unit], labels: &dyn Fn(&str) -> Option<String>) -> Option<Symbol> {
        let specs = units[0].contract.0.options.iter();
        let is_rope = |o: &OptionSpec| o.kind == OptionKind::Resource(Resource::Rope);
        let at = specs.clone().position(is_rope)?;
        let values = units
            .iter()
            .zip(self.points)
            .map(|(unit, point)| match unit.options[at] {
                Resolved::Resource(Some(rope)) => point.plan.ropes[rope].option_int("dims"),
                _ => None,
            });
        Some(Symbol {
            text: labels("rope.dims").unwrap_or_else(|| "dims".into()),
            values: values.collect::<Option<_>>()?,
            is_name: true,
        })
    }

    /// Dimensions of weights and parts of states as the contract has them.
    fn contracted(&self, units: &[&Unit], label: &dyn Fn(&str) -> String) -> Vec<Symbol> {
        let contract = units[0].contract.0;
        let mut out = Vec::new();
        let mut push = |source: &str, values: Option<Vec<u64>>| {
            if let (Some(values), false) = (values, source.contains('(') && source.contains(',')) {
                out.push(Symbol {
                    text: renamed(source, contract, label),
                    values,
                    is_name: false,
                });
            }
        };
        for (nth, spec) in contract.weights.iter().enumerate() {
            for (dim, source) in spec.shape.iter().enumerate() {
                let pairs = units.iter().zip(self.points);
                let values = pairs.map(|(unit, point)| {
                    let tensor = &point.plan.tensors[unit.weights[nth]?];
                    tensor.shape.get(dim).copied()
                });
                push(source, values.collect());
            }
        }
        if let StateSpec::Recurrent(parts) = contract.state {
            for (nth, (_, source)) in parts.iter().enumerate() {
                let values = units.iter().map(|unit| match &unit.state {
                    Some(StatePlan::Recurrent(parts)) => Some(parts.get(nth)?.size),
                    _ => None,
                });
                push(source, values.collect());
            }
        }
        out
    }

    /// A parameter of a step that is a float.
    pub(super) fn number(&self, at: usize, nth: usize, symbols: &Symbols) -> String {
        let values: Vec<f64> = self
            .points
            .iter()
            .map(|point| f64::from(point.steps[at].params[nth]))
            .collect();
        let is = |f: &dyn Fn(usize) -> f64| {
            let mut pairs = values.iter().enumerate();
            pairs.all(|(i, v)| (f(i) - v).abs() <= 1e-5 * v.abs())
        };
        for (text, known) in symbols.1.iter().filter(|_| self.is_symbolic) {
            if is(&|i| known[i]) {
                return text.clone();
            }
            if is(&|i| 1.0 / known[i]) {
                return format!("1/{text}");
            }
        }
        let named = symbols.0.iter().filter(|s| s.is_name && self.is_symbolic);
        for symbol in named {
            let root = |i: usize| (symbol.values[i] as f64).sqrt();
            if is(&root) {
                return format!("\u{221a}{}", symbol.text);
            }
            if is(&|i| 1.0 / root(i)) {
                return format!("1/\u{221a}{}", symbol.text);
            }
        }
        match is(&|_| values[0]) {
            true => wording::tidy(values[0]),
            false => "a factor".into(),
        }
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
            .or_else(|| named.clone().find_map(|symbol| half(symbol, values)))
            .or_else(|| named.clone().find_map(|symbol| distance(symbol, values)))
            .unwrap_or_else(|| UNKNOWN.into())
    }
}

/// What stands for a size that no symbol fits.
const UNKNOWN: &str = "\u{2026}";

fn named(text: &str, points: &[Point], value: impl Fn(&Point) -> Option<u64>) -> Option<Symbol> {
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
            let twice = |a: u64, b: u64| a.checked_mul(b)?.checked_mul(2);
            push(format!("2\u{b7}{left}\u{b7}{right}"), each(a, b, twice));
            push(format!("{left}+{right}"), each(a, b, u64::checked_add));
            push(
                format!("{left}\u{2212}{right}"),
                each(a, b, u64::checked_sub),
            );
            push(
                format!("{right}\u{2212}{left}"),
                each(b, a, u64::checked_sub),
            );
        }
    }
    for a in own {
        for b in global {
            let (left, right) = (&a.text, &b.text);
            push(format!("{left}\u{b7}{right}"), each(a, b, u64::checked_mul));
            let behind = |a: u64, b: u64| b.checked_add(a)?.checked_sub(1);
            push(format!("{right}+{left}\u{2212}1"), each(a, b, behind));
        }
    }
    for (i, a) in own.iter().enumerate() {
        for b in &own[i + 1..] {
            let (left, right) = (&a.text, &b.text);
            push(format!("{left}/{right}"), each(a, b, quotient));
            push(format!("{right}/{left}"), each(b, a, quotient));
        }
        for b in global {
            push(format!("{}/{}", b.text, a.text), each(b, a, quotient));
        }
    }
    out
}

/// An expression of a contract with the labels of its options, `*` as a dot.
fn renamed(source: &str, contract: &Contract, label: &dyn Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut word = String::new();
    let flush = |word: &mut String, out: &mut String| {
        match contract.option(word) {
            Some(spec) if is_derived(spec) && label(word) == *word => {
                let inner = renamed(spec.default.unwrap_or_default(), contract, label);
                let is_sum =
                    inner.contains(['+', '\u{2212}']) && !source.starts_with(word.as_str());
                out.push_str(&if is_sum { format!("({inner})") } else { inner });
            }
            Some(_) => out.push_str(&label(word)),
            None => out.push_str(word),
        }
        word.clear();
    };
    for c in source.chars() {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        flush(&mut word, &mut out);
        match c {
            ' ' => {}
            '*' => out.push('\u{b7}'),
            '-' => out.push('\u{2212}'),
            c => out.push(c),
        }
    }
    flush(&mut word, &mut out);
    out
}

fn quotient(a: u64, b: u64) -> Option<u64> {
    (b > 1 && a.is_multiple_of(b)).then(|| a / b)
}

/// More than this is no factor that a reader takes for one.
const MAX_FACTOR: u64 = 4;

/// `3·n` if the values are three times those of a symbol at every point.
fn multiple(symbol: &Symbol, values: &[u64]) -> Option<String> {
    let factor = quotient(values[0], symbol.values[0]).filter(|f| *f <= MAX_FACTOR)?;
    let pairs = values.iter().zip(&symbol.values);
    let holds = pairs
        .clone()
        .all(|(v, s)| s.checked_mul(factor) == Some(*v));
    holds.then(|| format!("{factor}\u{b7}{}", symbol.text))
}

/// `n/2` if a symbol's values are twice those at every point.
fn half(symbol: &Symbol, values: &[u64]) -> Option<String> {
    let mut pairs = values.iter().zip(&symbol.values);
    let holds = pairs.all(|(v, s)| v.checked_mul(2) == Some(*s));
    holds.then(|| format!("{}/2", symbol.text))
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

/// Whether the contract computes an option from others, so that it is no choice.
pub(super) fn is_derived(spec: &OptionSpec) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let computed = spec
        .default
        .is_some_and(|default| !default.chars().all(is_word));
    computed && spec.kind != OptionKind::Float
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

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(text: &str, values: &[u64]) -> Symbol {
        Symbol {
            text: text.to_owned(),
            values: values.to_vec(),
            is_name: true,
        }
    }

    #[test]
    fn an_expression_holds_at_every_point_or_not_at_all() {
        let n = symbol("n", &[4, 8, 4]);
        assert_eq!(multiple(&n, &[8, 16, 8]).as_deref(), Some("2\u{b7}n"));
        assert_eq!(multiple(&n, &[8, 16, 9]), None);
        assert_eq!(half(&n, &[2, 4, 2]).as_deref(), Some("n/2"));
        assert_eq!(half(&n, &[2, 4, 4]), None);
        assert_eq!(distance(&n, &[3, 7, 3]).as_deref(), Some("n\u{2212}1"));
        assert_eq!(distance(&n, &[3, 7, 7]), None);
        // A large factor is a size that happens to be a multiple.
        assert_eq!(multiple(&n, &[64, 128, 64]), None);
    }

    #[test]
    fn two_options_make_products_sums_and_differences() {
        let own = [symbol("a", &[2, 3]), symbol("b", &[5, 7])];
        let all = combined(&own, &[]);
        let of = |values: &[u64]| {
            let found = all.iter().find(|s| s.values == values);
            found.map(|s| s.text.as_str())
        };
        assert_eq!(of(&[10, 21]), Some("a\u{b7}b"));
        assert_eq!(of(&[20, 42]), Some("2\u{b7}a\u{b7}b"));
        assert_eq!(of(&[7, 10]), Some("a+b"));
        assert_eq!(of(&[3, 4]), Some("b\u{2212}a"));
        assert_eq!(of(&[10, 20]), None);
    }
}
