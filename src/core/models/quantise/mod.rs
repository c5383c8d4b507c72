//! Converts weights to other element types: matrices become lazy tensors that are quantised row by row when they are
//! read.
//!
//! The contract of a block says which tensors may be quantised, and a [`Mix`] which types these get. The result is
//! [`Weights`] like any other. It is used between opening a model and loading or writing it.
//!
//! Invariant: loading a model with a mix gives the same bytes as loading the file converted with it.

mod importance;
mod mix;
pub mod search;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

pub use importance::Importance;
pub use mix::Mix;

use crate::arch::WeightRole;
use crate::plan::{LayerPlan, Plan, Unit};
use lab_base::ggml;
use lab_base::util::parallel;
use lab_base::weights::{
    Error, LazyTensor, Metadata, TensorData, TensorEntry, TensorInfo, TensorType, Value, Weights,
    check_rows,
};
use mix::TypeChoice;

/// Value of `general.quantization_version`: the version of the quantised types' formats.
const QUANTIZATION_VERSION: u32 = 2;
/// Number of elements that are converted at a time.
const RUN: usize = 1 << 16;

/// What a plan says of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorRole {
    /// A tensor that keeps its type, unless everything becomes f32.
    Kept,
    /// A vector or a similar tensor that is used elementwise, so it is f32.
    Vector,
    /// A matrix or table.
    Matrix,
}

/// The roles of a plan's tensors.
fn roles(plan: &Plan) -> Vec<TensorRole> {
    let of_role = |role| match role {
        WeightRole::Matrix | WeightRole::Table => TensorRole::Matrix,
        _ => TensorRole::Vector,
    };
    let mut roles: Vec<_> = plan.tensors.iter().map(|t| of_role(t.role)).collect();
    let ends = [&plan.embed].into_iter().chain(&plan.per_layer);
    let of_layers = plan.layers.iter().flat_map(units);
    for unit in of_layers.chain(ends).chain(plan.mixes()) {
        for (spec, weight) in unit.contract.0.weights.iter().zip(&unit.weights) {
            if let Some(at) = *weight
                && !spec.is_quantised
                && roles[at] == TensorRole::Matrix
            {
                roles[at] = TensorRole::Kept;
            }
        }
    }
    roles
}

fn units(layer: &LayerPlan) -> impl Iterator<Item = &Unit> {
    let branches = layer.slots.iter().flat_map(|slot| &slot.branches);
    branches.map(|branch| &branch.block)
}

/// The type in place of one whose blocks do not divide a row of this length.
fn fitting(ty: TensorType, row: u64) -> TensorType {
    use TensorType as T;
    let fits = |ty: TensorType| row.is_multiple_of(ty.block_len());
    let smaller = match ty {
        T::IQ1_S | T::IQ1_M | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S => T::IQ4_NL,
        T::IQ3_XXS | T::IQ3_S | T::IQ4_XS => T::IQ4_NL,
        T::Q1_0 | T::Q2_0 | T::Q2_K | T::Q3_K | T::TQ1_0 | T::TQ2_0 => T::Q4_0,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        T::NVFP4 => T::MXFP4,
        ty => ty,
    };
    match ty {
        ty if fits(ty) => ty,
        _ if fits(smaller) => smaller,
        _ => T::F16,
    }
}

