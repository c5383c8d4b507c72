//! Finds placements of a plan for which the devices have memory, by the amounts that loading takes.
//!
//! All amounts are those of the [`Estimator`]: weights, caches and states as they are laid out on each device, and
//! the scratch memory of the largest pass. A refusal names the nearest settings that fit.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::models::lora::Adapter;
use crate::plan::fill::{all_fit, fill, fill_shares, largest, split};
use crate::plan::{BLOCK_LEN, DeviceOverride, DeviceShare, Plan};
use lab_base::ggml::Device;
use lab_base::weights::{TensorType, Weights};

use super::error::{Error, Result};
use super::estimate::Estimator;
use super::memory_use::DeviceUse;
use super::options::Options;
use super::support::missing_of;

/// Smaller cache types to suggest, the largest first.
const SMALLER: [TensorType; 3] = [TensorType::F16, TensorType::Q8_0, TensorType::Q4_0];

/// A model whose layers are to be placed.
pub struct PlacementSearch<'a> {
    /// The plan, not yet placed.
    pub plan: &'a Plan,
    pub weights: &'a Weights,
    pub adapters: &'a [Adapter],
    /// The options with which the model runs.
    pub options: &'a Options,
    /// The devices that may be used besides the processor.
    pub devices: &'a [Device],
    /// The share of layers of each device, if given.
    pub shares: Option<&'a [f64]>,
    /// Parts that are placed elsewhere than their layers.
    pub moves: &'a [DeviceOverride],
    /// Bytes that [`Self::auto`] leaves free on each device.
    pub margin: u64,
}

/// The memory that splits take, as far as it was computed, and the free memory of the devices.
struct KnownMemory {
    taken: RefCell<HashMap<Vec<usize>, Vec<DeviceUse>>>,
    /// Free bytes of each device, less what its libraries take; none if the device does not report them.
    free: Vec<Option<u64>>,
}

