//! Loads the tensor data of a plan: used in place, or converted or copied if necessary.
//!
//! Tensors that the plan does not name are never read. Scales and biases that are stored as half floats are
//! converted to f32 here, once, since element-wise operations compute in f32. All cores prepare copies in pieces of
//! rows, while earlier pieces are sent to their devices. The memory that the process needs for this does not grow
//! with the size of the file.

use std::collections::{BTreeMap, HashSet};

use crate::arch::WeightRole;
use crate::plan::TensorPlan;
use lab_base::ggml;
use lab_base::ggml::{Arena, Device, Tensor};
use lab_base::weights::{FileBytes, TensorInfo, TensorType, Weights};

use super::devices::Arenas;
use super::error::{Error, MemoryPurpose, Result};
use super::memory;

/// The tensors of a plan on its devices. A clone shares the memory.
#[derive(Clone)]
pub(super) struct LoadedWeights {
    /// Data of the planned tensors, in their order.
    pub(super) tensors: Vec<Tensor>,
    /// Bytes used in place, by device.
    pub(super) mapped: Vec<u64>,
    /// The files that are used in place.
    pub(super) files: Vec<FileBytes>,
    /// Bytes that are copied into other memory.
    pub(super) copied_bytes: u64,
    /// Bytes of tensors in place whose interleaved copies are read instead.
    pub(super) interleaved_bytes: u64,
    /// Bytes of the memory taken on each device, including the padding of its parts.
    pub(super) taken: Vec<u64>,
}

/// The tensors of a plan, laid out but not loaded.
pub(super) struct PlannedTensors {
    pub(super) tensors: Vec<Tensor>,
    /// See [`LoadedWeights::mapped`].
    pub(super) mapped: Vec<u64>,
    pub(super) copied_bytes: u64,
    /// See [`LoadedWeights::taken`].
    pub(super) taken: Vec<u64>,
}

/// Number of bytes after which mapped pages that were read for copies or lazy tensors are released.
pub(super) const RELEASED_AFTER: u64 = 16 << 20;

/// Called with the number of bytes loaded and the total.
pub type ProgressFn<'a> = &'a mut dyn FnMut(u64, u64);

/// Where the tensors of a plan will be: in the file, or in memory that is not taken yet.
pub(super) struct WeightLayout {
    /// The tensor of each planned one, in the order of the plan; none until it is laid out.
    slots: Vec<Option<Tensor>>,
    /// Indices of the tensors to be copied, with their types in memory.
    copies: Vec<(usize, TensorType)>,
    mapped: Vec<u64>,
    files: Vec<FileBytes>,
}

/// Tensors that a device uses in place in a file: index among the planned ones, and offset in the file.
struct InFile {
    device: usize,
    file: FileBytes,
    tensors: Vec<(usize, usize)>,
}

