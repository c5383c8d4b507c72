//! From a plan to a graph: the slot formula, once, for every model.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use crate::arch::Join;
use crate::blocks::{self, Asked, Build, KeyValueStore, Sight};
use crate::ggml::{Error, Executor, Graph, Tensor};
use crate::plan::{BranchPlan, NormUse, Plan, SlotPlan};
use crate::weights::TensorType;

use super::adapters::OnDevice;
use super::cache::Rows;
use super::cache::states::{PassStates, States};
use super::cache::store::{CachedStore, KeyValues, PassStore};
use super::{Batch, Options};

/// What a graph was built for; passes of the same shape replay it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) n_tokens: usize,
    /// Rows that want logits.
    pub(super) n_outputs: usize,
    /// For each group of layers the keys that are looked at, or the length of its table of blocks.
    pub(super) n_kv: Vec<usize>,
    /// Sequences, where something is kept of each; else 1.
    pub(super) n_seqs: usize,
    /// Whether those rows want the stream behind the final norm.
    pub(super) wants_hidden: bool,
    /// Whether the projection to logits is left to graphs of [`build_head`].
    pub(super) is_headless: bool,
    /// The adapters that are on for some token.
    pub(super) adapters: Vec<usize>,
}

/// The tensors of a graph that a pass writes and reads.
pub(super) struct Inputs {
    tokens: Tensor,
    positions: Tensor,
    /// Rows that want logits; none if all or no row does.
    rows: Option<Tensor>,
    /// Cell of each token in each group of layers, with a cache.
    cells: Vec<Tensor>,
    /// Row of what is kept that each sequence reads.
    read: Option<Tensor>,
    /// Row of what is kept that each sequence writes.
    write: Option<Tensor>,
    /// Scales of the tokens for each adapter that is on.
    pub(super) scales: Vec<(usize, Tensor)>,
    /// Weights that adapters updated, as places in the plan.
    pub(super) updated: BTreeSet<usize>,
    /// What blocks asked for beside these.
    asked: Vec<(Asked, Tensor)>,
    /// Values by their paths, where they are watched.
    pub(super) watched: Vec<Watched>,
    /// What is seen, for each cache group of the plan.
    pub(super) sights: Vec<Sight>,
    /// `[n_vocab, n_outputs]`, or vectors `[n_embd, n_outputs]`; none if no row wants one.
    pub(super) logits: Option<Tensor>,
    /// The stream behind the final norm `[n_embd, n_outputs]`, where it is wanted.
    pub(super) hidden: Option<Tensor>,
}

/// A value that can be read after a pass.
pub(super) struct Watched {
    pub(super) path: String,
    pub(super) is_per_token: bool,
    /// A contiguous copy where the value itself is not.
    pub(super) tensor: Tensor,
}

impl Inputs {
    /// Writes a batch; what is seen is the caller's.
    pub(super) fn write(
        &self,
        executor: &mut Executor,
        batch: &Batch,
        cells: &[Vec<usize>],
        rows: &Rows,
    ) -> Result<(), Error> {
        if let Some(read) = self.read.as_ref().filter(|t| t.is_allocated()) {
            let ids: Vec<i32> = rows.read.iter().map(|row| *row as i32).collect();
            executor.write_indices(read, &ids)?;
        }
        if let Some(write) = self.write.as_ref().filter(|t| t.is_allocated()) {
            let ids: Vec<i64> = rows.write.iter().map(|row| *row as i64).collect();
            executor.write_indices(write, &ids)?;
        }
        let ids: Vec<i32> = batch.tokens.iter().map(|t| *t as i32).collect();
        executor.write_indices(&self.tokens, &ids)?;
        if self.positions.is_allocated() {
            let positions: Vec<i32> = batch
                .places
                .iter()
                .map(|(_, position)| *position as i32)
                .collect();
            executor.write(&self.positions, &positions)?;
        }
        for (asked, tensor) in self.asked.iter().filter(|(_, t)| t.is_allocated()) {
            let positions = batch.places.iter().map(|(_, position)| *position);
            match *asked {
                Asked::Temperature {
                    scale,
                    floor,
                    offset,
                } => {
                    let factor =
                        |p: u32| 1.0 + scale * (1.0 + ((p as f32 + offset) / floor).floor()).ln();
                    executor.write(tensor, &positions.map(factor).collect::<Vec<f32>>())?;
                }
                Asked::Rows(_) => {
                    let rows: Vec<i32> = positions.map(|p| p as i32).collect();
                    executor.write_indices(tensor, &rows)?;
                }
                Asked::Sections => {
                    let positions = positions.map(|p| p as i32);
                    let mut sections: Vec<i32> = positions.cycle().take(3 * batch.len()).collect();
                    sections.resize(4 * batch.len(), 0);
                    executor.write(tensor, &sections)?;
                }
                Asked::Divisors(mixture) => executor.write(tensor, &mixture.divisors())?,
                Asked::FirstRow => executor.write_indices(tensor, &vec![0i32; batch.len()])?,
            }
        }
        if let Some(rows) = &self.rows {
            let wanted = (0..).zip(&batch.outputs).filter(|(_, wanted)| **wanted);
            executor.write_indices(rows, &wanted.map(|(i, _)| i).collect::<Vec<i32>>())?;
        }
        for (tensor, cells) in self.cells.iter().zip(cells) {
            if tensor.is_allocated() {
                let cells: Vec<i64> = cells.iter().map(|cell| *cell as i64).collect();
                executor.write_indices(tensor, &cells)?;
            }
        }
        Ok(())
    }
}

