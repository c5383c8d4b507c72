//! The result of a lab plan in a response: values in the response itself, or in a file that it names.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::served::ServedModel;
use lab_base::tokenizer::Tokenizer;
use lab_base::util::atomic_file::OutputPath;
use lab_base::util::clock::unix_seconds;
use lab_base::util::parallel;
use lab_core::artifacts::arrays;
use lab_core::artifacts::arrays::{ArrayFormat, Elements, NamedArray};
use lab_core::artifacts::store;
use lab_core::artifacts::store::Artifact;
use lab_core::artifacts::vectors::VectorContent;
use lab_core::engine::{
    AttributionResult, CapturedPoint, LabResult, LensRow, MediumRow, MediumRowSource, MediumRows,
    Reduction, TokenLogprob,
};
use lab_core::plan::Media;

use crate::http::error::Error;
use crate::http::json::{JsonText, json_text};
use crate::request::lab::objects::{Encoding, Output};
use crate::request::lab::{FeatureRequest, LabRequest};
use lab_core::artifacts::packed::Dtype;

/// Path of the list of artifacts.
pub(crate) const ARTIFACTS_ROUTE: &str = "/v1/lab/artifacts";
/// Maximum size in bytes of a plan in the metadata of a file; of a longer one the file has a digest.
const MAX_TEXT: usize = 1 << 20;

/// A captured value to be written into a response or a file.
struct Shown<'a> {
    captured: Cow<'a, CapturedPoint>,
    /// Id of the autoencoder, if the places are indices of its features.
    sae: Option<&'a str>,
    dtype: Dtype,
    /// Dimensions, slowest first.
    shape: Vec<u64>,
    name: String,
}

impl Shown<'_> {
    /// The name in a file of the array with the places of the elements.
    fn indices(&self) -> String {
        format!("{}.indices", self.name)
    }

    fn n_bytes(&self) -> u64 {
        let n = self.captured.elements.len() * self.dtype.size() + 4 * self.captured.places.len();
        n as u64
    }

    fn arrays(&self) -> impl Iterator<Item = NamedArray<'_>> {
        let elements = NamedArray {
            name: self.name.clone(),
            shape: self.shape.clone(),
            elements: self.dtype.of(&self.captured.elements),
        };
        let has_places = matches!(self.captured.reduce, Reduction::TopK(_));
        let places = has_places.then(|| NamedArray {
            name: self.indices(),
            shape: self.shape.clone(),
            elements: Elements::I32(&self.captured.places),
        });
        [elements].into_iter().chain(places)
    }

    /// The description of the value, wherever its elements are.
    fn about(&self) -> CaptureJson<'_> {
        CaptureJson {
            point: &self.captured.point,
            reduce: match self.captured.reduce {
                Reduction::None => "none",
                Reduction::Mean => "mean",
                Reduction::Max => "max",
                Reduction::Norm => "norm",
                Reduction::TopK(_) => "top_k",
            },
            positions: match &self.captured.of_medium {
                None => Some(&self.captured.positions),
                Some(_) => None,
            },
            medium: self.captured.of_medium.as_ref().map(|of| of.medium),
            views: self
                .captured
                .of_medium
                .as_ref()
                .map(|of| of.n_of_views.as_slice()),
            shape: &self.shape,
            sae: self.sae,
            dtype: None,
            data: None,
            indices: None,
            tensor: None,
            indices_tensor: None,
        }
    }

    fn has_places(&self) -> bool {
        matches!(self.captured.reduce, Reduction::TopK(_))
    }

    fn inline(&self, encoding: Encoding) -> CaptureJson<'_> {
        let places = self.captured.places.as_slice();
        let elements = self.captured.elements.as_slice();
        CaptureJson {
            dtype: (encoding == Encoding::Base64).then_some(self.dtype.name()),
            data: Some(match encoding {
                Encoding::Numbers => Data::Numbers(Numbers(elements)),
                Encoding::Base64 => {
                    Data::Base64(BASE64_STANDARD.encode(self.dtype.of(elements).bytes()))
                }
            }),
            indices: self.has_places().then_some(places),
            ..self.about()
        }
    }

    fn in_file(&self) -> CaptureJson<'_> {
        CaptureJson {
            dtype: Some(self.dtype.name()),
            tensor: Some(&self.name),
            indices_tensor: self.has_places().then(|| self.indices()),
            ..self.about()
        }
    }
}

