//! Where a plan's parts are kept: layers, in their order, on one device after another.
//!
//! Inert: devices are names. A device keeps the weights and the states of its layers, and computes
//! there. The processor keeps the first layers, and what comes before and after all of them unless the
//! head is placed elsewhere. A tensor that parts on several devices use is planned once for each.

use std::collections::HashMap;

use super::{NormUse, Plan, TensorPlan, Unit};

/// A device and the number of layers it gets. The head counts as the last layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its name.
    pub device: String,
    /// Layers.
    pub n_layers: usize,
}

impl Plan {
    /// Layers that can be placed, the head included.
    pub fn n_placeable(&self) -> usize {
        self.layers.len() + usize::from(self.head.is_some())
    }

    /// Places the last layers on devices, in the order of the shares; what the shares leave stays on
    /// the processor. A plan is placed once.
    pub fn place(&mut self, shares: &[Share]) {
        let shares = || shares.iter().filter(|share| share.n_layers > 0);
        self.devices = shares().map(|share| share.device.clone()).collect();
        let n_placed = shares().map(|share| share.n_layers).sum::<usize>();
        let n_kept = self.n_placeable().saturating_sub(n_placed);
        let mut devices = vec![0; n_kept];
        for (device, share) in (1..).zip(shares()) {
            devices.resize(devices.len() + share.n_layers, device);
        }
        let mut tensors = Tensors {
            owner: vec![None; self.tensors.len()],
            all: std::mem::take(&mut self.tensors),
            copies: HashMap::new(),
        };
        let ends = [Some(&mut self.embed), self.per_layer.as_mut()];
        for unit in ends.into_iter().flatten() {
            tensors.unit(unit, 0);
        }
        let resources = self.norms.iter_mut().chain(&mut self.acts);
        let resources = resources.chain(&mut self.ropes);
        for unit in resources.chain(self.caches.iter_mut().map(|cache| &mut cache.unit)) {
            tensors.unit(unit, 0);
        }
        tensors.unit(&mut self.pool, 0);
        let mut devices = devices.into_iter();
        for (layer, device) in self.layers.iter_mut().zip(devices.by_ref()) {
            for slot in &mut layer.slots {
                for norm in [&mut slot.pre, &mut slot.post, &mut slot.after] {
                    tensors.norm(norm.as_mut(), device);
                }
                for branch in &mut slot.branches {
                    tensors.norm(branch.pre.as_mut(), device);
                    tensors.norm(branch.post.as_mut(), device);
                    tensors.unit(&mut branch.block, device);
                }
            }
        }
        if let (Some(head), Some(device)) = (&mut self.head, devices.next()) {
            tensors.norm(head.norm.as_mut(), device);
            if let Some(unit) = &mut head.unit {
                tensors.unit(unit, device);
            }
        }
        self.tensors = tensors.all;
    }
}

/// The tensors of a plan while they are placed.
struct Tensors {
    all: Vec<TensorPlan>,
    /// The device of each, once something uses it.
    owner: Vec<Option<usize>>,
    /// Places of further copies, by tensor and device.
    copies: HashMap<(usize, usize), usize>,
}

impl Tensors {
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

    /// Has `at` name the tensor on `device`.
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
