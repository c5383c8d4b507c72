//! The devices of a plan, and descriptions of tensors for each of them.

use crate::plan::{Plan, TensorPlan};
use lab_base::ggml::{Arena, Device, Result, Tensor};
use lab_base::weights::TensorType;

/// The devices of a plan by the indices that its parts use. The processor is the first.
pub(super) fn of_plan(plan: &Plan) -> Result<Vec<Device>> {
    let others = plan.devices.iter().map(|name| Device::named(name));
    std::iter::once(Device::cpu()).chain(others).collect()
}

/// Descriptions of tensors, in an arena for each device.
pub(super) struct Arenas<'d> {
    devices: &'d [Device],
    /// Arena and tensors of each device; none if nothing is described there.
    arenas: Vec<Option<(Arena, Vec<Tensor>)>>,
    capacity: usize,
}

impl<'d> Arenas<'d> {
    /// Arenas for at most `capacity` tensors on each device.
    pub(super) fn new(devices: &'d [Device], capacity: usize) -> Self {
        Self {
            devices,
            arenas: devices.iter().map(|_| None).collect(),
            capacity,
        }
    }

    /// Describes a planned tensor on its device. Tensors of ids get their bound.
    pub(super) fn weight(&mut self, planned: &TensorPlan, ty: TensorType) -> Result<Tensor> {
        self.describe(planned.device, |arena| match planned.below {
            Some(below) => arena.indices(&planned.name, ty, &planned.shape, below),
            None => arena.tensor(&planned.name, ty, &planned.shape),
        })
    }

    pub(super) fn tensor(
        &mut self,
        device: usize,
        name: &str,
        ty: TensorType,
        shape: &[u64],
    ) -> Result<Tensor> {
        self.describe(device, |arena| arena.tensor(name, ty, shape))
    }

    fn describe(
        &mut self,
        device: usize,
        of: impl FnOnce(&Arena) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (arena, tensors) = match &mut self.arenas[device] {
            Some(arena) => arena,
            none => none.insert((Arena::new(self.capacity, 0)?, Vec::new())),
        };
        let tensor = of(arena)?;
        tensors.push(tensor.clone());
        Ok(tensor)
    }

    fn each(&self) -> impl Iterator<Item = (Device, &(Arena, Vec<Tensor>))> {
        let arenas = self.devices.iter().zip(&self.arenas);
        arenas.filter_map(|(device, arena)| Some((*device, arena.as_ref()?)))
    }

    /// Bytes that the tensors will take on each device.
    pub(super) fn bytes(&self) -> Vec<u64> {
        let of = |(device, arena): (&Device, &Option<(Arena, Vec<Tensor>)>)| {
            let arena = arena.as_ref();
            arena.map_or(0, |(arena, _)| device.bytes_for(arena))
        };
        self.devices.iter().zip(&self.arenas).map(of).collect()
    }

    /// Takes memory for all tensors with `allocate`, which serves one device. Returns the bytes on each device.
    pub(super) fn allocate(
        &self,
        allocate: impl Fn(Device, &Arena) -> Result<usize>,
    ) -> Result<Vec<u64>> {
        let of = |(device, arena): (&Device, &Option<(Arena, Vec<Tensor>)>)| match arena {
            Some((arena, _)) => Ok(allocate(*device, arena)? as u64),
            None => Ok(0),
        };
        self.devices.iter().zip(&self.arenas).map(of).collect()
    }

    /// Gives all tensors stand-in places without memory, for measuring.
    pub(super) fn stand_in(&self) -> Result<()> {
        self.each().try_for_each(|(device, (arena, tensors))| {
            device.stand_in(arena, &tensors.iter().collect::<Vec<_>>())
        })
    }

    /// Gives all weights stand-in places without memory.
    pub(super) fn stand_in_weights(&self) -> Result<()> {
        self.each().try_for_each(|(device, (arena, tensors))| {
            device.stand_in_weights(arena, &tensors.iter().collect::<Vec<_>>())
        })
    }
}
