//! The placement of a plan's parts: layers, in their order, on one device after another.
//!
//! Inert: devices are names. A device holds the weights and states of its layers, and computes them. The processor
//! holds the first layers, and the parts before and after all layers unless the head is placed elsewhere. A tensor that
//! parts on several devices use is planned once for each device.

use std::collections::HashMap;

use crate::arch::fits_pattern;

use super::{NormUse, Plan, StatePlan, TensorPlan, Unit};

/// The name of the processor among devices.
pub const PROCESSOR: &str = "CPU";

/// A device and the number of layers it gets. The head counts as the last layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    /// Name of the device.
    pub device: String,
    /// Number of layers.
    pub n_layers: usize,
}

/// A move of parts to another device than that of their layer: parts whose path matches a pattern, in which `*` stands
/// for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOverride {
    /// The pattern of paths.
    pub pattern: String,
    /// The device's name, or [`PROCESSOR`].
    pub device: String,
}

impl DeviceOverride {
    /// Whether the pattern matches the path of a part.
    pub fn matches(&self, path: &str) -> bool {
        fits_pattern(&self.pattern, path)
    }
}

impl Plan {
    /// Number of layers that can be placed, the head included.
    pub fn n_placeable(&self) -> usize {
        self.layers.len() + usize::from(self.head.is_some())
    }

    /// Paths of the parts that [`DeviceOverride`]s can move, in the order of execution.
    pub fn placeable(&self) -> impl Iterator<Item = &str> {
        let head = self.head.as_ref().and_then(|head| head.unit.as_ref());
        self.token_tables()
            .chain(self.units())
            .chain(head)
            .map(|unit| unit.path.as_str())
    }

    /// The parts that look up rows by token, before all layers.
    pub fn token_tables(&self) -> impl Iterator<Item = &Unit> {
        let source = self.source.iter().map(|source| &source.embed);
        source.chain([&self.embed]).chain(&self.per_layer)
    }

    /// [`Self::place_with`] without moves.
    pub fn place(&mut self, shares: &[DeviceShare]) {
        self.place_with(shares, &[]);
    }

    /// Places the last layers on devices, in the order of the shares; the remaining layers stay on the processor. The
    /// first matching move of a part counts, for its weights, state and computation. A part that reads keys and values
    /// of another part is placed with it, so that no cache is copied between devices. A plan is placed once.
    pub fn place_with(&mut self, shares: &[DeviceShare], moves: &[DeviceOverride]) {
        let shares = || shares.iter().filter(|share| share.n_layers > 0);
        self.devices = shares().map(|share| share.device.clone()).collect();
        let used: Vec<&DeviceOverride> = self
            .placeable()
            .filter_map(|path| moved(moves, path))
            .collect();
        for DeviceOverride { device, .. } in used {
            if device != PROCESSOR && !self.devices.contains(device) {
                self.devices.push(device.clone());
            }
        }
        let names = self.devices.clone();
        let at = |path: &str, otherwise: usize| match moved(moves, path) {
            Some(to) => names
                .iter()
                .position(|name| *name == to.device)
                .map_or(0, |at| at + 1),
            None => otherwise,
        };
        let mut owners: HashMap<String, usize> = HashMap::new();
        let n_placed = shares().map(|share| share.n_layers).sum::<usize>();
        let n_kept = self.n_placeable().saturating_sub(n_placed);
        let mut devices = vec![0; n_kept];
        for (device, share) in (1..).zip(shares()) {
            devices.resize(devices.len() + share.n_layers, device);
        }
        let mut tensors = TensorPlacement {
            owner: vec![None; self.tensors.len()],
            all: std::mem::take(&mut self.tensors),
            copies: HashMap::new(),
        };
        let source = self.source.as_mut().map(|source| &mut source.embed);
        let ends = [
            source,
            Some(&mut self.embed),
            self.per_layer.as_mut(),
            self.write.as_mut(),
        ];
        for unit in ends.into_iter().flatten() {
            let device = at(&unit.path, 0);
            tensors.unit(unit, device);
        }
        let resources = self.norms.iter_mut().chain(&mut self.acts);
        let resources = resources.chain(&mut self.ropes).chain(&mut self.selections);
        for unit in resources.chain(self.caches.iter_mut().map(|cache| &mut cache.unit)) {
            tensors.unit(unit, 0);
        }
        tensors.unit(&mut self.pool, 0);
        let mut devices = devices.into_iter();
        for (layer, device) in self.layers.iter_mut().zip(devices.by_ref()) {
            for slot in &mut layer.slots {
                for mix in slot.read.iter_mut().chain(&mut slot.write) {
                    tensors.unit(mix, device);
                }
                for norm in [&mut slot.pre, &mut slot.post, &mut slot.after] {
                    tensors.norm(norm.as_mut(), device);
                }
                for branch in &mut slot.branches {
                    tensors.norm(branch.pre.as_mut(), device);
                    tensors.norm(branch.post.as_mut(), device);
                    let block = &mut branch.block;
                    let own = at(&block.path, device);
                    let place = match &block.state {
                        Some(StatePlan::KeyValue(rows)) => {
                            let owner = rows.owner.as_ref().and_then(|owner| owners.get(owner));
                            owner.copied().unwrap_or(own)
                        }
                        _ => own,
                    };
                    owners.insert(block.path.clone(), place);
                    tensors.unit(block, place);
                }
            }
        }
        if let (Some(head), Some(device)) = (&mut self.head, devices.next()) {
            if let Some(read) = &mut head.read {
                tensors.unit(read, device);
            }
            tensors.norm(head.norm.as_mut(), device);
            if let Some(unit) = &mut head.unit {
                let device = at(&unit.path, device);
                tensors.unit(unit, device);
            }
        }
        self.tensors = tensors.all;
    }
}

/// The first move that matches a part.
fn moved<'m>(moves: &'m [DeviceOverride], path: &str) -> Option<&'m DeviceOverride> {
    moves.iter().find(|to| to.matches(path))
}

/// The tensors of a plan while they are placed.
struct TensorPlacement {
    all: Vec<TensorPlan>,
    /// The device of each tensor, once it is used.
    owner: Vec<Option<usize>>,
    /// Places of further copies, by tensor and device.
    copies: HashMap<(usize, usize), usize>,
}

impl TensorPlacement {
    fn unit(&mut self, unit: &mut Unit, device: usize) {
        unit.device = device;
        for weight in unit.weights.iter_mut().flatten() {
            self.weight(weight, device);
        }
    }

    fn norm(&mut self, norm: Option<&mut NormUse>, device: usize) {
        let Some(norm) = norm else { return };
        for weight in [&mut norm.weight, &mut norm.bias].into_iter().flatten() {
            self.weight(weight, device);
        }
    }

    /// Makes `at` the place of the tensor's copy on `device`.
    fn weight(&mut self, at: &mut usize, device: usize) {
        match self.owner[*at] {
            Some(owner) if owner == device => {}
            Some(_) => {
                let Self { all, copies, .. } = self;
                *at = *copies.entry((*at, device)).or_insert_with(|| {
                    all.push(TensorPlan {
                        device,
                        ..all[*at].clone()
                    });
                    all.len() - 1
                });
            }
            None => {
                self.owner[*at] = Some(device);
                self.all[*at].device = device;
            }
        }
    }
}
