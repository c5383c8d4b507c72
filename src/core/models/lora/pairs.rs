//! The two matrices of each update, and the check that they fit their weight.

use std::collections::BTreeMap;

use crate::arch::{WeightRole, nearest};
use crate::plan::{Plan, TensorPlan};
use lab_base::weights::{TensorInfo, TensorType, Weights};

/// Suffixes of the two matrices' names, after the name of their weight.
const DOWN: &str = ".lora_a";
const UP: &str = ".lora_b";

/// The update of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPair {
    /// The weight, by its name in the plan.
    pub target: String,
    /// Name of the matrix that is multiplied first.
    pub down: String,
    /// Name of the other matrix.
    pub up: String,
    /// Factor of the product, in addition to the scale of the adapter.
    pub factor: f32,
}

/// The updates of the plan's weights, in the order of their names.
pub(super) fn pairs(weights: &Weights, plan: &Plan, alpha: f32) -> Result<Vec<LoraPair>, String> {
    let mut halves: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
    for tensor in weights.tensors() {
        let name = tensor.name.as_str();
        let found = [DOWN, UP].map(|ending| name.strip_suffix(ending));
        let (target, at) = match found {
            [Some(target), _] => (target, 0),
            [_, Some(target)] => (target, 1),
            _ => {
                return Err(format!(
                    "unexpected tensor `{name}`: expected names that end in `{DOWN}` or `{UP}`"
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
        Ok(LoraPair {
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

/// The rank of an update; an error if its matrices do not fit their weight.
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
        // One matrix for all heads, or one for each expert or head.
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
