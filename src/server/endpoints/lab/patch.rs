//! `POST /v1/lab/patch`: a grid of runs of one prompt. Each run replaces a value with the same value from a run of
//! another prompt. The runs that restore the other prompt's answer show where the model holds the information for it
//! (causal tracing).
//!
//! The runs are ordinary requests: they share steps with each other and with those of other clients.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid};
use crate::http::json::Json;
use crate::request::fields::{BodyFields, FieldType, Fields, fields};
use crate::request::input::check_ids;
use crate::response::running_completions::{RunningCompletions, usage_json};
use crate::served::ServedModel;
use lab_core::engine::{
    Capture, CapturedPoint, Edit, EditOp, EditVector, LabPlan, PositionSelector, Reduction,
    Request, Usage,
};
use lab_core::model::LOGITS;
use lab_sampling::Logprobs;

use super::prompt_tokens;
use crate::request::lab::objects::{MAX_ITEMS, TokenRef, positions, too_many};

const MAX_RUNS: usize = 4096;
const AT_ONCE: usize = 64;

fields! {
    /// Two prompts of equal length, and the values that go from one to the other.
    pub(crate) struct Patch {
        /// Name of the model.
        model: Option<String>,
        /// The prompt from which values come: a text or token ids.
        clean: Value,
        /// The prompt whose runs get them, of as many tokens.
        corrupt: Value,
        /// Points or patterns of points; default: the hidden state after every layer.
        points: Option<Vec<String>>,
        /// Positions, each a column of the grid; `all` at once; default: each of the prompt.
        positions: Option<PositionSelector>,
        /// What is measured at the last token: the log-probability of `token`, or its logit less that of `against`.
        metric: Metric,
    }
}

/// The metric of a run: a token, and a token to compare it with.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metric {
    token: TokenRef,
    against: Option<TokenRef>,
}

impl FieldType for Metric {}

/// The metric with token ids of a model.
#[derive(Clone, Copy)]
struct ResolvedMetric {
    token: u32,
    against: Option<u32>,
}

impl ResolvedMetric {
    fn of(self, logits: &[f32]) -> Result<f64, Error> {
        let fault = |detail: String| Error::Engine { detail };
        let logit = |id: u32| logits.get(id as usize).copied().map(f64::from);
        let missing = || fault("a measured token has no logit".into());
        let own = logit(self.token).ok_or_else(missing)?;
        match self.against {
            Some(other) => Ok(own - logit(other).ok_or_else(missing)?),
            None => {
                let all = Logprobs::new(logits).map_err(|error| fault(error.to_string()))?;
                all.of(self.token).ok_or_else(missing)
            }
        }
    }
}

/// A model with the metric, and the usage of its runs so far.
struct PatchRuns {
    served: Arc<ServedModel>,
    measure: ResolvedMetric,
    usage: Usage,
}

impl PatchRuns {
    /// Reads a prompt once for each plan. Returns the captures and the metric of each run.
    async fn each(
        &mut self,
        tokens: &[u32],
        plans: Vec<LabPlan>,
        param: &'static str,
    ) -> Result<Vec<(Vec<CapturedPoint>, f64)>, Error> {
        let request = |mut plan: LabPlan| {
            plan.captures.push(Capture {
                point: LOGITS.to_owned(),
                positions: None,
                reduce: Reduction::None,
                n_features: 0,
            });
            Request {
                lab: Some(Arc::new(plan)),
                ..Request::reading(tokens.to_vec())
            }
        };
        let requests = plans.into_iter().map(request).collect();
        let answers = RunningCompletions::submit(&self.served, requests, 1);
        let answers = answers.map_err(|error| error.with_prompt_field(param))?;
        let (all, usage) = answers.collect().await?;
        self.usage.prompt_tokens += usage.prompt_tokens;
        self.usage.cached_tokens += usage.cached_tokens;
        let one = |result: Option<Box<lab_core::engine::LabResult>>| {
            let mut captures = result.map(|result| result.captures).unwrap_or_default();
            let logits = captures.pop().map(|own| own.elements).unwrap_or_default();
            Ok((captures, self.measure.of(&logits)?))
        };
        all.into_iter().map(|answer| one(answer.lab)).collect()
    }
}

/// The columns of a grid; each column holds positions of a prompt of `n` tokens.
fn columns(asked: Option<PositionSelector>, n: usize) -> Result<Vec<Vec<i64>>, Error> {
    let n = n as i64;
    let resolved = |at: &i64| if *at < 0 { n + *at } else { *at };
    let found = match positions("positions", asked, PositionSelector::Prompt)? {
        PositionSelector::All => return Ok(vec![(0..n).collect()]),
        PositionSelector::Prompt => (0..n).collect(),
        PositionSelector::Last => vec![n - 1],
        PositionSelector::List(list) => list.iter().map(resolved).collect(),
        PositionSelector::Answer => Vec::new(),
    };
    let is_sound = found.is_sorted_by(|a, b| a < b) && found.iter().all(|at| (0..n).contains(at));
    if found.is_empty() || !is_sound {
        let message =
            format!("`positions`: expected ascending positions within the prompt of {n} tokens");
        return invalid("positions", message);
    }
    Ok(found.into_iter().map(|at| vec![at]).collect())
}

/// The edit of each run, point by point: it sets the rows of the other prompt at the positions of a column.
fn cells(names: &[String], rows: &[CapturedPoint], columns: &[Vec<i64>]) -> Vec<Edit> {
    let mut out = Vec::with_capacity(names.len() * columns.len());
    for (point, captured) in names.iter().zip(rows) {
        let n = captured.elements.len() / captured.positions.len().max(1);
        let mut left = captured.elements.chunks_exact(n.max(1));
        for column in columns {
            let own = left.by_ref().take(column.len());
            out.push(Edit {
                when: PositionSelector::All,
                tokens: None,
                point: point.clone(),
                op: EditOp::Set,
                positions: PositionSelector::List(column.clone()),
                vector: EditVector::Rows(own.map(<[f32]>::to_vec).collect()),
                parts: None,
                scale: 1.0,
                bounds: [f32::NEG_INFINITY, f32::INFINITY],
                norm_match: false,
            });
        }
    }
    out
}

