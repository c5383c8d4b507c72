//! Builds the graph of a plan: the slot formula, once, for all models.

use std::collections::{BTreeSet, HashMap};

use crate::arch::{BranchTokens, Join, NEXT, PointSpec, TARGET};
use crate::blocks::lab::GraphLab;
use crate::blocks::mix::{self, MixRead};
use crate::blocks::{self, GraphBuilder, NamedTensor, RowGrid, Selections, points};
use crate::plan::{BranchPlan, NormUse, Plan, SlotPlan, TargetPlan, Unit};
use lab_base::ggml::{Error, Graph, Result, Tensor};
use lab_base::weights::TensorType;

use super::cache::MAX_VIEWS;
use super::cache::states::PassStates;
use super::cache::store::PassStore;
use super::graph_shape::{GraphParts, GraphShape, TargetRows};
use super::inputs::{DerivedTensors, ListInputs, NextTokens, OutputRows, PassInputs};
use super::lab::{CapturedTensors, LabShape};
use super::options::Options;
use super::points::Points;
use super::sub_batch::MAX_GROUPS;
use super::top_rows::TopTensors;

/// A named value that can be read after a pass.
pub(super) struct CapturedValue {
    pub(super) path: String,
    pub(super) spec: &'static PointSpec,
    /// Whether its rows are those of the source.
    pub(super) is_of_source: bool,
    /// The value, or a contiguous copy of it.
    pub(super) tensor: Tensor,
    /// The grid of its rows, in a tower.
    pub(super) grid: Option<RowGrid>,
}

/// Generous bounds on the operations of a branch (norms, factor, copies of values), of a slot, and of the stages.
const NODES_PER_BRANCH: usize = 20;
const NODES_PER_SLOT: usize = 16;
pub(super) const NODES_ELSEWHERE: usize = 64;

fn n_tensors(plan: &Plan, update_nodes: usize, n_groups: usize, n_views: usize) -> usize {
    let slots = plan.layers.iter().flat_map(|layer| &layer.slots);
    let nodes = slots.map(|slot| {
        let branches = slot.branches.iter();
        let of_block = |b: &BranchPlan| blocks::max_nodes(&b.block, n_groups, n_views);
        let branches = branches.map(|b| NODES_PER_BRANCH + of_block(b));
        NODES_PER_SLOT + branches.sum::<usize>()
    });
    let mixes = mix::NODES * plan.mixes().count();
    let fixed = NODES_ELSEWHERE + mixes + update_nodes;
    fixed + (5 + n_views) * plan.caches.len() + nodes.sum::<usize>()
}

pub(super) fn n_leaves(plan: &Plan, update_nodes: usize) -> usize {
    let parts = plan.recurrent().map(|(_, parts)| parts.len());
    plan.tensors.len() + 3 * plan.key_values().count() + parts.sum::<usize>() + update_nodes
}

/// Maximum number of nodes and leaves of a graph of a plan.
pub(super) fn capacity(plan: &Plan, update_nodes: usize) -> usize {
    n_tensors(plan, update_nodes, MAX_GROUPS, MAX_VIEWS) + n_leaves(plan, update_nodes)
}

/// The inputs and outputs of the graph of a pass.
pub(super) struct PassGraph {
    pub(super) inputs: PassInputs,
    /// Weights that adapters update, as indices of tensors of the plan.
    pub(super) updated: BTreeSet<usize>,
    /// Captured values with their paths.
    pub(super) captured: Vec<CapturedValue>,
    /// Captured rows, by point.
    pub(super) captured_rows: CapturedTensors,
    /// Logits `[n_vocab, n_outputs]`, or vectors `[n_embd, n_outputs]`; none if no row wants a result.
    pub(super) logits: Option<Tensor>,
    /// The highest logits, if they are wanted.
    pub(super) top: Option<TopTensors>,
    /// The hidden state after the final norm `[n_embd, n_outputs]`, if it is wanted; of a drafter what stands for the row of the target at
    /// the token that follows.
    pub(super) hidden: Option<Tensor>,
    /// The values that a drafter reads `[width, n_tokens]`, if they are given.
    pub(super) values: Option<Tensor>,
}

