//! `lab` of a request: values that are captured and edited, in the words of docs/lab.md.
//!
//! The object is read once, independent of the model. [`LabRequest::resolve`] then finds the tokens, vectors and
//! autoencoders that it names for a model.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use lab_base::tokenizer::Tokenizer;
use lab_core::artifacts::arrays::ArrayFormat;
use lab_core::artifacts::packed::Dtype;
use lab_core::artifacts::vectors::VectorContent;
use lab_core::engine::{Attribution, Capture, Edit, EditOp, EditVector, LabPlan, Lens};

use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, quoted, refuse};
use crate::request::fields::{BodyFields, fields};
use crate::served::ServedModel;
use objects::{
    AttributionObject, CaptureObject, EditObject, Encoding, LensObject, MAX_ITEMS, Output,
    StoredVector, TokenRef, too_many,
};

pub(crate) mod objects;

pub(crate) const FIELD: &str = "lab";
fields! {
    pub(crate) struct LabField {
        /// Values of the model that are captured and changed (docs/lab.md).
        pub(crate) lab: Option<Map<String, Value>>,
    }
}

fields! {
    struct LabFields {
        captures: Option<Vec<CaptureObject>>,
        edits: Option<Vec<EditObject>>,
        lens: Option<LensObject>,
        attribution: Option<AttributionObject>,
        encoding: Option<Encoding>,
        output: Option<Output>,
        format: Option<ArrayFormat>,
    }
}

/// The lab plan of a request: the object `lab`.
#[derive(Clone, Debug)]
pub struct LabRequest {
    pub(crate) captures: Vec<CaptureRequest>,
    edits: Vec<EditRequest>,
    pub(crate) lens: Option<LensRequest>,
    attribution: Option<AttributionRequest>,
    pub(crate) encoding: Encoding,
    /// Where captured values go. `None`: into the response if they are small.
    pub(crate) output: Option<Output>,
    pub(crate) format: ArrayFormat,
    /// The JSON text of the plan.
    pub(crate) text: String,
}

#[derive(Clone, Debug)]
pub(crate) struct CaptureRequest {
    capture: Capture,
    pub(crate) dtype: Dtype,
    /// The strongest features of an autoencoder are requested instead of the value.
    pub(crate) sae: Option<FeatureRequest>,
}

#[derive(Clone, Debug)]
pub(crate) struct FeatureRequest {
    /// Id of the autoencoder.
    pub(crate) id: String,
    /// Number of features per row.
    pub(crate) k: usize,
    /// The autoencoder, once it is resolved. A request computes with the one that it found first.
    pub(crate) content: OnceLock<Arc<VectorContent>>,
}

#[derive(Clone, Debug)]
struct EditRequest {
    edit: Edit,
    vector: StoredVector,
    tokens: Option<Vec<TokenRef>>,
}

#[derive(Clone, Debug)]
pub(crate) struct LensRequest {
    lens: Lens,
    targets: Vec<TokenRef>,
    /// Id of the translators.
    translator: Option<String>,
}

#[derive(Clone, Debug)]
struct AttributionRequest {
    attribution: Attribution,
    /// The token whose logit is attributed to parts of the model.
    of: TokenRef,
}

impl LabRequest {
    pub(crate) fn read(object: Map<String, Value>) -> Result<Self, Error> {
        let text = Value::Object(object.clone()).to_string();
        let plan: LabFields = BodyFields::nested(FIELD, object).whole()?;
        let captures = plan.captures.unwrap_or_default();
        let edits = plan.edits.unwrap_or_default();
        too_many("captures", captures.len(), MAX_ITEMS)?;
        too_many("edits", edits.len(), MAX_ITEMS)?;
        let captures = captures.into_iter().enumerate();
        let edits = edits.into_iter().enumerate();
        Ok(Self {
            captures: captures
                .map(|(i, capture)| capture.read(&format!("captures[{i}]")))
                .collect::<Result<_, _>>()?,
            edits: edits
                .map(|(i, edit)| edit.read(&format!("edits[{i}]")))
                .collect::<Result<_, _>>()?,
            lens: plan.lens.map(LensObject::read).transpose()?,
            attribution: plan.attribution.map(AttributionObject::read).transpose()?,
            encoding: plan.encoding.unwrap_or_default(),
            output: plan.output,
            format: plan.format.unwrap_or_default(),
            text,
        })
    }

    /// Reads the plan from an object, without a request around it.
    ///
    /// # Errors
    /// The plan is invalid for every model; the error names the place.
    pub fn new(object: Map<String, Value>) -> Result<Self, String> {
        let read = RequestContext::detached().enter(|| Self::read(object));
        read.map_err(|error| error.to_string())
    }

    /// The plan for a model, without a request around it.
    ///
    /// # Errors
    /// A name stands for nothing of this model, for example a target that is not one token.
    pub fn asked(&self, served: &ServedModel) -> Result<Arc<LabPlan>, String> {
        self.resolve(served).map_err(|error| error.to_string())
    }

