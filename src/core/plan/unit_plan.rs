//! A use of a contract with its numbers: tensors, options and the state between passes.

use std::fmt;

use crate::arch::{Contract, OptionKind, ResolvedOption, Resource, WeightRole};
use lab_base::weights::TensorType;

/// A tensor that the model uses.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlan {
    /// Name in the file.
    pub name: String,
    /// Dimensions by the definition, in ggml order.
    pub shape: Vec<u64>,
    /// Element type in the file; none in a plan without a file.
    pub ty: Option<TensorType>,
    /// Bytes in the file, or as f32 in a plan without a file.
    pub bytes: u64,
    /// The role in the contract.
    pub role: WeightRole,
    /// The number that all ids are below, if the elements are ids.
    pub below: Option<u64>,
    /// The device that holds the tensor: 0 is the processor, others count through [`super::Plan::devices`] from 1.
    pub device: usize,
}

/// A use of a contract with all its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Path of the unit's values, such as `layers.3.attn`.
    pub path: String,
    /// The contract of the unit.
    pub contract: ContractRef,
    /// Options in the order of the contract.
    pub options: Vec<ResolvedOption>,
    /// Weights in the order of the contract, as indices into [`super::Plan::tensors`], then the matrices of updates.
    pub weights: Vec<Option<usize>>,
    /// Updates of the weights by adapters in the file.
    pub updates: Vec<AdapterUpdatePlan>,
    /// The state between passes.
    pub state: Option<StatePlan>,
    /// The device that holds the weights and the state; see [`TensorPlan::device`].
    pub device: usize,
}

impl Unit {
    /// The index in [`super::Plan::tensors`] of a weight by its key; `None` if it is absent.
    pub fn weight(&self, key: &str) -> Option<usize> {
        let at = self.contract.0.weights.iter().position(|w| w.key == key)?;
        self.weights[at]
    }

    /// The value of an option; `None` if the contract has no option of that name.
    pub fn option(&self, name: &str) -> Option<&ResolvedOption> {
        let at = self
            .contract
            .0
            .options
            .iter()
            .position(|o| o.name == name)?;
        self.options.get(at)
    }

    /// The rows that a unit reads of each token, its own or those of another unit.
    pub fn key_values(&self) -> Option<&KeyValuePlan> {
        match self.state.as_ref()? {
            StatePlan::KeyValue(rows) => Some(rows),
            StatePlan::Recurrent(_) => None,
        }
    }

    /// The selection of keys that the unit uses, as an index into [`super::Plan::selections`].
    pub fn selection(&self) -> Option<usize> {
        let kinds = self.contract.0.options.iter().map(|spec| spec.kind);
        kinds.zip(&self.options).find_map(|option| match option {
            (OptionKind::Resource(Resource::Selection), ResolvedOption::Resource(of)) => *of,
            _ => None,
        })
    }

    /// The kind of a resource that is named by its kind alone: neither a definition nor a file declares more.
    pub fn plain_kind(&self) -> Option<&'static str> {
        let contract = self.contract.0;
        let name = self.path.strip_prefix(contract.name)?;
        contract.bare_kind(name.strip_prefix('.')?)
    }

    /// The value of a whole-number option.
    pub fn option_int(&self, name: &str) -> Option<u64> {
        match self.option(name)? {
            ResolvedOption::Int(v) => Some(*v),
            _ => None,
        }
    }
}

/// A contract that is compared and printed by its name.
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
    /// A state of every position.
    KeyValue(KeyValuePlan),
    /// A state of every sequence.
    Recurrent(Vec<StatePart>),
}

/// Keys and values that a unit stores for every position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValuePlan {
    /// The group of the cache, as an index into [`super::Plan::caches`].
    pub cache: usize,
    /// Number of elements of a key row.
    pub k: u64,
    /// Number of elements of a value row.
    pub v: u64,
    /// Number of heads that share a row.
    pub heads: u64,
    /// Whether the values are the first elements of the keys, so that only keys are stored.
    pub v_in_k: bool,
    /// Path of the unit whose rows are used in place of own rows.
    pub owner: Option<String>,
    /// Number of elements of the row by which keys are selected; 0: none.
    pub index: u64,
    /// The rows from which the keys of whole blocks of positions are made, where the cache has such keys.
    pub pooled: Option<PooledPlan>,
}

/// A part of a unit's recurrent state of one sequence, f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// The name in the contract.
    pub name: &'static str,
    /// Number of elements.
    pub size: u64,
}

/// The update of rows of a weight by adapters in the file. The updates of one weight follow each other in the order of
/// its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterUpdatePlan {
    /// The weight, as an index into [`Unit::weights`].
    pub weight: usize,
    /// The index in [`Unit::weights`] of the matrices `[n_in, rank, adapters]`; those of `[rank, n_out, adapters]`
    /// follow.
    pub down: usize,
}

impl Unit {
    /// The updates of a weight by adapters in the file, as indices into [`Plan::tensors`], as is `weight`:
    /// `[n_in, rank, adapters]` and `[rank, n_out, adapters]` for parts of the weight's rows, one after another.
    pub fn updates_of(&self, weight: usize) -> impl Iterator<Item = (usize, usize)> {
        let of_weight =
            move |update: &&AdapterUpdatePlan| self.weights[update.weight] == Some(weight);
        let updates = self.updates.iter().filter(of_weight);
        updates.filter_map(move |update| {
            Some((self.weights[update.down]?, self.weights[update.down + 1]?))
        })
    }
}

/// Rows of positions from which a unit makes the keys of whole blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PooledPlan {
    /// The group in whose cache the rows are, as an index into [`super::Plan::caches`].
    pub cache: usize,
    /// Number of elements of a row, f32 whatever the type of the cache.
    pub width: u64,
    /// Number of positions of a block.
    pub span: u64,
    /// Number of positions from which a key is made, the last ones of the block.
    pub reach: u64,
}
