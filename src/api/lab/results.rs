//! The result of a lab plan in a response: values in the response itself, or in a file that it names.

use std::borrow::Cow;
use std::collections::HashSet;
use std::convert::Infallible;
use std::io;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::common::parallel;
use crate::common::writing::Target;
use crate::engine::serving::{Served, now};
use crate::engine::{Attributed, Captured, LabResult, LensRow, Reduce, TokenLogprob};
use crate::files::arrays::{self, Elements, Format, Named};
use crate::files::shelf::{self, Kept};
use crate::files::vectors::Content;
use crate::text::tokenizer::Tokenizer;

use super::objects::{Dtype, Encoding, Output};
use super::{Wanted, artifacts};

/// Maximum size in bytes of a plan in the metadata of a file; of a longer one the file has a digest.
const MAX_TEXT: usize = 1 << 20;

impl Dtype {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    pub(super) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }

    fn of(self, elements: &[f32]) -> Elements<'_> {
        match self {
            Self::F32 => Elements::F32(elements),
            Self::F16 => Elements::F16(elements),
        }
    }
}

/// A captured value to be written into a response or a file.
struct Shown<'a> {
    captured: Cow<'a, Captured>,
    /// Id of the autoencoder, if the places are indices of its features.
    sae: Option<&'a str>,
    dtype: Dtype,
    /// Dimensions, slowest first.
    shape: Vec<u64>,
    /// The name of the value in a file.
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

    /// The arrays of the value in a file.
    fn arrays(&self) -> impl Iterator<Item = Named<'_>> {
        let elements = Named {
            name: self.name.clone(),
            shape: self.shape.clone(),
            elements: self.dtype.of(&self.captured.elements),
        };
        let has_places = matches!(self.captured.reduce, Reduce::TopK(_));
        let places = has_places.then(|| Named {
            name: self.indices(),
            shape: self.shape.clone(),
            elements: Elements::I32(&self.captured.places),
        });
        [elements].into_iter().chain(places)
    }

    /// The description of the value, wherever its elements are.
    fn about(&self) -> Value {
        let reduce = match self.captured.reduce {
            Reduce::None => "none",
            Reduce::Mean => "mean",
            Reduce::Max => "max",
            Reduce::Norm => "norm",
            Reduce::TopK(_) => "top_k",
        };
        let mut out = json!({
            "point": self.captured.point, "reduce": reduce, "positions": self.captured.positions,
            "shape": self.shape,
        });
        if let Some(sae) = self.sae {
            out["sae"] = sae.into();
        }
        out
    }

    fn inline(&self, encoding: Encoding) -> Value {
        let mut out = self.about();
        match encoding {
            Encoding::Numbers => out["data"] = self.captured.elements.as_slice().into(),
            Encoding::Base64 => {
                let elements = self.dtype.of(&self.captured.elements);
                out["dtype"] = self.dtype.name().into();
                out["data"] = base64::encode(elements.bytes()).into();
            }
        }
        if let Reduce::TopK(_) = self.captured.reduce {
            out["indices"] = self.captured.places.as_slice().into();
        }
        out
    }

    fn in_file(&self) -> Value {
        let mut out = self.about();
        out["dtype"] = self.dtype.name().into();
        out["tensor"] = self.name.as_str().into();
        if let Reduce::TopK(_) = self.captured.reduce {
            out["indices_tensor"] = self.indices().into();
        }
        out
    }
}

/// The JSON of a token with its log-probability.
fn token(top: &TokenLogprob, tokenizer: &Tokenizer) -> Value {
    let piece = String::from_utf8_lossy(tokenizer.piece(top.id));
    json!({ "id": top.id, "token": piece, "logprob": top.logprob })
}

fn lens_row(row: &LensRow, tokenizer: &Tokenizer) -> Value {
    let targets = row.targets.iter().map(|(target, rank)| {
        let mut target = token(target, tokenizer);
        target["rank"] = (*rank).into();
        target
    });
    json!({
        "position": row.position,
        "top": row.top.iter().map(|top| token(top, tokenizer)).collect::<Value>(),
        "targets": targets.collect::<Value>(),
    })
}

/// The JSON of the contributions to a token's logit.
fn attributed(of: &Attributed, tokenizer: &Tokenizer) -> Value {
    let piece = String::from_utf8_lossy(tokenizer.piece(of.of));
    let rows = of.rows.iter().map(|row| {
        json!({
            "position": row.position, "logit": row.logit, "constant": row.constant,
            "values": row.values,
        })
    });
    json!({
        "of": { "id": of.of, "token": piece }, "parts": of.parts,
        "rows": rows.collect::<Value>(),
    })
}

