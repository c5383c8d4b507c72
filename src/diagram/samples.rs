//! What a drawing is made of: plans with their graphs, at as many points as its sizes need.

use std::convert::Infallible;

use crate::arch::expr::{Expr, Value};
use crate::arch::{ArchDef, Mode, ParamSource};
use crate::ggml::Step;
use crate::model;
use crate::parallel;
use crate::plan::Plan;
use crate::synth::{self, Request};

use super::build::Error;
use super::sizes::Point;

/// Tokens of the passes whose graphs are compared: sizes that differ depend on the tokens.
const N_TOKENS: [usize; 2] = [7, 11];
/// Factors by which a parameter is tried to differ.
const FACTORS: [u64; 2] = [2, 3];
/// Values for a parameter whose own one is not known.
const GUESSES: [u64; 4] = [24, 12, 8, 32];

/// A model or a definition, ready to be drawn.
pub struct Sample {
    name: String,
    points: Vec<Point>,
    /// The pass of one token, of a model that goes on by one.
    single: Option<Vec<Step>>,
    is_symbolic: bool,
}

impl Sample {
    /// A model with its numbers.
    ///
    /// # Errors
    /// A graph that cannot be built.
    pub fn of_model(name: &str, plan: &Plan) -> Result<Self, Error> {
        let points = N_TOKENS.map(|n| point(plan.clone(), n));
        let goes_on = plan.mode == Mode::Causal;
        let single = goes_on.then(|| model::trace(plan, 1)).transpose();
        Ok(Self {
            name: name.to_owned(),
            points: points.into_iter().collect::<Result<_, _>>()?,
            single: single.map_err(Error::Graph)?,
            is_symbolic: false,
        })
    }

