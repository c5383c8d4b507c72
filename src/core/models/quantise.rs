//! Converts weights to other element types: matrices become lazy tensors that are quantised row by row when they are
//! read.
//!
//! The role of each tensor in the plan decides its type, as llama.cpp's quantiser decides by name
//! (`llama_tensor_get_type`): vectors, routers, convolutions and position tables keep their type; k-quants give more
//! bits to the tensors that are most sensitive to errors. The result is [`Weights`] like any other. It is used between
//! opening a model and loading or writing it.
//!
//! Invariant: loading a model with a type gives the same bytes as loading the file converted to that type.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::arch::{QuantClass, WeightRole};
use crate::plan::{LayerPlan, Plan, Unit};
use lab_base::ggml;
use lab_base::weights::{
    Error, LazyTensor, Metadata, TensorData, TensorEntry, TensorInfo, TensorType, Value, Weights,
    check_rows,
};

/// Types to which matrices can be converted, with the `general.file_type` of the resulting files.
pub const TYPES: [(TensorType, u32); 11] = [
    (TensorType::F32, 0),
    (TensorType::F16, 1),
    (TensorType::BF16, 32),
    (TensorType::Q8_0, 7),
    (TensorType::Q4_0, 2),
    (TensorType::Q4_1, 3),
    (TensorType::Q5_0, 8),
    (TensorType::Q5_1, 9),
    // The k-quants use the middle (M) mixes.
    (TensorType::Q4_K, 15),
    (TensorType::Q5_K, 17),
    (TensorType::Q6_K, 18),
];

/// Value of `general.quantization_version`: the version of the quantised types' formats.
const QUANTIZATION_VERSION: u32 = 2;
/// Number of elements that are converted at a time.
const RUN: usize = 1 << 16;

/// The role of a tensor, which decides its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorRole {
    /// A tensor that keeps its type, unless everything becomes f32.
    Kept,
    /// A vector or a similar tensor that is used elementwise, so it is f32.
    Vector,
    /// The output head, or the token table if the head is tied to it.
    Output,
    /// Value projection of attention, alone or with queries and keys, and its index among the value projections.
    Values(usize),
    Keys,
    /// Output projection of attention.
    Heads,
    /// Down projection of an MLP, and the index of its layer.
    Down(usize),
    /// Any other matrix or table.
    Other,
}

/// The numbers of the whole model that decide the types.
struct ModelRoles {
    parts: Vec<TensorRole>,
    n_values: usize,
    n_layers: usize,
    n_experts: u64,
}

impl ModelRoles {
    fn new(plan: &Plan) -> Self {
        let of_role = |role| match role {
            WeightRole::Matrix | WeightRole::Table => TensorRole::Other,
            _ => TensorRole::Vector,
        };
        let parts = plan.tensors.iter().map(|t| of_role(t.role)).collect();
        // Layers that use the same tensors count once.
        let layers: BTreeSet<_> = plan.layers.iter().map(|l| (l.stack, l.il)).collect();
        let mut model = Self {
            parts,
            n_values: 0,
            n_layers: layers.len(),
            n_experts: 0,
        };
        let experts = plan.layers.iter().flat_map(units);
        let experts = experts.filter_map(|unit| unit.option_int("experts"));
        model.n_experts = experts.max().unwrap_or(0);
        let mut n_down = 0;
        for layer in &plan.layers {
            for unit in units(layer) {
                model.unit(unit, layer.il as usize, &mut n_down);
            }
        }
        let ends = [&plan.embed].into_iter().chain(&plan.per_layer);
        for unit in ends.chain(plan.mixes()) {
            model.unit(unit, 0, &mut n_down);
        }
        let output = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        match output.and_then(|unit| unit.weight("output")) {
            Some(at) => model.parts[at] = TensorRole::Output,
            None => {
                model.set(&plan.embed, "tokens", TensorRole::Output);
                if let Some(unit) = &plan.per_layer {
                    model.set(unit, "table", TensorRole::Output);
                }
            }
        }
        model
    }