/// The inputs and the result of the graph of a tower.
pub(super) struct TowerGraph {
    /// The input rows, f32 `[width, n_rows]`.
    pub(super) rows: Tensor,
    pub(super) inputs: DerivedTensors,
    /// The result, f32 `[n_embd, rows]`.
    pub(super) result: Tensor,
    /// The grid of the result's rows.
    pub(super) grid: RowGrid,
    pub(super) captured: Vec<CapturedValue>,
}

pub(super) fn build(parts: &GraphParts<'_>, shape: &GraphShape) -> Result<(Graph, PassGraph)> {
    let (plan, options) = (parts.plan, parts.options);
    let update_nodes = parts.weights.update_nodes;
    let (n_groups, n_views) = (shape.groups.len(), shape.n_views());
    let n_tensors = n_tensors(plan, update_nodes, n_groups, n_views) + shape.lab.n_nodes();
    let mut g = Graph::new(n_tensors, n_leaves(plan, update_nodes))?;
    let inputs = PassInputs::new(&g, parts, shape)?;
    let mut states = inputs.state_store(parts);
    let mut store = inputs.key_value_store(parts);
    let build = GraphBuilder {
        g: &g,
        plan,
        tensors: parts.weights.tensors,
        adapters: parts.weights.active(Vec::new()),
        switched: None,
        ids: None,
        n_tokens: shape.n_tokens as u64,
        grid: None,
        media: inputs.media.as_ref().map(|media| media.tensors.clone()),
        media_tokens: inputs.media_tokens.as_ref().map(|tokens| tokens.0.clone()),
        n_ctx: match options.n_ctx_seq {
            0 => plan.n_ctx_train,
            n_ctx => n_ctx as u64,
        },
        inputs: &inputs.tokens.derived,
        store: &mut store,
        groups: &shape.groups,
        states: &mut states,
        flash_attn: options.flash_attn,
        is_quantised: options.is_quantised(),
        selected: Selections::default(),
        lab: inputs.lab(parts, shape),
    };
    let mut assembly = Assembly::new(build, inputs.output_rows.as_ref());
    let wants = ResultRows {
        next: inputs.next.as_ref(),
        ..ResultRows::of(shape, options)
    };
    let (mut end, mut n_of_source) = (None, 0);
    if let Some(source) = &inputs.source {
        assembly.read(shape.n_source, source);
        end = Some(assembly.source(source)?);
        n_of_source = assembly.build.lab.named.get_mut().len();
    }
    let mut results = Results::default();
    if let Some(tokens) = &inputs.tokens.tokens {
        assembly.read(shape.n_tokens, &inputs.tokens);
        if let Some(rows) = &inputs.target {
            assembly.target(rows, shape.target)?;
        }
        let keeps_keys = plan.target.as_ref().is_some_and(|of| of.block.is_some());
        let x;
        (x, results) = match keeps_keys && shape.target == TargetRows::Values {
            true => (assembly.keys_of_target()?, Results::default()),
            false => assembly.model(&tokens.0, &wants)?,
        };
        end = Some(x);
    }
    let named = assembly.build.lab.named.take();
    let rows_by_point = assembly.build.lab.captured.into_inner();
    let updated = assembly.build.adapters.updated.into_inner();
    let captured = match options.capture {
        true => capture(&mut g, named, n_of_source)?,
        false => Vec::new(),
    };
    let captured_rows = capture_rows(&mut g, rows_by_point, parts.points, &shape.lab)?;
    let Results {
        logits,
        top,
        hidden,
        values,
    } = results;
    match &logits {
        Some(logits) => g.output(logits)?,
        None => end.iter().try_for_each(|x| g.expand(x))?,
    }
    if let Some(top) = &top {
        top.tensors().try_for_each(|tensor| g.output(tensor))?;
    }
    for result in hidden.iter().chain(&values) {
        g.output(result)?;
    }
    let pass = PassGraph {
        inputs,
        updated,
        captured,
        captured_rows,
        logits,
        top,
        hidden,
        values,
    };
    Ok((g, pass))
}

