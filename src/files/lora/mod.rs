//! LoRA adapters: low-rank updates of some weights of a model, read from a GGUF file or a PEFT folder.
//!
//! An [`Adapter`] has two small matrices for each weight that it updates, with the names and in the
//! layout of llama.cpp's adapter files, whatever they were read from: `lora_a [n_in, rank]` and
//! `lora_b [rank, n_out]`, with a third dimension where the weight has one for each expert or head; of
//! a table `lora_a [rank, n_rows]` and `lora_b [rank, width]`. Reading checks an adapter against the
//! plan of its model; the weights of the model are neither read nor changed. Called when a model is
//! opened.
//!
//! Invariant: an unsupported feature of an adapter is refused by name, never ignored.

mod peft;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::arch::{WeightRole, nearest};
use crate::plan::{Plan, TensorPlan};
use crate::stmap;
use crate::weights::{self, TensorInfo, TensorType, Weights};

pub use peft::Base;

/// Suffixes of the two matrices' names, after the name of their weight.
const DOWN: &str = ".lora_a";
const UP: &str = ".lora_b";

/// An adapter that fits a model.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Where it was read from.
    pub path: PathBuf,
    /// Default scale of its updates.
    pub scale: f32,
    /// The matrices.
    pub weights: Weights,
    /// The updates, by the names of their weights.
    pub pairs: Vec<Pair>,
}

/// The update of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The weight, a name in the plan.
    pub target: String,
    /// Name of the matrix that is multiplied first.
    pub down: String,
    /// Name of the other one.
    pub up: String,
    /// Factor of the product, in addition to the scale of the adapter.
    pub factor: f32,
}

/// Path of an adapter and the scale of its updates.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// A GGUF file or a PEFT folder.
    pub path: PathBuf,
    /// The scale.
    pub scale: f32,
}

impl std::str::FromStr for Source {
    type Err = String;

    /// `FILE` or `FILE=SCALE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (path, scale) = match text.rsplit_once('=') {
            Some((path, scale)) if !Path::new(text).exists() => {
                let scale = scale.parse().ok().filter(|scale: &f32| scale.is_finite());
                let fault = || format!("expected FILE or FILE=SCALE, found `{text}`");
                (path, scale.ok_or_else(fault)?)
            }
            _ => (text, 1.0),
        };
        match path {
            "" => Err("expected FILE or FILE=SCALE, found no file".into()),
            path => Ok(Self {
                path: path.into(),
                scale,
            }),
        }
    }
}

/// Why an adapter was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its file.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The names of its modules.
    #[error(transparent)]
    Map(#[from] stmap::Error),
    /// It is not an adapter, not one for this model, or needs an unsupported feature.
    #[error("adapter {}: {message}", path.display())]
    Unfit {
        /// The file or folder.
        path: PathBuf,
        /// What was found and expected.
        message: String,
    },
}

impl Adapter {
    /// Reads an adapter for a model.
    ///
    /// # Errors
    /// A file that cannot be read, or an adapter that does not fit the model.
    pub fn open(source: &Source, base: &Base<'_>) -> Result<Self, Error> {
        let path = source.path.as_path();
        let refuse = |message: String| Error::Unfit {
            path: path.to_owned(),
            message,
        };
        let (weights, alpha) = if path.is_dir() {
            // What its modules are multiplied by is part of their matrices.
            (peft::open(path, base)?, 0.0)
        } else {
            let weights = weights::open(path)?;
            let alpha = check_metadata(&weights, base.plan).map_err(refuse)?;
            (weights, alpha)
        };
        let pairs = pairs(&weights, base.plan, alpha).map_err(refuse)?;
        let names: Vec<&str> = weights.tensors().iter().map(|t| t.name.as_str()).collect();
        // A value that is not finite would reach the rows of requests without the adapter.
        weights::check(&weights, &names)?;
        Ok(Self {
            path: path.to_owned(),
            scale: source.scale,
            weights,
            pairs,
        })
    }
}

