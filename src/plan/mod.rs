//! A definition and a model file's numbers become a Plan: every layer's slots, blocks, tensor
//! names, shapes, caches and bytes.
//!
//! A plan is inert data that can be printed and compared. It is the one description that is
//! executed (`model`), measured (memory), drawn (`diagram`) and filled with random weights (`synth`), so
//! they cannot disagree. Planning reads metadata and tensor shapes, never tensor data; all
//! problems come back together.

mod adapters;
mod assemble;
mod facts;
pub mod fill;
mod mixes;
mod placement;
mod pooled;
mod rows;
mod source;
mod unclaimed;
mod unit;

pub use adapters::UpdatePlan;
pub use placement::{Move, PROCESSOR, Share};
pub use pooled::{PooledPlan, RowLayout};
pub use source::{KeysOf, SourcePlan};

use assemble::Planner;
use facts::Facts;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::arch::expr::Value;
use crate::arch::{ArchDef, Contract, Join, Mode, OptionValue, Resolved, WeightRole};
use crate::choices;
use crate::common::wording;
use crate::weights::{Metadata, TensorType, Weights};

/// Maximum number of layers, so that a hostile file cannot exhaust memory.
const MAX_LAYERS: u64 = 4096;

/// A model, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name of the architecture.
    pub arch: String,
    /// How it is executed.
    pub mode: Mode,
    /// Width of the hidden state.
    pub n_embd: u64,
    /// Size of the vocabulary.
    pub n_vocab: u64,
    /// Context length the model was trained for; 0 if the file does not say.
    pub n_ctx_train: u64,
    /// Parameters that something used, with their values.
    pub params: BTreeMap<String, Value>,
    /// Metadata keys that parameters were read from, whether set or not.
    pub keys: BTreeSet<String>,
    /// Devices other than the processor that parts of it are placed on, by name.
    pub devices: Vec<String>,
    /// Tensors that something uses, once for each device that uses them.
    pub tensors: Vec<TensorPlan>,
    /// Distinct norms.
    pub norms: Vec<Unit>,
    /// Distinct activations.
    pub acts: Vec<Unit>,
    /// Distinct ropes.
    pub ropes: Vec<Unit>,
    /// Groups of layers with the same attention view.
    pub caches: Vec<CachePlan>,
    /// Distinct choices among keys.
    pub selections: Vec<Unit>,
    /// Token ids to the hidden state.
    pub embed: Unit,
    /// The hidden state to several ones; none: there is one.
    pub write: Option<Unit>,
    /// A further input for each layer.
    pub per_layer: Option<Unit>,
    /// The layers of all stacks, in order.
    pub layers: Vec<LayerPlan>,
    /// The hidden state to logits.
    pub head: Option<HeadPlan>,
    /// Text diffusion, if the model decodes so.
    pub diffusion: Option<DiffusionPlan>,
    /// The source of sequences, if the model reads one.
    pub source: Option<SourcePlan>,
    /// The hidden states of a sequence to one vector.
    pub pool: Unit,
    /// Tensors of the file that nothing uses and the definition does not expect.
    pub unclaimed: Vec<String>,
    /// Metadata keys of the architecture that nothing reads and the definition does not ignore, in
    /// the order of the file, whole.
    pub unread: Vec<String>,
}

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
    /// Where it is kept: 0 is the processor, others count through [`Plan::devices`] from 1.
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
    /// Weights in the order of the contract, as places in [`Plan::tensors`]; then those of its updates.
    pub weights: Vec<Option<usize>>,
    /// Updates of its weights by adapters in the file.
    pub updates: Vec<UpdatePlan>,
    /// Its state between passes.
    pub state: Option<StatePlan>,
    /// Where its weights and its state are kept; see [`TensorPlan::device`].
    pub device: usize,
}

impl Unit {
    /// The place in [`Plan::tensors`] of a weight by its key; `None` if it is absent.
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
    /// Its group, a place in [`Plan::caches`].
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

/// A group of layers with the same attention view.
#[derive(Clone, Debug, PartialEq)]
pub struct CachePlan {
    /// Name in the definition.
    pub name: String,
    /// Its resolved options.
    pub unit: Unit,
    /// What its keys are made of.
    pub keys: KeysOf,
}

impl CachePlan {
    /// Maximum number of positions that later queries attend to; none if they attend to all.
    pub fn window(&self) -> Option<u64> {
        let size = self.unit.option_int("size").filter(|size| *size > 0);
        size.filter(|_| self.span().is_none())
    }
}

/// Positions of a KV block, which are stored, shared and freed together.
pub const BLOCK_LEN: u64 = 16;

/// Capacity of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Positions of all sequences together.
    pub n_ctx: u64,
    /// Sequences at the same time.
    pub n_seqs: u64,
    /// Maximum number of tokens of a pass.
    pub n_batch: u64,
}

