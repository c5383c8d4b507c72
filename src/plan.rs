//! A definition and a model file's numbers become a Plan: every layer's slots, blocks, tensor
//! names, shapes, caches and bytes.
//!
//! A plan is inert data that can be printed and compared. It is the one description that is
//! executed (`model`), measured (memory), drawn (`diagram`) and made up at random (`synth`), so
//! they cannot disagree. Planning reads metadata and tensor shapes, never tensor data; all
//! problems come back together.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::{
    ArchDef, Branch, Contract, Head, Instance, Join, Mode, OptionKind, ParamSource, Presence,
    Resolved, Resource, Setting, Slot, StateSpec, WeightRole, nearest,
};
use crate::weights::{Array, Metadata, TensorType, Value as Meta, Weights};

/// Layers beyond any real model; a cap on what a file may make us build.
const MAX_LAYERS: u64 = 4096;

/// A model, resolved.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the architecture.
    pub arch: String,
    /// How it is executed.
    pub mode: Mode,
    /// Width of the stream.
    pub n_embd: u64,
    /// Size of the vocabulary.
    pub n_vocab: u64,
    /// Context length the model was trained for; 0 if the file does not say.
    pub n_ctx_train: u64,
    /// Parameters that something used, with their values.
    pub params: BTreeMap<String, Value>,
    /// Metadata keys that parameters were read from, whether set or not.
    pub keys: BTreeSet<String>,
    /// Tensors that something uses, once each.
    pub tensors: Vec<TensorPlan>,
    /// Distinct norms.
    pub norms: Vec<Unit>,
    /// Distinct ropes.
    pub ropes: Vec<Unit>,
    /// Groups of layers that see the same keys.
    pub caches: Vec<CachePlan>,
    /// Token ids to the stream.
    pub embed: Unit,
    /// A further input for each layer.
    pub per_layer: Option<Unit>,
    /// The layers of all stacks, in order.
    pub layers: Vec<LayerPlan>,
    /// The stream to logits.
    pub head: Option<HeadPlan>,
    /// How the vectors of a text's tokens become one.
    pub pooling: Pooling,
    /// Tensors of the file that nothing uses and the definition does not expect.
    pub unclaimed: Vec<String>,
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
    /// What it does.
    pub role: WeightRole,
}

/// A use of a contract with all its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Path of its values, such as `layers.3.attn`.
    pub path: String,
    /// What it is a use of.
    pub contract: ContractRef,
    /// Options in the order of the contract.
    pub options: Vec<Resolved>,
    /// Weights in the order of the contract, as places in [`Plan::tensors`].
    pub weights: Vec<Option<usize>>,
    /// What it keeps between passes.
    pub state: Option<StatePlan>,
}

impl Unit {
    /// The place in [`Plan::tensors`] of a weight by its key; `None` if it is absent.
    pub fn weight(&self, key: &str) -> Option<usize> {
        let at = self.contract.0.weights.iter().position(|w| w.key == key)?;
        self.weights[at]
    }

    /// The value of a whole-number option.
    pub fn option_int(&self, name: &str) -> Option<u64> {
        let at = self
            .contract
            .0
            .options
            .iter()
            .position(|o| o.name == name)?;
        match self.options[at] {
            Resolved::Int(v) => Some(v),
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

/// What a unit keeps between passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatePlan {
    /// Of every position.
    KeyValue(KeyValuePlan),
    /// Of every sequence.
    Recurrent(Vec<StatePart>),
}

/// What a unit keeps of every position.
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
    /// Whether the values are the head of the keys, so that only those are kept.
    pub v_in_k: bool,
    /// Path of the unit whose rows are used instead of own ones.
    pub owner: Option<String>,
}

/// A part of what a unit keeps of a sequence, f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// Its name in the contract.
    pub name: &'static str,
    /// Its elements.
    pub size: u64,
}

/// A group of layers that see the same keys.
#[derive(Clone, Debug, PartialEq)]
pub struct CachePlan {
    /// Name in the definition.
    pub name: String,
    /// Its resolved options.
    pub unit: Unit,
}

/// A norm at a place in the wiring.
#[derive(Clone, Debug, PartialEq)]
pub struct NormUse {
    /// Path of its result.
    pub path: String,
    /// Kind and eps, a place in [`Plan::norms`].
    pub norm: usize,
    /// Gain, a place in [`Plan::tensors`].
    pub weight: Option<usize>,
    /// Offset, a place in [`Plan::tensors`].
    pub bias: Option<usize>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// Path, such as `layers.3`.
    pub path: String,
    /// Index in its stack.
    pub il: u64,
    /// What it does, in order.
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
    pub from: Option<String>,
    pub pre: Option<NormUse>,
    pub branches: Vec<BranchPlan>,
    pub post: Option<NormUse>,
    pub scale: Option<f64>,
    pub join: Join,
    pub after: Option<NormUse>,
}

