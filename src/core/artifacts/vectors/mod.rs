//! Vectors for edits, captures and lenses: directions of hidden states, sparse autoencoders, translators of lenses.
//!
//! A file is safetensors, or GGUF as repeng and llama-cvector-generator write control vectors. Its tensors decide its
//! kind. In a control vector `direction.N` is what llama.cpp adds to the hidden state after layer N, with layers
//! counted from 0; layer 0 has none.
//!
//! Invariant: all numbers of a file are finite, and its translators have one width. Rows of directions may differ in
//! width: those of points are as wide as their points.

mod sae;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Map;

use crate::artifacts::arrays;
use crate::artifacts::arrays::{ArrayFormat, Elements, NamedArray};
use lab_base::ggml;
use lab_base::util::atomic_file::OutputPath;
use lab_base::weights;
use lab_base::weights::gguf;
use lab_base::weights::gguf::NewTensor;
use lab_base::weights::{Metadata, TensorInfo, TensorType, Value, Weights, folder};

pub use sae::Sae;
pub use sae::SaeFeature;
pub use store::{SaveError, StoredVectors, VectorStore};

/// Prefix of the tensors of a control vector.
pub const DIRECTION: &str = "direction.";
/// File name extension of control vectors.
pub const GGUF: &str = "gguf";

/// The reason why a file has no vectors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The file has other content.
    #[error("{}: {message}", path.display())]
    Unfit { path: PathBuf, message: String },
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorContent {
    /// Directions of hidden states.
    Directions(Arc<Directions>),
    /// A sparse autoencoder.
    Sae(Sae),
    /// Translators of a tuned lens.
    Translators(Arc<Translators>),
}

/// Directions of values, by layer or point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directions {
    by_layer: BTreeMap<u64, Vec<f32>>,
    by_point: BTreeMap<String, Vec<f32>>,
    /// A direction for any point.
    any: Option<Vec<f32>>,
}

impl Directions {
    /// The direction for a point with these names; `path` is the name that may start with the layer.
    pub fn of<'a>(&self, names: impl IntoIterator<Item = &'a str>, path: &str) -> Option<&[f32]> {
        let mut names = names.into_iter();
        let named = names.find_map(|name| self.by_point.get(name));
        let layer = path
            .strip_prefix("layers.")
            .and_then(|rest| rest.split('.').next());
        let layer = layer.and_then(|n| n.parse().ok());
        let of_layer = layer.and_then(|n: u64| self.by_layer.get(&n));
        named.or(of_layer).or(self.any.as_ref()).map(Vec::as_slice)
    }

    /// The layers that have a direction.
    pub fn layers(&self) -> impl Iterator<Item = u64> {
        self.by_layer.keys().copied()
    }

    /// Adds a direction. Returns the direction that had its place.
    fn add(&mut self, name: &str, row: Vec<f32>) -> Option<Vec<f32>> {
        let numbered = ["", DIRECTION, "layer.", "layers."];
        let mut layers = numbered
            .iter()
            .filter_map(|prefix| name.strip_prefix(prefix)?.parse().ok());
        match layers.next() {
            Some(layer) => self.by_layer.insert(layer, row),
            None => self.by_point.insert(name.to_owned(), row),
        }
    }
}

/// Translators: for layers, an affine map `x + W x + b` of the hidden state before the layer to one that the output
/// head reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Translators {
    width: usize,
    /// By layer: `W`, row by row, and `b`.
    all: BTreeMap<u64, (Vec<f32>, Vec<f32>)>,
}

impl Translators {
    /// Number of elements of a hidden state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Hidden states `[width, n]` before a layer, translated for the output head; unchanged if the layer has no
    /// translator.
    pub fn translated(&self, layer: u64, rows: &[f32]) -> Vec<f32> {
        let Some((matrix, bias)) = self.all.get(&layer) else {
            return rows.to_vec();
        };
        let states = rows.chunks_exact(self.width);
        let translate = |x: &[f32]| -> Vec<f32> {
            let out = matrix.chunks_exact(self.width).zip(bias).zip(x);
            out.map(|((row, b), own)| own + dot(row, x) + b).collect()
        };
        states.flat_map(translate).collect()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight partial sums at once, so that the compiler vectorises the loop.
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0f32; 8];
    for (x, y) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

/// The tensors of a file by name, as f32, with their shapes, the slowest dimension first.
type Arrays = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The tensors of a file; their data is not read yet.
fn opened(path: &Path) -> Result<Weights, Error> {
    Ok(
        match path.extension().is_some_and(|ending| ending == GGUF) {
            true => weights::open(path)?,
            false => folder::plain(path)?,
        },
    )
}

fn array(weights: &Weights, tensor: &TensorInfo) -> Result<Vec<f32>, String> {
    let name = &tensor.name;
    let expected = || {
        let ty = tensor.ty;
        format!("tensor `{name}` is {ty}, expected f32, f16 or bf16")
    };
    // A quantised file would take many times its size in memory.
    if !tensor.ty.is_plain() {
        return Err(expected());
    }
    let bytes = weights.data(tensor).map_err(|error| error.to_string())?;
    let mut out = vec![0.0; tensor.elements() as usize];
    ggml::dequantize(&bytes, tensor.ty, &mut out).map_err(|_| expected())?;
    match out.iter().all(|e| e.is_finite()) {
        true => Ok(out),
        false => Err(format!("tensor `{name}` has numbers that are not finite")),
    }
}

/// The kind of a file, by the names of its tensors.
fn kind(weights: &Weights) -> &'static str {
    let mut names = weights.tensors().iter().map(|tensor| tensor.name.as_str());
    if weights.tensor("W_dec").is_some() {
        "sae"
    } else if names.any(|name| name.ends_with(".weight")) {
        "translators"
    } else {
        "directions"
    }
}