    /// Records the parts of a block's weights, by their classes in its contract.
    fn unit(&mut self, unit: &Unit, il: usize, n_down: &mut usize) {
        // With experts a layer has several down projections, which get one type.
        let down = if self.n_experts > 1 { il } else { *n_down };
        for (spec, weight) in unit.contract.0.weights.iter().zip(&unit.weights) {
            let Some(at) = *weight else { continue };
            if self.parts[at] != TensorRole::Other {
                continue;
            }
            self.parts[at] = match spec.quantised {
                QuantClass::Usual => continue,
                QuantClass::Kept => TensorRole::Kept,
                QuantClass::Values => {
                    self.n_values += 1;
                    TensorRole::Values(self.n_values - 1)
                }
                QuantClass::Keys => TensorRole::Keys,
                QuantClass::Heads => TensorRole::Heads,
                QuantClass::Down => {
                    *n_down += 1;
                    TensorRole::Down(down)
                }
            };
        }
    }

    fn set(&mut self, unit: &Unit, key: &str, part: TensorRole) {
        if let Some(at) = unit.weight(key)
            && self.parts[at] == TensorRole::Other
        {
            self.parts[at] = part;
        }
    }

    /// The type of a tensor with rows of `row` elements, where ordinary matrices get `base`.
    fn choose(&self, part: TensorRole, base: TensorType, row: u64) -> TensorType {
        use TensorType as T;
        let is_mix = matches!(base, T::Q4_K | T::Q5_K);
        match part {
            _ if base.is_plain() => base,
            TensorRole::Output if !row.is_multiple_of(base.block_len()) => T::Q8_0,
            TensorRole::Output if base != T::Q8_0 => T::Q6_K,
            TensorRole::Values(_) | TensorRole::Keys if self.n_experts == 8 => T::Q8_0,
            TensorRole::Heads if self.n_experts == 8 && base == T::Q4_K => T::Q5_K,
            TensorRole::Values(i) if is_mix && takes_more_bits(i, self.n_values) => T::Q6_K,
            TensorRole::Down(il) if is_mix && takes_more_bits(il, self.n_layers) => T::Q6_K,
            _ => base,
        }
    }
}

fn units(layer: &LayerPlan) -> impl Iterator<Item = &Unit> {
    let branches = layer.slots.iter().flat_map(|slot| &slot.branches);
    branches.map(|branch| &branch.block)
}

/// Whether layer `i` of `n` gets more bits: the first and last eighth, and every third layer between them.
fn takes_more_bits(i: usize, n: usize) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// The type in place of one whose blocks do not divide a row of this length.
fn fitting(ty: TensorType, row: u64) -> TensorType {
    use TensorType as T;
    let fits = |ty: TensorType| row.is_multiple_of(ty.block_len());
    let smaller = match ty {
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        ty => ty,
    };
    match ty {
        ty if fits(ty) => ty,
        _ if fits(smaller) => smaller,
        _ => T::F16,
    }
}