#[derive(Serialize)]
struct CaptureJson<'a> {
    point: &'a str,
    reduce: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    positions: Option<&'a [u32]>,
    /// Index of the medium whose rows a value of a tower has, and how many rows are those of each view.
    #[serde(skip_serializing_if = "Option::is_none")]
    medium: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    views: Option<&'a [usize]>,
    shape: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    sae: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    indices: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    indices_tensor: Option<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Numbers(Numbers<'a>),
    Base64(String),
}

/// Numbers that are written with the digits of f64.
struct Numbers<'a>(&'a [f32]);

impl Serialize for Numbers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|number| f64::from(*number)))
    }
}

#[derive(Serialize)]
struct Report<'a> {
    captures: Vec<CaptureJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attribution: Option<AttributedJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lens: Option<Vec<PointJson<'a>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    media: Vec<MediumJson<'a>>,
}

/// The rows of a medium of the prompt.
#[derive(Serialize)]
struct MediumJson<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    rows: Vec<MediumRowJson<'a>>,
}

#[derive(Default, Serialize)]
struct MediumRowJson<'a> {
    position: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    learned: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    /// Left, top, right and bottom as shares of the picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    area: Option<[f64; 4]>,
    /// Begin and end.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<[f64; 2]>,
}

impl<'a> MediumJson<'a> {
    fn new(medium: &'a MediumRows) -> Self {
        let is_image = medium.media == Media::Image;
        let row = |row: &'a MediumRow| {
            let position = row.position;
            match &row.source {
                MediumRowSource::Learned(name) => MediumRowJson {
                    position,
                    learned: Some(name),
                    ..MediumRowJson::default()
                },
                MediumRowSource::View {
                    view,
                    row,
                    cell,
                    part,
                } => MediumRowJson {
                    position,
                    view: Some(*view),
                    index: Some(*row),
                    row: cell.filter(|_| is_image).map(|[_, row]| row),
                    column: cell.filter(|_| is_image).map(|[column, _]| column),
                    area: part.filter(|_| is_image),
                    seconds: part
                        .filter(|_| !is_image)
                        .map(|[begin, _, end, _]| [begin, end]),
                    learned: None,
                },
            }
        };
        Self {
            kind: medium.media.name(),
            rows: medium.rows.iter().map(row).collect(),
        }
    }
}

#[derive(Serialize)]
struct AttributedJson<'a> {
    of: Value,
    parts: &'a [String],
    rows: Vec<AttributedRowJson<'a>>,
}

#[derive(Serialize)]
struct AttributedRowJson<'a> {
    position: u32,
    logit: f64,
    constant: f64,
    values: &'a [f64],
}

impl<'a> AttributedJson<'a> {
    fn new(of: &'a AttributionResult, tokenizer: &Tokenizer) -> Self {
        let piece = String::from_utf8_lossy(tokenizer.piece(of.of));
        let rows = of.rows.iter().map(|row| AttributedRowJson {
            position: row.position,
            logit: f64::from(row.logit),
            constant: row.constant,
            values: &row.values,
        });
        Self {
            of: json!({ "id": of.of, "token": piece }),
            parts: &of.parts,
            rows: rows.collect(),
        }
    }
}

/// The lens at one point. Its rows become text one after another.
#[derive(Serialize)]
struct PointJson<'a> {
    point: &'a str,
    rows: RowsJson<'a>,
}

struct RowsJson<'a> {
    rows: &'a [LensRow],
    tokenizer: &'a Tokenizer,
}

impl Serialize for RowsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let token = |one: &TokenLogprob| {
            let text = String::from_utf8_lossy(self.tokenizer.piece(one.id));
            json!({ "id": one.id, "token": text, "logprob": one.logprob })
        };
        let target = |(one, rank): &(TokenLogprob, usize)| {
            let mut token = token(one);
            token["rank"] = (*rank).into();
            token
        };
        serializer.collect_seq(self.rows.iter().map(|row| {
            let top: Value = row.top.iter().map(token).collect();
            let targets: Value = row.targets.iter().map(target).collect();
            json!({ "position": row.position, "top": top, "targets": targets })
        }))
    }
}

