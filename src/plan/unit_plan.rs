//! A use of a contract with its numbers: tensors, options, state between passes.

use std::fmt;

use super::{PooledPlan, UpdatePlan};
use crate::arch::{Contract, Resolved, WeightRole};
use crate::weights::TensorType;

/// A tensor that the model uses.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlan {
    /// Name in the file.
    pub name: String,
    /// Dimensions by the definition, ggml order.
    pub shape: Vec<u64>,
    /// Element type in the file; in a plan without a file, none.
    pub ty: Option<TensorType>,
    /// Bytes in the file, or as f32 in a plan without one.
    pub bytes: u64,
    /// Its role in the contract.
    pub role: WeightRole,
    /// Of ids the number that each is below.
    pub below: Option<u64>,
    /// Where it is kept: 0 is the processor, others count through [`super::Plan::devices`] from 1.
    pub device: usize,
}

/// A use of a contract with all its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Path of its values, such as `layers.3.attn`.
    pub path: String,
    /// Its contract.
    pub contract: ContractRef,
    /// Options in the order of the contract.
    pub options: Vec<Resolved>,
    /// Weights in the order of the contract, as places in [`super::Plan::tensors`]; then those of its updates.
    pub weights: Vec<Option<usize>>,
    /// Updates of its weights by adapters in the file.
    pub updates: Vec<UpdatePlan>,
    /// Its state between passes.
    pub state: Option<StatePlan>,
    /// Where its weights and its state are kept; see [`TensorPlan::device`].
    pub device: usize,
}

impl Unit {
    /// The place in [`super::Plan::tensors`] of a weight by its key; `None` if it is absent.
    pub fn weight(&self, key: &str) -> Option<usize> {
        let at = self.contract.0.weights.iter().position(|w| w.key == key)?;
        self.weights[at]
    }

    /// The value of an option; `None` if the contract has none of that name.
    pub fn option(&self, name: &str) -> Option<&Resolved> {
        let at = self
            .contract
            .0
            .options
            .iter()
            .position(|o| o.name == name)?;
        self.options.get(at)
    }

    /// The kind of a resource that is nothing but its kind: neither a definition nor a file says more of it.
    pub fn plain_kind(&self) -> Option<&'static str> {
        let contract = self.contract.0;
        let name = self.path.strip_prefix(contract.name)?;
        contract.bare_kind(name.strip_prefix('.')?)
    }

    /// The value of a whole-number option.
    pub fn option_int(&self, name: &str) -> Option<u64> {
        match self.option(name)? {
            Resolved::Int(v) => Some(*v),
            _ => None,
        }
    }
}

/// A contract, compared and printed by name.
#[derive(Clone, Copy)]
pub struct ContractRef(pub &'static Contract);

impl PartialEq for ContractRef {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl fmt::Debug for ContractRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

/// The state of a unit between passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatePlan {
    /// Of every position.
    KeyValue(KeyValuePlan),
    /// Of every sequence.
    Recurrent(Vec<StatePart>),
}

/// Keys and values that a unit stores for every position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValuePlan {
    /// Its group, a place in [`super::Plan::caches`].
    pub cache: usize,
    /// Elements of a key row.
    pub k: u64,
    /// Elements of a value row.
    pub v: u64,
    /// Heads that share a row.
    pub heads: u64,
    /// Whether the values are the first elements of the keys, so that only keys are stored.
    pub v_in_k: bool,
    /// Path of the unit whose rows are used instead of own ones.
    pub owner: Option<String>,
    /// Elements of a row by which keys are selected; 0: none.
    pub index: u64,
    /// What it makes keys of whole blocks of positions of, where its cache has such.
    pub pooled: Option<PooledPlan>,
}

/// A part of a unit's state of a sequence, f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// Its name in the contract.
    pub name: &'static str,
    /// Its elements.
    pub size: u64,
}