pub(crate) async fn patch(
    State(pool): State<Arc<Pool>>,
    Fields(asked): Fields<Patch, true>,
) -> Result<Json, Error> {
    let name = asked
        .model
        .as_deref()
        .unwrap_or(crate::served::DEFAULT_MODEL);
    let served = pool.get(name).await?;
    grid(&served, asked).await.map(Json)
}

/// Computes the grid that an object describes, without a request around it.
///
/// # Errors
/// The object is invalid (the error names the place), or the model fails.
pub async fn patched(
    served: &Arc<ServedModel>,
    object: Map<String, Value>,
) -> Result<Value, String> {
    let found = async {
        let asked: Patch = BodyFields::new(object).whole()?;
        grid(served, asked).await
    };
    let found = RequestContext::detached().scope(found).await;
    found.map_err(|error: Error| error.to_string())
}

/// The grid: a row for each point, a column for each position.
async fn grid(served: &Arc<ServedModel>, asked: Patch) -> Result<Value, Error> {
    let patterns = asked.points.unwrap_or_else(|| vec!["layers.*.out".into()]);
    too_many("points", patterns.len(), MAX_ITEMS)?;
    let id = |target: TokenRef, param: &str| {
        let id = target.id(served.handle.tokenizer(), param)?;
        check_ids("metric", &[id], served)?;
        Ok::<u32, Error>(id)
    };
    let measure = ResolvedMetric {
        token: id(asked.metric.token, "metric.token")?,
        against: asked
            .metric
            .against
            .map(|t| id(t, "metric.against"))
            .transpose()?,
    };
    let clean = prompt_tokens(served, "clean", &asked.clean, true)?;
    let corrupt = prompt_tokens(served, "corrupt", &asked.corrupt, true)?;
    if clean.len() != corrupt.len() {
        let (n, m) = (clean.len(), corrupt.len());
        let message = format!("`corrupt` has {m} tokens, expected {n} as `clean` has");
        return invalid("corrupt", message);
    }
    let columns = columns(asked.positions, clean.len())?;
    let points = served.handle.points();
    let (mut names, mut width) = (Vec::new(), 0);
    for pattern in &patterns {
        let found = points.find(pattern);
        let found =
            found.map_err(|error| Error::invalid_value("points", format!("`points`: {error}")))?;
        for at in found {
            names.push(points.all[at].name_by(pattern).to_owned());
            width = points.all[at].width().max(width);
        }
    }
    let n_runs = names.len().saturating_mul(columns.len());
    if n_runs > MAX_RUNS {
        let (n, m) = (names.len(), columns.len());
        let message = format!(
            "the grid has {n} points and {m} positions: {n_runs} runs, the limit is {MAX_RUNS}"
        );
        return invalid("positions", message);
    }
    let mut runs = PatchRuns {
        served: Arc::clone(served),
        measure,
        usage: Usage::default(),
    };
    let all: Vec<i64> = columns.iter().flatten().copied().collect();
    let capture = |point: &String| Capture {
        point: point.clone(),
        positions: Some(PositionSelector::List(all.clone())),
        reduce: Reduction::None,
        n_features: 0,
    };
    let reading = LabPlan {
        captures: names.iter().map(capture).collect(),
        ..LabPlan::default()
    };
    let mut first = runs.each(&clean, vec![reading], "clean").await?;
    let (rows, of_clean) = first.pop().unwrap_or_default();
    let mut second = runs
        .each(&corrupt, vec![LabPlan::default()], "corrupt")
        .await?;
    let (_, of_corrupt) = second.pop().unwrap_or_default();
    let mut cells = cells(&names, &rows, &columns);
    // The bytes of one run: its logits, and the rows and factors of its edit.
    let most = columns.iter().map(Vec::len).max().unwrap_or(1) as u64;
    let of_one = 4 * (served.info.n_vocab + (most + 1) * width);
    let at_once = served.handle.limits().lab_bytes / of_one.max(1);
    let at_once = at_once.clamp(1, AT_ONCE as u64) as usize;
    let mut values = Vec::with_capacity(n_runs);
    while !cells.is_empty() {
        let plans = cells.drain(..at_once.min(cells.len())).map(|edit| LabPlan {
            edits: vec![edit],
            ..LabPlan::default()
        });
        let plans = plans.collect();
        let found = runs.each(&corrupt, plans, "corrupt").await?;
        values.extend(found.into_iter().map(|(_, value)| value));
    }
    let span = of_clean - of_corrupt;
    let effect = |value: &f64| Some((value - of_corrupt) / span).filter(|e| e.is_finite());
    let grid = |of: &dyn Fn(&f64) -> Value| -> Value {
        let rows = values.chunks(columns.len().max(1));
        rows.map(|row| row.iter().map(of).collect::<Value>())
            .collect()
    };
    let texts = [&clean, &corrupt].map(|tokens| super::pieces(tokens, served));
    Ok(json!({
        "object": "lab.patch", "model": served.name,
        "tokens": { "clean": clean, "corrupt": corrupt },
        "pieces": { "clean": texts[0], "corrupt": texts[1] },
        "points": names, "positions": columns,
        "clean": of_clean, "corrupt": of_corrupt,
        "values": grid(&|value| json!(value)), "effects": grid(&|value| json!(effect(value))),
        "usage": usage_json(&runs.usage),
    }))
}