/// The weights of a model with its matrices in type `base`, or in a similar type where the mix or the
/// length of a row requires it.
///
/// # Errors
/// The type is not one of [`TYPES`].
pub fn quantise(weights: &Weights, plan: &Plan, base: TensorType) -> Result<Weights, Error> {
    let Some((_, file_type)) = TYPES.iter().find(|(ty, _)| *ty == base) else {
        let names: Vec<_> = TYPES.iter().map(|(ty, _)| ty.name()).collect();
        return Err(Error::NotComputed {
            tensor: "all".into(),
            message: format!(
                "{base} cannot be made; expected one of {}",
                names.join(", ")
            ),
        });
    };
    let model = ModelRoles::new(plan);
    let mut types = vectors(plan, weights, &model);
    let mut others: BTreeMap<_, usize> = BTreeMap::new();
    for (planned, part) in plan.tensors.iter().zip(&model.parts) {
        let Some(tensor) = weights.tensor(&planned.name) else {
            continue;
        };
        if matches!(part, TensorRole::Kept | TensorRole::Vector)
            || !is_matrix(tensor)
            || !has_values(tensor.ty)
        {
            if base == TensorType::F32 && is_half(tensor) {
                types.insert(&tensor.name, base);
            }
            continue;
        }
        let row = tensor.shape[0];
        let wanted = model.choose(*part, base, row);
        let ty = fitting(wanted, row);
        if ty != wanted {
            *others.entry((wanted, ty, row)).or_insert(0) += 1;
        }
        types.insert(&tensor.name, ty);
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
    let mut metadata = weights.metadata().clone();
    metadata.insert("general.file_type", Value::U32(*file_type));
    if !base.is_plain() {
        let version = Value::U32(QUANTIZATION_VERSION);
        metadata.insert("general.quantization_version", version);
    }
    with_types(weights, metadata, |tensor| {
        types
            .get(tensor.name.as_str())
            .copied()
            .unwrap_or(tensor.ty)
    })
}

/// The weights with f16 and bf16 vectors as f32, as other engines expect them.
pub fn with_plain_vectors(weights: &Weights, plan: &Plan) -> Result<Weights, Error> {
    let types = vectors(plan, weights, &ModelRoles::new(plan));
    let mut metadata = weights.metadata().clone();
    if metadata.get("general.file_type").is_none()
        && let Some(file_type) = file_type(weights)
    {
        metadata.insert("general.file_type", Value::U32(file_type));
    }
    with_types(weights, metadata, |tensor| {
        types
            .get(tensor.name.as_str())
            .copied()
            .unwrap_or(tensor.ty)
    })
}

/// The `general.file_type` of a file of these tensors: that of the type with the most bytes.
fn file_type(weights: &Weights) -> Option<u32> {
    let bytes = |ty| {
        let of_type = weights.tensors().iter().filter(|t| t.ty == ty);
        of_type.map(|t| t.bytes).sum::<u64>()
    };
    let most = TYPES.iter().max_by_key(|(ty, _)| bytes(*ty))?;
    Some(most.1)
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
    let file_type = TYPES.iter().find(|(other, _)| *other == ty);
    if let (Some((_, file_type)), true) = (file_type, weights.tensors().iter().any(is_blocks)) {
        metadata.insert("general.file_type", Value::U32(*file_type));
    }
    with_types(
        weights,
        metadata,
        |t| if t.ty.is_plain() { t.ty } else { ty },
    )
}

/// The vectors in f16 or bf16, with f32 as their new type.
fn vectors<'w>(
    plan: &Plan,
    weights: &'w Weights,
    model: &ModelRoles,
) -> HashMap<&'w str, TensorType> {
    let tensors = plan.tensors.iter().zip(&model.parts);
    let vectors = tensors.filter_map(|(planned, part)| {
        let tensor = weights.tensor(&planned.name)?;
        (*part == TensorRole::Vector && is_half(tensor))
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
}

impl LazyTensor for Quantised {
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), String> {
        let row = self.tensor.shape[0] as usize;
        let row_bytes = self
            .ty
            .row_bytes(row as u64)
            .ok_or("a row is not a whole number of blocks")?;
        let n_rows = (RUN / row).max(1);
        let mut values = Vec::new();
        let mut at = first;
        for out in out.chunks_mut(n_rows * row_bytes as usize) {
            let n = out.len() as u64 / row_bytes;
            values.resize(n as usize * row, 0.0);
            self.read(at, &mut values)?;
            self.check(&values, at)?;
            ggml::quantize_into(&values, row, self.ty, out).map_err(|error| error.to_string())?;
            self.check_scales(out, at)?;
            at += n;
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