/// The types that a mix gives to the matrices of a model, by tensor; tensors that are not listed keep theirs.
///
/// # Errors
/// A condition of the mix cannot be evaluated.
pub fn types<'w>(
    weights: &'w Weights,
    plan: &Plan,
    mix: &Mix,
) -> Result<BTreeMap<&'w str, TensorType>, Error> {
    let choices = mix.choices(weights, matrices(plan));
    let choices = choices.map_err(|message| Error::NotComputed {
        tensor: "all".into(),
        message: format!("the mix {mix}: {message}"),
    })?;
    let mut others: BTreeMap<_, usize> = BTreeMap::new();
    let mut types = BTreeMap::new();
    for (name, choice) in choices {
        let (TypeChoice::Type(wanted), Some(tensor)) = (choice, weights.tensor(name)) else {
            continue;
        };
        let row = tensor.shape[0];
        let ty = fitting(wanted, row);
        if ty != wanted {
            *others.entry((wanted, ty, row)).or_insert(0) += 1;
        }
        types.insert(name, ty);
    }
    if !others.is_empty() {
        let of = |((wanted, ty, row), n): (&(TensorType, TensorType, u64), &usize)| {
            format!("{n} {ty} in place of {wanted} (rows of {row})")
        };
        let all: Vec<String> = others.iter().map(of).collect();
        tracing::warn!(
            "the rows of some tensors are not whole blocks of the type, so these become others: {}",
            all.join(", ")
        );
    }
    Ok(types)
}

/// Whether a tensor is a matrix of the plan that a mix gives a type to.
fn matrices(plan: &Plan) -> impl Fn(&TensorInfo) -> bool + use<> {
    let roles = roles(plan);
    let of_plan = plan.tensors.iter().zip(roles);
    let names = of_plan.filter(|(_, role)| *role == TensorRole::Matrix);
    let names: HashSet<_> = names.map(|(t, _)| t.name.clone()).collect();
    move |tensor| names.contains(&tensor.name) && is_matrix(tensor) && has_values(tensor.ty)
}

/// The weights of a model with its matrices in the types of a mix, or in similar types where the length of a row requires it.
///
/// # Errors
/// A condition of the mix cannot be evaluated, or a type needs the importance of columns and there is none.
pub fn quantise(weights: &Weights, plan: &Plan, mix: &Mix) -> Result<Weights, Error> {
    let mut types: HashMap<_, _> = types(weights, plan, mix)?.into_iter().collect();
    let importance = importance_of(weights, &types, mix)?;
    let is_f32 = mix.base() == TensorType::F32;
    for planned in plan.tensors.iter().filter(|_| is_f32) {
        if let Some(tensor) = weights.tensor(&planned.name).filter(|t| is_half(t)) {
            types.insert(&tensor.name, TensorType::F32);
        }
    }
    for (name, ty) in vectors(plan, weights) {
        types.entry(name).or_insert(ty);
    }
    let mut metadata = weights.metadata().clone();
    metadata.insert("general.file_type", Value::U32(mix.file_type()));
    if !mix.base().is_plain() {
        let version = Value::U32(QUANTIZATION_VERSION);
        metadata.insert("general.quantization_version", version);
    }
    if let Some(importance) = mix.importance() {
        describe(importance, &mut metadata);
    }
    with_types(weights, metadata, &importance, |tensor| {
        types
            .get(tensor.name.as_str())
            .copied()
            .unwrap_or(tensor.ty)
    })
}