impl Capacity {
    /// Slots of a group of layers, in whole blocks. Where a window is seen, those of a window of
    /// each sequence and of a pass, and as many windows again for the cached rows of ended
    /// sequences, however long the context.
    pub fn slots(&self, cache: &CachePlan) -> u64 {
        if cache.keys == KeysOf::Pass {
            return 0;
        }
        let all = self.n_ctx.div_ceil(BLOCK_LEN);
        let blocks = cache.window().map_or(all, |window| {
            // A window starts and ends anywhere in a block, and so does what a pass adds to it.
            let of_window = window.div_ceil(BLOCK_LEN).saturating_add(1);
            let kept = of_window.saturating_mul(2).saturating_add(1);
            let kept = kept.saturating_mul(self.n_seqs);
            all.min(kept.saturating_add(self.n_batch.div_ceil(BLOCK_LEN)))
        });
        blocks.saturating_mul(BLOCK_LEN)
    }
}

/// A norm at a place in the wiring.
#[derive(Clone, Debug, PartialEq)]
pub struct NormUse {
    /// Path of its result.
    pub path: String,
    /// Kind and eps, a place in [`Plan::norms`].
    pub norm: usize,
    /// Weight, a place in [`Plan::tensors`].
    pub weight: Option<usize>,
    /// Bias, a place in [`Plan::tensors`].
    pub bias: Option<usize>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// Path, such as `layers.3`.
    pub path: String,
    /// Index in its stack.
    pub depth: u64,
    /// The layer of the file, whose tensors and metadata are its.
    pub il: u64,
    /// Its stack, a place in [`crate::arch::ArchDef::stacks`].
    pub stack: usize,
    /// Its slots, in order.
    pub slots: Vec<SlotPlan>,
}

/// One sublayer with at least one active branch; see the formula in `arch`.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "the fields are those of `arch::Slot`, resolved"
)]
pub struct SlotPlan {
    pub path: String,
    /// A place in [`crate::arch::Stack::slots`].
    pub at: usize,
    pub read: Option<Unit>,
    pub from: Option<String>,
    pub pre: Option<NormUse>,
    pub branches: Vec<BranchPlan>,
    pub post: Option<NormUse>,
    pub scale: Option<f64>,
    pub join: Join,
    pub after: Option<NormUse>,
    pub write: Option<Unit>,
}

/// One active branch.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "the fields are those of `arch::Branch`, resolved"
)]
pub struct BranchPlan {
    pub name: String,
    /// A place in [`crate::arch::Slot::branches`].
    pub at: usize,
    pub from: Option<String>,
    pub side: Option<String>,
    pub pre: Option<NormUse>,
    pub block: Unit,
    pub post: Option<NormUse>,
    pub factor: Option<f64>,
    pub save: Option<String>,
}

impl BranchPlan {
    /// The purpose of its block, if the definition names it.
    pub fn role(&self) -> Option<&str> {
        Some(self.name.as_str()).filter(|name| *name != self.block.contract.0.name)
    }

    /// The block's short name, after its role if it has one: `shared MLP`.
    pub fn short(&self) -> String {
        let short = self.block.contract.0.short();
        match self.role() {
            Some(role) => format!("{role} {short}"),
            None => short.to_owned(),
        }
    }
}

/// The end of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadPlan {
    /// Several hidden states to one.
    pub read: Option<Unit>,
    /// Final norm.
    pub norm: Option<NormUse>,
    /// Projection to logits and what follows it; none if the normed hidden state is the result.
    pub unit: Option<Unit>,
}

/// What a model fixes of its text diffusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffusionPlan {
    /// Whether the logits at a position predict the next token.
    pub shift_logits: bool,
}

choices! {
    /// How the vectors of a sequence's tokens become one.
    pub enum Pooling {
        /// Their mean.
        Mean = "mean",
        /// The first one.
        First = "first",
        /// The last one.
        Last = "last",
        /// The largest of each element.
        Max = "max",
        /// Their sum over the square root of their number.
        MeanSqrt = "mean_sqrt",
        /// Their mean, each weighted by its position counted from 1.
        Weighted = "weighted",
    }
}

/// What a plan reads of the existing tensors.
pub trait TensorSet {
    /// Whether a tensor exists. `required` says whether the definition requires it.
    fn has(&self, name: &str, required: bool) -> bool;
    /// Type, shape and bytes as stored; `None` if there is no such tensor or no file.
    fn stored(&self, name: &str) -> Option<(TensorType, &[u64], u64)>;
    /// All names.
    fn names(&self) -> Vec<&str>;
    /// Whether shapes and absences are checked against a file.
    fn is_file(&self) -> bool;
    /// The sources of a tensor, or of one that is missing; for messages.
    fn origin(&self, _name: &str) -> Option<&str> {
        None
    }
}

