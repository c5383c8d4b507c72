//! `lab` of a request: values that are read and changed. `GET /v1/lab/points` lists them, `POST /v1/lab/run`
//! reads a prompt for them alone.
//!
//! Rows of numbers come and go as base64 of little-endian f32 or f16 with `shape` and `dtype`, the slowest
//! dimension first as NumPy has it, or as JSON numbers. docs/lab.md describes the plan.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use half::f16;
use serde_json::{Map, Value, json};

use crate::engine::serving::Served;
use crate::engine::{Capture, Captured, LabPlan, LabResult, Lens, Reduce, TokenLogprob, Where};
use crate::text::tokenizer::Tokenizer;

use super::Pool;
use super::adapters::Which;
use super::answers::{Answers, finish_reason, usage_json};
use super::error::{Error, quoted};
use super::fields::{self, Body, Field, fields};
use super::generation::{self, Generation, choices};
use super::input::{Input, check_ids, inputs};

mod objects;

use objects::{
    CaptureObject, Dtype, EditObject, Encoding, LensObject, MAX_ITEMS, Reduction, Target,
    positions, too_many, top,
};

const FIELD: &str = "lab";
fields! {
    /// What a request reads and changes of the values of its passes.
    pub(super) struct Asked {
        /// Values of the model that are captured and changed (docs/lab.md).
        lab: Option<Map<String, Value>>,
    }
}

fields! {
    struct Plan {
        captures: Option<Vec<CaptureObject>>,
        edits: Option<Vec<EditObject>>,
        lens: Option<LensObject>,
        encoding: Option<Encoding>,
    }
}

fields! {
    /// A prompt that is read for its values.
    struct Run {
        /// A text or token ids.
        prompt: Value,
        /// Whether a text gets the special tokens that the vocabulary asks for; default: true.
        add_special_tokens: Option<bool>,
    }
}

/// A plan as a request has it.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    plan: LabPlan,
    targets: Vec<Text>,
    encoding: Encoding,
    dtypes: Vec<Dtype>,
}

/// A token by its id or text.
#[derive(Clone, Debug)]
enum Text {
    Id(u32),
    Piece(String),
}

/// Takes the field out of a body.
///
/// # Errors
/// A plan that is wrong whatever the model.
pub(super) fn take(body: &mut Body) -> Result<Option<Arc<Wanted>>, Error> {
    let asked: Asked = body.take()?;
    let Some(object) = asked.lab else {
        return Ok(None);
    };
    let mut body = Body::within(FIELD, object);
    let plan: Plan = body.take::<Plan>()?;
    body.finish()?;
    Wanted::of(plan).map(Arc::new).map(Some)
}

impl Wanted {
    fn of(plan: Plan) -> Result<Self, Error> {
        let (captures, edits) = (
            plan.captures.unwrap_or_default(),
            plan.edits.unwrap_or_default(),
        );
        too_many("captures", captures.len(), MAX_ITEMS)?;
        too_many("edits", edits.len(), MAX_ITEMS)?;
        let (mut out, mut targets, mut dtypes) = (LabPlan::default(), Vec::new(), Vec::new());
        for (i, capture) in captures.into_iter().enumerate() {
            let at = format!("captures[{i}]");
            let reduce = match capture.reduce.unwrap_or(Reduction::None) {
                Reduction::None => Reduce::None,
                Reduction::Mean => Reduce::Mean,
                Reduction::Norm => Reduce::Norm,
                Reduction::Max => Reduce::Max,
                Reduction::TopK => Reduce::TopK(top(&format!("{at}.k"), capture.k.unwrap_or(10))?),
            };
            dtypes.push(capture.dtype.unwrap_or_default());
            out.captures.push(Capture {
                positions: positions(&format!("{at}.positions"), capture.positions, Where::Last)?,
                point: capture.point,
                reduce,
            });
        }
        for (i, edit) in edits.into_iter().enumerate() {
            out.edits.push(edit.read(&format!("edits[{i}]"))?);
        }
        if let Some(lens) = plan.lens {
            let asked = lens.targets.unwrap_or_default();
            too_many("lens.targets", asked.len(), MAX_ITEMS)?;
            let layers = lens.layers.as_deref();
            too_many("lens.layers", layers.map_or(0, <[u64]>::len), 1024)?;
            targets = asked
                .into_iter()
                .map(|target| match target {
                    Target::Id(id) => Text::Id(id),
                    Target::Text(text) => Text::Piece(text),
                })
                .collect();
            out.lens = Some(Lens {
                points: match layers {
                    Some(layers) => layers.iter().map(|n| format!("layers.{n}.out")).collect(),
                    None => vec!["layers.*.out".into()],
                },
                positions: positions("lens.positions", lens.positions, Where::Last)?,
                top_k: top("lens.top_k", lens.top_k.unwrap_or(10))?,
                targets: Vec::new(),
            });
        }
        Ok(Self {
            plan: out,
            targets,
            encoding: plan.encoding.unwrap_or_default(),
            dtypes,
        })
    }

