//! Finds the points of a plan. Its graph is built over tensors that are only described; nothing is loaded.

use crate::arch::PointParts;
use crate::blocks::points::{BRANCH_RAW, SLOT_SUM, SLOT_X};
use crate::blocks::position_bias::TABLE;
use crate::plan::{BranchPlan, Media, Plan, StatePlan};
use lab_base::ggml::Result;

use super::graph_shape::GraphShape;
use super::options::Options;
use super::points::{HEADS_MATRIX, HeadSum, Point, Points, TowerPoint};
use super::trace;

/// Number of positions of the described cache.
const N_CTX: usize = 64;

/// Tokens of the described pass. The last dimension of this size is taken as that of the tokens.
const N_TOKENS: usize = 2;

impl Points {
    /// The points of a plan.
    pub fn of(plan: &Plan) -> Result<Self> {
        let options = Options {
            flash_attn: false,
            capture: true,
            ..Options::plain(N_CTX, N_TOKENS)
        };
        let shape = GraphShape {
            n_media: 0,
            n_media_tokens: 0,
            n_outputs: N_TOKENS,
            ..GraphShape::largest(&options, plan, &options.n_slots(plan))
        };
        let (_, pass, _) = trace::described(plan, &options, &shape)?;
        let all = pass.captured.iter().map(|value| {
            let mut shape = value.tensor.shape().to_vec();
            match value.spec.parts {
                // [n_kv, n_tokens, heads, n_runs]
                PointParts::Pairs => shape = vec![0, shape[2]],
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
                tower: None,
            }
        });
        let mut this = Self::named(all.collect(), plan);
        this.head_sums = this.sums(plan);
        Ok(this)
    }

    /// Points of a plan, with their other names.
    fn named(all: Vec<Point>, plan: &Plan) -> Self {
        let paths = all.iter().enumerate();
        let mut this = Self {
            by_name: paths.map(|(at, point)| (point.path.clone(), at)).collect(),
            all,
            ..Self::default()
        };
        this.name(plan);
        this
    }

    /// The points of the plan of a tower that can be captured, with the rows that they have for a grid of cells. Their names begin with
    /// that of what it reads.
    pub(super) fn of_tower(plan: &Plan, media: Media, cells: [u64; 3]) -> Result<Vec<Point>> {
        let options = Options {
            capture: true,
            ..Options::plain(0, 1)
        };
        let (_, graph, _) = trace::described_tower(plan, &options, cells)?;
        let n_read = graph.rows.elements();
        let points = graph.captured.iter().filter_map(|value| {
            let n_rows = value.grid?.n_rows();
            let shape = value.tensor.shape();
            let mut sizes = shape.iter().scan(1, |n, side| {
                *n *= side;
                Some(*n)
            });
            // Pairs, and values of which a row has no elements of its own, are left out.
            let dims = 1 + sizes.position(|n| n * n_rows == value.tensor.elements())?;
            (value.spec.parts != PointParts::Pairs).then(|| Point {
                path: value.path.clone(),
                aliases: Vec::new(),
                shape: shape[..dims].to_vec(),
                ty: value.tensor.ty(),
                group: None,
                spec: value.spec,
                tower: Some(TowerPoint::new(media, [n_read, n_rows])),
            })
        });
        let mut all = Self::named(points.collect(), plan).all;
        for point in &mut all {
            // TransformerLens has no names for towers.
            point.aliases.retain(|alias| alias.starts_with("layers."));
            for name in point.aliases.iter_mut().chain([&mut point.path]) {
                *name = format!("{}.{name}", media.name());
            }
        }
        Ok(all)
    }

    /// The slots in which a matrix sums the heads. Slots with a norm after the addition are left out, because it
    /// reads other parts too.
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

    /// Adds an alias to a point, unless the name is taken.
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
        // The hidden state before a layer is the result of the slot before it.
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
                    // Parallel branches: each adds its own part.
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
                        // Without a gate, the up product is the input of the activation.
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
                // With several hidden states, the result is that of the last write.
                let path = last.write.as_ref().map_or(&last.path, |write| &write.path);
                before = format!("{path}.x");
            }
            both(self, &before, Some("out"), "hook_resid_post");
        }
    }
}

/// The KV group whose keys attention weights belong to; none if they cannot be captured.
fn group_of(plan: &Plan, path: &str) -> Option<usize> {
    let path = path.strip_suffix(".weights")?;
    let mut units = plan.key_values();
    let (unit, rows) = units.find(|(unit, _)| unit.path == path)?;
    let is_plain = plan.selection(unit).is_none() && unit.weight(TABLE).is_none();
    // Keys of a source lie before those of the tokens.
    (is_plain && plan.source.is_none()).then_some(rows.cache)
}