/// One active branch.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "the fields are those of `arch::Branch`, resolved"
)]
pub struct BranchPlan {
    pub from: Option<String>,
    pub side: Option<String>,
    pub pre: Option<NormUse>,
    pub block: Unit,
    pub post: Option<NormUse>,
    pub gain: Option<f64>,
    pub save: Option<String>,
}

/// The end of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadPlan {
    /// Final norm.
    pub norm: Option<NormUse>,
    /// Projection to logits and what follows it; none if the normed stream is the result.
    pub unit: Option<Unit>,
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first one.
    First,
    /// The last one.
    Last,
}

/// What a plan may ask of the tensors there are.
pub trait TensorSet {
    /// Whether a tensor is there. `required` tells whether the definition insists on it.
    fn has(&self, name: &str, required: bool) -> bool;
    /// Type, shape and bytes as stored; `None` if there is no such tensor or no file.
    fn stored(&self, name: &str) -> Option<(TensorType, &[u64], u64)>;
    /// All names.
    fn names(&self) -> Vec<&str>;
    /// Whether shapes and absences are checked against a file.
    fn is_file(&self) -> bool;
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
        for problem in self.problems.iter().take(SHOWN) {
            write!(f, "\n  {problem}")?;
        }
        if self.problems.len() > SHOWN {
            write!(f, "\n  and {} more", self.problems.len() - SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl Plan {
    /// Resolves a definition for a model.
    ///
    /// # Errors
    /// Everything that does not fit, together: missing keys and tensors, wrong shapes, broken
    /// rules.
    pub fn new(def: &ArchDef, metadata: &Metadata, tensors: &dyn TensorSet) -> Result<Self, Error> {
        let facts = Facts {
            def,
            metadata,
            tensors,
            values: RefCell::default(),
            keys: RefCell::default(),
            open: RefCell::default(),
        };
        let mut planner = Planner {
            facts: &facts,
            tensors: Vec::new(),
            tensor_index: HashMap::new(),
            norms: Vec::new(),
            ropes: Vec::new(),
            caches: Vec::new(),
            problems: Vec::new(),
        };
        planner.model().ok_or(Error {
            arch: def.name.clone(),
            problems: planner.problems,
        })
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

    fn units(&self) -> impl Iterator<Item = &Unit> {
        self.layers
            .iter()
            .flat_map(|layer| &layer.slots)
            .flat_map(|slot| &slot.branches)
            .map(|branch| &branch.block)
    }

    /// Every unit that keeps keys and values of its own, in the order of execution.
    pub fn key_values(&self) -> impl Iterator<Item = (&Unit, &KeyValuePlan)> {
        self.units().filter_map(|unit| match unit.state.as_ref()? {
            StatePlan::KeyValue(rows) if rows.owner.is_none() => Some((unit, rows)),
            _ => None,
        })
    }

    /// Every unit that keeps something of a sequence, in the order of execution.
    pub fn recurrent(&self) -> impl Iterator<Item = (&Unit, &[StatePart])> {
        self.units().filter_map(|unit| match unit.state.as_ref()? {
            StatePlan::Recurrent(parts) => Some((unit, parts.as_slice())),
            StatePlan::KeyValue(_) => None,
        })
    }

    /// Bytes of the caches for `n_cells` positions, with keys and values of these types.
    ///
    /// `None` if a row is not a whole number of blocks of its type.
    pub fn cache_bytes(&self, n_cells: u64, k: TensorType, v: TensorType) -> Option<u64> {
        self.key_values().try_fold(0u64, |sum, (_, rows)| {
            let values = if rows.v_in_k { 0 } else { v.row_bytes(rows.v)? };
            let row = k.row_bytes(rows.k)?.checked_add(values)?;
            sum.checked_add(row.checked_mul(n_cells)?)
        })
    }

    /// Bytes of what is kept of `n_seqs` sequences beside keys and values.
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

/// What expressions can ask: parameters, metadata and tensors, with values remembered.
struct Facts<'a> {
    def: &'a ArchDef,
    metadata: &'a Metadata,
    tensors: &'a dyn TensorSet,
    /// Values by name and layer; the layer is `None` for what does not depend on it.
    values: RefCell<HashMap<(String, Option<u64>), Value>>,
    /// Metadata keys that were asked for.
    keys: RefCell<BTreeSet<String>>,
    /// Parameters being evaluated, innermost last.
    open: RefCell<Vec<String>>,
}

/// A layer as expressions see it.
#[derive(Clone)]
struct LayerScope<'a> {
    facts: &'a Facts<'a>,
    il: Option<u64>,
    prefix: &'a str,
}

impl Facts<'_> {
    fn param(&self, name: &str, scope: &LayerScope<'_>, whole: bool) -> Result<Value, String> {
        if !whole && let Some(value) = self.values.borrow().get(&(name.to_owned(), scope.il)) {
            return Ok(value.clone());
        }
        let Some(param) = self.def.params.get(name) else {
            return Err(format!("unknown parameter `{name}`"));
        };
        if self.open.borrow().iter().any(|open| open == name) {
            return Err(format!("`{name}` depends on itself"));
        }
        self.open.borrow_mut().push(name.to_owned());
        let value = match &param.source {
            ParamSource::Derived(expr) => expr
                .evaluate(scope)
                .map_err(|e| format!("`{name}` = {expr}: {e}")),
            ParamSource::Key {
                keys,
                absolute,
                default,
                zero_is_value,
                ..
            } => match self.keyed(name, keys, *absolute, *zero_is_value) {
                Some(value) => Ok(value),
                None => match default {
                    Some(default) => default.evaluate(scope),
                    None => Err(self.missing(name, keys, *absolute)),
                },
            },
        };
        self.open.borrow_mut().pop();
        let value = value?;
        if whole {
            return Ok(value);
        }
        let value = match value {
            Value::List(items) => {
                let Some(il) = scope.il else {
                    return Err(format!(
                        "`{name}` has a value for each layer and is asked for outside a layer"
                    ));
                };
                let found = items.get(il as usize).cloned();
                found.ok_or_else(|| {
                    format!(
                        "`{name}` has {} values and none for layer {il}",
                        items.len()
                    )
                })?
            }
            single => single,
        };
        self.values
            .borrow_mut()
            .insert((name.to_owned(), scope.il), value.clone());
        Ok(value)
    }

    fn keyed(
        &self,
        name: &str,
        keys: &[String],
        absolute: bool,
        zero_is_value: bool,
    ) -> Option<Value> {
        keys.iter().find_map(|key| {
            let full = if absolute {
                key.clone()
            } else {
                format!("{}.{key}", self.def.name)
            };
            self.keys.borrow_mut().insert(full.clone());
            let value = convert(self.metadata.get(&full)?)?;
            let zero =
                |v: &Value| matches!(v, Value::Int(0)) || matches!(v, Value::Float(f) if *f == 0.0);
            let unset = match &value {
                Value::List(items) => items.iter().all(zero),
                single => zero(single),
            };
            tracing::trace!(param = name, key = full, %value, "parameter");
            (zero_is_value || !unset).then_some(value)
        })
    }

    fn missing(&self, name: &str, keys: &[String], absolute: bool) -> String {
        let key = keys.first().map_or("", String::as_str);
        let full = if absolute {
            key.to_owned()
        } else {
            format!("{}.{key}", self.def.name)
        };
        let hint = nearest(
            &full,
            self.metadata
                .iter()
                .map(|(key, _)| key)
                .filter(|key| *key != full),
        );
        let hint = hint
            .map(|near| format!("; the file has `{near}`"))
            .unwrap_or_default();
        format!("missing metadata key `{full}` (parameter `{name}`){hint}")
    }
}

/// A metadata value as a value of the language; strings in arrays are of no use to it.
fn convert(value: &Meta) -> Option<Value> {
    Some(match value {
        Meta::Bool(v) => Value::Bool(*v),
        Meta::Str(v) => Value::Str(v.clone()),
        Meta::F32(v) => Value::Float(shortest(*v)),
        Meta::F64(v) => Value::Float(*v),
        Meta::Array(Array::Str(_)) => return None,
        Meta::Array(array) => Value::List(
            (0..array.len())
                .map(|i| convert(&array.get(i)?))
                .collect::<Option<_>>()?,
        ),
        integer => Value::Int(integer.as_i64()?),
    })
}

/// The shortest decimal that reads back as the same f32: 1e-6 stays 1e-6 in print, and turning
/// it into f32 again gives the stored bits.
fn shortest(v: f32) -> f64 {
    v.to_string().parse().unwrap_or(f64::from(v))
}

impl Scope for LayerScope<'_> {
    fn name(&self, name: &str, whole: bool) -> Result<Value, String> {
        if name == "il" {
            let il = self.il.ok_or("`il` has no value outside a layer")?;
            return Ok(Value::Int(il as i64));
        }
        self.facts.param(name, self, whole)
    }

    fn has(&self, weight: &str) -> Result<bool, String> {
        let local = format!("{}{weight}", self.prefix);
        Ok(self.facts.tensors.has(&local, false) || self.facts.tensors.has(weight, false))
    }

    fn dim(&self, weight: &str, index: i64) -> Result<i64, String> {
        let local = format!("{}{weight}", self.prefix);
        let stored = self
            .facts
            .tensors
            .stored(&local)
            .or_else(|| self.facts.tensors.stored(weight));
        let Some((_, shape, _)) = stored else {
            if !self.facts.tensors.is_file() {
                return Ok(0);
            }
            return Err(format!("there is no tensor `{local}`"));
        };
        let index = usize::try_from(index).map_err(|_| "a dimension is numbered from 0")?;
        Ok(shape.get(index).map_or(1, |n| *n as i64))
    }

    fn count(&self, key: &str) -> Result<i64, String> {
        let facts = self.facts;
        let relative = format!("{}.{key}", facts.def.name);
        Ok(facts
            .metadata
            .array(&relative)
            .or_else(|| facts.metadata.array(key))
            .map_or(0, |array| array.len() as i64))
    }
}

/// An instance as its contract's expressions see it: options first, then the layer.
struct UnitScope<'a> {
    layer: &'a LayerScope<'a>,
    instance: &'a Instance,
    /// Options resolved so far, in the order of the contract.
    options: &'a [Resolved],
    /// A name that the place of use gives, such as a norm's width.
    given: Option<(&'static str, u64)>,
}

impl Scope for UnitScope<'_> {
    fn name(&self, name: &str, whole: bool) -> Result<Value, String> {
        if let Some((given, value)) = self.given
            && given == name
        {
            return Ok(Value::Int(value as i64));
        }
        let specs = self.instance.contract.options;
        // A default speaks of the options before its own; `causal = "causal"` is the parameter.
        match specs
            .iter()
            .position(|o| o.name == name)
            .and_then(|at| self.options.get(at))
        {
            Some(option) => Ok(option.to_value()),
            None => self.layer.name(name, whole),
        }
    }

