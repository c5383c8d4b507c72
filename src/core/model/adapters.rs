//! Adapters on a device, and their scales for each sequence.
//!
//! A sequence keeps one scale for each adapter from its start to its end, because its cache was computed with them.
//! A scale of zero turns an adapter off. If an adapter is off for all tokens of a pass, the pass has none of its
//! operations.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use crate::arch::WeightRole;
use crate::blocks::{ActiveAdapters, LowRankUpdate, LowRankUpdates, MAX_UPDATE_NODES};
use crate::models::lora::Adapter;
use crate::plan::{Plan, TensorPlan};
use lab_base::ggml::{Device, Tensor};

use super::cache::SequenceId;
use super::error::{Error, Result};
use super::load::{self, WeightLayout};
use super::options::Options;

/// An adapter of a loaded model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedAdapter {
    /// The path of its file.
    pub path: PathBuf,
    /// The name by which requests choose it, or that of its file.
    pub name: String,
    /// The scale of sequences that set none.
    pub scale: f32,
    /// Identifies the files from which it was loaded.
    pub stamp: [u8; 32],
    /// Bytes that are used in place in its files, and bytes that are copied.
    bytes: [u64; 2],
}

/// The weights of a model as a graph uses them.
#[derive(Clone, Copy)]
pub(super) struct DeviceWeights<'a> {
    /// Data of [`Plan::tensors`], in the same order.
    pub(super) tensors: &'a [Tensor],
    /// Updates of weights by adapters, if there are any.
    pub(super) updates: Option<&'a LowRankUpdates>,
    /// Maximum number of operations and leaves that the updates add.
    pub(super) update_nodes: usize,
}

impl<'a> DeviceWeights<'a> {
    /// Weights without adapters.
    pub(super) fn plain(tensors: &'a [Tensor]) -> Self {
        Self {
            tensors,
            updates: None,
            update_nodes: 0,
        }
    }