/// Operations of a branch's norms and gain and copies of its values, of a slot's, and of the stages,
/// generously.
const NODES_PER_BRANCH: usize = 20;
const NODES_PER_SLOT: usize = 16;
pub(super) const NODES_ELSEWHERE: usize = 64;

fn n_tensors(plan: &Plan, update_nodes: usize) -> usize {
    let slots = plan.layers.iter().flat_map(|layer| &layer.slots);
    let nodes = slots.map(|slot| {
        let branches = slot.branches.iter();
        let branches = branches.map(|b| NODES_PER_BRANCH + blocks::max_nodes(&b.block));
        NODES_PER_SLOT + branches.sum::<usize>()
    });
    NODES_ELSEWHERE + 3 * plan.caches.len() + nodes.sum::<usize>() + update_nodes
}

pub(super) fn n_leaves(plan: &Plan, update_nodes: usize) -> usize {
    let parts = plan.recurrent().map(|(_, parts)| parts.len());
    plan.tensors.len() + 2 * plan.key_values().count() + parts.sum::<usize>() + update_nodes
}

/// Nodes and leaves of the largest graph of a plan.
pub(super) fn capacity(plan: &Plan, update_nodes: usize) -> usize {
    n_tensors(plan, update_nodes) + n_leaves(plan, update_nodes)
}

/// The inputs that say what `n` tokens see in a group of layers.
fn sight(
    g: &Graph,
    is_paged: bool,
    flash_attn: bool,
    group: &str,
    n: u64,
    n_kv: u64,
) -> Result<Sight, Error> {
    if is_paged {
        return Ok(Sight::Pages {
            queries: g.input(&format!("queries.{group}"), TensorType::I32, &[4, n])?,
            table: g.input(&format!("table.{group}"), TensorType::I32, &[n_kv])?,
        });
    }
    let ty = if flash_attn {
        TensorType::F16
    } else {
        TensorType::F32
    };
    let mask = g.input(&format!("mask.{group}"), ty, &[n_kv, n])?;
    Ok(Sight::Mask(mask))
}

