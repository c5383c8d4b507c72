//! The matrices of a plan whose rows are interleaved for products on the processor.

use std::collections::HashSet;

use crate::arch::WeightRole;
use crate::plan::{Plan, TensorPlan};
use lab_base::ggml::{InterleavedRows, RowsInFile, Tensor};
use lab_base::weights::{TensorType, Weights};

use super::error::{MemoryPurpose, Result};
use super::load::{RELEASED_AFTER, find};
use super::memory;

/// The tensors with which units on the processor multiply, as indices into [`Plan::tensors`]. A table can be one of them: the head
/// of many models is the token table.
fn multiplied(plan: &Plan) -> HashSet<usize> {
    let of_units = plan
        .all_units()
        .filter(|unit| unit.device == 0)
        .flat_map(|unit| {
            let weights = unit.contract.0.weights.iter().zip(&unit.weights);
            weights.filter_map(|(weight, at)| at.filter(|_| weight.role == WeightRole::Matrix))
        });
    of_units.collect()
}

/// The tensors of a plan that are interleaved if all of its weights are used in place.
fn interleaved_if_in_place(plan: &Plan) -> impl Iterator<Item = &TensorPlan> {
    let all = multiplied(plan).into_iter().map(|at| &plan.tensors[at]);
    all.filter(|tensor| {
        let mut shape = [1; 4];
        shape
            .iter_mut()
            .zip(&tensor.shape)
            .for_each(|(to, n)| *to = *n);
        let is_one = |ty: TensorType| RowsInFile::are_interleaved(ty, shape);
        tensor.device == 0 && tensor.ty.is_some_and(is_one)
    })
}

/// Bytes that the copies of a plan take if all of its weights are used in place.
pub fn interleaved_bytes(plan: &Plan) -> u64 {
    interleaved_if_in_place(plan)
        .map(|tensor| tensor.bytes)
        .sum()
}

/// The names of the tensors of a plan that have copies if they are used in place.
pub(super) fn interleaved_names(plan: &Plan) -> HashSet<&str> {
    interleaved_if_in_place(plan)
        .map(|tensor| tensor.name.as_str())
        .collect()
}

/// The tensors of a plan that are interleaved.
fn interleaved<'t>(
    plan: &'t Plan,
    tensors: &'t [Tensor],
) -> impl Iterator<Item = (&'t TensorPlan, &'t Tensor)> {
    let multiplied = multiplied(plan);
    let all = plan.tensors.iter().zip(tensors).enumerate();
    all.filter(move |(at, (planned, tensor))| {
        planned.device == 0 && multiplied.contains(at) && tensor.interleaves()
    })
    .map(|(_, both)| both)
}

/// Bytes that the copies of a plan take.
pub(super) fn bytes(plan: &Plan, tensors: &[Tensor]) -> u64 {
    interleaved(plan, tensors)
        .map(|(_, tensor)| tensor.bytes() as u64)
        .sum()
}

/// Interleaves the rows of the matrices of a plan. The pages of the file that are read for it are released.
///
/// # Errors
/// There is no memory.
pub(super) fn interleave(plan: &Plan, weights: &Weights, tensors: &[Tensor]) -> Result<u64> {
    let bytes = bytes(plan, tensors);
    if bytes == 0 {
        return Ok(0);
    }
    memory::check(MemoryPurpose::Weights, bytes)?;
    let (mut in_file, mut places) = (Vec::new(), Vec::new());
    for (planned, tensor) in interleaved(plan, tensors) {
        if let Some((file, offset)) = weights.place(find(weights, planned)?) {
            in_file.push(tensor);
            places.push(RowsInFile {
                file: file.clone(),
                offset,
                ty: tensor.ty(),
                shape: tensor.shape(),
            });
        }
    }
    let mut read = 0;
    let rows = InterleavedRows::of(&places, |bytes| {
        read += bytes;
        if read >= RELEASED_AFTER {
            weights.release();
            read = 0;
        }
    })?;
    weights.release();
    for (tensor, rows) in in_file.into_iter().zip(&rows) {
        tensor.use_interleaved(rows)?;
    }
    Ok(bytes)
}