/// The squared error of a tensor's values in a type, each weighted by the importance of its column. `None` if the rows are not
/// whole blocks of the type, or the type is of no use without an importance and there is none.
///
/// # Errors
/// The values cannot be read.
pub fn weighted_error(
    weights: &Weights,
    tensor: &TensorInfo,
    ty: TensorType,
    importance: Option<&Importance>,
) -> Result<Option<f64>, Error> {
    let row = tensor.shape[0] as usize;
    let columns = importance.and_then(|all| all.tensors.get(&tensor.name));
    let columns: Option<Arc<[f32]>> = columns.map(|columns| columns.means().into());
    let columns = columns.filter(|all| {
        all.len() as u64 == tensor.shape[0] * tensor.shape.iter().skip(2).product::<u64>()
    });
    if ty.row_bytes(row as u64).is_none() || columns.is_none() && mix::is_low(ty) {
        return Ok(None);
    }
    let made = Quantised {
        source: Arc::new(weights.clone()),
        tensor: tensor.clone(),
        ty,
        importance: columns.clone(),
    };
    let pieces: Vec<_> = tensor.pieces((RUN * size_of::<f32>()) as u64).collect();
    let fault = |message: String| Error::NotComputed {
        tensor: tensor.name.clone(),
        message,
    };
    let error_of = |i: usize| -> Result<f64, Error> {
        let (first, n) = pieces[i];
        let mut values = vec![0.0; n as usize * row];
        made.read(first, &mut values).map_err(fault)?;
        let mut bytes = vec![0; (n * ty.row_bytes(row as u64).unwrap_or(0)) as usize];
        made.rows(first, &mut bytes).map_err(fault)?;
        let mut found = vec![0.0; values.len()];
        ggml::dequantize(&bytes, ty, &mut found).map_err(|error| fault(error.to_string()))?;
        let n_of_matrix = tensor.shape.get(1).copied().unwrap_or(1);
        let mut sum = 0.0;
        for (at, (a, b)) in (first..).zip(values.chunks(row).zip(found.chunks(row))) {
            let from = (at / n_of_matrix) as usize * row;
            let own = columns.as_ref().map(|all| &all[from..from + row]);
            for (column, (a, b)) in a.iter().zip(b).enumerate() {
                let error = f64::from(a - b);
                sum += error * error * own.map_or(1.0, |own| f64::from(own[column]));
            }
        }
        Ok(sum)
    };
    let mut total = 0.0;
    parallel::in_order(pieces.len(), error_of, |error| {
        total += error;
        Ok(())
    })?;
    Ok(Some(total))
}

/// Says in a file's metadata by which importance it was quantised, under the keys of llama-quantize.
fn describe(importance: &Importance, metadata: &mut Metadata) {
    let text = |key: &str, text: String| (format!("quantize.imatrix.{key}"), Value::Str(text));
    let number = |key: &str, n: u32| (format!("quantize.imatrix.{key}"), Value::U32(n));
    let file = importance.file.iter();
    let all = file
        .map(|file| text("file", file.display().to_string()))
        .chain(
            importance
                .datasets
                .first()
                .map(|name| text("dataset", name.clone())),
        )
        .chain([
            number("entries_count", importance.tensors.len() as u32),
            number("chunks_count", importance.n_chunks),
        ]);
    for (key, value) in all {
        metadata.insert(key, value);
    }
}

/// The importance of the columns of the tensors that change their type.
fn importance_of<'w>(
    weights: &Weights,
    types: &HashMap<&'w str, TensorType>,
    mix: &Mix,
) -> Result<HashMap<&'w str, Arc<[f32]>>, Error> {
    let mut found = HashMap::new();
    let mut without: Vec<&str> = Vec::new();
    let mut all: Vec<_> = types.iter().filter(|(_, ty)| !ty.is_plain()).collect();
    all.sort();
    for (name, ty) in all {
        let Some(tensor) = weights.tensor(name).filter(|tensor| tensor.ty != *ty) else {
            continue;
        };
        let fault = |message| Error::NotComputed {
            tensor: (*name).to_owned(),
            message,
        };
        let columns = mix.importance().and_then(|all| all.tensors.get(*name));
        let Some(columns) = columns else {
            if mix.needs_importance(name, *ty) {
                let message = match mix.importance() {
                    Some(_) => "the importance matrix has none for this tensor",
                    None => "--imatrix FILE or --calibrate TEXT gives it",
                };
                return Err(fault(format!(
                    "{ty} needs the importance of the columns in the mix {mix}: {message}"
                )));
            }
            without.push(name);
            continue;
        };
        let (row, n) = (tensor.shape[0], columns.sums.len() as u64);
        let n_matrices = tensor.shape.iter().skip(2).product::<u64>();
        if n != row * n_matrices {
            return Err(fault(format!(
                "the importance matrix has {n} columns for it, expected {row} for each of {n_matrices} matrices"
            )));
        }
        found.insert(*name, columns.means().into());
    }
    if mix.importance().is_some() && !without.is_empty() {
        let listed = without
            .iter()
            .take(4)
            .copied()
            .collect::<Vec<_>>()
            .join(", ");
        tracing::warn!(
            "the importance matrix has no columns of {} of the tensors: {listed}{}",
            without.len(),
            if without.len() > 4 { ", ..." } else { "" }
        );
    }
    Ok(found)
}