    fn has(&self, key: &str) -> Result<bool, String> {
        let specs = self.instance.contract.weights;
        let Some(at) = specs.iter().position(|w| w.key == key) else {
            return self.layer.has(key);
        };
        let weight = &self.instance.weights[at];
        if weight.presence == Presence::Forbidden {
            return Ok(false);
        }
        let name = format!("{}{}", self.layer.prefix, weight.tensor);
        Ok(self
            .layer
            .facts
            .tensors
            .has(&name, weight.presence == Presence::Required))
    }

    fn dim(&self, key: &str, index: i64) -> Result<i64, String> {
        let specs = self.instance.contract.weights;
        match specs.iter().position(|w| w.key == key) {
            Some(at) => self.layer.dim(&self.instance.weights[at].tensor, index),
            None => self.layer.dim(key, index),
        }
    }

    fn count(&self, key: &str) -> Result<i64, String> {
        self.layer.count(key)
    }
}

struct Planner<'a> {
    facts: &'a Facts<'a>,
    tensors: Vec<TensorPlan>,
    tensor_index: HashMap<String, usize>,
    norms: Vec<Unit>,
    ropes: Vec<Unit>,
    caches: Vec<CachePlan>,
    problems: Vec<String>,
}

impl<'a> Planner<'a> {
    fn problem<T>(&mut self, message: String) -> Option<T> {
        if !self.problems.contains(&message) {
            self.problems.push(message);
        }
        None
    }