/// Checks the metadata of an adapter's file. Returns its `alpha`, 0 if it has none.
fn check_metadata(weights: &Weights, plan: &Plan) -> Result<f32, String> {
    let metadata = weights.metadata();
    let expect = |key: &str, expected: &str| match metadata.str(key) {
        Some(found) if found == expected => Ok(()),
        found => Err(format!(
            "`{key}` is `{}`, expected `{expected}`",
            found.unwrap_or("missing")
        )),
    };
    expect("general.type", "adapter")?;
    expect("adapter.type", "lora")?;
    match metadata.str("general.architecture") {
        Some(found) if found == plan.arch => {}
        found => {
            return Err(format!(
                "it is for the architecture `{}`, the model is of `{}`",
                found.unwrap_or("missing"),
                plan.arch
            ));
        }
    }
    let tokens = "adapter.alora.invocation_tokens";
    if metadata.get(tokens).is_some() {
        return Err(format!(
            "`{tokens}`: an adapter that its invocation tokens activate (aLoRA) is not supported"
        ));
    }
    match metadata.get("adapter.lora.alpha") {
        None => Ok(0.0),
        Some(alpha) => match alpha.as_f64().filter(|alpha| alpha.is_finite()) {
            Some(alpha) => Ok(alpha as f32),
            None => Err("`adapter.lora.alpha` is not a finite number".into()),
        },
    }
}

/// The updates of the plan's weights, in the order of their names.
fn pairs(weights: &Weights, plan: &Plan, alpha: f32) -> Result<Vec<Pair>, String> {
    let mut halves: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
    for tensor in weights.tensors() {
        let name = tensor.name.as_str();
        let found = [DOWN, UP].map(|ending| name.strip_suffix(ending));
        let (target, at) = match found {
            [Some(target), _] => (target, 0),
            [_, Some(target)] => (target, 1),
            _ => {
                return Err(format!(
                    "tensor `{name}` is none of an adapter: expected names that end in `{DOWN}` or `{UP}`"
                ));
            }
        };
        halves.entry(target).or_default()[at] = Some(tensor);
    }
    if halves.is_empty() {
        return Err("it has no tensors".into());
    }
    let pair = |(target, halves): (&str, [Option<&TensorInfo>; 2])| {
        let missing = |ending: &str| format!("`{target}{ending}` is missing");
        let down = halves[0].ok_or_else(|| missing(DOWN))?;
        let up = halves[1].ok_or_else(|| missing(UP))?;
        let planned = plan.tensors.iter().find(|t| t.name == target);
        let planned = planned.ok_or_else(|| unknown(target, plan))?;
        let rank = check_shapes(planned, down, up)?;
        Ok(Pair {
            target: target.to_owned(),
            down: down.name.clone(),
            up: up.name.clone(),
            factor: if alpha == 0.0 {
                1.0
            } else {
                alpha / rank as f32
            },
        })
    };
    halves.into_iter().map(pair).collect()
}

fn unknown(target: &str, plan: &Plan) -> String {
    let near = nearest(target, plan.tensors.iter().map(|t| t.name.as_str()));
    let near = near.map(|near| format!("; the nearest is `{near}`"));
    format!(
        "the model has no weight `{target}`{}",
        near.unwrap_or_default()
    )
}

/// The rank of an update, whose matrices fit their weight.
fn check_shapes(planned: &TensorPlan, down: &TensorInfo, up: &TensorInfo) -> Result<u64, String> {
    use TensorType::{F64, I8, I16, I32, I64};
    for half in [down, up] {
        if matches!(half.ty, F64 | I8 | I16 | I32 | I64) {
            return Err(format!(
                "`{}` is {}, which no product is made with",
                half.name, half.ty
            ));
        }
    }
    let is_table = planned.role == WeightRole::Table;
    if !is_table && planned.role != WeightRole::Matrix {
        return Err(format!(
            "`{}` is not a matrix, so it has no low-rank update",
            planned.name
        ));
    }
    let of = |shape: &[u64], dim: usize| shape.get(dim).copied().unwrap_or(1);
    let base = &planned.shape;
    let rank = of(&down.shape, if is_table { 0 } else { 1 });
    let (expected_down, expected_up) = match is_table {
        true => ([rank, of(base, 1)], [rank, base[0]]),
        false => ([base[0], rank], [rank, of(base, 1)]),
    };
    let n = of(base, 2);
    let fits = |found: &[u64], expected: [u64; 2]| {
        let is_same = (0..2).all(|dim| of(found, dim) == expected[dim]);
        // One for all heads, or one for each expert or head.
        let n_found = of(found, 2);
        is_same && (n_found == n || n_found == 1) && of(found, 3) == 1
    };
    let is_fit = fits(&down.shape, expected_down) && fits(&up.shape, expected_up);
    match is_fit && of(base, 3) == 1 {
        true => Ok(rank),
        false => Err(format!(
            "`{}` {:?} and `{}` {:?} do not update `{}` {base:?}: is the adapter one of another model?",
            down.name, down.shape, up.name, up.shape, planned.name
        )),
    }
}