impl WeightLayout {
    /// Lays out the tensors that can be used in place.
    pub(super) fn new(
        planned: &[TensorPlan],
        devices: &[Device],
        weights: &Weights,
        progress: ProgressFn<'_>,
    ) -> Result<Self> {
        let in_place = Arena::new(planned.len(), 0)?;
        let mut slots: Vec<Option<Tensor>> = vec![None; planned.len()];
        let mut files: BTreeMap<(usize, usize), InFile> = BTreeMap::new();
        let takes_files: Vec<bool> = devices.iter().map(|d| d.takes_host_memory()).collect();
        let mut copies: Vec<(usize, TensorType)> = Vec::new();
        for (i, tensor) in planned.iter().enumerate() {
            let info = find(weights, tensor)?;
            let ty = target_type(tensor, info);
            // Checked data must not change afterwards, as data in a file may.
            let is_checked = tensor.below.is_some();
            let is_usable = ty == info.ty && takes_files[tensor.device] && !is_checked;
            let Some((bytes, offset)) = weights.place(info).filter(|_| is_usable) else {
                copies.push((i, ty));
                continue;
            };
            let key = (tensor.device, bytes.as_ptr() as usize);
            let file = files.entry(key).or_insert_with(|| InFile {
                device: tensor.device,
                file: bytes.clone(),
                tensors: Vec::new(),
            });
            file.tensors.push((i, offset));
            slots[i] = Some(in_place.tensor(&tensor.name, ty, &tensor.shape)?);
        }

        let total = bytes_of(planned);
        let mut mapped = vec![0; devices.len()];
        for InFile {
            device,
            file,
            tensors: places,
        } in files.values()
        {
            let mut tensors = Vec::with_capacity(places.len());
            for (i, offset) in places {
                tensors.extend(slots[*i].as_ref().map(|tensor| (tensor, *offset)));
            }
            let unaligned: HashSet<String> = devices[*device]
                .adopt(&in_place, file, &tensors)?
                .into_iter()
                .map(Tensor::name)
                .collect();
            for (i, _) in places {
                if unaligned.contains(&planned[*i].name) {
                    slots[*i] = None;
                    copies.push((*i, planned[*i].ty.unwrap_or(TensorType::F32)));
                } else {
                    mapped[*device] += planned[*i].bytes;
                }
            }
            progress(mapped.iter().sum(), total);
        }
        Ok(Self {
            slots,
            copies,
            mapped,
            files: files.into_values().map(|file| file.file).collect(),
        })
    }

    fn describe_copies<'d>(
        &mut self,
        planned: &[TensorPlan],
        devices: &'d [Device],
    ) -> Result<Arenas<'d>> {
        let mut copied = Arenas::new(devices, self.copies.len());
        for (i, ty) in &self.copies {
            let tensor = &planned[*i];
            let described = copied.weight(tensor, *ty)?;
            self.slots[*i] = Some(described);
        }
        Ok(copied)
    }

    /// The tensors to be copied.
    fn copies(&self) -> Vec<&Tensor> {
        let copies = self.copies.iter();
        copies
            .filter_map(|(i, _)| self.slots[*i].as_ref())
            .collect()
    }

    /// All tensors. Those to be copied get no memory.
    pub(super) fn stand_in(
        mut self,
        planned: &[TensorPlan],
        devices: &[Device],
    ) -> Result<PlannedTensors> {
        let copied = self.describe_copies(planned, devices)?;
        let taken = copied.bytes();
        copied.stand_in_weights()?;
        Ok(PlannedTensors {
            copied_bytes: self.copied_bytes(),
            mapped: self.mapped.clone(),
            tensors: self.into_tensors(),
            taken,
        })
    }

    /// Bytes of the tensors to be copied, once they are described.
    fn copied_bytes(&self) -> u64 {
        let sizes = self.copies().into_iter().map(|tensor| tensor.bytes());
        sizes.fold(0, |sum, bytes| sum.saturating_add(bytes as u64))
    }

    fn into_tensors(self) -> Vec<Tensor> {
        let slots = self.slots.into_iter();
        slots
            .map(|slot| slot.expect("every tensor is mapped or copied"))
            .collect()
    }
}

/// Bytes of tensors as they are stored.
fn bytes_of(planned: &[TensorPlan]) -> u64 {
    planned.iter().map(|tensor| tensor.bytes).sum()
}

/// Refuses copies of weights for which the machine has no memory.
pub(super) fn check(copied_bytes: u64) -> Result<()> {
    memory::check(MemoryPurpose::Weights, copied_bytes)
}

