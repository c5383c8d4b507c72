//! The memory that a model takes, by device and purpose.

use serde::Serialize;

use crate::plan::{PROCESSOR, Plan};

/// What a model takes on a device, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    /// Its name.
    pub device: String,
    /// Weights used in the mapped file, of which nothing is in memory of its own. Another device than the processor
    /// may hold no more of them than it has memory.
    pub mapped: u64,
    /// Weights in memory of its own.
    pub weights: u64,
    /// Caches and states.
    pub cache: u64,
    /// Scratch memory of the largest pass.
    pub compute: u64,
}

impl DeviceUse {
    /// Bytes that are taken.
    pub fn taken(&self) -> u64 {
        let mapped = if self.device == PROCESSOR {
            0
        } else {
            self.mapped
        };
        let all = [mapped, self.weights, self.cache, self.compute];
        all.into_iter().fold(0, u64::saturating_add)
    }

    /// The parts of a model on the devices of its plan. Adapters, what is used of them in place and what is
    /// copied, are on the processor.
    pub(super) fn of_plan(
        plan: &Plan,
        mapped: &[u64],
        weights: &[u64],
        adapters: [u64; 2],
        caches: [&[u64]; 2],
        compute: &[u64],
    ) -> Vec<Self> {
        let devices = std::iter::once(PROCESSOR).chain(plan.devices.iter().map(String::as_str));
        let of = |(at, device): (usize, &str)| {
            let part = |bytes: &[u64]| bytes.get(at).copied().unwrap_or(0);
            let only_first = |bytes: u64| if at == 0 { bytes } else { 0 };
            Self {
                device: device.to_owned(),
                mapped: part(mapped) + only_first(adapters[0]),
                weights: part(weights) + only_first(adapters[1]),
                cache: part(caches[0]).saturating_add(part(caches[1])),
                compute: part(compute),
            }
        };
        devices.enumerate().map(of).collect()
    }
}

/// What a model takes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights used in the mapped file.
    pub mapped: u64,
    /// Weights copied.
    pub copied: u64,
    /// Caches.
    pub cache: u64,
    /// Scratch memory of the largest pass.
    pub compute: u64,
    /// The parts on each device, the processor first.
    pub devices: Vec<DeviceUse>,
}