    /// The adapters of a pass with these scales.
    pub(super) fn active(&self, scales: Vec<(usize, Tensor)>) -> ActiveAdapters<'a> {
        ActiveAdapters {
            updates: self.updates,
            scales,
            updated: RefCell::default(),
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct ModelAdapters {
    pub(super) all: Vec<LoadedAdapter>,
    pub(super) updates: LowRankUpdates,
    /// Number of updates, counted once for each part of the model that uses the weight.
    n_uses: usize,
    /// Bytes that are used in place in their files, and bytes that are copied.
    pub(super) mapped_bytes: u64,
    pub(super) copied_bytes: u64,
    /// Scales of the sequences that set their own.
    scales: HashMap<SequenceId, Vec<f32>>,
}

impl ModelAdapters {
    pub(super) fn load(plan: &Plan, adapters: &[Adapter]) -> Result<Self> {
        Self::place(plan, adapters, |planned, adapter| {
            let loaded = load::load(planned, &[Device::cpu()?], &adapter.weights, &mut |_, _| {})?;
            let mapped = loaded.mapped.iter().sum();
            Ok((loaded.tensors, mapped, loaded.copied_bytes))
        })
    }

    /// Lays out the adapters of a plan without reading data or taking memory.
    pub(super) fn stand_in(plan: &Plan, adapters: &[Adapter]) -> Result<Self> {
        Self::place(plan, adapters, |planned, adapter| {
            let devices = [Device::cpu()?];
            let layout = WeightLayout::new(planned, &devices, &adapter.weights, &mut |_, _| {})?;
            let laid_out = layout.stand_in(planned, &devices)?;
            let (mapped, copied) = (laid_out.mapped.iter().sum(), laid_out.copied_bytes);
            Ok((laid_out.tensors, mapped, copied))
        })
    }

    fn place(
        plan: &Plan,
        adapters: &[Adapter],
        mut place: impl FnMut(&[TensorPlan], &Adapter) -> Result<(Vec<Tensor>, u64, u64)>,
    ) -> Result<Self> {
        let mut out = Self::default();
        for adapter in adapters {
            let id = out.all.len();
            let tensors = adapter.weights.tensors();
            let planned: Vec<TensorPlan> = tensors
                .iter()
                .map(|tensor| TensorPlan {
                    name: tensor.name.clone(),
                    shape: tensor.shape.clone(),
                    ty: Some(tensor.ty),
                    bytes: tensor.bytes,
                    role: WeightRole::Matrix,
                    below: None,
                    device: 0,
                })
                .collect();
            let (tensors, mapped, copied) = place(&planned, adapter)?;
            out.mapped_bytes += mapped;
            out.copied_bytes += copied;
            let at = |name: &str| planned.iter().position(|tensor| tensor.name == name);
            for pair in &adapter.pairs {
                let places = plan.tensors.iter().enumerate();
                let places = places.filter(|(_, tensor)| tensor.name == pair.target);
                let targets: Vec<usize> = places.map(|(place, _)| place).collect();
                let (false, Some(down), Some(up)) =
                    (targets.is_empty(), at(&pair.down), at(&pair.up))
                else {
                    return Err(Error::Weight {
                        tensor: pair.target.clone(),
                        message: "is missing, and an adapter updates it".into(),
                    });
                };
                // A tensor that several devices use is planned for each of them.
                for target in targets {
                    out.updates.entry(target).or_default().push(LowRankUpdate {
                        adapter: id,
                        down: tensors[down].clone(),
                        up: tensors[up].clone(),
                        factor: pair.factor,
                    });
                }
            }
            out.all.push(LoadedAdapter {
                path: adapter.path.clone(),
                name: adapter.name.clone(),
                scale: adapter.scale,
                stamp: adapter.stamp(),
                bytes: [mapped, copied],
            });
        }
        out.count_uses(plan);
        Ok(out)
    }

    fn count_uses(&mut self, plan: &Plan) {
        let used = plan.all_units();
        let used = used.flat_map(|unit| unit.weights.iter().flatten());
        let used = used.filter_map(|at| Some(self.updates.get(at)?.len()));
        self.n_uses = used.sum();
    }

    /// These adapters and another one, which gets the next id.
    pub(super) fn with(&self, plan: &Plan, adapter: &Adapter) -> Result<Self> {
        let one = Self::load(plan, std::slice::from_ref(adapter))?;
        let (mut all, id) = (self.clone(), self.all.len());
        for (at, updates) in one.updates {
            let updates = updates.into_iter().map(|update| LowRankUpdate {
                adapter: id,
                ..update
            });
            all.updates.entry(at).or_default().extend(updates);
        }
        all.all.extend(one.all);
        all.mapped_bytes += one.mapped_bytes;
        all.copied_bytes += one.copied_bytes;
        all.count_uses(plan);
        Ok(all)
    }

    /// Frees an adapter that no sequence uses. The others keep their ids, and its id is not used again, so that what
    /// is cached stays true.
    pub(super) fn remove(&mut self, plan: &Plan, id: usize) {
        self.updates.retain(|_, updates| {
            updates.retain(|update| update.adapter != id);
            !updates.is_empty()
        });
        if let Some(removed) = self.all.get_mut(id) {
            let [mapped, copied] = std::mem::take(&mut removed.bytes);
            self.mapped_bytes -= mapped;
            self.copied_bytes -= copied;
            removed.scale = 0.0;
        }
        self.count_uses(plan);
    }

    /// The adapters that were not removed.
    pub(super) fn present(&self) -> Vec<usize> {
        let ids = self.updates.values().flatten();
        let ids: BTreeSet<usize> = ids.map(|update| update.adapter).collect();
        ids.into_iter().collect()
    }

    /// Maximum number of operations and leaves that the updates add to a graph.
    pub(super) fn capacity(&self) -> usize {
        let n = self.n_uses;
        // The matrices of each update, and for each adapter its scales and their rows that want a result.
        (MAX_UPDATE_NODES + 2) * n + 2 * self.all.len()
    }

    /// Refuses updates of weights that are not in `updated`, the weights that a graph with all adapters used in
    /// products.
    pub(super) fn check(
        &self,
        plan: &Plan,
        options: &Options,
        updated: &BTreeSet<usize>,
    ) -> Result<()> {
        // With `embeddings` the graph has no output head.
        let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
        let head = head.filter(|_| options.embeddings);
        let is_left_out = |at: &usize| head.is_some_and(|head| head.weights.contains(&Some(*at)));
        let in_file = plan.units().chain(plan.mixes()).flat_map(|unit| {
            let updates = unit.updates.iter();
            updates.filter_map(|update| unit.weights[update.weight].as_ref())
        });
        let all = self.updates.keys().chain(in_file);
        let mut unused = all.filter(|at| !updated.contains(at));
        match unused.find(|at| !is_left_out(at)) {
            Some(at) => Err(Error::Weight {
                tensor: plan.tensors[*at].name.clone(),
                message:
                    "is updated by an adapter, and is used in another way than in a product with it"
                        .into(),
            }),
            None => Ok(()),
        }
    }

    /// Sets the scales of a sequence, one for each adapter; missing ones are zero.
    pub(super) fn set_scales(&mut self, sequence: SequenceId, scales: &[f32]) {
        let mut scales = scales.to_vec();
        scales.resize(self.all.len(), 0.0);
        self.scales.insert(sequence, scales);
    }

    /// Identifies the scales of a sequence, so that only results with equal scales are shared.
    pub(super) fn key_of(&self, sequence: SequenceId) -> Vec<u32> {
        match self.scales.get(&sequence) {
            Some(scales) => key(scales.iter().copied()),
            None => self.default_key(),
        }
    }

    /// Identifies the scales of sequences that set none.
    pub(super) fn default_key(&self) -> Vec<u32> {
        key(self.all.iter().map(|adapter| adapter.scale))
    }

    pub(super) fn scale(&self, adapter: usize, sequence: SequenceId) -> f32 {
        match self.scales.get(&sequence) {
            // A sequence that started before the adapter was loaded has no scale of it.
            Some(scales) => scales.get(adapter).copied().unwrap_or(0.0),
            None => self.all[adapter].scale,
        }
    }

    /// The adapters that are on for one of the sequences.
    pub(super) fn on(&self, sequences: &[SequenceId]) -> Vec<usize> {
        let is_on = |id: &usize| sequences.iter().any(|s| self.scale(*id, *s) != 0.0);
        (0..self.all.len()).filter(is_on).collect()
    }
}

/// Identifies these scales; empty if all adapters are off. Adapters that are loaded later, and are off, change nothing.
pub(super) fn key(scales: impl Iterator<Item = f32>) -> Vec<u32> {
    // Makes both zeros equal.
    let mut bits: Vec<u32> = scales.map(|scale| (scale + 0.0).to_bits()).collect();
    let n_kept = bits
        .iter()
        .rposition(|bits| *bits != 0)
        .map_or(0, |at| at + 1);
    bits.truncate(n_kept);
    bits
}