/// The graph of a tower over inputs with this grid, and its ends. The values of these paths can be read after a run.
pub(super) fn build_tower(
    parts: &GraphParts<'_>,
    grid: RowGrid,
    paths: &[String],
) -> Result<(Graph, TowerGraph)> {
    let (plan, options) = (parts.plan, parts.options);
    let mut g = Graph::new(
        n_tensors(plan, 0, 0, 1),
        n_leaves(plan, 0) + NODES_ELSEWHERE,
    )?;
    let width = plan.embed.option_int("width").unwrap_or(0);
    let rows = g.input("rows", TensorType::F32, &[width, grid.n_rows()])?;
    let inputs = DerivedTensors::new("", grid.n_rows());
    let (mut store, mut states) = (PassStore::default(), PassStates::without_rows(parts.states));
    let build = GraphBuilder {
        g: &g,
        plan,
        tensors: parts.weights.tensors,
        adapters: parts.weights.active(Vec::new()),
        switched: None,
        ids: None,
        n_tokens: grid.n_rows(),
        grid: Some(grid),
        media: None,
        media_tokens: None,
        n_ctx: plan.n_ctx_train,
        inputs: &inputs,
        store: &mut store,
        groups: &[],
        states: &mut states,
        flash_attn: options.flash_attn,
        is_quantised: [false; 2],
        selected: Selections::default(),
        lab: GraphLab::default(),
    };
    let mut assembly = Assembly::new(build, None);
    let mut x = rows.clone();
    assembly.taps.insert("embd".into(), x.clone());
    for layer in &plan.layers {
        assembly.taps.insert("layer_in".into(), x.clone());
        for slot in &layer.slots {
            x = assembly.slot(slot, x)?;
        }
    }
    let end = assembly.build.grid.unwrap_or(grid);
    let mut named = assembly.build.lab.named.take();
    named.retain(|value| options.capture || paths.contains(&value.path));
    let result = if x.is_contiguous() { x } else { g.cont(&x)? };
    g.output(&result)?;
    let captured = capture(&mut g, named, 0)?;
    let ends = TowerGraph {
        rows,
        inputs,
        result,
        grid: end,
        captured,
    };
    Ok((g, ends))
}

/// Makes named values outputs of the graph. The first `n_of_source` are those of the source.
fn capture(
    g: &mut Graph,
    named: Vec<NamedTensor>,
    n_of_source: usize,
) -> Result<Vec<CapturedValue>> {
    let capture = |(at, value): (usize, NamedTensor)| {
        let tensor = match value.tensor.is_contiguous() {
            true => value.tensor,
            false => g.cont(&value.tensor)?,
        };
        g.output(&tensor)?;
        Ok(CapturedValue {
            path: value.path,
            spec: value.spec,
            is_of_source: at < n_of_source,
            tensor,
            grid: value.grid,
        })
    };
    named.into_iter().enumerate().map(capture).collect()
}

/// Makes the captured rows of points outputs of the graph.
fn capture_rows(
    g: &mut Graph,
    mut rows_by_point: HashMap<String, Tensor>,
    points: &Points,
    shape: &LabShape,
) -> Result<CapturedTensors> {
    let mut all = Vec::new();
    for (point, _) in shape.captures.iter().chain(&shape.pairs) {
        if let Some(rows) = rows_by_point.remove(&points.all[*point].path) {
            g.output(&rows)?;
            all.push((*point, rows));
        }
    }
    Ok(all)
}

/// The results that a graph must give.
struct ResultRows<'a> {
    /// Number of rows that want a result.
    n_outputs: u64,
    /// Whether the result is the hidden state after the final norm instead of logits.
    is_headless: bool,
    /// Number of highest logits that are needed in addition to the result.
    n_top: u64,
    /// What makes the tokens of the next pass, if they are needed.
    next: Option<&'a NextTokens>,
    /// Whether the hidden state after the final norm is needed in addition to the result.
    hidden: bool,
    /// Whether all rows of every value are needed.
    all_values: bool,
    /// The values that a drafter reads.
    for_drafter: Option<&'a TargetPlan>,
}

