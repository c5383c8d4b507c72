//! `lab` of a request: values that are captured and edited. `GET /v1/lab/points` lists the points, `POST /v1/lab/run`
//! reads a prompt only for its values.
//!
//! Rows of numbers are base64 of little-endian f32 or f16 with `shape` and `dtype`, slowest dimension first as in
//! NumPy, or JSON numbers. docs/lab.md describes the plan.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use serde_json::{Map, Value, json};

use crate::served::ServedModel;
use lab_base::tokenizer::Tokenizer;
use lab_core::artifacts::arrays::ArrayFormat;
use lab_core::artifacts::vectors::VectorContent;
use lab_core::engine::{
    Attribution, AttributionUnit, Capture, Edit, EditOp, EditVector, FinishReason, LabPlan, Lens,
    PositionSelector, Reduction,
};

use super::adapters::ModelQuery;
use crate::Pool;
use crate::http::error::{Error, quoted};
use crate::http::json::{Json, JsonObject};
use crate::request::fields;
use crate::request::fields::{BodyFields, FieldDoc, fields};
use crate::request::generation;
use crate::request::generation::{GenerationParams, choice_requests};
use crate::request::input::{TextOrTokens, check_ids, texts_or_tokens};
use crate::response::running_completions::{RunningCompletions, usage_json};

pub(crate) mod artifacts;
mod objects;
pub(crate) mod patch;
pub(crate) mod pictures;
mod results;
pub(crate) mod vectors;

pub use patch::patched;

use lab_core::artifacts::packed::Dtype;
use objects::{
    AttributionObject, CaptureObject, EditObject, Encoding, LensObject, MAX_ITEMS, Names, Output,
    Parted, ReductionName, Reference, TokenRef, positions, too_many, top,
};

const FIELD: &str = "lab";
fields! {
    /// What a request reads and changes of the values of its passes.
    pub(crate) struct LabField {
        /// Values of the model that are captured and changed (docs/lab.md).
        lab: Option<Map<String, Value>>,
    }
}