impl PlacementSearch<'_> {
    /// The plan with these numbers of layers on the devices. If all are there, a table of tokens is with the first layers where that
    /// device reads its rows and has `margin` left besides.
    pub fn placed(&self, split: &[usize], margin: u64) -> Result<Plan> {
        let first = self.devices.iter().zip(split).find(|(_, n)| **n > 0);
        let plan = self.with_layers(split, self.moves);
        let (Some((first, _)), true) = (first, split.iter().sum::<usize>() == plan.n_placeable())
        else {
            return Ok(plan);
        };
        let (mut plan, mut moves) = (plan, self.moves.to_vec());
        for table in self.plan.token_tables() {
            moves.push(DeviceOverride {
                pattern: table.path.clone(),
                device: first.name(),
            });
            let moved = self.with_layers(split, &moves);
            match self.holds(&moved, &table.path, *first, margin)? {
                true => plan = moved,
                false => _ = moves.pop(),
            }
        }
        Ok(plan)
    }

    /// Whether a device runs the unit at a path that is placed there, and has room for all that is.
    fn holds(&self, plan: &Plan, path: &str, device: Device, margin: u64) -> Result<bool> {
        let Some(unit) = plan.token_tables().find(|unit| unit.path == path) else {
            return Ok(false);
        };
        if missing_of(plan, self.options, unit)?.is_some() {
            return Ok(false);
        }
        let mut estimator = Estimator::with(plan, self.weights, self.adapters)?;
        let taken = estimator.memory(self.options)?.devices;
        let used = part(&taken, &device.name()).map_or(0, DeviceUse::taken);
        let free = self.free_on(device);
        Ok(free.is_none_or(|free| used <= free.saturating_sub(margin)))
    }

    fn with_layers(&self, split: &[usize], moves: &[DeviceOverride]) -> Plan {
        let shares = self.devices.iter().zip(split);
        let shares = shares.map(|(device, n_layers)| DeviceShare {
            device: device.name(),
            n_layers: *n_layers,
        });
        let mut plan = self.plan.clone();
        plan.place_with(&shares.collect::<Vec<_>>(), moves);
        plan
    }

    /// The split with the most layers that fit, with the margin left free.
    pub fn auto(&self) -> Result<Vec<usize>> {
        let known = self.known();
        self.most(self.plan.n_placeable(), &known, self.margin)
    }

    /// A split of `n` layers: by the given shares, or else in proportion to free memory. If the latter does not fit,
    /// the devices are filled one after another.
    ///
    /// # Errors
    /// The layers do not fit. The error names settings that do.
    pub fn count(&self, n: usize) -> Result<Vec<usize>> {
        let known = self.known();
        let by_memory: Vec<f64> = known
            .free
            .iter()
            .map(|free| free.unwrap_or(0).max(1) as f64)
            .collect();
        let proportional = split(n, self.shares.unwrap_or(&by_memory));
        let fits = &mut |split: &[usize], at| self.fits(split, at, &known, 0);
        if all_fit(&proportional, fits)? {
            return Ok(proportional);
        }
        let most = self.most(n, &known, 0)?;
        if most.iter().sum::<usize>() == n {
            return Ok(most);
        }
        Err(self.refusal(&proportional, &most, &known)?)
    }

    fn known(&self) -> KnownMemory {
        let free = self.devices.iter().map(|device| self.free_on(*device));
        KnownMemory {
            taken: RefCell::default(),
            free: free.collect(),
        }
    }

    /// Free bytes of a device, less what its libraries take; none if it does not report them.
    fn free_on(&self, device: Device) -> Option<u64> {
        let matrices = self.plan.tensors.iter();
        let matrices = matrices.map(|tensor| tensor.shape.iter().take(2).product::<u64>());
        let taken = device.temporary_bytes(matrices.max().unwrap_or(0));
        Some(device.free_memory()?.saturating_sub(taken))
    }

    fn most(&self, n: usize, known: &KnownMemory, margin: u64) -> Result<Vec<usize>> {
        let fits = &mut |split: &[usize], at| self.fits(split, at, known, margin);
        match self.shares {
            Some(shares) => fill_shares(n, shares, fits),
            None => fill(n, self.devices.len(), fits),
        }
    }

    /// Whether a device's part of a split fits there, with a margin left free.
    fn fits(&self, split: &[usize], at: usize, known: &KnownMemory, margin: u64) -> Result<bool> {
        let Some(free) = known.free[at] else {
            return Ok(true);
        };
        if !known.taken.borrow().contains_key(split) {
            let taken = self.taken(split, self.options)?;
            known.taken.borrow_mut().insert(split.to_vec(), taken);
        }
        let taken = known.taken.borrow();
        let used = part(&taken[split], &self.devices[at].name());
        Ok(used.is_none_or(|used| used.taken() <= free.saturating_sub(margin)))
    }

    /// The memory that a split takes on each device.
    fn taken(&self, split: &[usize], options: &Options) -> Result<Vec<DeviceUse>> {
        let plan = self.with_layers(split, self.moves);
        let mut estimator = Estimator::with(&plan, self.weights, self.adapters)?;
        Ok(estimator.memory(options)?.devices)
    }

    /// The error for a split that does not fit; `most` is the split with the most layers that fit.
    fn refusal(&self, split: &[usize], most: &[usize], known: &KnownMemory) -> Result<Error> {
        let taken = self.taken(split, self.options)?;
        let lacks = |(device, free): (&Device, &Option<u64>)| {
            let (used, free) = (part(&taken, &device.name())?.clone(), (*free)?);
            (used.taken() > free).then_some((used, free))
        };
        let lacking = self.devices.iter().zip(&known.free).find_map(lacks);
        let Some((used, free)) = lacking else {
            return Ok(Error::Internal("a placement that fits is refused".into()));
        };
        let fits = |options: &Options| {
            let taken = self.taken(split, options).ok();
            let mut all = self.devices.iter().zip(&known.free);
            taken.is_some_and(|taken| {
                all.all(|(device, free)| {
                    let used = part(&taken, &device.name()).map_or(0, DeviceUse::taken);
                    free.is_none_or(|free| used <= free)
                })
            })
        };
        let mut settings = vec![format!("--gpu-layers {}", most.iter().sum::<usize>())];
        settings.extend(self.smaller_context(&fits).map(|n| format!("--ctx {n}")));
        let ty = self.smaller_type(&fits);
        settings.extend(ty.map(|ty| format!("--kv-type {}", ty.name())));
        Ok(Error::DeviceMemory {
            used: Box::new(used),
            free,
            advice: format!("; would fit: {}", settings.join(", or ")),
        })
    }

    /// The longest context for which the same placement fits.
    fn smaller_context(&self, fits: &dyn Fn(&Options) -> bool) -> Option<usize> {
        let options = self.options;
        let (of_one, block) = (options.n_ctx_seq, BLOCK_LEN as usize);
        if options.n_ctx == 0 || of_one == 0 {
            return None;
        }
        let with = |n_ctx_seq: usize| Options {
            n_ctx: (n_ctx_seq as u128 * options.n_ctx as u128 / of_one as u128) as usize,
            n_ctx_seq,
            // Some models read a whole context in a pass.
            n_batch: options.n_batch.min(n_ctx_seq.max(Options::N_BATCH)),
            ..options.clone()
        };
        let most = of_one.div_ceil(block) - 1;
        let found = largest(most, &mut |n| {
            Ok::<_, Error>(n == 0 || fits(&with(n * block)))
        });
        found.ok().filter(|n| *n > 0).map(|n| n * block)
    }

    /// The largest of the smaller cache types for which the same placement fits.
    fn smaller_type(&self, fits: &dyn Fn(&Options) -> bool) -> Option<TensorType> {
        let options = self.options;
        let bits = |ty: TensorType| ty.block_bytes() * 8 / ty.block_len();
        let now = bits(options.k_type).max(bits(options.v_type));
        let smaller = SMALLER.into_iter().filter(|ty| bits(*ty) < now);
        let mut fitting = smaller.filter(|ty| {
            let with = Options {
                k_type: *ty,
                v_type: *ty,
                ..options.clone()
            };
            options.n_ctx > 0 && fits(&with)
        });
        fitting.next()
    }
}

/// The memory use of a device.
fn part<'u>(taken: &'u [DeviceUse], name: &str) -> Option<&'u DeviceUse> {
    taken.iter().find(|used| used.device == name)
}
