//! Tensor data for a plan: used where it lies, converted or copied where it must be.
//!
//! A tensor that the plan does not name is never read. Scales and biases that are stored as half
//! floats become f32 here, once, since element-wise operations compute in f32. What is copied is made
//! in pieces of rows by all cores, while earlier pieces are on their way to their devices. What that takes of
//! the process's memory does not grow with the size of the file.

use std::collections::{BTreeMap, HashSet};

use crate::arch::WeightRole;
use crate::ggml::{self, Arena, Device, Tensor};
use crate::plan::TensorPlan;
use crate::weights::{Bytes, TensorInfo, TensorType, Weights};

use super::devices::Arenas;
use super::error::{Error, Purpose};
use super::memory;

/// The tensors of a plan on a device; a clone has the same memory.
#[derive(Clone)]
pub(super) struct Loaded {
    /// Data of the planned tensors, in their order.
    pub(super) tensors: Vec<Tensor>,
    /// Bytes used in place, by device.
    pub(super) mapped: Vec<u64>,
    /// The files that are used in place.
    pub(super) files: Vec<Bytes>,
    /// Bytes copied into memory of our own.
    pub(super) copied_bytes: u64,
    /// Bytes that memory takes on each device, with what rounds its parts up.
    pub(super) taken: Vec<u64>,
}

/// The tensors of a plan that are laid out and not loaded.
pub(super) struct StandIns {
    pub(super) tensors: Vec<Tensor>,
    /// As [`Loaded::mapped`].
    pub(super) mapped: Vec<u64>,
    pub(super) copied_bytes: u64,
    /// As [`Loaded::taken`].
    pub(super) taken: Vec<u64>,
}

/// Bytes that are made before mapped pages, from which lazy tensors are made, are given back.
const RELEASED_AFTER: u64 = 16 << 20;

/// Called with the bytes done and the bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Where the tensors of a plan will be: in the file, or in memory that is still to be taken.
pub(super) struct Layout {
    /// The tensor of each planned one, in the order of the plan; none until it is laid out.
    slots: Vec<Option<Tensor>>,
    /// The others, with the type they get.
    copies: Vec<(usize, TensorType)>,
    /// Bytes used in place, by device.
    mapped: Vec<u64>,
    /// The files that they are in.
    files: Vec<Bytes>,
}

/// Tensors that a device is to use where they lie in a file: their places among the planned ones and in the file.
struct InFile {
    device: usize,
    file: Bytes,
    tensors: Vec<(usize, usize)>,
}

impl Layout {
    /// Uses what can be used where it lies.
    pub(super) fn new(
        planned: &[TensorPlan],
        devices: &[Device],
        weights: &Weights,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        let in_place = Arena::new(planned.len(), 0)?;
        let mut slots: Vec<Option<Tensor>> = vec![None; planned.len()];
        let mut files: BTreeMap<(usize, usize), InFile> = BTreeMap::new();
        let takes_files: Vec<bool> = devices.iter().map(|d| d.takes_host_memory()).collect();
        let mut copies: Vec<(usize, TensorType)> = Vec::new();
        for (i, tensor) in planned.iter().enumerate() {
            let info = find(weights, tensor)?;
            let ty = target_type(tensor, info);
            // What is checked must not change afterwards, as a file may.
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

    /// Describes the tensors that are copied.
    fn describe_copies<'d>(
        &mut self,
        planned: &[TensorPlan],
        devices: &'d [Device],
    ) -> Result<Arenas<'d>, Error> {
        let mut copied = Arenas::new(devices, self.copies.len());
        for (i, ty) in &self.copies {
            let tensor = &planned[*i];
            let described = copied.weight(tensor, *ty)?;
            self.slots[*i] = Some(described);
        }
        Ok(copied)
    }

    /// The tensors that are copied.
    fn copies(&self) -> Vec<&Tensor> {
        let copies = self.copies.iter();
        copies
            .filter_map(|(i, _)| self.slots[*i].as_ref())
            .collect()
    }

    /// All tensors, those to be copied without memory.
    pub(super) fn stand_in(
        mut self,
        planned: &[TensorPlan],
        devices: &[Device],
    ) -> Result<StandIns, Error> {
        let copied = self.describe_copies(planned, devices)?;
        let taken = copied.bytes();
        copied.stand_in_weights()?;
        Ok(StandIns {
            copied_bytes: self.copied_bytes(),
            mapped: self.mapped.clone(),
            tensors: self.into_tensors(),
            taken,
        })
    }

    /// Bytes of the tensors that are copied, once they are described.
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

/// Refuses copies of weights that the machine has no memory for.
pub(super) fn check(copied_bytes: u64) -> Result<(), Error> {
    memory::check(Purpose::Weights, copied_bytes)
}

/// Loads every planned tensor from `weights` onto its device.
pub(super) fn load(
    planned: &[TensorPlan],
    devices: &[Device],
    weights: &Weights,
    progress: Progress<'_>,
) -> Result<Loaded, Error> {
    let mut layout = Layout::new(planned, devices, weights, progress)?;
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
    Ok(Loaded {
        tensors: layout.into_tensors(),
        mapped,
        files,
        copied_bytes,
        taken,
    })
}

fn find<'w>(weights: &'w Weights, planned: &TensorPlan) -> Result<&'w TensorInfo, Error> {
    weights.tensor(&planned.name).ok_or_else(|| Error::Weight {
        tensor: planned.name.clone(),
        message: "is not in the file".into(),
    })
}

/// The type a tensor has in memory: vectors are f32, whatever they are stored as. Programs that quantise by the number of
/// dimensions quantise tables of vectors, too.
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

/// Refuses ids, from row `first` on, that are not below what the plan says.
fn check_ids(planned: &TensorPlan, first: u64, out: &[u8]) -> Result<(), Error> {
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
    let mut stored = vec![0; n / info.ty.block_len() as usize * info.ty.block_bytes() as usize];
    weights.rows(info, first, &mut stored)?;
    let mut values = vec![0.0; n];
    ggml::dequantize(&stored, info.ty, &mut values).map_err(|error| refuse(&error))?;
    out.copy_from_slice(bytemuck::cast_slice(&values));
    Ok(())
}
