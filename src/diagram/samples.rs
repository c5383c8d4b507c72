//! What a drawing is made of: plans with their graphs, at as many points as its sizes need.

use crate::arch::{ArchDef, ParamSource};
use crate::arch::expr::Value;
use crate::model;
use crate::plan::Plan;
use crate::synth::{self, Request};

use super::build::Error;
use super::sizes::Point;

/// Tokens of the passes whose graphs are compared: sizes that differ depend on the tokens.
const N_TOKENS: [usize; 2] = [7, 11];
/// Factors by which a parameter is tried to differ.
const FACTORS: [u64; 2] = [2, 3];

/// A model or a definition, ready to be drawn.
pub struct Sample {
    name: String,
    points: Vec<Point>,
    is_symbolic: bool,
}

impl Sample {
    /// A model with its numbers.
    ///
    /// # Errors
    /// A graph that cannot be built.
    pub fn of_model(name: &str, plan: &Plan) -> Result<Self, Error> {
        let points = N_TOKENS.map(|n| point(plan.clone(), n));
        Ok(Self {
            name: name.to_owned(),
            points: points.into_iter().collect::<Result<_, _>>()?,
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
        for (param, value) in numbers(def, &plan, request) {
            let varied = FACTORS.iter().find_map(|factor| {
                let varied = with(request, param, &times(&value, *factor));
                let (_, plan) = synth::design(def, &varied).ok()?;
                let point = point(plan, N_TOKENS[0]).ok()?;
                is_like(&points[0], &point).then_some(point)
            });
            points.extend(varied);
        }
        Ok(Self {
            name: name.to_owned(),
            points,
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
    pub fn steps(&self) -> &[crate::ggml::Step] {
        &self.points[0].steps
    }

    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }
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
    let names = |point: &Point| -> Vec<String> {
        let tensors = point.plan.tensors.iter();
        tensors.map(|tensor| tensor.name.clone()).collect()
    };
    let pairs = || a.steps.iter().zip(&b.steps);
    a.steps.len() == b.steps.len()
        && pairs().all(|(a, b)| (&a.op, &a.path, &a.sources) == (&b.op, &b.path, &b.sources))
        && names(a) == names(b)
}

/// Whole-number parameters that a file gives, with their values as they are written.
fn numbers<'d>(def: &'d ArchDef, plan: &Plan, request: &Request) -> Vec<(&'d str, Vec<u64>)> {
    let mut out = Vec::new();
    for (name, param) in &def.params {
        if !matches!(param.source, ParamSource::Key { .. }) {
            continue;
        }
        let given = request.set.iter().find(|(set, _)| set == name);
        let given = given.and_then(|(_, text)| {
            let items = text.split(',').map(|item| item.parse().ok());
            items.collect::<Option<Vec<u64>>>()
        });
        let known = match plan.params.get(name) {
            Some(Value::Int(value)) => u64::try_from(*value).ok().map(|value| vec![value]),
            _ => None,
        };
        if let Some(value) = given.or(known).filter(|v| v.iter().any(|v| *v > 1)) {
            out.push((name.as_str(), value));
        }
    }
    out
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
