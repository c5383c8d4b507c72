//! Tensor data for a plan: used where it lies, converted or copied where it must be.
//!
//! A tensor that the plan does not name is never read. Gains and offsets that are stored as half
//! floats become f32 here, once, since element-wise operations compute in f32. What is copied is made
//! in pieces of rows by all cores, straight into the device's memory.

use std::collections::BTreeMap;

use crate::arch::WeightRole;
use crate::ggml::{self, Arena, Device, Tensor};
use crate::plan::{Plan, TensorPlan};
use crate::weights::{Bytes, TensorInfo, TensorType, Weights};

use super::Error;

/// The tensors of a plan on a device.
pub(super) struct Loaded {
    /// Data of [`Plan::tensors`], in their order.
    pub(super) tensors: Vec<Tensor>,
    /// Bytes used in place.
    pub(super) mapped_bytes: u64,
    /// Bytes copied into memory of our own.
    pub(super) copied_bytes: u64,
}

/// Called with the bytes done and the bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Loads every tensor of `plan` from `weights`.
pub(super) fn load(
    plan: &Plan,
    weights: &Weights,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    let cpu = Device::cpu()?;
    let in_place = Arena::new(plan.tensors.len(), 0)?;
    let copied = Arena::new(plan.tensors.len(), 0)?;
    let mut slots: Vec<Option<Tensor>> = vec![None; plan.tensors.len()];
    let mut files: BTreeMap<usize, (Bytes, Vec<(usize, usize)>)> = BTreeMap::new();
    let mut copies: Vec<(usize, TensorType)> = Vec::new();

    for (i, planned) in plan.tensors.iter().enumerate() {
        let info = find(weights, planned)?;
        let ty = target_type(planned, info)?;
        let Some((bytes, offset)) = weights.place(info).filter(|_| ty == info.ty) else {
            copies.push((i, ty));
            continue;
        };
        let key = bytes.as_ptr() as usize;
        files
            .entry(key)
            .or_insert_with(|| (bytes.clone(), Vec::new()))
            .1
            .push((i, offset));
        slots[i] = Some(in_place.tensor(&planned.name, ty, &planned.shape)?);
    }

    let total = plan.weight_bytes();
    let mut mapped_bytes = 0;
    for (bytes, places) in files.values() {
        let mut tensors = Vec::with_capacity(places.len());
        for (i, offset) in places {
            tensors.extend(slots[*i].as_ref().map(|tensor| (tensor, *offset)));
        }
        let unaligned: Vec<String> = cpu
            .adopt(&in_place, bytes, &tensors)?
            .into_iter()
            .map(Tensor::name)
            .collect();
        for (i, _) in places {
            if unaligned.contains(&plan.tensors[*i].name) {
                slots[*i] = None;
                copies.push((*i, plan.tensors[*i].ty.unwrap_or(TensorType::F32)));
            } else {
                mapped_bytes += plan.tensors[*i].bytes;
            }
        }
        progress(mapped_bytes, total);
    }

    for (i, ty) in &copies {
        let planned = &plan.tensors[*i];
        slots[*i] = Some(copied.tensor(&planned.name, *ty, &planned.shape)?);
    }
    let mut copied_bytes = 0;
    if !copies.is_empty() {
        cpu.allocate(&copied, "weights")?;
        let sources: Vec<&TensorInfo> = copies
            .iter()
            .map(|(i, _)| find(weights, &plan.tensors[*i]))
            .collect::<Result<_, _>>()?;
        let tensors: Vec<&Tensor> = copies
            .iter()
            .filter_map(|(i, _)| slots[*i].as_ref())
            .collect();
        let make = |at: usize, first: u64, out: &mut [u8]| {
            rows(weights, sources[at], copies[at].1, first, out)
        };
        Device::fill(&tensors, make, |bytes| {
            copied_bytes += bytes;
            progress((mapped_bytes + copied_bytes).min(total), total);
        })?;
    }
    progress(total, total);
    let tensors = slots
        .into_iter()
        .map(|slot| slot.expect("every tensor is mapped or copied"))
        .collect();
    Ok(Loaded {
        tensors,
        mapped_bytes,
        copied_bytes,
    })
}

fn find<'w>(weights: &'w Weights, planned: &TensorPlan) -> Result<&'w TensorInfo, Error> {
    weights.tensor(&planned.name).ok_or_else(|| Error::Weight {
        tensor: planned.name.clone(),
        message: "is not in the file".into(),
    })
}

/// The type a tensor has in memory.
fn target_type(planned: &TensorPlan, info: &TensorInfo) -> Result<TensorType, Error> {
    let is_vector = matches!(
        planned.role,
        WeightRole::Gain
            | WeightRole::Bias
            | WeightRole::Factors
            | WeightRole::Convolution
            | WeightRole::Decay
    );
    match info.ty {
        ty if !is_vector => Ok(ty),
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => Ok(TensorType::F32),
        ty => Err(Error::Weight {
            tensor: planned.name.clone(),
            message: format!("is {ty}, and a gain or offset is f32, f16 or bf16"),
        }),
    }
}

/// Rows of a tensor as type `ty`, which is its own or f32.
fn rows(
    weights: &Weights,
    info: &TensorInfo,
    ty: TensorType,
    first: u64,
    out: &mut [u8],
) -> Result<(), Error> {
    let refuse = |error: &dyn std::fmt::Display| Error::Weight {
        tensor: info.name.clone(),
        message: error.to_string(),
    };
    if ty == info.ty {
        return Ok(weights.rows(info, first, out)?);
    }
    let n = out.len() / size_of::<f32>();
    let mut stored = vec![0; n * info.ty.block_bytes() as usize];
    weights.rows(info, first, &mut stored)?;
    let mut values = vec![0.0; n];
    ggml::dequantize(&stored, info.ty, &mut values).map_err(|error| refuse(&error))?;
    out.copy_from_slice(bytemuck::cast_slice(&values));
    Ok(())
}