    fn model(&mut self) -> Option<Plan> {
        let def = self.facts.def;
        let global = LayerScope {
            facts: self.facts,
            il: None,
            prefix: "",
        };
        let n_embd = self.number(&global, "n_embd");
        let n_vocab = self.number(&global, "n_vocab");
        let n_ctx_train = match self.facts.param("n_ctx_train", &global, false) {
            Ok(Value::Int(n)) if n > 0 => n as u64,
            _ => 0,
        };
        // Without the two sizes everything below would fail for the same reason.
        let (n_embd, n_vocab) = (n_embd?, n_vocab?);
        let embed = self.unit("embed", &def.embed, &global, None);
        let per_layer = match &def.per_layer {
            Some(instance) => Some(self.unit("per_layer_input", instance, &global, None)?),
            None => None,
        };
        let pooling = match self.facts.param("pooling", &global, false) {
            Ok(Value::Int(2)) => Pooling::First,
            Ok(Value::Int(3)) => Pooling::Last,
            _ => Pooling::Mean,
        };
        let mut layers = Vec::new();
        for stack in &def.stacks {
            let count = self.evaluate(&stack.count, &global, &format!("{}: count", stack.name));
            let count = match count {
                Some(Value::Int(n)) if (1..=MAX_LAYERS as i64).contains(&n) => n as u64,
                Some(other) => self.problem(format!(
                    "{}: the number of layers is {other}, expected 1 to {MAX_LAYERS}",
                    stack.name
                ))?,
                None => continue,
            };
            for il in 0..count {
                let prefix = stack.prefix.replace("{il}", &il.to_string());
                let scope = LayerScope {
                    facts: self.facts,
                    il: Some(il),
                    prefix: &prefix,
                };
                let path = format!("{}.{il}", stack.name);
                let slots = stack
                    .slots
                    .iter()
                    .filter_map(|slot| self.slot(slot, &path, &scope, n_embd))
                    .collect();
                layers.push(LayerPlan { path, il, slots });
            }
        }
        let head = match &def.head {
            Some(head) => {
                let table = embed.as_ref().and_then(|embed| embed.weight("tokens"));
                Some(self.head(head, table, &global, n_embd)?)
            }
            None => None,
        };
        let unclaimed = self.unclaimed();
        let embed = embed?;
        if !self.problems.is_empty() {
            return None;
        }
        let params = self
            .facts
            .values
            .take()
            .into_iter()
            .filter(|((_, il), _)| il.is_none());
        Some(Plan {
            arch: def.name.clone(),
            mode: def.mode,
            n_embd,
            n_vocab,
            n_ctx_train,
            params: params.map(|((name, _), value)| (name, value)).collect(),
            keys: self.facts.keys.take(),
            tensors: std::mem::take(&mut self.tensors),
            norms: std::mem::take(&mut self.norms),
            ropes: std::mem::take(&mut self.ropes),
            caches: std::mem::take(&mut self.caches),
            embed,
            per_layer,
            layers,
            head,
            pooling,
            unclaimed,
        })
    }