    /// The plan for a model.
    ///
    /// # Errors
    /// A target that is no token.
    pub(super) fn plan(&self, served: &Served) -> Result<Arc<LabPlan>, Error> {
        let tokenizer = served.handle.tokenizer();
        let mut plan = self.plan.clone();
        if let Some(lens) = &mut plan.lens {
            let ids = self.targets.iter().map(|target| target.id(tokenizer));
            lens.targets = ids.collect::<Result<_, _>>()?;
        }
        Ok(Arc::new(plan))
    }

    /// What it gave, as a response has it.
    pub(super) fn json(&self, result: &LabResult, tokenizer: &Tokenizer) -> Value {
        let dtype = |captured: &Captured| self.dtypes.get(captured.of).copied();
        let captures = result.captures.iter();
        let captures =
            captures.map(|captured| self.captured(captured, dtype(captured).unwrap_or_default()));
        let token = |top: &TokenLogprob| {
            let piece = String::from_utf8_lossy(tokenizer.piece(top.id));
            json!({ "id": top.id, "token": piece, "logprob": top.logprob })
        };
        let lens = result.lens.iter().map(|point| {
            let rows = point.rows.iter().map(|row| {
                let targets = row.targets.iter().map(|(target, rank)| {
                    let mut target = token(target);
                    target["rank"] = (*rank).into();
                    target
                });
                json!({
                    "position": row.position,
                    "top": row.top.iter().map(token).collect::<Value>(),
                    "targets": targets.collect::<Value>(),
                })
            });
            json!({ "point": point.point, "rows": rows.collect::<Value>() })
        });
        let mut out = json!({ "captures": captures.collect::<Value>() });
        if self.plan.lens.is_some() {
            out["lens"] = lens.collect();
        }
        out
    }

    fn captured(&self, captured: &Captured, dtype: Dtype) -> Value {
        let (reduce, is_one) = match captured.reduce {
            Reduce::None => ("none", false),
            Reduce::Mean => ("mean", true),
            Reduce::Max => ("max", true),
            Reduce::Norm => ("norm", false),
            Reduce::TopK(_) => ("top_k", false),
        };
        let n_rows = (!is_one).then_some(captured.positions.len() as u64);
        let shape = n_rows
            .into_iter()
            .chain(captured.shape.iter().rev().copied());
        let mut out = json!({
            "point": captured.point, "reduce": reduce, "positions": captured.positions,
            "shape": shape.collect::<Vec<u64>>(),
        });
        match self.encoding {
            Encoding::Numbers => out["data"] = captured.elements.as_slice().into(),
            Encoding::Base64 => {
                let (name, bytes) = match dtype {
                    Dtype::F32 => {
                        let bytes = captured.elements.iter().flat_map(|e| e.to_le_bytes());
                        ("f32", bytes.collect::<Vec<u8>>())
                    }
                    Dtype::F16 => {
                        let bytes = captured.elements.iter();
                        let bytes = bytes.flat_map(|e| f16::from_f32(*e).to_le_bytes());
                        ("f16", bytes.collect())
                    }
                };
                out["dtype"] = name.into();
                out["data"] = base64::encode(bytes).into();
            }
        }
        if let Reduce::TopK(_) = captured.reduce {
            out["indices"] = captured.places.as_slice().into();
        }
        out
    }
}

