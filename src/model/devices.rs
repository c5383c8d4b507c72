//! The devices of a plan, and tensors described for each of them.

use crate::ggml::{Arena, Device, Error, Tensor};
use crate::plan::Plan;
use crate::weights::TensorType;

/// The devices of a plan in the order in which its parts count them: the processor first.
///
/// # Errors
/// A device that does not exist.
pub(super) fn of_plan(plan: &Plan) -> Result<Vec<Device>, Error> {
    let others = plan.devices.iter().map(|name| Device::named(name));
    std::iter::once(Device::cpu()).chain(others).collect()
}

/// Descriptions of tensors, in an arena for each device.
pub(super) struct Arenas<'d> {
    devices: &'d [Device],
    /// By device; none where nothing is described.
    arenas: Vec<Option<(Arena, Vec<Tensor>)>>,
    capacity: usize,
}

impl<'d> Arenas<'d> {
    /// For at most `capacity` tensors on each device.
    pub(super) fn new(devices: &'d [Device], capacity: usize) -> Self {
        Self {
            devices,
            arenas: devices.iter().map(|_| None).collect(),
            capacity,
        }
    }

    /// Describes a tensor on a device.
    ///
    /// # Errors
    /// As [`Arena::tensor`].
    pub(super) fn tensor(
        &mut self,
        device: usize,
        name: &str,
        ty: TensorType,
        shape: &[u64],
    ) -> Result<Tensor, Error> {
        let (arena, tensors) = match &mut self.arenas[device] {
            Some(arena) => arena,
            none => none.insert((Arena::new(self.capacity, 0)?, Vec::new())),
        };
        let tensor = arena.tensor(name, ty, shape)?;
        tensors.push(tensor.clone());
        Ok(tensor)
    }

    /// Everything that is described, by device.
    fn each(&self) -> impl Iterator<Item = (Device, &(Arena, Vec<Tensor>))> {
        let arenas = self.devices.iter().zip(&self.arenas);
        arenas.filter_map(|(device, arena)| Some((*device, arena.as_ref()?)))
    }

    /// Takes memory for all tensors, `allocate` for those of one device; returns its bytes.
    ///
    /// # Errors
    /// As `allocate`.
    pub(super) fn allocate(
        &self,
        allocate: impl Fn(Device, &Arena) -> Result<usize, Error>,
    ) -> Result<usize, Error> {
        let mut each = self.each();
        each.try_fold(0, |sum, (device, (arena, _))| {
            Ok(sum + allocate(device, arena)?)
        })
    }

    /// Gives all tensors places without memory, for measuring.
    ///
    /// # Errors
    /// As [`Device::stand_in`].
    pub(super) fn stand_in(&self) -> Result<(), Error> {
        self.each().try_for_each(|(device, (arena, tensors))| {
            device.stand_in(arena, &tensors.iter().collect::<Vec<_>>())
        })
    }
}