impl<'a> ResultRows<'a> {
    fn of(shape: &GraphShape, options: &'a Options) -> Self {
        let for_drafter = options.for_drafter.as_ref().filter(|_| shape.gives_values);
        Self {
            n_outputs: shape.n_outputs as u64,
            is_headless: shape.is_headless || options.embeddings,
            n_top: shape.n_top as u64,
            next: None,
            hidden: shape.wants_hidden,
            all_values: options.capture || !shape.lab.is_empty() || for_drafter.is_some(),
            for_drafter,
        }
    }
}

/// The results of the rows that want one.
#[derive(Default)]
struct Results {
    /// Logits or vectors.
    logits: Option<Tensor>,
    top: Option<TopTensors>,
    hidden: Option<Tensor>,
    values: Option<Tensor>,
}

/// Builds the graph while the hidden state passes through the layers.
struct Assembly<'a> {
    build: GraphBuilder<'a>,
    /// Values that later slots and layers can read.
    taps: HashMap<String, Tensor>,
    /// The grid of each tap of a tower that differs from that of the hidden state.
    grids: HashMap<String, RowGrid>,
    /// Indices of the rows that want a result, until the other rows are dropped.
    rows: Option<Tensor>,
    /// These indices, after the other rows are dropped.
    chosen: Option<Tensor>,
    /// Taps from before the other rows were dropped, with all rows.
    of_all: HashMap<String, Tensor>,
    /// The hidden states of a mix, while the one that is read from them passes through slots.
    held: Option<MixRead>,
}

fn refused(message: &str) -> Error {
    Error::Arguments {
        op: "assembly",
        message: message.to_owned(),
    }
}

/// Number of layers that read the source, the first ones of a plan.
fn n_of_source(plan: &Plan) -> usize {
    let source = plan.source.as_ref();
    source.map_or(0, |source| source.n_layers)
}

/// Number of layers before those that read tokens.
fn n_before_tokens(plan: &Plan) -> usize {
    let target = plan.target.as_ref();
    n_of_source(plan) + target.map_or(0, |target| target.n_layers)
}

/// The last slot in which rows depend on each other, or on whether they are those of media, if there are any: the index
/// of its layer, and its index there. After it each row is computed on its own.
fn last_mixing(plan: &Plan, has_media: bool) -> Option<(usize, usize)> {
    let mixes = |unit: &Unit| unit.state.is_some() || unit.contract.0.is_of_media;
    let chooses = |branch: &BranchPlan| has_media && branch.tokens != BranchTokens::All;
    let keeps = |slot: &SlotPlan| slot.branches.iter().any(|b| mixes(&b.block) || chooses(b));
    let layers = plan.layers.iter().enumerate().rev();
    let mut found = layers.map(|(i, layer)| Some((i, layer.slots.iter().rposition(keeps)?)));
    found.find_map(|place| place)
}

impl<'a> Assembly<'a> {
    fn new(build: GraphBuilder<'a>, rows: Option<&OutputRows>) -> Self {
        Self {
            build,
            taps: HashMap::new(),
            grids: HashMap::new(),
            rows: rows.map(|rows| rows.0.clone()),
            chosen: None,
            of_all: HashMap::new(),
            held: None,
        }
    }

    /// Sets the list of `n_tokens` tokens whose rows are built next.
    fn read(&mut self, n_tokens: usize, list: &'a ListInputs) {
        self.build.n_tokens = n_tokens as u64;
        self.build.inputs = &list.derived;
        self.build.adapters.scales = list.scales.0.clone();
    }

    /// Sets the token ids of the rows, `tokens [n_tokens]`, for blocks that look up values by token.
    fn name_tokens(&mut self, tokens: &Tensor) -> Result<()> {
        let shape = [1, self.build.n_tokens, 1, 1];
        self.build.ids = Some(self.build.g.reshape(tokens, shape)?);
        Ok(())
    }