/// The weights with f16 and bf16 vectors as f32, as other engines expect them.
pub fn with_plain_vectors(weights: &Weights, plan: &Plan) -> Result<Weights, Error> {
    let types = vectors(plan, weights);
    let mut metadata = weights.metadata().clone();
    if metadata.get("general.file_type").is_none()
        && let Some(file_type) = file_type(weights)
    {
        metadata.insert("general.file_type", Value::U32(file_type));
    }
    with_types(weights, metadata, &HashMap::new(), |tensor| {
        types
            .get(tensor.name.as_str())
            .copied()
            .unwrap_or(tensor.ty)
    })
}

/// The `general.file_type` of a file of these tensors: that of the type with the most bytes.
fn file_type(weights: &Weights) -> Option<u32> {
    let mut bytes: BTreeMap<TensorType, u64> = BTreeMap::new();
    for tensor in weights.tensors() {
        *bytes.entry(tensor.ty).or_default() += tensor.bytes;
    }
    let known = bytes
        .iter()
        .filter_map(|(ty, bytes)| Some((bytes, Mix::named(ty.name())?)));
    known
        .max_by_key(|(bytes, _)| **bytes)
        .map(|(_, mix)| mix.file_type())
}

/// The weights with quantised tensors as `ty`, one of f32, f16 and bf16; other tensors are unchanged.
pub fn without_blocks(weights: &Weights, ty: TensorType) -> Result<Weights, Error> {
    let is_blocks = |tensor: &TensorInfo| !tensor.ty.is_plain();
    if let Some(tensor) = weights
        .tensors()
        .iter()
        .find(|t| is_blocks(t) && !has_values(t.ty))
    {
        return Err(Error::NotComputed {
            tensor: tensor.name.clone(),
            message: format!("{} has no values of its own", tensor.ty),
        });
    }
    let mut metadata = weights.metadata().clone();
    if weights.tensors().iter().any(is_blocks) {
        let file_type = Value::U32(Mix::from(ty).file_type());
        metadata.insert("general.file_type", file_type);
    }
    let ty = |t: &TensorInfo| if t.ty.is_plain() { t.ty } else { ty };
    with_types(weights, metadata, &HashMap::new(), ty)
}

/// The vectors in f16 or bf16, with f32 as their new type.
fn vectors<'w>(plan: &Plan, weights: &'w Weights) -> HashMap<&'w str, TensorType> {
    let tensors = plan.tensors.iter().zip(roles(plan));
    let vectors = tensors.filter_map(|(planned, role)| {
        let tensor = weights.tensor(&planned.name)?;
        (role == TensorRole::Vector && is_half(tensor))
            .then_some((tensor.name.as_str(), TensorType::F32))
    });
    vectors.collect()
}

fn is_half(tensor: &TensorInfo) -> bool {
    matches!(tensor.ty, TensorType::F16 | TensorType::BF16)
}

fn is_matrix(tensor: &TensorInfo) -> bool {
    tensor.shape[1..].iter().any(|n| *n > 1)
}

/// Whether the elements of a type can be dequantised.
fn has_values(ty: TensorType) -> bool {
    let zeros = vec![0; ty.block_bytes() as usize];
    let mut values = vec![0.0; ty.block_len() as usize];
    ggml::dequantize(&zeros, ty, &mut values).is_ok()
}

fn with_types(
    weights: &Weights,
    metadata: Metadata,
    importance: &HashMap<&str, Arc<[f32]>>,
    ty: impl Fn(&TensorInfo) -> TensorType,
) -> Result<Weights, Error> {
    let source = Arc::new(weights.clone());
    let entry = |tensor: &TensorInfo| {
        let ty = ty(tensor);
        let entry = weights.entry(tensor);
        match ty == tensor.ty {
            true => entry,
            false => TensorEntry {
                ty,
                data: TensorData::Lazy(Arc::new(Quantised {
                    source: source.clone(),
                    tensor: tensor.clone(),
                    ty,
                    importance: importance.get(tensor.name.as_str()).cloned(),
                })),
                ..entry
            },
        }
    };
    let entries = weights.tensors().iter().map(entry).collect();
    let made = Weights::of(weights.label().to_owned(), metadata, entries)?;
    Ok(made.with_files(weights.files().cloned()))
}