/// Says that nobody waits for a result any more, when it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Says that somebody waits for a result.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Results that are written at the same time. Features of autoencoders are computed on all cores.
static TURNS: Semaphore = Semaphore::const_new(2);

const ROWS_AT_ONCE: usize = 8;

impl LabRequest {
    /// Writes a result as a file of arrays. Returns the description that a response has of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write<'p>(
        &self,
        target: impl Into<OutputPath<'p>>,
        format: ArrayFormat,
        result: &LabResult,
        served: &ServedModel,
    ) -> io::Result<Value> {
        let values = self.values(result, &WANTED);
        let arrays: Vec<NamedArray<'_>> = values.iter().flat_map(Shown::arrays).collect();
        let metadata = self.metadata(result, &values, served);
        arrays::write(target, format, &arrays, &metadata)?;
        let captures = values.iter().map(Shown::in_file).collect();
        Ok(json!(self.report(captures, None, result, served)))
    }

    /// The captured values, each under a unique name, and whether half precision is requested.
    pub fn captured<'a>(
        &'a self,
        result: &'a LabResult,
    ) -> Vec<(String, Cow<'a, CapturedPoint>, bool)> {
        let values = self.values(result, &WANTED).into_iter();
        let own = values.map(|value| (value.name, value.captured, value.dtype == Dtype::F16));
        own.collect()
    }

    /// The result as JSON for a response.
    pub fn json(&self, result: &LabResult, served: &ServedModel) -> Value {
        self.written(result, "", served, &WANTED, |report| json!(report))
    }

    /// The result as JSON text for a response. It is made on a thread of its own, because it takes long: features of
    /// autoencoders, a file, which is of `owner`, megabytes of text. If the caller does not wait any more, the work ends.
    pub(crate) async fn text(
        self: &Arc<Self>,
        result: LabResult,
        owner: String,
        served: &Arc<ServedModel>,
    ) -> Result<JsonText, Error> {
        let turn = TURNS.acquire().await.map_err(Error::engine)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let _waiting = CancelOnDrop(Arc::clone(&is_over));
        let (request, served) = (Arc::clone(self), Arc::clone(served));
        let work = move || {
            let _turn = turn;
            request.written(&result, &owner, &served, &is_over, |report| {
                json_text(report)
            })
        };
        let written = tokio::task::spawn_blocking(work).await;
        written.map_err(Error::engine)
    }

    fn written<T>(
        &self,
        result: &LabResult,
        owner: &str,
        served: &ServedModel,
        is_over: &AtomicBool,
        write: impl FnOnce(&Report<'_>) -> T,
    ) -> T {
        let values = self.values(result, is_over);
        let n_bytes: u64 = values.iter().map(Shown::n_bytes).sum();
        let is_kept = match self.output {
            Some(output) => output == Output::Artifact,
            None => served
                .artifacts
                .as_ref()
                .is_some_and(|s| n_bytes > s.limits().inline),
        };
        let is_kept = is_kept && !is_over.load(Ordering::Acquire);
        let kept = served.artifacts.as_ref().filter(|_| is_kept);
        let kept = kept.map(|store| {
            let arrays: Vec<NamedArray<'_>> = values.iter().flat_map(Shown::arrays).collect();
            store.save(
                owner,
                self.format,
                &arrays,
                &self.metadata(result, &values, served),
            )
        });
        let captures = values.iter().map(|value| match &kept {
            Some(Ok(_)) => value.in_file(),
            _ => value.inline(self.encoding),
        });
        write(&self.report(captures.collect(), kept.map(artifact), result, served))
    }

    /// The part of a response with these captures: they, the rows of the logit lens and the attribution, if requested.
    fn report<'a>(
        &self,
        captures: Vec<CaptureJson<'a>>,
        artifact: Option<Value>,
        result: &'a LabResult,
        served: &'a ServedModel,
    ) -> Report<'a> {
        let tokenizer: &Tokenizer = served.handle.tokenizer();
        let points = result.lens.iter().map(|point| PointJson {
            point: &point.point,
            rows: RowsJson {
                rows: &point.rows,
                tokenizer,
            },
        });
        let attribution = result.attribution.as_ref();
        Report {
            captures,
            artifact,
            attribution: attribution.map(|of| AttributedJson::new(of, tokenizer)),
            lens: self.lens.as_ref().map(|_| points.collect()),
            media: result.media.iter().map(MediumJson::new).collect(),
        }
    }

    fn values<'a>(&'a self, result: &'a LabResult, is_over: &AtomicBool) -> Vec<Shown<'a>> {
        let mut names = HashSet::new();
        let value = |captured: &'a CapturedPoint| {
            let asked = self.captures.get(captured.of);
            let sae = asked.and_then(|one| one.sae.as_ref());
            let captured = featured(captured, sae, is_over);
            // Of no rows there is no mean and no maximum.
            let is_one = matches!(captured.reduce, Reduction::Mean | Reduction::Max)
                && !captured.positions.is_empty();
            let n_rows = (!is_one).then_some(captured.positions.len() as u64);
            let dims = captured.shape.iter().rev().copied();
            let mut name = captured.point.clone();
            for n in 2.. {
                if names.insert(name.clone()) {
                    break;
                }
                name = format!("{}#{n}", captured.point);
            }
            Shown {
                sae: sae.map(|sae| sae.id.as_str()),
                dtype: asked.map_or_else(Dtype::default, |one| one.dtype),
                shape: n_rows.into_iter().chain(dims).collect(),
                name,
                captured,
            }
        };
        result.captures.iter().map(value).collect()
    }

    fn metadata(
        &self,
        result: &LabResult,
        values: &[Shown<'_>],
        served: &ServedModel,
    ) -> Map<String, Value> {
        let identity = &served.identity;
        let plan: Cow<'_, str> = match self.text.len() <= MAX_TEXT {
            true => self.text.as_str().into(),
            false => format!("sha256:{:x}", Sha256::digest(&self.text)).into(),
        };
        let captures: Vec<CaptureJson<'_>> = values.iter().map(Shown::in_file).collect();
        let texts = [
            ("model", served.name.clone()),
            ("model_sha256", identity.model.clone()),
            ("definition_sha256", identity.definition.clone()),
            ("types", identity.types.clone()),
            ("program", format!("bench {}", env!("CARGO_PKG_VERSION"))),
            ("created", unix_seconds().to_string()),
            ("tokens", json!(result.tokens).to_string()),
            ("captures", json!(captures).to_string()),
            ("plan", plan.into_owned()),
        ];
        let texts = texts.into_iter();
        texts
            .map(|(name, text)| (name.to_owned(), text.into()))
            .collect()
    }
}