    /// Builds the layers that read the source, and stores what the other layers need of it. Returns the last hidden
    /// state.
    fn source(&mut self, list: &ListInputs) -> Result<Tensor> {
        let plan = self.build.plan;
        let (own, others) = plan.layers.split_at(n_of_source(plan));
        let embed = plan.source.as_ref().map_or(&plan.embed, |of| &of.embed);
        let mut x = match (&list.tokens, &list.rows) {
            (Some(tokens), _) => {
                self.name_tokens(&tokens.0)?;
                blocks::embed::build(&self.build.at(embed), &tokens.0)?
            }
            (None, Some(rows)) => rows.clone(),
            (None, None) => return Err(refused("the source has neither tokens nor rows")),
        };
        self.taps.insert("embd".into(), x.clone());
        for layer in own {
            self.taps.insert("layer_in".into(), x.clone());
            for slot in &layer.slots {
                x = self.slot(slot, x)?;
            }
        }
        let slots = others.iter().flat_map(|layer| &layer.slots);
        for branch in slots.flat_map(|slot| &slot.branches) {
            if self.build.keys_are_of_source(&branch.block) {
                let rows = self.tap(branch.side.as_deref(), &x)?;
                self.build.at(&branch.block).keep_source(&rows)?;
            }
        }
        self.taps.clear();
        Ok(x)
    }

    /// Builds the layers that read the rows of the target alone, and keeps their result as a tap. The drafter's own rows stand for it.
    fn target(&mut self, rows: &Tensor, kind: TargetRows) -> Result<()> {
        let plan = self.build.plan;
        let n_layers = plan.target.as_ref().map_or(0, |target| target.n_layers);
        let mut x = rows.clone();
        for layer in plan.layers.iter().take(n_layers) {
            if kind == TargetRows::Own {
                break;
            }
            self.taps.insert("layer_in".into(), x.clone());
            for slot in &layer.slots {
                x = self.slot(slot, x)?;
            }
        }
        self.taps.clear();
        self.taps.insert(TARGET.into(), x);
        Ok(())
    }

    /// Stores the keys and values that all layers make of the rows of the target. Returns these rows.
    fn keys_of_target(&mut self) -> Result<Tensor> {
        let plan = self.build.plan;
        let Some(rows) = self.taps.get(TARGET).cloned() else {
            return Err(refused("the drafter has no rows of a target"));
        };
        let layers = plan.layers.iter().skip(n_before_tokens(plan));
        let slots = layers.flat_map(|layer| &layer.slots);
        for branch in slots.flat_map(|slot| &slot.branches) {
            if branch.block.key_values().is_some() {
                self.build.at(&branch.block).keep_keys(&rows)?;
            }
        }
        Ok(rows)
    }

    /// The values that a drafter reads, of the hidden states of all tokens after their numbers of layers.
    fn values(&self, target: &TargetPlan, after: &HashMap<u64, Tensor>) -> Result<Tensor> {
        let norm = self
            .build
            .plan
            .head
            .as_ref()
            .and_then(|head| head.norm.as_ref());
        let mut all: Option<Tensor> = None;
        for n in &target.after {
            let Some(x) = after.get(n) else {
                return Err(refused(&format!(
                    "a drafter reads the hidden state after {n} layers"
                )));
            };
            let x = match target.is_normed {
                true => self.norm(norm, x.clone())?,
                false => x.clone(),
            };
            all = Some(match all {
                None => x,
                Some(before) => self.build.g.concat(&before, &x, 0)?,
            });
        }
        let all = all.ok_or_else(|| refused("a drafter reads no value"))?;
        // A value of its own: a hidden state is read by the next layer, and may lie where that one writes.
        self.build.g.cont(&all)
    }