/// A tensor of other weights, in another type.
#[derive(Debug)]
struct Quantised {
    source: Arc<Weights>,
    tensor: TensorInfo,
    ty: TensorType,
    /// Of the columns of each matrix.
    importance: Option<Arc<[f32]>>,
}

impl LazyTensor for Quantised {
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), String> {
        let row = self.tensor.shape[0] as usize;
        let row_bytes = self
            .ty
            .row_bytes(row as u64)
            .ok_or("a row is not a whole number of blocks")?;
        // A run ends where a matrix ends, since each has an importance of its own.
        let n_of_matrix = self.tensor.shape.get(1).copied().unwrap_or(1);
        let n_rows = (RUN / row).max(1) as u64;
        let mut values = Vec::new();
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let n_left = rest.len() as u64 / row_bytes;
            let n = n_rows.min(n_left).min(n_of_matrix - at % n_of_matrix);
            let (out, after) = rest.split_at_mut((n * row_bytes) as usize);
            values.resize(n as usize * row, 0.0);
            self.read(at, &mut values)?;
            self.check(&values, at)?;
            let importance = self.importance.as_deref().map(|all| {
                let from = (at / n_of_matrix) as usize * row;
                &all[from..from + row]
            });
            let done = ggml::quantize_into(&values, row, self.ty, importance, out);
            done.map_err(|error| error.to_string())?;
            self.check_scales(out, at)?;
            (at, rest) = (at + n, after);
        }
        Ok(())
    }
}

impl Quantised {
    /// Reads the values of rows, starting at row `first`.
    fn read(&self, first: u64, values: &mut [f32]) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        let is_done = self.source.values(&self.tensor, first, values);
        if is_done.map_err(text)? {
            return Ok(());
        }
        let n = values.len() as u64 / self.tensor.shape[0];
        let rows = self.source.some_rows(&self.tensor, first, n);
        ggml::dequantize(&rows.map_err(text)?, self.tensor.ty, values)
            .map_err(|error| error.to_string())
    }

    /// Refuses blocks, from row `first` on, whose scales the type cannot represent.
    fn check_scales(&self, rows: &[u8], first: u64) -> Result<(), String> {
        let ty = self.ty;
        if ty.is_plain() {
            return Ok(());
        }
        check_rows(&self.tensor, ty, first, rows).map_err(|error| match error {
            Error::NotFinite { row, column, .. } => {
                format!("values at row {row} from column {column} on do not fit {ty}")
            }
            other => other.to_string(),
        })
    }

    /// Refuses values, from row `first` on, that the type cannot represent.
    fn check(&self, values: &[f32], first: u64) -> Result<(), String> {
        // f16 rounds values to infinity from this limit on.
        let limit = match self.ty {
            TensorType::F32 => return Ok(()),
            TensorType::F16 => 65520.0,
            // Halfway between the largest bf16 and infinity.
            TensorType::BF16 => f32::from_bits(0x7f7f_8000),
            // Six times the largest scale.
            TensorType::NVFP4 => 2688.0,
            _ => f32::INFINITY,
        };
        // A whole run is tested first, since the compiler vectorises that.
        let fits = |v: &f32| v.abs() < limit;
        if values.iter().fold(true, |all, v| all & fits(v)) {
            return Ok(());
        }
        let at = values.iter().position(|v| !fits(v)).unwrap_or(0);
        let row = self.tensor.shape[0];
        Err(format!(
            "{} at row {}, column {} does not fit {}",
            values[at],
            first + at as u64 / row,
            at as u64 % row,
            self.ty
        ))
    }
}