/// The parameters of a definition that a file has values for, whether something uses them or not; one
/// with a value for each layer is a list.
pub fn parameters(
    def: &ArchDef,
    metadata: &Metadata,
    tensors: &dyn TensorSet,
) -> BTreeMap<String, Value> {
    let facts = Facts::new(def, metadata, tensors);
    let scope = facts.global();
    let value = |name: &String| Some((name.clone(), facts.param(name, &scope, true).ok()?));
    def.params.keys().filter_map(value).collect()
}

impl TensorSet for Weights {
    fn has(&self, name: &str, _required: bool) -> bool {
        self.tensor(name).is_some()
    }

    fn stored(&self, name: &str) -> Option<(TensorType, &[u64], u64)> {
        self.tensor(name)
            .map(|t| (t.ty, t.shape.as_slice(), t.bytes))
    }

    fn names(&self) -> Vec<&str> {
        self.tensors().iter().map(|t| t.name.as_str()).collect()
    }

    fn is_file(&self) -> bool {
        true
    }

    fn origin(&self, name: &str) -> Option<&str> {
        self.origin(name)
    }
}

/// Why a model could not be planned: everything that does not fit, together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The definition.
    pub arch: String,
    /// The problems, in the order of the layers.
    pub problems: Vec<String>,
}

/// Problems shown; every layer tends to repeat the first one's.
const SHOWN: usize = 12;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the model does not fit the architecture `{}`:",
            self.arch
        )?;
        let problems = self.once();
        for problem in problems.iter().take(SHOWN) {
            write!(f, "\n  {problem}")?;
        }
        if problems.len() > SHOWN {
            write!(f, "\n  and {} more", problems.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// A problem without the parts that differ between layers: their numbers, and the place that reads a key.
fn without_layer(problem: &str) -> (String, Option<usize>) {
    const KEY: &str = "missing metadata key";
    match problem.find(KEY) {
        Some(at) => (problem[at..].to_owned(), None),
        None => wording::without_layer(problem),
    }
}

impl std::error::Error for Error {}

impl Error {
    /// The problems, each once for all layers.
    pub fn once(&self) -> Vec<String> {
        wording::by_layer(&self.problems, &without_layer)
    }
}

impl Plan {
    /// Resolves a definition for a model.
    ///
    /// # Errors
    /// Everything that does not fit, together: missing keys and tensors, wrong shapes, broken
    /// rules.
    pub fn new(def: &ArchDef, metadata: &Metadata, tensors: &dyn TensorSet) -> Result<Self, Error> {
        let facts = Facts::new(def, metadata, tensors);
        Planner::new(&facts).plan().map_err(|problems| Error {
            arch: def.name.clone(),
            problems,
        })
    }

    /// How the hidden states of a sequence become one vector.
    pub fn pooling(&self) -> Pooling {
        let kind = self.pool.option("kind").and_then(Pooling::read);
        kind.unwrap_or(Pooling::Mean)
    }

    /// Whether its result is the scores of a sequence's classes.
    pub fn is_classifier(&self) -> bool {
        self.pool.weight("cls").is_some() || self.pool.weight("cls.output").is_some()
    }

    /// Bytes of all tensors in use.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Number of weights (elements) in use.
    pub fn n_weights(&self) -> u64 {
        self.tensors
            .iter()
            .map(|t| t.shape.iter().product::<u64>())
            .sum()
    }

    /// The blocks of all layers, in the order of execution.
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        self.layers
            .iter()
            .flat_map(|layer| &layer.slots)
            .flat_map(|slot| &slot.branches)
            .map(|branch| &branch.block)
    }

    /// Bytes of the caches, with keys and values of these types.
    ///
    /// `None` if a row is not a whole number of blocks of its type.
    pub fn cache_bytes(&self, capacity: Capacity, k: TensorType, v: TensorType) -> Option<u64> {
        self.key_values().try_fold(0u64, |sum, (_, rows)| {
            let values = if rows.v_in_k { 0 } else { v.row_bytes(rows.v)? };
            let row = k.row_bytes(rows.k)?.checked_add(values)?;
            let index = k.row_bytes(rows.index)?;
            let cache = &self.caches[rows.cache];
            let n_slots = capacity.slots(cache);
            let pooled = match &rows.pooled {
                None => 0,
                Some(pooled) => {
                    let n_slots = capacity.slots(&self.caches[pooled.cache]);
                    let row = TensorType::F32.row_bytes(pooled.width)?;
                    row.checked_mul(n_slots)?
                }
            };
            let sum = sum.checked_add(pooled)?;
            let sum = sum.checked_add(index.checked_mul(n_slots)?)?;
            sum.checked_add(row.checked_mul(cache.layout().rows(n_slots))?)
        })
    }

    /// Bytes of the recurrent states of `n_seqs` sequences.
    pub fn recurrent_bytes(&self, n_seqs: u64) -> Option<u64> {
        let parts = self.recurrent().flat_map(|(_, parts)| parts);
        let elements = parts
            .map(|part| part.size)
            .try_fold(0u64, u64::checked_add)?;
        elements
            .checked_mul(size_of::<f32>() as u64)?
            .checked_mul(n_seqs)
    }
}