/// Builds the graph of a pass.
pub(super) fn build(
    plan: &Plan,
    weights: &OnDevice<'_>,
    cache: &KeyValues,
    states: &States,
    options: &Options,
    n_cells: &[usize],
    shape: &Shape,
) -> Result<(Graph, Inputs), Error> {
    let update_nodes = weights.update_nodes;
    let mut g = Graph::new(n_tensors(plan, update_nodes), n_leaves(plan, update_nodes))?;
    let n = shape.n_tokens as u64;
    let tokens = g.index_input("tokens", TensorType::I32, &[n], plan.n_vocab)?;
    let positions = g.input("positions", TensorType::I32, &[n])?;
    let some_rows = shape.n_outputs > 0 && shape.n_outputs < shape.n_tokens;
    let rows = if some_rows {
        Some(g.index_input("rows", TensorType::I32, &[shape.n_outputs as u64], n)?)
    } else {
        None
    };
    let sights = plan
        .caches
        .iter()
        .zip(&shape.n_kv)
        .map(|(group, n_kv)| {
            sight(
                &g,
                options.is_paged(plan),
                options.flash_attn,
                &group.name,
                n,
                *n_kv as u64,
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    let is_cached = options.n_ctx > 0;
    let cells = plan
        .caches
        .iter()
        .zip(n_cells)
        .filter(|_| is_cached)
        .map(|(group, n_cells)| {
            let name = format!("cells.{}", group.name);
            g.index_input(&name, TensorType::I64, &[n], *n_cells as u64)
        })
        .collect::<Result<Vec<_>, _>>()?;

    let n_seqs = shape.n_seqs as u64;
    let n_rows = options.n_rows() as u64;
    let has_states = !states.is_empty();
    let read = if has_states {
        Some(g.index_input("states.read", TensorType::I32, &[n_seqs], n_rows + 1)?)
    } else {
        None
    };
    let write = if has_states && is_cached {
        Some(g.index_input("states.write", TensorType::I64, &[n_seqs], n_rows)?)
    } else {
        None
    };
    let mut states = PassStates {
        states,
        read: read.clone(),
        write: write.clone(),
        kept: Vec::new(),
    };
    let mut store: Box<dyn KeyValueStore + '_> = if is_cached {
        Box::new(CachedStore {
            cache,
            n_kv: shape.n_kv.clone(),
            cells: cells.clone(),
            sights: sights.clone(),
            seen: HashMap::new(),
        })
    } else {
        Box::new(PassStore {
            sights: sights.clone(),
            seen: HashMap::new(),
        })
    };
    let adapters = weights.at_work(&g, &shape.adapters, n)?;
    let scales = adapters.scales.clone();
    let build = Build {
        g: &g,
        plan,
        tensors: weights.tensors,
        adapters,
        positions: &positions,
        n_tokens: n,
        n_ctx: match options.n_ctx_seq {
            0 => plan.n_ctx_train,
            n_ctx => n_ctx as u64,
        },
        asked: RefCell::default(),
        side: None,
        store: store.as_mut(),
        n_seqs,
        states: &mut states,
        flash_attn: options.flash_attn,
        named: RefCell::default(),
    };
    let mut assembly = Assembly {
        build,
        taps: HashMap::new(),
        rows: rows.clone(),
        chosen: None,
        of_all: HashMap::new(),
    };
    let wants = Wants {
        n_outputs: shape.n_outputs as u64,
        is_headless: shape.is_headless || options.embeddings,
        hidden: shape.wants_hidden,
        all_values: options.watch,
    };
    let (x, logits, hidden) = assembly.model(&tokens, &wants)?;
    let asked = assembly.build.asked.into_inner();
    let named = assembly.build.named.into_inner();
    let updated = assembly.build.adapters.updated.into_inner();
    drop(store);
    for kept in &states.kept {
        g.expand(kept)?;
    }
    let mut watched = Vec::new();
    for value in named.into_iter().filter(|_| options.watch) {
        let tensor = if value.tensor.is_contiguous() {
            value.tensor
        } else {
            g.cont(&value.tensor)?
        };
        g.output(&tensor)?;
        watched.push(Watched {
            path: value.path,
            is_per_token: value.is_per_token,
            tensor,
        });
    }
    match &logits {
        Some(logits) => g.output(logits)?,
        None => g.expand(&x)?,
    }
    if let Some(hidden) = &hidden {
        g.output(hidden)?;
    }
    Ok((
        g,
        Inputs {
            tokens,
            positions,
            rows,
            cells,
            read,
            write,
            scales,
            updated,
            asked,
            watched,
            sights,
            logits,
            hidden,
        },
    ))
}

/// What is asked of a graph.
struct Wants {
    /// Rows that want a result.
    n_outputs: u64,
    /// Whether the result is the stream behind the final norm.
    is_headless: bool,
    /// Whether that stream is wanted beside the result.
    hidden: bool,
    /// Whether every value is wanted of every row.
    all_values: bool,
}

/// The stream on its way through the layers.
struct Assembly<'a> {
    build: Build<'a>,
    /// Values that later slots and layers can read.
    taps: HashMap<String, Tensor>,
    /// The rows that want a result, until the stream has no others.
    rows: Option<Tensor>,
    /// Those rows, from then on.
    chosen: Option<Tensor>,
    /// Values from before that, with all rows.
    of_all: HashMap<String, Tensor>,
}

/// The last slot whose rows look at each other: its layer and its place there. Behind it a row is on
/// its own.
fn last_mixing(plan: &Plan) -> Option<(usize, usize)> {
    let keeps = |slot: &SlotPlan| slot.branches.iter().any(|b| b.block.state.is_some());
    let layers = plan.layers.iter().enumerate().rev();
    let mut found = layers.map(|(i, layer)| Some((i, layer.slots.iter().rposition(keeps)?)));
    found.find_map(|place| place)
}

impl Assembly<'_> {
    /// The last stream, the results of the rows that want one (logits, or vectors), and what they were
    /// made from if that is wanted.
    fn model(
        &mut self,
        tokens: &Tensor,
        wants: &Wants,
    ) -> Result<(Tensor, Option<Tensor>, Option<Tensor>), Error> {
        let plan = self.build.plan;
        let mut x = blocks::embed::build(&self.build, &plan.embed, tokens)?;
        self.taps.insert("embd".into(), x.clone());
        let per_layer = match &plan.per_layer {
            Some(unit) => blocks::per_layer::build(&self.build, unit, tokens, &x)?,
            None => None,
        };
        let last = last_mixing(plan).filter(|_| wants.n_outputs > 0 && !wants.all_values);
        for (i, layer) in plan.layers.iter().enumerate() {
            if let Some(all) = &per_layer {
                let input = blocks::per_layer::of_layer(&self.build, all, layer.il)?;
                match &self.chosen {
                    Some(_) => self.of_all.insert("ple".into(), input),
                    None => self.taps.insert("ple".into(), input),
                };
            }
            self.taps.insert("layer_in".into(), x.clone());
            for (k, slot) in layer.slots.iter().enumerate() {
                x = self.slot(slot, x)?;
                if last == Some((i, k)) {
                    x = self.only_wanted(x, wants.n_outputs)?;
                }
            }
        }
        if wants.n_outputs == 0 {
            return Ok((x, None, None));
        }
        let wanted = self.only_wanted(x.clone(), wants.n_outputs)?;
        let hidden = |x: &Tensor| Some(x.clone()).filter(|_| wants.hidden);
        let Some(head) = &plan.head else {
            let hidden = hidden(&wanted);
            return Ok((x, Some(wanted), hidden));
        };
        let normed = self.norm(head.norm.as_ref(), wanted)?;
        self.build.name("head", "norm", &normed);
        let result = match &head.unit {
            Some(unit) if !wants.is_headless => blocks::head::build(&self.build, unit, &normed)?,
            _ => normed.clone(),
        };
        let hidden = hidden(&normed);
        Ok((x, Some(result), hidden))
    }

    /// The rows of the stream that want a result; those that nobody asked for end here.
    fn only_wanted(&mut self, x: Tensor, n_outputs: u64) -> Result<Tensor, Error> {
        let Some(rows) = self.rows.take() else {
            return Ok(x);
        };
        let wanted = self.build.g.get_rows(&x, &rows)?;
        for (_, scales) in &mut self.build.adapters.scales {
            *scales = self.build.g.get_rows(scales, &rows)?;
        }
        self.of_all = std::mem::take(&mut self.taps);
        self.chosen = Some(rows);
        self.build.n_tokens = n_outputs;
        Ok(wanted)
    }

    fn slot(&mut self, slot: &SlotPlan, x: Tensor) -> Result<Tensor, Error> {
        let _scope = self.build.g.wiring(&slot.path);
        self.taps.insert("x".into(), x.clone());
        let input = self.tap(slot.from.as_deref(), &x)?;
        let h = self.norm(slot.pre.as_ref(), input)?;
        if slot.pre.is_some() {
            self.build.name(&slot.path, "in", &h);
        }
        self.taps.insert("h".into(), h.clone());
        let mut sum: Option<Tensor> = None;
        for branch in &slot.branches {
            let y = self.branch(branch, &h)?;
            sum = Some(match sum {
                None => y,
                Some(sum) => self.build.g.add(&sum, &y)?,
            });
        }
        let Some(y) = sum else { return Ok(x) };
        let y = self.norm(slot.post.as_ref(), y)?;
        let y = self.factor(slot.scale, y)?;
        self.build.name(&slot.path, "out", &y);
        let joined = match slot.join {
            Join::Add => self.build.g.add(&x, &y)?,
            Join::Set => y,
        };
        let joined = self.norm(slot.after.as_ref(), joined)?;
        self.build.name(&slot.path, "x", &joined);
        Ok(joined)
    }

    fn branch(&mut self, branch: &BranchPlan, h: &Tensor) -> Result<Tensor, Error> {
        let input = self.tap(branch.from.as_deref(), h)?;
        let input = self.norm(branch.pre.as_ref(), input)?;
        self.build.side = match branch.side.as_deref() {
            Some(name) => Some(self.tap(Some(name), h)?),
            None => None,
        };
        let y = blocks::build_block(&mut self.build, &branch.block, &input)?;
        let y = self.norm(branch.post.as_ref(), y)?;
        let y = self.factor(branch.gain, y)?;
        if let Some(name) = &branch.save {
            self.taps.insert(name.clone(), y.clone());
        }
        Ok(y)
    }

    fn tap(&self, name: Option<&str>, otherwise: &Tensor) -> Result<Tensor, Error> {
        let Some(name) = name else {
            return Ok(otherwise.clone());
        };
        match (self.taps.get(name), self.of_all.get(name), &self.chosen) {
            (Some(value), ..) => Ok(value.clone()),
            (None, Some(value), Some(rows)) => self.build.g.get_rows(value, rows),
            _ => Err(Error::Arguments {
                op: "tap",
                message: format!("`{name}` is read before it is saved"),
            }),
        }
    }

    fn norm(&self, norm: Option<&NormUse>, x: Tensor) -> Result<Tensor, Error> {
        match norm {
            Some(norm) => self.build.norm(norm, &x),
            None => Ok(x),
        }
    }

    fn factor(&self, factor: Option<f64>, x: Tensor) -> Result<Tensor, Error> {
        match factor {
            Some(factor) => self.build.g.scale(&x, factor as f32),
            None => Ok(x),
        }
    }
}