    /// Builds the other layers and the output head. Returns the last hidden state, and the results of the rows that want
    /// one.
    fn model(&mut self, tokens: &Tensor, wants: &ResultRows<'_>) -> Result<(Tensor, Results)> {
        let plan = self.build.plan;
        let mut x = blocks::embed::build(&self.build.at(&plan.embed), tokens)?;
        self.build.switched = blocks::embed::adapters(&self.build.at(&plan.embed))?;
        self.name_tokens(tokens)?;
        self.taps.insert("embd".into(), x.clone());
        let per_layer = match &plan.per_layer {
            Some(unit) => blocks::per_layer::build(&self.build.at(unit), tokens, &x)?,
            None => None,
        };
        if let Some(unit) = &plan.write {
            x = mix::start(&self.build.at(unit), &x)?;
        }
        let last = last_mixing(plan, self.build.media_tokens.is_some())
            .filter(|_| wants.n_outputs > 0 && !wants.all_values);
        let layers = plan.layers.iter().enumerate();
        let n_before = n_before_tokens(plan);
        let mut after: HashMap<u64, Tensor> = HashMap::new();
        let keeps = |n: u64| wants.for_drafter.is_some_and(|of| of.after.contains(&n));
        for (i, layer) in layers.skip(n_before) {
            let n = (i - n_before) as u64;
            if keeps(n) {
                after.insert(n, x.clone());
            }
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
                    let device = slot.branches.last().map(|last| last.block.device);
                    x = self.only_wanted(x, wants.n_outputs, device)?;
                }
            }
        }
        after.insert((plan.layers.len() - n_before) as u64, x.clone());
        let values = match wants.for_drafter {
            Some(target) => Some(self.values(target, &after)?),
            None => None,
        };
        if wants.n_outputs == 0 {
            let results = Results {
                values,
                ..Results::default()
            };
            return Ok((x, results));
        }
        let wanted = self.only_wanted(x.clone(), wants.n_outputs, None)?;
        // What a drafter goes on with is not the normed hidden state.
        let goes_on = plan.target.as_ref().is_some_and(|of| of.block.is_none());
        let next = match goes_on && wants.hidden {
            true => Some(self.next(&wanted)?),
            false => None,
        };
        let read = plan.head.as_ref().and_then(|head| head.read.as_ref());
        let wanted = match read {
            Some(unit) => mix::end(&self.build.at(unit), &wanted)?,
            None => wanted,
        };
        let hidden = |x: &Tensor| Some(x.clone()).filter(|_| wants.hidden);
        let Some(head) = &plan.head else {
            let results = Results {
                hidden: hidden(&wanted),
                logits: Some(wanted),
                top: None,
                values,
            };
            return Ok((x, results));
        };
        let normed = self.norm(head.norm.as_ref(), wanted)?;
        let normed = match head.unit.as_ref() {
            Some(unit) => self.build.at(unit).point("norm", normed)?,
            None => self.build.point_at("head", &points::FINAL_NORM, normed)?,
        };
        let mut top = None;
        let result = match &head.unit {
            Some(unit) if !wants.is_headless => {
                let at = self.build.at(unit);
                let logits = blocks::head::build(&at, &normed)?;
                if wants.n_top > 0 {
                    let _scope = at.g.scope_on("head", &unit.path, unit.device);
                    top = Some(TopTensors::of(at.g, &logits, wants.n_top, wants.next)?);
                }
                logits
            }
            _ => normed.clone(),
        };
        let results = Results {
            hidden: next.or_else(|| hidden(&normed)),
            logits: Some(result),
            top,
            values,
        };
        Ok((x, results))
    }

    /// The rows with which a drafter goes on in the place of those of the target: those of the tap, or of the last hidden state.
    fn next(&self, wanted: &Tensor) -> Result<Tensor> {
        let row = match (self.taps.get(NEXT), self.of_all.contains_key(NEXT)) {
            (None, false) => wanted.clone(),
            _ => self.tap(Some(NEXT), wanted)?,
        };
        self.build.g.cont(&row)
    }

    /// The rows of the hidden state that want a result, on the device where it is, if that is known. The other rows end here.
    fn only_wanted(&mut self, x: Tensor, n_outputs: u64, device: Option<usize>) -> Result<Tensor> {
        let Some(rows) = self.rows.take() else {
            return Ok(x);
        };
        let g = self.build.g;
        let _scope = device.map(|device| g.wiring_on(device));
        let of_wanted = |x: &Tensor| self.build.g.get_rows(x, &rows);
        let wanted = of_wanted(&x)?;
        if let Some(held) = &mut self.held {
            held.all = of_wanted(&held.all)?;
            held.factors = held.factors.as_ref().map(of_wanted).transpose()?;
        }
        for (_, scales) in &mut self.build.adapters.scales {
            *scales = self.build.g.get_rows(scales, &rows)?;
        }
        for ids in [&mut self.build.switched, &mut self.build.ids] {
            let of_rows = ids.as_ref().map(|ids| self.build.g.get_rows(ids, &rows));
            *ids = of_rows.transpose()?;
        }
        self.of_all = std::mem::take(&mut self.taps);
        self.chosen = Some(rows);
        // Every slot that reads media comes before.
        self.build.media = None;
        self.build.media_tokens = None;
        self.build.n_tokens = n_outputs;
        Ok(wanted)
    }

    fn slot(&mut self, slot: &SlotPlan, x: Tensor) -> Result<Tensor> {
        let is_of_media = |branch: &BranchPlan| branch.block.contract.0.is_of_media;
        if self.build.media.is_none() && slot.branches.iter().any(is_of_media) {
            return Ok(x);
        }
        let _scope = self.build.g.wiring(&slot.path);
        let x = match &slot.read {
            Some(unit) => {
                let (x, held) = mix::read(&self.build.at(unit), &x)?;
                self.held = Some(held);
                x
            }
            None => x,
        };
        self.taps.insert("x".into(), x.clone());
        let of_x = self.build.grid;
        let input = self.tap(slot.from.as_deref(), &x)?;
        self.enter(slot.from.as_deref(), of_x);
        let h = self.norm(slot.pre.as_ref(), input)?;
        let h = match slot.pre {
            Some(_) => self.build.point_at(&slot.path, &points::SLOT_IN, h)?,
            None => h,
        };
        self.taps.insert("h".into(), h.clone());
        let mut sum: Option<Tensor> = None;
        let of_h = self.build.grid;
        let is_left_out = |branch: &BranchPlan| {
            branch.tokens == BranchTokens::Media && self.build.media_tokens.is_none()
        };
        let active: Vec<&BranchPlan> = slot.branches.iter().filter(|b| !is_left_out(b)).collect();
        for branch in active {
            self.enter(branch.from.as_deref(), of_h);
            let y = self.branch(branch, &h)?;
            let y = match branch.block.path == slot.path {
                true => y,
                false => {
                    let path = &branch.block.path;
                    self.build.point_at(path, &points::BRANCH_OUT, y)?
                }
            };
            sum = Some(match sum {
                None => y,
                Some(sum) => self.build.g.add(&sum, &y)?,
            });
        }
        // Every slot of a plan has a branch, which may be for media alone.
        let Some(y) = sum else { return Ok(x) };
        let y = self.normed_point(slot.post.as_ref(), (&slot.path, &points::SLOT_SUM), y)?;
        let y = self.factor(slot.scale, y)?;
        let y = self.build.point_at(&slot.path, &points::SLOT_OUT, y)?;
        let joined = match slot.join {
            Join::Add => self.build.g.add(&x, &y)?,
            Join::Set => y,
            Join::Append => self.build.g.concat(&x, &y, 0)?,
            Join::Keep => {
                self.build.g.expand(&y)?;
                self.enter(None, of_x);
                x
            }
        };
        let joined = self.norm(slot.after.as_ref(), joined)?;
        let joined = self.build.point_at(&slot.path, &points::SLOT_X, joined)?;
        let joined = match (&slot.write, self.held.take()) {
            (Some(unit), Some(held)) => mix::write(&self.build.at(unit), &held, &joined)?,
            (_, held) => {
                self.held = held;
                joined
            }
        };
        if !self.build.plan.devices.is_empty() {
            // Otherwise operations that read the state of a later layer come before the rest of this one, and the
            // scheduler would put that rest on the later layer's device.
            self.build.g.expand(&joined)?;
        }
        Ok(joined)
    }

    fn branch(&mut self, branch: &BranchPlan, h: &Tensor) -> Result<Tensor> {
        let input = self.tap(branch.from.as_deref(), h)?;
        let input = self.norm(branch.pre.as_ref(), input)?;
        let side = match branch.side.as_deref() {
            // The keys and values of the source are stored already.
            Some(name) if !self.build.keys_are_of_source(&branch.block) => {
                Some(self.tap(Some(name), h)?)
            }
            _ => None,
        };
        let mut b = self.build.at(&branch.block);
        b.side = side;
        let y = blocks::build_block(&mut b, &input)?;
        let saved = b.saved.take();
        let raw = (branch.block.path.as_str(), &points::BRANCH_RAW);
        let y = self.normed_point(branch.post.as_ref(), raw, y)?;
        let y = self.factor(branch.factor, y)?;
        let y = self.rows_of(branch.tokens, y)?;
        if let Some(name) = &branch.save {
            let value = saved.unwrap_or_else(|| y.clone());
            let value = match self.taps.get(name).filter(|_| branch.appends) {
                Some(before) => self.build.g.concat(before, &value, 0)?,
                None => value,
            };
            self.taps.insert(name.clone(), value);
            self.grids
                .extend(self.build.grid.map(|grid| (name.clone(), grid)));
        }
        Ok(y)
    }

    /// The rows of these tokens, and zeros at the others.
    fn rows_of(&self, tokens: BranchTokens, y: Tensor) -> Result<Tensor> {
        let (Some(media), g) = (&self.build.media_tokens, self.build.g) else {
            return Ok(y);
        };
        match tokens {
            BranchTokens::All => Ok(y),
            BranchTokens::Text => {
                let zeros = g.fill(&g.get_rows(&y, media)?, 0.0)?;
                g.put_rows(&g.copy(&y)?, &zeros, media)
            }
            BranchTokens::Media => {
                let rows = g.get_rows(&y, media)?;
                g.put_rows(&g.fill(&g.cont(&y)?, 0.0)?, &rows, media)
            }
        }
    }

    /// Sets the grid of the rows that are read next: that of a tap, or the given one.
    fn enter(&mut self, tap: Option<&str>, otherwise: Option<RowGrid>) {
        let of_tap = tap.and_then(|name| self.grids.get(name).copied());
        if let Some(grid) = of_tap.or(otherwise) {
            self.build.set_grid(grid);
        }
    }

    fn tap(&self, name: Option<&str>, otherwise: &Tensor) -> Result<Tensor> {
        let Some(name) = name else {
            return Ok(otherwise.clone());
        };
        match (self.taps.get(name), self.of_all.get(name), &self.chosen) {
            (Some(value), ..) => Ok(value.clone()),
            (None, Some(value), Some(rows)) => self.build.g.get_rows(value, rows),
            _ => Err(refused(&format!("`{name}` is read before it is saved"))),
        }
    }

    fn norm(&self, norm: Option<&NormUse>, x: Tensor) -> Result<Tensor> {
        match norm {
            Some(norm) => self.build.norm(norm, &x),
            None => Ok(x),
        }
    }

    /// Applies a norm to a value, which has a point before it. Without a norm the value has no point.
    fn normed_point(
        &self,
        norm: Option<&NormUse>,
        (path, spec): (&str, &'static PointSpec),
        x: Tensor,
    ) -> Result<Tensor> {
        match norm {
            Some(norm) => self.build.norm(norm, &self.build.point_at(path, spec, x)?),
            None => Ok(x),
        }
    }

    fn factor(&self, factor: Option<f64>, x: Tensor) -> Result<Tensor> {
        match factor {
            Some(factor) => self.build.g.scale(&x, factor as f32),
            None => Ok(x),
        }
    }
}