/// Writes directions by layers: as a control vector for llama.cpp, without layer 0, if the file name ends in `.gguf`;
/// otherwise as safetensors. `arch` is the architecture of the model.
pub fn write<'p>(
    target: impl Into<OutputPath<'p>>,
    arch: &str,
    by_layer: &BTreeMap<u64, Vec<f32>>,
) -> Result<(), Error> {
    let target = target.into();
    let path = target.path;
    let io = |source| weights::Error::Io {
        path: path.to_owned(),
        source,
    };
    if path.extension().is_none_or(|ending| ending != GGUF) {
        let named = by_layer.iter().map(|(layer, row)| NamedArray {
            name: format!("{DIRECTION}{layer}"),
            shape: vec![row.len() as u64],
            elements: Elements::F32(row),
        });
        let metadata = Map::from_iter([("arch".to_owned(), arch.into())]);
        let named: Vec<NamedArray<'_>> = named.collect();
        return Ok(arrays::write(target, ArrayFormat::Safetensors, &named, &metadata).map_err(io)?);
    }
    let rows: Vec<_> = by_layer.iter().filter(|(layer, _)| **layer > 0).collect();
    let tensor = |(layer, row): &(&u64, &Vec<f32>)| NewTensor {
        name: format!("{DIRECTION}{layer}"),
        ty: TensorType::F32,
        shape: vec![row.len() as u64],
    };
    let tensors: Vec<NewTensor> = rows.iter().map(tensor).collect();
    let metadata = Metadata::from_iter([
        ("general.architecture", Value::Str("controlvector".into())),
        ("controlvector.model_hint", Value::Str(arch.into())),
        // llama-cvector-generator writes this type; no program reads the value.
        ("controlvector.layer_count", Value::I32(rows.len() as i32)),
    ]);
    let bytes =
        |at: usize| -> Vec<u8> { rows[at].1.iter().flat_map(|e| e.to_le_bytes()).collect() };
    Ok(gguf::write(target, &metadata, &tensors, |at| {
        Ok(bytes(at))
    })?)
}

/// The content of the file at `path`.
pub fn read(path: &Path) -> Result<VectorContent, Error> {
    let weights = opened(path)?;
    let unfit = |message: String| Error::Unfit {
        path: path.to_owned(),
        message,
    };
    let mut arrays = Arrays::new();
    for tensor in weights.tensors() {
        let shape = tensor.shape.iter().rev().map(|n| *n as usize).collect();
        let own = array(&weights, tensor).map_err(unfit)?;
        arrays.insert(tensor.name.clone(), (shape, own));
    }
    let content = match kind(&weights) {
        "sae" => Sae::of(arrays).map(VectorContent::Sae),
        "translators" => translators(arrays).map(|all| VectorContent::Translators(Arc::new(all))),
        _ => directions(arrays).map(|all| VectorContent::Directions(Arc::new(all))),
    };
    content.map_err(unfit)
}

fn directions(arrays: Arrays) -> Result<Directions, String> {
    let mut out = Directions::default();
    let is_one = arrays.len() == 1;
    for (name, (shape, row)) in arrays {
        // A row may be stored as a matrix.
        let n_dims = shape.iter().filter(|n| **n != 1).count();
        if n_dims > 1 || row.is_empty() {
            return Err(format!(
                "tensor `{name}` has the shape {shape:?}, expected one row"
            ));
        }
        if out.add(&name, row).is_some() {
            return Err(format!(
                "tensor `{name}` and another one are directions of the same layer"
            ));
        }
    }
    if is_one && out.by_layer.is_empty() {
        out.any = std::mem::take(&mut out.by_point).into_values().next();
    }
    match out == Directions::default() {
        true => Err("it has no tensors".into()),
        false => Ok(out),
    }
}

/// The number before the last part of a name, such as 3 in `layer_translators.3.weight`.
fn number(name: &str, ending: &str) -> Option<u64> {
    let rest = name.strip_suffix(ending)?;
    rest.rsplit('.').next()?.parse().ok()
}