    fn number(&mut self, scope: &LayerScope<'_>, name: &str) -> Option<u64> {
        match self.facts.param(name, scope, false) {
            Ok(Value::Int(n)) if n > 0 => Some(n as u64),
            Ok(other) => self.problem(format!("`{name}` is {other}, expected a positive integer")),
            Err(error) => self.problem(error),
        }
    }

    fn evaluate(&mut self, expr: &Expr, scope: &dyn Scope, what: &str) -> Option<Value> {
        match expr.evaluate(scope) {
            Ok(value) => Some(value),
            Err(error) => self.problem(format!("{what}: {error}")),
        }
    }

    fn holds(&mut self, when: Option<&Expr>, scope: &LayerScope<'_>, path: &str) -> Option<bool> {
        let Some(when) = when else { return Some(true) };
        match self.evaluate(when, scope, &format!("{path}: when"))? {
            Value::Bool(holds) => Some(holds),
            other => self.problem(format!(
                "{path}: when: expected true or false, found `{other}`"
            )),
        }
    }

    fn slot(
        &mut self,
        slot: &'a Slot,
        layer: &str,
        scope: &LayerScope<'_>,
        n_embd: u64,
    ) -> Option<SlotPlan> {
        let path = format!("{layer}.{}", slot.name);
        if !self.holds(slot.when.as_ref(), scope, &path)? {
            return None;
        }
        let mut active = Vec::new();
        for branch in &slot.branches {
            if self.holds(branch.when.as_ref(), scope, &path)? {
                active.push(branch);
            }
        }
        if active.is_empty() {
            return None;
        }
        let alone = active.len() == 1
            && slot
                .branches
                .iter()
                .all(|b| b.name == active[0].name || b.when.is_some());
        let branches: Vec<Option<BranchPlan>> = active
            .into_iter()
            .map(|branch| {
                let inner = if alone {
                    path.clone()
                } else {
                    format!("{path}.{}", branch.name)
                };
                self.branch(branch, &inner, scope, n_embd)
            })
            .collect();
        let pre = self.norm(slot.pre.as_ref(), &path, "in", scope, n_embd);
        let post = self.norm(slot.post.as_ref(), &path, "out", scope, n_embd);
        let after = self.norm(slot.after.as_ref(), &path, "after", scope, n_embd);
        let scale = self.factor(slot.scale.as_ref(), &path, scope);
        Some(SlotPlan {
            from: slot.from.as_ref().map(|f| f.value.clone()),
            pre: pre?,
            branches: branches.into_iter().collect::<Option<_>>()?,
            post: post?,
            scale: scale?,
            join: slot.join,
            after: after?,
            path,
        })
    }

    fn branch(
        &mut self,
        branch: &'a Branch,
        path: &str,
        scope: &LayerScope<'_>,
        n_embd: u64,
    ) -> Option<BranchPlan> {
        let pre = self.norm(branch.pre.as_ref(), path, "in", scope, n_embd);
        let post = self.norm(branch.post.as_ref(), path, "out", scope, n_embd);
        let gain = self.factor(branch.gain.as_ref(), path, scope);
        let block = self.unit(path, &branch.block, scope, None);
        Some(BranchPlan {
            from: branch.from.as_ref().map(|f| f.value.clone()),
            side: branch.side.as_ref().map(|f| f.value.clone()),
            pre: pre?,
            block: block?,
            post: post?,
            gain: gain?,
            save: branch.save.as_ref().map(|s| s.value.clone()),
        })
    }