    /// The captured points and patterns of points.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.captures.iter().map(|one| one.capture.point.as_str())
    }

    pub(crate) fn resolve(&self, served: &ServedModel) -> Result<Arc<LabPlan>, Error> {
        if self.output == Some(Output::Artifact) && served.artifacts.is_none() {
            let message = "this server stores no artifacts";
            return Err(Error::unsupported(format!("{FIELD}.output"), message));
        }
        let lens = self.lens.as_ref().map(|lens| lens.resolve(served));
        let lens = lens.transpose()?;
        let attribution = self.attribution.as_ref().map(|one| one.resolve(served));
        let attribution = attribution.transpose()?;
        let at = |list: &str, i: usize| format!("{FIELD}.{list}[{i}]");
        let edits = self.edits.iter().enumerate();
        let edits = edits.map(|(i, edit)| edit.resolve(&at("edits", i), served));
        let edits = edits.collect::<Result<_, _>>()?;
        let captures = self.captures.iter().enumerate();
        let captures = captures.map(|(i, one)| one.resolve(&at("captures", i), served));
        let captures = captures.collect::<Result<_, _>>()?;
        Ok(Arc::new(LabPlan {
            captures,
            edits,
            lens,
            attribution,
        }))
    }
}

/// The vectors that are kept under the id in a field.
fn vectors(served: &ServedModel, param: &str, id: &str) -> Result<Arc<VectorContent>, Error> {
    let client = RequestContext::current().client();
    let found = served.vectors.get(client.viewer(), id);
    found.map_err(|message| Error::invalid_value(param, format!("`{param}`: {message}")))
}

fn other_kind(param: &str, id: &str, expected: &str) -> Error {
    let id = quoted(id);
    Error::invalid_value(
        param,
        format!("`{param}`: `{id}` holds vectors of another kind, expected {expected}"),
    )
}

impl FeatureRequest {
    fn new(id: String, k: usize) -> Self {
        let content = OnceLock::new();
        Self { id, k, content }
    }
}

impl CaptureRequest {
    fn resolve(&self, at: &str, served: &ServedModel) -> Result<Capture, Error> {
        let mut capture = self.capture.clone();
        let Some(FeatureRequest { id, content, .. }) = &self.sae else {
            return Ok(capture);
        };
        let param = format!("{at}.sae");
        let found = vectors(served, &param, id)?;
        let VectorContent::Sae(sae) = &*found else {
            return Err(other_kind(&param, id, "an autoencoder"));
        };
        let points = served.handle.points();
        for at in points.find(&capture.point).unwrap_or_default() {
            let (point, width) = (&points.all[at], sae.width());
            if point.width() != width as u64 {
                let (path, found) = (&point.path, point.width());
                let message = format!(
                    "`{param}`: `{id}` is for rows of {width} numbers, those of `{path}` have {found}"
                );
                return invalid(param, message);
            }
        }
        capture.n_features = sae.n_features();
        content.get_or_init(|| Arc::clone(&found));
        Ok(capture)
    }
}

impl EditRequest {
    fn resolve(&self, at: &str, served: &ServedModel) -> Result<Edit, Error> {
        let mut edit = self.edit.clone();
        match &self.vector {
            StoredVector::Nothing => {}
            StoredVector::Directions(id) => {
                let param = format!("{at}.vector");
                let VectorContent::Directions(all) = &*vectors(served, &param, id)? else {
                    return Err(other_kind(&param, id, "directions"));
                };
                edit.vector = EditVector::Stored(id.clone(), Arc::clone(all));
            }
            StoredVector::Feature(id, feature) => {
                let param = format!("{at}.sae");
                let VectorContent::Sae(sae) = &*vectors(served, &param, id)? else {
                    return Err(other_kind(&param, id, "an autoencoder"));
                };
                let Some(found) = sae.feature(*feature) else {
                    let (param, n) = (format!("{at}.feature"), sae.n_features());
                    return refuse(param, format!(": `{id}` has {n} features, counted from 0"));
                };
                edit.vector = match edit.op {
                    EditOp::Clamp => EditVector::Feature(found),
                    _ => EditVector::Rows(vec![found.decoder]),
                };
            }
        }
        if let Some(tokens) = &self.tokens {
            edit.tokens = Some(ids(tokens, &format!("{at}.tokens"), served)?);
        }
        Ok(edit)
    }
}

impl LensRequest {
    fn resolve(&self, served: &ServedModel) -> Result<Lens, Error> {
        let mut lens = self.lens.clone();
        lens.targets = ids(&self.targets, &format!("{FIELD}.lens.targets"), served)?;
        if let Some(id) = &self.translator {
            let param = format!("{FIELD}.lens.translator");
            lens.translators = match &*vectors(served, &param, id)? {
                VectorContent::Translators(all) => Some(Arc::clone(all)),
                _ => return Err(other_kind(&param, id, "translators")),
            };
        }
        Ok(lens)
    }
}

impl AttributionRequest {
    fn resolve(&self, served: &ServedModel) -> Result<Attribution, Error> {
        let mut attribution = self.attribution.clone();
        let param = format!("{FIELD}.attribution.of");
        attribution.of = self.of.id(served.handle.tokenizer(), &param)?;
        Ok(attribution)
    }
}

fn ids(tokens: &[TokenRef], param: &str, served: &ServedModel) -> Result<Vec<u32>, Error> {
    let tokenizer = served.handle.tokenizer();
    tokens.iter().map(|t| t.id(tokenizer, param)).collect()
}

impl TokenRef {
    pub(crate) fn id(&self, tokenizer: &Tokenizer, param: &str) -> Result<u32, Error> {
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
                refuse(param, format!(": `{found}` is {n} tokens, expected one"))
            }
        }
    }
}