impl Text {
    fn id(&self, tokenizer: &Tokenizer) -> Result<u32, Error> {
        let text = match self {
            Self::Id(id) => return Ok(*id),
            Self::Piece(text) => text,
        };
        let tokens = tokenizer.encode(text, false, true).unwrap_or_default();
        match (tokenizer.id_of(text), tokens.as_slice()) {
            (Some(id), _) => Ok(id),
            (None, [id]) => Ok(*id),
            (None, tokens) => {
                let param = format!("{FIELD}.lens.targets");
                let (found, n) = (quoted(text), tokens.len());
                let message = format!("`{param}`: `{found}` is {n} tokens, expected one");
                Err(Error::value(param, message))
            }
        }
    }
}

/// The values of a model that can be read and changed.
pub(super) async fn points(
    State(pool): State<Arc<Pool>>,
    which: Which,
) -> Result<Json<Value>, Error> {
    let served = pool.get(which.name()).await?;
    let points = &served.handle.points().all;
    Ok(Json(
        json!({ "object": "list", "model": served.name, "data": points }),
    ))
}

/// The fields of a run as they are documented.
pub(super) fn fields() -> Vec<Field> {
    let own = [fields::of::<Run>(), fields::of::<Asked>()].concat();
    [own, generation::fields()].concat()
}

/// Reads a prompt, and generates nothing unless `max_tokens` says so.
pub(super) async fn run(
    State(pool): State<Arc<Pool>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, Error> {
    let mut body = Body::read(&headers, body)?;
    let mut generation = Generation::take(&mut body, 0)?;
    generation.lab = take(&mut body)?;
    let run: Run = body.take()?;
    body.finish()?;
    let Some(wanted) = generation.lab.clone() else {
        return Err(Error::missing(FIELD));
    };
    if generation.is_streamed() {
        let message = "`stream` is not possible here; see `/v1/completions`";
        return Err(Error::value("stream", message));
    }
    let constraint = generation.constraint()?;
    let served = pool.get(generation.model()).await?;
    let tokenizer = served.handle.tokenizer();
    let mut prompts = inputs("prompt", &run.prompt)?;
    let (Some(prompt), true) = (prompts.pop(), prompts.is_empty()) else {
        let message = "`prompt` is several, expected one text or one array of token ids";
        return Err(Error::value("prompt", message));
    };
    let tokens = match prompt {
        Input::Text(text) => {
            let adds = run.add_special_tokens != Some(false);
            let tokens = tokenizer.encode(&text, adds, true);
            tokens.map_err(|error| Error::value("prompt", error.to_string()))?
        }
        Input::Tokens(tokens) => {
            check_ids("prompt", &tokens, &served)?;
            tokens
        }
    };
    let constraint = match constraint {
        Some(constraint) => Some(constraint.compile(&served).await?),
        None => None,
    };
    let first = generation.request(&served, &tokens, None, constraint.as_ref());
    let mut first = first.map_err(|error| error.of_prompt("prompt"))?;
    first.max_tokens.get_or_insert(0);
    let n = generation.n_choices();
    let answers = Answers::submit(&served, choices(&first, n).collect(), n);
    let answers = answers.map_err(|error| error.of_prompt("prompt"))?;
    let (all, usage) = answers.collect().await?;
    let results = all.iter().enumerate().map(|(index, one)| {
        let result = one
            .lab
            .as_deref()
            .map(|result| wanted.json(result, tokenizer));
        json!({
            "index": index, "text": one.text, "lab": result,
            "finish_reason": one.reason.map(finish_reason),
        })
    });
    Ok(Json(json!({
        "object": "lab.run", "model": served.name, "tokens": tokens,
        "results": results.collect::<Value>(), "usage": usage_json(&usage),
    })))
}