    /// A factor; 1 and "not given" are the same.
    #[expect(
        clippy::option_option,
        reason = "outer: the plan holds; inner: there is a factor"
    )]
    fn factor(
        &mut self,
        setting: Option<&Setting>,
        path: &str,
        scope: &LayerScope<'_>,
    ) -> Option<Option<f64>> {
        let Some(setting) = setting else {
            return Some(None);
        };
        match self.evaluate(&setting.expr, scope, path)? {
            Value::Int(1) => Some(None),
            Value::Int(v) => Some(Some(v as f64)),
            Value::Float(v) if v.is_finite() => Some((v != 1.0).then_some(v)),
            other => self.problem(format!("{path}: expected a finite factor, found `{other}`")),
        }
    }

    /// A norm by name: a declared one, or the default kind with the weight of that name.
    #[expect(
        clippy::option_option,
        reason = "outer: the plan holds; inner: there is a norm"
    )]
    fn norm(
        &mut self,
        setting: Option<&Setting>,
        path: &str,
        place: &str,
        scope: &LayerScope<'_>,
        width: u64,
    ) -> Option<Option<NormUse>> {
        let Some(setting) = setting else {
            return Some(None);
        };
        let name = match self.evaluate(&setting.expr, scope, path)? {
            Value::Str(name) if name.is_empty() || name == "none" => return Some(None),
            Value::Str(name) => name,
            other => {
                return self.problem(format!(
                    "{path}: expected the name of a norm, found `{other}`"
                ));
            }
        };
        let declared = |name: &str| {
            self.facts
                .def
                .resources
                .get(&(Resource::Norm, name.to_owned()))
        };
        let Some(instance) = declared(&name).or_else(|| declared("default")) else {
            return self.problem(format!("{path}: there is no `[norm.default]`"));
        };
        let mut instance = instance.value.clone();
        for weight in &mut instance.weights {
            weight.tensor = weight.tensor.replace("{name}", &name);
        }
        let path = format!("{path}.{place}");
        let unit = self.unit(&path, &instance, scope, Some(("width", width)))?;
        let (weight, bias) = (unit.weight("weight"), unit.weight("bias"));
        let kind = Unit {
            path: String::new(),
            weights: Vec::new(),
            ..unit
        };
        let norm = place_of(&mut self.norms, kind);
        Some(Some(NormUse {
            path,
            norm,
            weight,
            bias,
        }))
    }

    fn head(
        &mut self,
        head: &Head,
        table: Option<usize>,
        global: &LayerScope<'_>,
        n_embd: u64,
    ) -> Option<HeadPlan> {
        let norm = self.norm(head.norm.as_ref(), "head", "in", global, n_embd)?;
        if self.facts.def.mode == Mode::Encoder {
            return Some(HeadPlan { norm, unit: None });
        }
        let mut unit = self.unit("head", &head.unit, global, None)?;
        // A head without a matrix of its own projects with the token table.
        if let Some(output) = unit
            .contract
            .0
            .weights
            .iter()
            .position(|w| w.key == "output")
            && unit.weights[output].is_none()
        {
            unit.weights[output] = table;
        }
        Some(HeadPlan {
            norm,
            unit: Some(unit),
        })
    }

    /// A use of a contract: options, weights, rules and state.
    fn unit(
        &mut self,
        path: &str,
        instance: &Instance,
        layer: &LayerScope<'_>,
        given: Option<(&'static str, u64)>,
    ) -> Option<Unit> {
        let contract = instance.contract;
        let mut options: Vec<Resolved> = Vec::with_capacity(contract.options.len());
        for (spec, setting) in contract.options.iter().zip(&instance.options) {
            let what = format!("{path}: {}", spec.name);
            let value = if setting.span.is_some() {
                self.evaluate(&setting.expr, layer, &what)?
            } else {
                let scope = UnitScope {
                    layer,
                    instance,
                    options: &options,
                    given,
                };
                self.evaluate(&setting.expr, &scope, &what)?
            };
            let resolved = self.resolve(spec.kind, value, &what, layer)?;
            options.push(resolved);
        }
        let scope = UnitScope {
            layer,
            instance,
            options: &options,
            given,
        };
        for (rule, spec) in instance.rules.iter().zip(contract.rules) {
            if self.evaluate(rule, &scope, path)? != Value::Bool(true) {
                self.problem::<()>(format!(
                    "{path}: {} ({} is not true)",
                    spec.message, spec.holds
                ));
            }
        }
        let weights = self.weights(path, instance, &scope);
        let state = match contract.state {
            StateSpec::None => None,
            StateSpec::KeyValue { cache, layer, .. } => Some(StatePlan::KeyValue(
                self.key_values(path, &scope, cache, layer)?,
            )),
            StateSpec::Recurrent(parts) => {
                let parts = parts.iter().zip(&instance.state);
                let parts: Option<Vec<StatePart>> = parts
                    .map(|((name, _), expr)| {
                        let size = self.size(expr, &scope, path)?;
                        Some(StatePart { name, size })
                    })
                    .collect();
                Some(StatePlan::Recurrent(parts?))
            }
        };
        Some(Unit {
            path: path.to_owned(),
            contract: ContractRef(contract),
            options,
            weights: weights?,
            state,
        })
    }

    fn key_values(
        &mut self,
        path: &str,
        scope: &UnitScope<'_>,
        cache: &str,
        layer: Option<&str>,
    ) -> Option<KeyValuePlan> {
        let specs = scope.instance.contract.options;
        let option = |name: &str| {
            let at = specs.iter().position(|o| o.name == name)?;
            scope.options.get(at)
        };
        let [k, v, heads, v_in_k] = scope.instance.state.as_slice() else {
            return None;
        };
        let owner = match layer.and_then(option) {
            Some(Resolved::Int(owner)) if Some(*owner) != scope.layer.il => {
                Some(self.owner(path, *owner, scope.layer)?)
            }
            _ => None,
        };
        let Some(Resolved::Resource(Some(cache))) = option(cache) else {
            return None;
        };
        Some(KeyValuePlan {
            cache: *cache,
            k: self.size(k, scope, path)?,
            v: self.size(v, scope, path)?,
            heads: self.size(heads, scope, path)?,
            v_in_k: self.evaluate(v_in_k, scope, path)? == Value::Bool(true),
            owner,
        })
    }

    /// The path of the same unit in an earlier layer.
    fn owner(&mut self, path: &str, layer: u64, scope: &LayerScope<'_>) -> Option<String> {
        let il = scope.il?;
        let own = format!(".{il}.");
        if layer > il || !path.contains(&own) {
            return self.problem(format!(
                "{path}: reads the keys of layer {layer}, which does not come before it"
            ));
        }
        Some(path.replacen(&own, &format!(".{layer}."), 1))
    }

    fn size(&mut self, expr: &Expr, scope: &dyn Scope, what: &str) -> Option<u64> {
        match self.evaluate(expr, scope, what)? {
            Value::Int(n) if n > 0 => Some(n as u64),
            other => self.problem(format!(
                "{what}: {expr} is {other}, expected a positive integer"
            )),
        }
    }

    fn resolve(
        &mut self,
        kind: OptionKind,
        value: Value,
        what: &str,
        layer: &LayerScope<'_>,
    ) -> Option<Resolved> {
        match (kind, value) {
            (OptionKind::Int, Value::Int(v)) if v >= 0 => Some(Resolved::Int(v as u64)),
            (OptionKind::Float, Value::Int(v)) => Some(Resolved::Float(v as f64)),
            (OptionKind::Float, Value::Float(v)) if v.is_finite() => Some(Resolved::Float(v)),
            (OptionKind::Bool, Value::Bool(v)) => Some(Resolved::Bool(v)),
            (OptionKind::Choice(names), Value::Str(v)) => {
                match names.iter().find(|name| **name == v) {
                    Some(name) => Some(Resolved::Choice(name)),
                    None => self.problem(format!("{what}: `{v}` is none of {}", names.join(", "))),
                }
            }
            (OptionKind::Resource(_), Value::Str(v)) if v == "none" || v.is_empty() => {
                Some(Resolved::Resource(None))
            }
            (OptionKind::Resource(kind), Value::Str(v)) => self.resource(kind, &v, what, layer),
            (kind, value) => {
                let expected = match kind {
                    OptionKind::Int => "an integer from 0",
                    OptionKind::Float => "a finite number",
                    OptionKind::Bool => "true or false",
                    _ => "a name",
                };
                self.problem(format!("{what}: expected {expected}, found `{value}`"))
            }
        }
    }

    fn resource(
        &mut self,
        kind: Resource,
        name: &str,
        what: &str,
        layer: &LayerScope<'_>,
    ) -> Option<Resolved> {
        let Some(instance) = self.facts.def.resources.get(&(kind, name.to_owned())) else {
            return self.problem(format!("{what}: there is no `[{}.{name}]`", kind.name()));
        };
        // A resource's tensors are global: one table of factors serves every layer.
        let scope = LayerScope {
            prefix: "",
            ..layer.clone()
        };
        let path = format!("{}.{name}", kind.name());
        let mut instance = instance.value.clone();
        if kind == Resource::Norm {
            // Named as an option, a norm lends its kind and eps; the block has the weight.
            instance.weights.clear();
        }
        let mut unit = self.unit(&path, &instance, &scope, None)?;
        let place = match kind {
            Resource::Rope => place_of(&mut self.ropes, unit),
            Resource::Norm => {
                unit.path.clear();
                place_of(&mut self.norms, unit)
            }
            Resource::Cache => place_of(
                &mut self.caches,
                CachePlan {
                    name: name.to_owned(),
                    unit,
                },
            ),
        };
        Some(Resolved::Resource(Some(place)))
    }

    fn weights(
        &mut self,
        path: &str,
        instance: &Instance,
        scope: &UnitScope<'_>,
    ) -> Option<Vec<Option<usize>>> {
        let mut out = Vec::with_capacity(instance.weights.len());
        let mut sound = true;
        for (spec, weight) in instance.contract.weights.iter().zip(&instance.weights) {
            let belongs = self.evaluate(&weight.when, scope, path)? == Value::Bool(true);
            if !belongs || !scope.has(spec.key).unwrap_or(false) {
                if belongs && weight.presence == Presence::Required {
                    sound = false;
                    let name = format!("{}{}", scope.layer.prefix, weight.tensor);
                    let names = self.facts.tensors.names();
                    let near = nearest(&name, names).filter(|_| self.facts.tensors.is_file());
                    let hint = near
                        .map(|near| format!("; the file has `{near}`"))
                        .unwrap_or_default();
                    self.problem::<()>(format!(
                        "{path}: missing tensor `{name}` ({}){hint}",
                        spec.doc
                    ));
                }
                out.push(None);
                continue;
            }
            let name = format!("{}{}", scope.layer.prefix, weight.tensor);
            let shape: Option<Vec<u64>> = weight
                .shape
                .iter()
                .map(|dim| self.size(dim, scope, &format!("{path}: {name}")))
                .collect();
            // Trailing ones are not written to files.
            let shape = shape.map(|mut shape| {
                while shape.len() > 1 && shape.last() == Some(&1) {
                    shape.pop();
                }
                shape
            });
            let place = shape.and_then(|shape| self.tensor(path, name, shape, weight, spec.role));
            sound &= place.is_some();
            out.push(place);
        }
        sound.then_some(out)
    }

    fn tensor(
        &mut self,
        path: &str,
        name: String,
        shape: Vec<u64>,
        weight: &crate::arch::WeightUse,
        role: WeightRole,
    ) -> Option<usize> {
        if let Some(&at) = self.tensor_index.get(&name) {
            if self.tensors[at].shape == shape {
                return Some(at);
            }
            let other = show(&self.tensors[at].shape);
            return self.problem(format!(
                "{path}: `{name}` is used as {} and as {other}",
                show(&shape)
            ));
        }
        let (ty, bytes) = match self.facts.tensors.stored(&name) {
            Some((ty, stored, bytes)) => {
                if !same_shape(&shape, stored) {
                    let symbols: Vec<_> = weight.shape.iter().map(Expr::source).collect();
                    return self.problem(format!(
                        "{path}: tensor `{name}` has the shape {}, expected {} = [{}]",
                        show(stored),
                        show(&shape),
                        symbols.join(", ")
                    ));
                }
                (Some(ty), bytes)
            }
            None => match TensorType::F32.tensor_bytes(&shape) {
                Some(bytes) => (None, bytes),
                None => {
                    return self.problem(format!("{path}: `{name}` {} is too large", show(&shape)));
                }
            },
        };
        self.tensor_index.insert(name.clone(), self.tensors.len());
        self.tensors.push(TensorPlan {
            name,
            shape,
            ty,
            bytes,
            role,
        });
        Some(self.tensors.len() - 1)
    }

    fn unclaimed(&self) -> Vec<String> {
        let expected = |name: &str| {
            self.facts
                .def
                .ignore
                .iter()
                .any(|p| matches(&p.value, name))
        };
        // Prediction heads lie behind the last layer, as further layers that are left alone.
        let is_behind = |name: &str| {
            let global = LayerScope {
                facts: self.facts,
                il: None,
                prefix: "",
            };
            let number = |name: &str| match self.facts.param(name, &global, false) {
                Ok(Value::Int(n)) => n,
                _ => 0,
            };
            let (n_layer, n_nextn) = (number("n_layer"), number("n_nextn"));
            self.facts.def.stacks.iter().any(|stack| {
                (n_layer..n_layer + n_nextn)
                    .any(|il| name.starts_with(&stack.prefix.replace("{il}", &il.to_string())))
            })
        };
        let names = self.facts.tensors.names().into_iter();
        names
            .filter(|name| !is_behind(name))
            .filter(|name| !self.tensor_index.contains_key(*name) && !expected(name))
            .map(str::to_owned)
            .collect()
    }
}

fn place_of<T: PartialEq>(items: &mut Vec<T>, item: T) -> usize {
    if let Some(at) = items.iter().position(|other| *other == item) {
        return at;
    }
    items.push(item);
    items.len() - 1
}

/// Shapes are equal up to trailing ones, which file formats drop.
fn same_shape(a: &[u64], b: &[u64]) -> bool {
    let n = a.len().max(b.len());
    (0..n).all(|i| a.get(i).unwrap_or(&1) == b.get(i).unwrap_or(&1))
}

/// A shape for messages.
fn show(shape: &[u64]) -> String {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// Whether a name fits a pattern in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}