impl Wanted {
    /// Writes a result as a file of arrays. Returns the description that a response has of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write<'p>(
        &self,
        target: impl Into<Target<'p>>,
        format: Format,
        result: &LabResult,
        served: &Served,
    ) -> io::Result<Value> {
        let values = self.values(result);
        let arrays: Vec<Named<'_>> = values.iter().flat_map(Shown::arrays).collect();
        let metadata = self.metadata(result, &values, served);
        arrays::write(target, format, &arrays, &metadata)?;
        let captures: Value = values.iter().map(Shown::in_file).collect();
        let mut out = json!({ "captures": captures });
        self.add_lens(&mut out, result, served);
        Ok(out)
    }

    /// The captured values, each under a unique name, and whether half precision is requested.
    pub fn captured<'a>(&'a self, result: &'a LabResult) -> Vec<(String, Cow<'a, Captured>, bool)> {
        let values = self.values(result).into_iter();
        let own = values.map(|value| (value.name, value.captured, value.dtype == Dtype::F16));
        own.collect()
    }

    /// The captured points and patterns of points.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.plan
            .captures
            .iter()
            .map(|capture| capture.point.as_str())
    }

    /// The result as JSON for a response.
    pub fn json(&self, result: &LabResult, served: &Served) -> Value {
        let values = self.values(result);
        let n_bytes: u64 = values.iter().map(Shown::n_bytes).sum();
        let is_kept = match self.output {
            Some(output) => output == Output::Artifact,
            None => served
                .shelf
                .as_ref()
                .is_some_and(|s| n_bytes > s.limits().inline),
        };
        let kept = served.shelf.as_ref().filter(|_| is_kept);
        let kept = kept.map(|shelf| {
            let arrays: Vec<Named<'_>> = values.iter().flat_map(Shown::arrays).collect();
            shelf.keep(
                self.format,
                &arrays,
                &self.metadata(result, &values, served),
            )
        });
        let captures = values.iter().map(|value| match &kept {
            Some(Ok(_)) => value.in_file(),
            _ => value.inline(self.encoding),
        });
        let mut out = json!({ "captures": captures.collect::<Value>() });
        if let Some(kept) = kept {
            out["artifact"] = artifact(kept);
        }
        self.add_lens(&mut out, result, served);
        out
    }

    /// Adds the rows of the logit lens and the attribution, if requested.
    fn add_lens(&self, out: &mut Value, result: &LabResult, served: &Served) {
        let tokenizer = served.handle.tokenizer();
        if let Some(attribution) = &result.attribution {
            out["attribution"] = attributed(attribution, tokenizer);
        }
        if self.plan.lens.is_none() {
            return;
        }
        let lens = result.lens.iter().map(|point| {
            let rows = point.rows.iter().map(|row| lens_row(row, tokenizer));
            json!({ "point": point.point, "rows": rows.collect::<Value>() })
        });
        out["lens"] = lens.collect();
    }

    /// The captured values, each under a unique name.
    fn values<'a>(&'a self, result: &'a LabResult) -> Vec<Shown<'a>> {
        let mut names = HashSet::new();
        let value = |captured: &'a Captured| {
            let captured = self.featured(captured);
            let is_one = matches!(captured.reduce, Reduce::Mean | Reduce::Max);
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
                sae: self.saes.get(captured.of).and_then(Option::as_deref),
                dtype: self.dtypes.get(captured.of).copied().unwrap_or_default(),
                shape: n_rows.into_iter().chain(dims).collect(),
                name,
                captured,
            }
        };
        result.captures.iter().map(value).collect()
    }

    /// The strongest features of each row if they are requested, otherwise the value itself.
    fn featured<'a>(&self, captured: &'a Captured) -> Cow<'a, Captured> {
        let found = self
            .found
            .get()
            .and_then(|all| all.get(captured.of)?.as_deref());
        let Some(Content::Sae(sae)) = found else {
            return Cow::Borrowed(captured);
        };
        let k = self.k_of_features[captured.of].min(sae.n_features());
        let mut out = Captured {
            shape: vec![k as u64],
            reduce: Reduce::TopK(k),
            elements: Vec::new(),
            ..captured.clone()
        };
        let rows: Vec<&[f32]> = captured.elements.chunks_exact(sae.width()).collect();
        let features = |at: usize| Ok::<_, Infallible>(sae.features(rows[at]));
        let Ok(()) = parallel::in_order(rows.len(), features, |features| {
            out.push_top(k, &features);
            Ok(())
        });
        Cow::Owned(out)
    }

    /// The metadata of a file of values.
    fn metadata(
        &self,
        result: &LabResult,
        values: &[Shown<'_>],
        served: &Served,
    ) -> Map<String, Value> {
        let identity = &served.identity;
        let plan: Cow<'_, str> = match self.text.len() <= MAX_TEXT {
            true => self.text.as_str().into(),
            false => format!("sha256:{:x}", Sha256::digest(&self.text)).into(),
        };
        let captures: Value = values.iter().map(Shown::in_file).collect();
        let texts = [
            ("model", served.name.clone()),
            ("model_sha256", identity.model.clone()),
            ("definition_sha256", identity.definition.clone()),
            ("types", identity.types.clone()),
            ("program", format!("bench {}", env!("CARGO_PKG_VERSION"))),
            ("created", now().to_string()),
            ("tokens", json!(result.tokens).to_string()),
            ("captures", captures.to_string()),
            ("plan", plan.into_owned()),
        ];
        let texts = texts.into_iter();
        texts
            .map(|(name, text)| (name.to_owned(), text.into()))
            .collect()
    }
}

/// The description of the file in a response. If the file could not be written, the values are in the response.
fn artifact(kept: Result<Kept, shelf::Error>) -> Value {
    match kept {
        Ok(kept) => artifacts::json_of(&kept),
        Err(error) => {
            tracing::error!(%error, "captured values were not kept as a file");
            json!({ "error": error.to_string() })
        }
    }
}