fields! {
    struct Plan {
        captures: Option<Vec<CaptureObject>>,
        edits: Option<Vec<EditObject>>,
        lens: Option<LensObject>,
        attribution: Option<AttributionObject>,
        encoding: Option<Encoding>,
        output: Option<Output>,
        format: Option<ArrayFormat>,
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

/// The lab plan of a request: the object `lab`.
#[derive(Clone, Debug)]
pub struct LabRequest {
    plan: LabPlan,
    targets: Vec<TokenRef>,
    encoding: Encoding,
    dtypes: Vec<Dtype>,
    /// The token whose logit is attributed to parts of the model.
    attributed: Option<TokenRef>,
    /// For each edit, the vectors and tokens that it names.
    names: Vec<Names>,
    /// Id of the translators of the logit lens.
    translator: Option<String>,
    /// For each capture the id of an autoencoder, if its features are requested.
    saes: Vec<Option<String>>,
    /// For each capture, the number of features per row.
    k_of_features: Vec<usize>,
    /// The autoencoders of the captures, set when the plan is resolved for a model.
    found: OnceLock<Vec<Option<Arc<VectorContent>>>>,
    /// Where captured values go. `None`: into the response if they are small.
    output: Option<Output>,
    format: ArrayFormat,
    /// The JSON text of the plan.
    text: String,
}

/// Takes the field `lab` out of a body.
pub(crate) fn take(body: &mut BodyFields) -> Result<Option<Arc<LabRequest>>, Error> {
    let asked: LabField = body.take()?;
    let Some(object) = asked.lab else {
        return Ok(None);
    };
    LabRequest::read(object).map(Arc::new).map(Some)
}

impl LabRequest {
    /// Reads the plan from an object.
    pub(crate) fn read(object: Map<String, Value>) -> Result<Self, Error> {
        let text = Value::Object(object.clone()).to_string();
        let mut body = BodyFields::nested(FIELD, object);
        let plan: Plan = body.take::<Plan>()?;
        body.finish()?;
        Self::of(plan, text)
    }

    /// Reads the plan from an object, without a request around it.
    ///
    /// # Errors
    /// The plan is invalid for every model; the error names the place.
    pub fn new(object: Map<String, Value>) -> Result<Self, String> {
        Self::read(object).map_err(|error| error.to_string())
    }

    /// The plan for a model, without a request around it.
    ///
    /// # Errors
    /// As in `plan`, for example a target that is not one token.
    pub fn asked(&self, served: &ServedModel) -> Result<Arc<LabPlan>, String> {
        self.plan(served).map_err(|error| error.to_string())
    }

    fn of(plan: Plan, text: String) -> Result<Self, Error> {
        let (captures, edits) = (
            plan.captures.unwrap_or_default(),
            plan.edits.unwrap_or_default(),
        );
        too_many("captures", captures.len(), MAX_ITEMS)?;
        too_many("edits", edits.len(), MAX_ITEMS)?;
        let (mut out, mut targets, mut dtypes) = (LabPlan::default(), Vec::new(), Vec::new());
        let (mut saes, mut k_of_features) = (Vec::new(), Vec::new());
        let (mut all_names, mut translator) = (Vec::new(), None);
        for (i, capture) in captures.into_iter().enumerate() {
            let at = format!("captures[{i}]");
            let reduce = match capture.reduce.unwrap_or(ReductionName::None) {
                ReductionName::None => Reduction::None,
                ReductionName::Mean => Reduction::Mean,
                ReductionName::Norm => Reduction::Norm,
                ReductionName::Max => Reduction::Max,
                ReductionName::TopK => {
                    Reduction::TopK(top(&format!("{at}.k"), capture.k.unwrap_or(10))?)
                }
            };
            let reduce = match (&capture.sae, reduce) {
                (None, reduce) => reduce,
                (Some(_), Reduction::None) => {
                    k_of_features.push(top(&format!("{at}.k"), capture.k.unwrap_or(10))?);
                    Reduction::None
                }
                (Some(_), Reduction::TopK(k)) => {
                    k_of_features.push(k);
                    Reduction::None
                }
                (Some(_), _) => {
                    let param = format!("{FIELD}.{at}.reduce");
                    let message = format!("`{param}`: with `sae`, expected `none` or `top_k`");
                    return Err(Error::invalid_value(param, message));
                }
            };
            if capture.sae.is_none() {
                k_of_features.push(0);
            }
            saes.push(capture.sae);
            dtypes.push(capture.dtype.unwrap_or_default());
            out.captures.push(Capture {
                positions: positions(
                    &format!("{at}.positions"),
                    capture.positions,
                    PositionSelector::Last,
                )?,
                point: capture.point,
                reduce,
                n_features: 0,
            });
        }
        for (i, edit) in edits.into_iter().enumerate() {
            let (edit, names) = edit.read(&format!("edits[{i}]"))?;
            out.edits.push(edit);
            all_names.push(names);
        }
        if let Some(lens) = plan.lens {
            let asked = lens.targets.unwrap_or_default();
            too_many("lens.targets", asked.len(), MAX_ITEMS)?;
            let layers = lens.layers.as_deref();
            translator = lens.translator;
            too_many("lens.layers", layers.map_or(0, <[u64]>::len), 1024)?;
            targets = asked;
            out.lens = Some(Lens {
                points: match layers {
                    Some(layers) => layers.iter().map(|n| format!("layers.{n}.out")).collect(),
                    None => vec!["layers.*.out".into()],
                },
                positions: positions("lens.positions", lens.positions, PositionSelector::Last)?,
                top_k: top("lens.top_k", lens.top_k.unwrap_or(10))?,
                targets: Vec::new(),
                translators: None,
            });
        }
        let mut attributed = None;
        if let Some(attribution) = plan.attribution {
            attributed = Some(attribution.of);
            let places = attribution.positions;
            out.attribution = Some(Attribution {
                of: 0,
                among: match attribution.to {
                    Some(Parted::Slots) => AttributionUnit::Slots,
                    Some(Parted::Heads) => AttributionUnit::Heads,
                    Some(Parted::Layers) | None => AttributionUnit::Layers,
                },
                positions: positions("attribution.positions", places, PositionSelector::Last)?,
            });
        }
        Ok(Self {
            attributed,
            plan: out,
            targets,
            encoding: plan.encoding.unwrap_or_default(),
            dtypes,
            names: all_names,
            translator,
            saes,
            k_of_features,
            found: OnceLock::new(),
            output: plan.output,
            format: plan.format.unwrap_or_default(),
            text,
        })
    }

    /// Resolves the plan for a model: tokens, vectors and autoencoders.
    pub(crate) fn plan(&self, served: &ServedModel) -> Result<Arc<LabPlan>, Error> {
        let tokenizer = served.handle.tokenizer();
        if self.output == Some(Output::Artifact) && served.shelf.is_none() {
            let message = "this server stores no artifacts";
            return Err(Error::unsupported(format!("{FIELD}.output"), message));
        }
        let mut plan = self.plan.clone();
        if let Some(lens) = &mut plan.lens {
            let param = format!("{FIELD}.lens.targets");
            let ids = self
                .targets
                .iter()
                .map(|target| target.id(tokenizer, &param));
            lens.targets = ids.collect::<Result<_, _>>()?;
            if let Some(id) = &self.translator {
                let param = format!("{FIELD}.lens.translator");
                lens.translators = match &*vectors(served, &param, id)? {
                    VectorContent::Translators(all) => Some(Arc::clone(all)),
                    _ => return Err(other_kind(&param, id, "translators")),
                };
            }
        }
        if let (Some(attribution), Some(of)) = (&mut plan.attribution, &self.attributed) {
            attribution.of = of.id(tokenizer, &format!("{FIELD}.attribution.of"))?;
        }
        for (i, (edit, names)) in plan.edits.iter_mut().zip(&self.names).enumerate() {
            let at = format!("{FIELD}.edits[{i}]");
            self.refer(edit, &names.vector, &at, served)?;
            if let Some(tokens) = &names.tokens {
                let param = format!("{at}.tokens");
                let ids = tokens.iter().map(|token| token.id(tokenizer, &param));
                edit.tokens = Some(ids.collect::<Result<_, _>>()?);
            }
        }
        let saes = self.saes.iter().zip(&plan.captures).enumerate();
        let saes = saes.map(|(i, (id, capture))| {
            let Some(id) = id else { return Ok(None) };
            let param = format!("{FIELD}.captures[{i}].sae");
            let content = vectors(served, &param, id)?;
            let VectorContent::Sae(sae) = &*content else {
                return Err(other_kind(&param, id, "an autoencoder"));
            };
            let points = served.handle.points();
            let found = points.find(&capture.point).unwrap_or_default();
            for at in found {
                let (point, width) = (&points.all[at], sae.width());
                if point.width() != width as u64 {
                    let (path, found) = (&point.path, point.width());
                    let message = format!("`{param}`: `{id}` is for rows of {width} numbers, those of `{path}` have {found}");
                    return Err(Error::invalid_value(param, message));
                }
            }
            Ok(Some(content))
        });
        let saes: Vec<Option<Arc<VectorContent>>> = saes.collect::<Result<_, _>>()?;
        for (capture, sae) in plan.captures.iter_mut().zip(&saes) {
            if let Some(VectorContent::Sae(sae)) = sae.as_deref() {
                capture.n_features = sae.n_features();
            }
        }
        // If they are set already, they are the same files or older ones of the same ids.
        let _ = self.found.set(saes);
        Ok(Arc::new(plan))
    }
}

/// The vectors that are kept under the id in a field.
fn vectors(served: &ServedModel, param: &str, id: &str) -> Result<Arc<VectorContent>, Error> {
    let found = served.vectors.get(id);
    found.map_err(|message| Error::invalid_value(param, format!("`{param}`: {message}")))
}

fn other_kind(param: &str, id: &str, expected: &str) -> Error {
    let id = quoted(id);
    Error::invalid_value(
        param,
        format!("`{param}`: `{id}` holds vectors of another kind, expected {expected}"),
    )
}

impl LabRequest {
    /// Puts the vectors that an edit names into the edit.
    fn refer(
        &self,
        edit: &mut Edit,
        reference: &Reference,
        at: &str,
        served: &ServedModel,
    ) -> Result<(), Error> {
        match reference {
            Reference::Nothing => {}
            Reference::Directions(id) => {
                let param = format!("{at}.vector");
                let VectorContent::Directions(all) = &*vectors(served, &param, id)? else {
                    return Err(other_kind(&param, id, "directions"));
                };
                edit.vector = EditVector::Stored(id.clone(), Arc::clone(all));
            }
            Reference::Feature(id, feature) => {
                let param = format!("{at}.sae");
                let VectorContent::Sae(sae) = &*vectors(served, &param, id)? else {
                    return Err(other_kind(&param, id, "an autoencoder"));
                };
                let Some(found) = sae.feature(*feature) else {
                    let (param, n) = (format!("{at}.feature"), sae.n_features());
                    let message = format!("`{param}`: `{id}` has {n} features, counted from 0");
                    return Err(Error::invalid_value(param, message));
                };
                edit.vector = match edit.op {
                    EditOp::Clamp => EditVector::Feature(found),
                    _ => EditVector::Rows(vec![found.decoder]),
                };
            }
        }
        Ok(())
    }
}

impl TokenRef {
    /// The id of the token that a field names.
    fn id(&self, tokenizer: &Tokenizer, param: &str) -> Result<u32, Error> {
        let text = match self {
            Self::Id(id) => return Ok(*id),
            Self::Text(text) => text,
        };
        let tokens = tokenizer.encode(text, false, true).unwrap_or_default();
        match (tokenizer.id_of(text), tokens.as_slice()) {
            (Some(id), _) => Ok(id),
            (None, [id]) => Ok(*id),
            (None, tokens) => {
                let (found, n) = (quoted(text), tokens.len());
                let message = format!("`{param}`: `{found}` is {n} tokens, expected one");
                Err(Error::invalid_value(param, message))
            }
        }
    }
}

/// The text of each token, with a replacement character for bytes that are not UTF-8.
pub fn pieces(tokens: &[u32], served: &ServedModel) -> Value {
    let tokenizer = served.handle.tokenizer();
    let piece = |id: &u32| String::from_utf8_lossy(tokenizer.piece(*id));
    tokens.iter().map(piece).collect()
}

/// Lists the points of a model, which can be captured and edited.
pub(crate) async fn points(
    State(pool): State<Arc<Pool>>,
    which: ModelQuery,
) -> Result<Json, Error> {
    let served = pool.get(which.name()).await?;
    let points = &served.handle.points().all;
    Ok(Json(
        json!({ "object": "list", "model": served.name, "data": points }),
    ))
}

/// The documented fields of a run.
pub(crate) fn fields() -> Vec<FieldDoc> {
    [fields::documented::<Run>(), generation::fields()].concat()
}

/// Reads a prompt. Generates nothing unless `max_tokens` is set.
pub(crate) async fn run(
    State(pool): State<Arc<Pool>>,
    mut body: BodyFields,
) -> Result<Json<JsonObject>, Error> {
    let generation = GenerationParams::take(&mut body, 0)?;
    let run: Run = body.take()?;
    body.closed().finish()?;
    let Some(wanted) = generation.lab.clone() else {
        return Err(Error::missing(FIELD));
    };
    if generation.is_streamed() {
        let message = "`stream` is not possible here; see `/v1/completions`";
        return Err(Error::invalid_value("stream", message));
    }
    let constraint = generation.constraint()?;
    let served = pool.get(generation.model()).await?;
    let tokenizer = served.handle.tokenizer();
    let mut prompts = texts_or_tokens("prompt", &run.prompt)?;
    let (Some(prompt), true) = (prompts.pop(), prompts.is_empty()) else {
        let message =
            "`prompt` has more than one prompt, expected one string or one array of token ids";
        return Err(Error::invalid_value("prompt", message));
    };
    let tokens = match prompt {
        TextOrTokens::Text(text) => {
            let adds = run.add_special_tokens != Some(false);
            let tokens = tokenizer.encode(&text, adds, true);
            tokens.map_err(|error| Error::invalid_value("prompt", error.to_string()))?
        }
        TextOrTokens::Tokens(tokens) => {
            check_ids("prompt", &tokens, &served)?;
            tokens
        }
    };
    let constraint = generation.compile(constraint, &served).await?;
    let first = generation.request(&served, &tokens, None, constraint.as_ref());
    let mut first = first.map_err(|error| error.with_prompt_field("prompt"))?;
    first.max_tokens.get_or_insert(0);
    let n = generation.n_choices();
    let answers = RunningCompletions::submit(&served, choice_requests(&first, n).collect(), n);
    let answers = answers.map_err(|error| error.with_prompt_field("prompt"))?;
    let (all, usage) = answers.with_lab(Some(wanted), &served).collect().await?;
    let results = all.into_iter().enumerate().map(|(index, one)| {
        let mut result = JsonObject::from(json!({
            "index": index, "text": one.text, "lab": null,
            "finish_reason": one.reason.map(FinishReason::as_str),
        }));
        if let Some(report) = one.report {
            result.put("lab", report);
        }
        result
    });
    let mut out = JsonObject::from(json!({
        "object": "lab.run", "model": served.name, "tokens": tokens,
        "pieces": pieces(&tokens, &served), "results": null, "usage": usage_json(&usage),
    }));
    out.put("results", results.collect::<Vec<JsonObject>>());
    Ok(Json(out))
}
