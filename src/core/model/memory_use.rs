//! The memory that a model takes, by device and purpose.

use serde::Serialize;

use crate::plan::{PROCESSOR, Plan};

/// The memory that a model takes on a device, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    /// The name of the device.
    pub device: String,
    /// Weights used in place in the mapped file, without a copy. A device other than the processor can use no more
    /// of them than it has memory.
    pub mapped: u64,
    /// Weights in memory taken for them.
    pub weights: u64,
    /// KV caches and recurrent states.
    pub cache: u64,
    /// Scratch memory of the largest pass.
    pub compute: u64,
}

impl DeviceUse {
    /// Bytes that are taken of the device's memory.
    pub fn taken(&self) -> u64 {
        let mapped = if self.device == PROCESSOR {
            0
        } else {
            self.mapped
        };
        let all = [mapped, self.weights, self.cache, self.compute];
        all.into_iter().fold(0, u64::saturating_add)
    }

    /// The memory that a model takes on the devices of its plan. Adapters, used in place or copied, are on the processor.
    pub(super) fn of_plan(
        plan: &Plan,
        mapped: &[u64],
        weights: &[u64],
        on_processor: [u64; 2],
        caches: [&[u64]; 2],
        compute: &[u64],
    ) -> Vec<Self> {
        let devices = std::iter::once(PROCESSOR).chain(plan.devices.iter().map(String::as_str));
        let of = |(at, device): (usize, &str)| {
            let part = |bytes: &[u64]| bytes.get(at).copied().unwrap_or(0);
            let only_first = |bytes: u64| if at == 0 { bytes } else { 0 };
            Self {
                device: device.to_owned(),
                mapped: part(mapped) + only_first(on_processor[0]),
                weights: part(weights) + only_first(on_processor[1]),
                cache: part(caches[0]).saturating_add(part(caches[1])),
                compute: part(compute),
            }
        };
        devices.enumerate().map(of).collect()
    }

    /// Adds the memory that something else takes on the same devices and on others.
    pub fn merge(all: &mut Vec<Self>, more: &[Self]) {
        for own in more {
            let Some(of) = all.iter_mut().find(|of| of.device == own.device) else {
                all.push(own.clone());
                continue;
            };
            of.mapped = of.mapped.saturating_add(own.mapped);
            of.weights = of.weights.saturating_add(own.weights);
            of.cache = of.cache.saturating_add(own.cache);
            of.compute = of.compute.saturating_add(own.compute);
        }
    }
}

/// The memory that a model takes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights used in place in the mapped file.
    pub mapped: u64,
    /// Weights that are copied.
    pub copied: u64,
    /// KV caches and recurrent states.
    pub cache: u64,
    /// Scratch memory of the largest pass.
    pub compute: u64,
    /// The memory on each device, the processor first.
    pub devices: Vec<DeviceUse>,
}

/// The memory of a tower that is not loaded, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TowerUse {
    /// Weights used in place in the mapped file.
    pub mapped: u64,
    /// Weights that are copied.
    pub weights: u64,
    /// Scratch memory of the largest run for one medium.
    pub compute: u64,
    /// The memory on each device, the processor first.
    #[serde(skip)]
    pub devices: Vec<DeviceUse>,
}

impl MemoryUse {
    /// The memory without so many bytes of mapped and of copied weights, which another model uses too.
    #[must_use]
    pub(super) fn without_shared(mut self, mapped: u64, copied: u64) -> Self {
        self.mapped = self.mapped.saturating_sub(mapped);
        self.copied = self.copied.saturating_sub(copied);
        if let Some(processor) = self.devices.first_mut() {
            processor.mapped = processor.mapped.saturating_sub(mapped);
            processor.weights = processor.weights.saturating_sub(copied);
        }
        self
    }

    /// The memory with copies of so many bytes of mapped weights, which are read in their place.
    #[must_use]
    pub(super) fn with_interleaved(mut self, bytes: u64) -> Self {
        self.mapped = self.mapped.saturating_sub(bytes);
        self.copied = self.copied.saturating_add(bytes);
        if let Some(processor) = self.devices.first_mut() {
            processor.mapped = processor.mapped.saturating_sub(bytes);
            processor.weights = processor.weights.saturating_add(bytes);
        }
        self
    }

    /// The memory with another model beside it.
    #[must_use]
    pub fn with_model(mut self, other: &Self) -> Self {
        self.mapped = self.mapped.saturating_add(other.mapped);
        self.copied = self.copied.saturating_add(other.copied);
        self.cache = self.cache.saturating_add(other.cache);
        self.compute = self.compute.saturating_add(other.compute);
        DeviceUse::merge(&mut self.devices, &other.devices);
        self
    }

    /// The memory with a tower.
    #[must_use]
    pub fn with_tower(mut self, tower: &TowerUse) -> Self {
        self.mapped = self.mapped.saturating_add(tower.mapped);
        self.copied = self.copied.saturating_add(tower.weights);
        self.compute = self.compute.saturating_add(tower.compute);
        DeviceUse::merge(&mut self.devices, &tower.devices);
        self
    }
}
