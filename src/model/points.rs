//! The points of a plan: every value that a pass names, with its shape, meaning and other names.
//!
//! A point is what a block lets its value pass ([`Build::point`](crate::blocks::Build::point)). They are
//! found by building the graph of a plan over tensors that are only described: nothing is loaded.

use std::collections::HashMap;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::arch::{Parts, PointSpec, nearest};
use crate::blocks::points::{BRANCH_RAW, SLOT_SUM, SLOT_X};
use crate::blocks::position_bias::TABLE;
use crate::ggml::Error;
use crate::plan::{BranchPlan, Plan, StatePlan};
use crate::weights::TensorType;

use super::options::Options;
use super::shape::Shape;
use super::trace;

/// A value that can be read, and as a rule changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its path, such as `layers.3.attn.q`.
    pub path: String,
    /// Other names: `layers.3.out`, `blocks.3.hook_resid_post`.
    pub aliases: Vec<String>,
    /// Dimensions for one token in ggml order; 0 stands for the number of keys.
    pub shape: Vec<u64>,
    /// Type of its elements.
    pub ty: TensorType,
    /// Of attention weights the group of layers whose keys they are for; none where keys are selected, where scores have a
    /// bias by distance, and in models that read a source.
    pub(super) group: Option<usize>,
    /// What is stated of it.
    pub spec: &'static PointSpec,
}

impl Point {
    /// Elements for one token; of attention weights, for each key.
    pub fn width(&self) -> u64 {
        self.shape.iter().filter(|n| **n > 0).product()
    }

    /// The name by which a pattern finds it.
    pub fn name_by(&self, pattern: &str) -> &str {
        let mut names = self.aliases.iter().chain([&self.path]);
        let found = names.find(|name| *name == pattern || is_like(pattern, name));
        found.unwrap_or(&self.path)
    }

    /// Whether edits can change it.
    pub fn is_editable(&self) -> bool {
        !matches!(self.spec.parts, Parts::Pairs | Parts::Indices) && self.path != LOGITS
    }

    /// Whether it has a row for each output alone, not for each token.
    pub(super) fn is_of_head(&self) -> bool {
        self.path.starts_with("head.")
    }

    /// Whether requests can capture it: scores before the softmax are there where passes keep all values.
    pub fn is_capturable(&self) -> bool {
        self.spec.parts != Parts::Pairs || self.group.is_some()
    }

    /// How it is computed, where that is not as part of the pass.
    pub fn forces(&self) -> Option<&'static str> {
        match (self.spec.parts, self.group) {
            (Parts::Pairs, None) => Some("only without flash attention, in `bench compare`"),
            (Parts::Pairs, Some(_)) => Some("computed in addition, for captured tokens"),
            _ => None,
        }
    }
}

/// The group of layers of the keys that attention weights are for.
fn group_of(plan: &Plan, path: &str) -> Option<usize> {
    let path = path.strip_suffix(".weights")?;
    let mut units = plan.key_values();
    let (unit, rows) = units.find(|(unit, _)| unit.path == path)?;
    let is_plain = plan.selection(unit).is_none() && unit.weight(TABLE).is_none();
    // Keys of a source lie before those of the tokens.
    (is_plain && plan.source.is_none()).then_some(rows.cache)
}

/// The path of the logits.
pub const LOGITS: &str = "head.logits";

/// Why a name stands for no point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no point is named `{name}`{}", nearest.as_deref().map(|n| format!("; nearest: `{n}`")).unwrap_or_default())]
pub struct UnknownPoint {
    /// The name.
    pub name: String,
    /// The most similar name.
    pub nearest: Option<String>,
}

/// Heads whose results one matrix sums up: what follows it in their slot is linear but for the sizes of what norms read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadSum {
    /// The place of the point that the matrix reads, `[d, heads]`.
    pub heads: usize,
    /// The places of the points that norms after it read, in their order.
    pub normed: Vec<usize>,
    /// The place of the hidden state after the slot.
    pub after: usize,
    /// Layer, slot and branch in the plan.
    pub(super) at: [usize; 3],
}

/// The points of a model.
#[derive(Clone, Debug, Default)]
pub struct Points {
    /// In the order of computation.
    pub all: Vec<Point>,
    /// Where attention adds the results of its heads to the hidden state.
    pub head_sums: Vec<HeadSum>,
    by_name: HashMap<String, usize>,
}

/// The weight that sums up the heads of a block.
pub(super) const HEADS_MATRIX: &str = "o";

/// Longest name of a point in a request, in bytes.
const MAX_NAME: usize = 200;

/// Positions for which the described cache has room.
const N_CTX: usize = 64;

/// Tokens of the described pass: no other dimension tells as well where the tokens are.
const N_TOKENS: usize = 2;