/// Loads every planned tensor from `weights` onto its device.
pub(super) fn load(
    planned: &[TensorPlan],
    devices: &[Device],
    weights: &Weights,
    progress: ProgressFn<'_>,
) -> Result<LoadedWeights> {
    let mut layout = WeightLayout::new(planned, devices, weights, progress)?;
    let (mapped, files) = (layout.mapped.clone(), std::mem::take(&mut layout.files));
    let (mapped_bytes, total) = (mapped.iter().sum::<u64>(), bytes_of(planned));
    let copied = layout.describe_copies(planned, devices)?;
    let mut copied_bytes = 0;
    let mut taken = copied.bytes();
    if !layout.copies.is_empty() {
        check(taken[0])?;
        taken = copied.allocate(Device::allocate_weights)?;
        let sources: Vec<&TensorInfo> = layout
            .copies
            .iter()
            .map(|(i, _)| find(weights, &planned[*i]))
            .collect::<Result<_, _>>()?;
        let make = |at: usize, first: u64, out: &mut [u8]| {
            let (place, ty) = layout.copies[at];
            rows(weights, sources[at], ty, first, out)?;
            check_ids(&planned[place], first, out)
        };
        let mut accessed = 0;
        Device::fill(&layout.copies(), make, |bytes| {
            copied_bytes += bytes;
            accessed += bytes;
            if accessed >= RELEASED_AFTER {
                weights.release();
                accessed = 0;
            }
            progress((mapped_bytes + copied_bytes).min(total), total);
        })?;
        weights.release();
    }
    progress(total, total);
    Ok(LoadedWeights {
        tensors: layout.into_tensors(),
        mapped,
        files,
        copied_bytes,
        interleaved_bytes: 0,
        taken,
    })
}

pub(super) fn find<'w>(weights: &'w Weights, planned: &TensorPlan) -> Result<&'w TensorInfo> {
    weights.tensor(&planned.name).ok_or_else(|| Error::Weight {
        tensor: planned.name.clone(),
        message: "is not in the file".into(),
    })
}

/// The type of a tensor in memory: vectors are f32, whatever their stored type. Programs that quantise by the
/// number of dimensions quantise tables of vectors too.
fn target_type(planned: &TensorPlan, info: &TensorInfo) -> TensorType {
    let is_vector = matches!(
        planned.role,
        WeightRole::Scale
            | WeightRole::Bias
            | WeightRole::Factors
            | WeightRole::Convolution
            | WeightRole::Decay
    );
    if is_vector { TensorType::F32 } else { info.ty }
}

/// Refuses ids that are not below the bound of the plan. `out` starts at row `first`.
fn check_ids(planned: &TensorPlan, first: u64, out: &[u8]) -> Result<()> {
    let Some(below) = planned.below else {
        return Ok(());
    };
    let (ids, _) = out.as_chunks();
    let is_below = |id: &i32| u64::try_from(*id).is_ok_and(|id| id < below);
    let mut ids = ids
        .iter()
        .map(|bytes| i32::from_le_bytes(*bytes))
        .enumerate();
    let Some((at, id)) = ids.find(|(_, id)| !is_below(id)) else {
        return Ok(());
    };
    let (at, row) = (at as u64, planned.shape[0]);
    let (row, column) = (first + at / row, at % row);
    Err(Error::Weight {
        tensor: planned.name.clone(),
        message: format!(
            "is {id} at row {row}, column {column}, expected an id from 0 to below {below}"
        ),
    })
}

/// Reads rows of a tensor as type `ty`, which is its own type or f32.
fn rows(
    weights: &Weights,
    info: &TensorInfo,
    ty: TensorType,
    first: u64,
    out: &mut [u8],
) -> Result<()> {
    let refuse = |error: &dyn std::fmt::Display| Error::Weight {
        tensor: info.name.clone(),
        message: error.to_string(),
    };
    if ty == info.ty {
        return Ok(weights.rows(info, first, out)?);
    }
    let n = out.len() / size_of::<f32>();
    let mut stored = vec![0; n / info.ty.block_len() as usize * info.ty.block_bytes() as usize];
    weights.rows(info, first, &mut stored)?;
    let mut values = vec![0.0; n];
    ggml::dequantize(&stored, info.ty, &mut values).map_err(|error| refuse(&error))?;
    out.copy_from_slice(bytemuck::cast_slice(&values));
    Ok(())
}