fn translators(mut arrays: Arrays) -> Result<Translators, String> {
    let matrices = arrays.keys().filter(|name| name.ends_with(".weight"));
    let mut out = Translators {
        width: 0,
        all: BTreeMap::new(),
    };
    for name in matrices.cloned().collect::<Vec<_>>() {
        let layer = number(&name, ".weight");
        let layer =
            layer.ok_or_else(|| format!("tensor `{name}`: expected a name like `3.weight`"))?;
        let (shape, matrix) = arrays.remove(&name).unwrap_or_default();
        let width = shape.first().copied().unwrap_or(0);
        if shape != [width, width] || out.width != 0 && out.width != width {
            return Err(format!(
                "tensor `{name}` has the shape {shape:?}, expected one square for all"
            ));
        }
        out.width = width;
        let bias = name.replace(".weight", ".bias");
        let (_, bias) = arrays
            .remove(&bias)
            .unwrap_or((vec![width], vec![0.0; width]));
        if bias.len() != width {
            let n = bias.len();
            return Err(format!(
                "the bias of `{name}` has {n} numbers, expected {width}"
            ));
        }
        if out.all.insert(layer, (matrix, bias)).is_some() {
            return Err(format!(
                "tensor `{name}` and another one are translators of layer {layer}"
            ));
        }
    }
    match arrays.keys().next() {
        Some(other) => Err(format!(
            "unexpected tensor `{other}`; expected `N.weight` or `N.bias`"
        )),
        None => Ok(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrays(all: &[(&str, &[usize], &[f32])]) -> Arrays {
        let all = all.iter();
        all.map(|(name, shape, row)| ((*name).to_owned(), (shape.to_vec(), row.to_vec())))
            .collect()
    }

    #[test]
    fn a_direction_is_found_by_point_then_layer_and_a_lone_one_everywhere() {
        let all = directions(arrays(&[
            ("direction.2", &[2], &[1.0, 2.0]),
            ("layers.3.attn.out", &[1, 2], &[3.0, 4.0]),
            ("3", &[2], &[5.0, 6.0]),
        ]))
        .expect("sound");
        let of = |path: &str| all.of([path], path).map(<[f32]>::to_vec);
        assert_eq!(of("layers.2.ffn.x"), Some(vec![1.0, 2.0]));
        assert_eq!(of("layers.3.attn.out"), Some(vec![3.0, 4.0]));
        assert_eq!(of("layers.3.ffn.x"), Some(vec![5.0, 6.0]));
        assert_eq!((of("layers.0.ffn.x"), of("embed.x")), (None, None));
        let one = directions(arrays(&[("mood", &[2], &[1.0, 2.0])])).expect("sound");
        assert_eq!(one.of(["embed.x"], "embed.x"), Some(&[1.0, 2.0][..]));
        for bad in [
            &[][..],
            &[("a", &[2usize, 2][..], &[0.0f32; 4][..])],
            &[("2", &[1], &[1.0]), ("direction.2", &[1], &[2.0])],
        ] {
            assert!(directions(arrays(bad)).is_err());
        }
    }

    #[test]
    fn a_translator_is_an_affine_map_of_its_layer() {
        let all = translators(arrays(&[
            ("translators.1.weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]),
            ("translators.1.bias", &[2], &[10.0, 20.0]),
        ]))
        .expect("sound");
        assert_eq!(
            all.translated(1, &[1.0, 1.0, 0.0, 2.0]),
            [14.0, 28.0, 14.0, 30.0]
        );
        assert_eq!(all.translated(0, &[1.0, 1.0]), [1.0, 1.0]);
        for bad in [
            &[("1.weight", &[2usize, 1][..], &[0.0f32; 2][..])][..],
            &[("x.weight", &[1, 1], &[0.0])],
            &[("1.weight", &[1, 1], &[0.0]), ("1.bias", &[2], &[0.0; 2])],
            &[("1.weight", &[1, 1], &[0.0]), ("other", &[2], &[0.0; 2])],
            &[
                ("a.1.weight", &[1, 1], &[0.0]),
                ("b.1.weight", &[1, 1], &[0.0]),
            ],
        ] {
            assert!(translators(arrays(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn quantised_tensors_are_refused_before_they_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("v.gguf");
        for ty in [TensorType::Q8_0, TensorType::F32] {
            let tensor = NewTensor {
                name: "direction.1".into(),
                ty,
                shape: vec![32],
            };
            let n = ty.row_bytes(32).expect("whole blocks") as usize;
            let metadata = Metadata::from_iter([("general.type", Value::Str("vector".into()))]);
            let target = OutputPath::replacing(&path);
            gguf::write(target, &metadata, &[tensor], |_| Ok(vec![0; n])).expect("written");
            match (ty, read(&path)) {
                (TensorType::F32, found) => drop(found.expect("a direction")),
                (_, found) => {
                    let error = found.expect_err("quantised").to_string();
                    assert!(error.contains("is q8_0, expected f32"), "{error}");
                }
            }
        }
    }
}