impl Points {
    /// The points of a plan.
    ///
    /// # Errors
    /// Blocks that refuse their arguments.
    pub fn of(plan: &Plan) -> Result<Self, Error> {
        let options = Options {
            flash_attn: false,
            capture: true,
            ..Options::plain(N_CTX, N_TOKENS)
        };
        let shape = Shape {
            n_outputs: N_TOKENS,
            ..Shape::largest(&options, plan, &options.n_slots(plan))
        };
        let (_, pass, _) = trace::described(plan, &options, &shape)?;
        let all = pass.captured.iter().map(|value| {
            let mut shape = value.tensor.shape().to_vec();
            match value.spec.parts {
                // [n_kv, n_tokens, heads, n_runs]
                Parts::Pairs => shape = vec![0, shape[2]],
                _ => {
                    // The dimensions after the tokens are 1.
                    let tokens = shape.iter().rposition(|n| *n == N_TOKENS as u64);
                    shape.truncate(tokens.unwrap_or(shape.len()));
                }
            }
            Point {
                path: value.path.clone(),
                aliases: Vec::new(),
                shape,
                ty: value.tensor.ty(),
                group: group_of(plan, &value.path),
                spec: value.spec,
            }
        });
        let mut this = Self {
            all: all.collect(),
            ..Self::default()
        };
        let paths = this.all.iter().enumerate();
        this.by_name = paths.map(|(at, point)| (point.path.clone(), at)).collect();
        this.name(plan);
        this.head_sums = this.sums(plan);
        Ok(this)
    }

    /// The slots whose heads are summed up by a matrix. A norm after the addition would read other parts too, so these have none.
    fn sums(&self, plan: &Plan) -> Vec<HeadSum> {
        let place = |path: &str, name: &str| self.by_name.get(&format!("{path}.{name}")).copied();
        let mut out = Vec::new();
        for (layer, of_layer) in plan.layers.iter().enumerate() {
            for (slot, of_slot) in of_layer.slots.iter().enumerate() {
                for (branch, of_branch) in of_slot.branches.iter().enumerate() {
                    let unit = &of_branch.block;
                    let heads = place(&unit.path, "o_in").or_else(|| place(&unit.path, "heads"));
                    let raw = of_branch.post.as_ref();
                    let raw = raw.map(|_| place(&unit.path, BRANCH_RAW.name));
                    let sum = of_slot.post.as_ref();
                    let sum = sum.map(|_| place(&of_slot.path, SLOT_SUM.name));
                    let normed: Option<Vec<usize>> = raw.into_iter().chain(sum).collect();
                    let after = place(&of_slot.path, SLOT_X.name);
                    let is_plain = of_slot.after.is_none() && unit.weight(HEADS_MATRIX).is_some();
                    if let (Some(heads), Some(normed), Some(after), true) =
                        (heads, normed, after, is_plain)
                    {
                        out.push(HeadSum {
                            heads,
                            normed,
                            after,
                            at: [layer, slot, branch],
                        });
                    }
                }
            }
        }
        out
    }

    /// Numbers of the hidden states of a token that the head reads.
    pub fn read_width(&self) -> Option<usize> {
        let outs = self.find("layers.*.out").ok()?;
        outs.last().map(|at| self.all[*at].width() as usize)
    }

    /// Gives a point another name, unless that is taken.
    fn call(&mut self, path: &str, alias: String) {
        let Some(at) = self.by_name.get(path).copied() else {
            return;
        };
        if let std::collections::hash_map::Entry::Vacant(entry) = self.by_name.entry(alias) {
            self.all[at].aliases.push(entry.key().clone());
            entry.insert(at);
        }
    }