/// The strongest features of each row if they are requested, otherwise the value itself. The features are not complete if
/// the work is over before.
fn featured<'a>(
    captured: &'a CapturedPoint,
    asked: Option<&FeatureRequest>,
    is_over: &AtomicBool,
) -> Cow<'a, CapturedPoint> {
    let asked = asked.and_then(|one| Some((one.k, one.content.get()?.as_ref())));
    let Some((k, VectorContent::Sae(sae))) = asked else {
        return Cow::Borrowed(captured);
    };
    let k = k.min(sae.n_features());
    let mut out = CapturedPoint {
        shape: vec![k as u64],
        reduce: Reduction::TopK(k),
        ..CapturedPoint::like(captured)
    };
    let parts: Vec<&[f32]> = captured
        .elements
        .chunks(ROWS_AT_ONCE * sae.width())
        .collect();
    let strongest = |at: usize| {
        if is_over.load(Ordering::Acquire) {
            return Err(());
        }
        let mut own = CapturedPoint::like(captured);
        for features in sae.features(parts[at]).chunks_exact(sae.n_features()) {
            own.push_top(k, features);
        }
        Ok(own)
    };
    let _ = parallel::in_order(parts.len(), strongest, |own| {
        out.elements.extend(own.elements);
        out.places.extend(own.places);
        Ok(())
    });
    Cow::Owned(out)
}

/// The description of the file in a response. If the file could not be written, the values are in the response.
fn artifact(kept: Result<Artifact, store::Error>) -> Value {
    match kept {
        Ok(kept) => artifact_json(&kept),
        Err(error) => {
            tracing::error!(%error, "captured values were not kept as a file");
            json!({ "error": error.to_string() })
        }
    }
}

pub(crate) fn artifact_json(kept: &Artifact) -> Value {
    let mut out = json!(kept);
    out["url"] = format!("{ARTIFACTS_ROUTE}/{}", kept.id).into();
    out
}