    /// A definition with symbols for sizes: what the models have in common that differ from the one of
    /// `request` in one parameter each.
    ///
    /// # Errors
    /// Settings that do not go together, a graph that cannot be built.
    pub fn of_definition(name: &str, def: &ArchDef, request: &Request) -> Result<Self, Error> {
        let (_, plan) = synth::design(def, request)?;
        let mut points = vec![
            point(plan.clone(), N_TOKENS[0])?,
            point(plan.clone(), N_TOKENS[1])?,
        ];
        let varied = |request: &Request| {
            let plan = match synth::design(def, request) {
                Ok((_, plan)) => plan,
                Err(synth::Error::Unread { .. }) => return Tried::Unread,
                Err(_) => return Tried::Refused,
            };
            let like = point(plan, N_TOKENS[0])
                .ok()
                .filter(|p| is_like(&points[0], p));
            like.map_or(Tried::Refused, |point| Tried::Point(Box::new(point)))
        };
        let mut found = Vec::new();
        let mut stuck = Vec::new();
        let numbers = numbers(def, &plan, request);
        let alone = |at: usize| {
            let (param, values) = &numbers[at];
            let mut tried = values
                .iter()
                .map(|value| varied(&with(request, param, value)));
            let known = tried.find(|tried| !matches!(tried, Tried::Refused));
            known.unwrap_or(Tried::Refused)
        };
        for (tried, number) in all(numbers.len(), alone).into_iter().zip(&numbers) {
            match tried {
                Tried::Point(point) => found.push(*point),
                Tried::Refused => stuck.push(number),
                Tried::Unread => {}
            }
        }
        // Some have to go together.
        let pairs = (0..stuck.len()).flat_map(|a| (0..a).map(move |b| (b, a)));
        let pairs: Vec<(usize, usize)> = pairs.collect();
        let together = |at: usize| {
            let [(a, of_a), (b, of_b)] = [pairs[at].0, pairs[at].1].map(|one| stuck[one]);
            varied(&with(&with(request, a, &of_a[0]), b, &of_b[0]))
        };
        found.extend(
            all(pairs.len(), together)
                .into_iter()
                .filter_map(|tried| match tried {
                    Tried::Point(point) => Some(*point),
                    _ => None,
                }),
        );
        points.extend(found);
        Ok(Self {
            name: name.to_owned(),
            points,
            single: None,
            is_symbolic: true,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether sizes are symbols.
    pub fn is_symbolic(&self) -> bool {
        self.is_symbolic
    }

    /// The plan that is drawn.
    pub fn plan(&self) -> &Plan {
        &self.points[0].plan
    }

    /// The graph that is drawn.
    pub fn steps(&self) -> &[Step] {
        &self.points[0].steps
    }

    pub(super) fn single(&self) -> Option<&[Step]> {
        self.single.as_deref()
    }

    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }
}

/// What came of another value for a parameter.
enum Tried {
    /// A model whose graph is the same but for sizes.
    Point(Box<Point>),
    /// No such model.
    Refused,
    /// The model does not depend on it.
    Unread,
}

/// What comes of each of so many tries, made on all cores.
fn all(n: usize, make: impl Fn(usize) -> Tried + Sync) -> Vec<Tried> {
    let mut out = Vec::with_capacity(n);
    let made = parallel::in_order(
        n,
        |at| Ok::<_, Infallible>(make(at)),
        |tried| {
            out.push(tried);
            Ok(())
        },
    );
    let Ok(()) = made;
    out
}

fn point(plan: Plan, n_tokens: usize) -> Result<Point, Error> {
    let steps = model::trace(&plan, n_tokens)?;
    Ok(Point {
        plan,
        steps,
        n_tokens: n_tokens as u64,
    })
}

/// Whether two graphs are the same but for sizes.
fn is_like(a: &Point, b: &Point) -> bool {
    fn names(point: &Point) -> impl Iterator<Item = &str> {
        point.plan.tensors.iter().map(|tensor| tensor.name.as_str())
    }
    let pairs = || a.steps.iter().zip(&b.steps);
    a.steps.len() == b.steps.len()
        && pairs().all(|(a, b)| (&a.op, &a.path, &a.sources) == (&b.op, &b.path, &b.sources))
        && names(a).eq(names(b))
}

/// Whole-number parameters that a file gives, with other values to try.
fn numbers<'d>(def: &'d ArchDef, plan: &Plan, request: &Request) -> Vec<(&'d str, Vec<String>)> {
    let mut out = Vec::new();
    for (name, param) in &def.params {
        let ParamSource::Key { default, synth, .. } = &param.source else {
            continue;
        };
        let literal = |expr: &Option<Expr>| expr.as_ref().and_then(Expr::as_literal).cloned();
        let given = request.set.iter().find(|(set, _)| set == name);
        let known = match given {
            Some((_, text)) => text.split(',').map(|item| item.parse().ok()).collect(),
            None => {
                let value = plan.params.get(name).cloned().or_else(|| literal(synth));
                value.as_ref().and_then(number).map(|value| vec![value])
            }
        };
        match known.filter(|values: &Vec<u64>| values.iter().any(|v| *v > 1)) {
            Some(values) => out.push((
                name.as_str(),
                FACTORS
                    .iter()
                    .map(|factor| times(&values, *factor))
                    .collect(),
            )),
            // What follows from others unless the file gives it.
            None if given.is_none() && default.is_some() && literal(default).is_none() => {
                out.push((name.as_str(), GUESSES.iter().map(u64::to_string).collect()));
            }
            None => {}
        }
    }
    out
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(value) => u64::try_from(*value).ok(),
        _ => None,
    }
}

fn times(values: &[u64], factor: u64) -> String {
    let texts = values.iter().map(|value| (value * factor).to_string());
    texts.collect::<Vec<String>>().join(",")
}

fn with(request: &Request, param: &str, value: &str) -> Request {
    let mut varied = request.clone();
    varied.set.retain(|(name, _)| name != param);
    varied.set.push((param.to_owned(), value.to_owned()));
    varied
}