    fn name(&mut self, plan: &Plan) {
        for at in 0..self.all.len() {
            let Point { path, spec, .. } = &self.all[at];
            if let (Some(alias), false) = (spec.alias, path.starts_with("layers.")) {
                let path = path.clone();
                self.call(&path, alias.to_owned());
            }
        }
        // The hidden state between layers is what the slot before left.
        let start = plan.write.as_ref().unwrap_or(&plan.embed);
        let mut before = format!("{}.x", start.path);
        for layer in &plan.layers {
            let theirs = layer.path.strip_prefix("layers.");
            let theirs = theirs.map(|depth| format!("blocks.{depth}"));
            let both = |this: &mut Self, path: &str, own: Option<&str>, other: &str| {
                if let Some(own) = own {
                    this.call(path, format!("{}.{own}", layer.path));
                }
                if let Some(theirs) = &theirs {
                    this.call(path, format!("{theirs}.{other}"));
                }
            };
            both(self, &before, Some("in"), "hook_resid_pre");
            for slot in &layer.slots {
                let attends = |branch: &&BranchPlan| {
                    matches!(branch.block.state, Some(StatePlan::KeyValue(_)))
                };
                let (attention, others): (Vec<_>, Vec<_>) = slot.branches.iter().partition(attends);
                let is_mlp = others.iter().all(|b| b.block.state.is_none());
                let out = |path: &str| format!("{path}.out");
                match (attention.as_slice(), others.as_slice()) {
                    ([_], []) => both(self, &out(&slot.path), None, "hook_attn_out"),
                    ([], _) if is_mlp => both(self, &out(&slot.path), None, "hook_mlp_out"),
                    // In parallel: each adds its own part.
                    ([attention], [mlp]) if is_mlp => {
                        both(self, &out(&attention.block.path), None, "hook_attn_out");
                        both(self, &out(&mlp.block.path), None, "hook_mlp_out");
                    }
                    _ => {}
                }
                for branch in &slot.branches {
                    let unit = &branch.block;
                    for spec in unit.contract.0.points {
                        let Some(alias) = spec.alias else { continue };
                        let has_gate = self.by_name.contains_key(&format!("{}.gate", unit.path));
                        // Without a gate the up product is what is activated.
                        let alias = match alias {
                            "mlp.hook_pre_linear" if !has_gate => "mlp.hook_pre",
                            alias => alias,
                        };
                        both(self, &format!("{}.{}", unit.path, spec.name), None, alias);
                    }
                }
            }
            if let [first, _] = layer.slots.as_slice() {
                both(
                    self,
                    &format!("{}.x", first.path),
                    Some("mid"),
                    "hook_resid_mid",
                );
            }
            if let Some(last) = layer.slots.last() {
                // Several hidden states are what was written last.
                let path = last.write.as_ref().map_or(&last.path, |write| &write.path);
                before = format!("{path}.x");
            }
            both(self, &before, Some("out"), "hook_resid_post");
        }
    }

    /// The points that a pattern stands for, in the order of computation. A part of it may be `*`, or a
    /// list `{3,7}` or range `{3-7}`.
    ///
    /// # Errors
    /// No point has such a name.
    pub fn find(&self, pattern: &str) -> Result<Vec<usize>, UnknownPoint> {
        if let Some(at) = self.by_name.get(pattern) {
            return Ok(vec![*at]);
        }
        let unknown = || {
            let shown: String = pattern.chars().take(MAX_NAME).collect();
            let known = self.by_name.keys().map(String::as_str);
            UnknownPoint {
                nearest: nearest(&shown, known).map(str::to_owned),
                name: shown,
            }
        };
        if pattern.len() > MAX_NAME || !pattern.contains(['*', '{']) {
            return Err(unknown());
        }
        let names = self
            .by_name
            .iter()
            .filter(|(name, _)| is_like(pattern, name));
        let mut found: Vec<usize> = names.map(|(_, at)| *at).collect();
        found.sort_unstable();
        found.dedup();
        match found.is_empty() {
            true => Err(unknown()),
            false => Ok(found),
        }
    }
}

/// Whether a name fits a pattern.
fn is_like(pattern: &str, name: &str) -> bool {
    let (parts, own) = (pattern.split('.'), name.split('.'));
    parts.clone().count() == own.clone().count()
        && own.zip(parts).all(|(own, part)| fits(part, own))
}

/// Whether a part of a name fits a part of a pattern.
fn fits(pattern: &str, part: &str) -> bool {
    if pattern == "*" || pattern == part {
        return true;
    }
    let list = pattern.strip_prefix('{').and_then(|p| p.strip_suffix('}'));
    list.is_some_and(|list| {
        list.split(',').any(|one| {
            let range = one.split_once('-');
            let number = |text: &str| text.trim().parse::<u64>().ok();
            let range = range.and_then(|(from, to)| Some(number(from)?..=number(to)?));
            one.trim() == part
                || range.is_some_and(|range| number(part).is_some_and(|n| range.contains(&n)))
        })
    })
}

impl Serialize for Point {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Point", 9)?;
        out.serialize_field("path", &self.path)?;
        out.serialize_field("aliases", &self.aliases)?;
        let dims = self.shape.iter().map(|n| (*n > 0).then_some(*n));
        out.serialize_field("shape", &dims.collect::<Vec<_>>())?;
        out.serialize_field("dtype", self.ty.name())?;
        out.serialize_field("meaning", self.spec.doc)?;
        out.serialize_field("parts", self.spec.parts.name())?;
        out.serialize_field("editable", &self.is_editable())?;
        out.serialize_field("forces", &self.forces())?;
        out.serialize_field("capturable", &self.is_capturable())?;
        out.end()
    }
}
