//! Graphs of single stages: the output head, where logits are computed some rows at a time, the layers after
//! pooling, a norm, rows of a weight. Called by passes, by pooling and by attribution.

use crate::blocks::lab::GraphLab;
use crate::blocks::{self, GraphBuilder, Selections, mix};
use crate::plan::{NormUse, Unit};
use lab_base::ggml::{Error, Graph, Result, Tensor};
use lab_base::weights::TensorType;

use super::cache::states::PassStates;
use super::cache::store::PassStore;
use super::graph::{NODES_ELSEWHERE, n_leaves};
use super::graph_shape::GraphParts;
use super::inputs::{AdapterScales, DerivedTensors};

/// The graph of a stage, with its inputs and its result.
pub(super) type StageGraph = (Graph, StageTensors);

/// The inputs and the result of the graph of a stage.
#[derive(Clone)]
pub(super) struct StageTensors {
    /// Input rows `[width, n_rows]`, usually `[n_embd, n_rows]`.
    pub(super) hidden: Tensor,
    /// Result rows `[width, n_rows]`.
    pub(super) result: Tensor,
    /// Scales of the rows for each adapter that is on.
    pub(super) scales: AdapterScales,
}

/// The graph that computes logits `[n_vocab, n_rows]` from hidden states after the final norm `[n_embd, n_rows]`;
/// none if the model ends in vectors.
pub(super) fn build_head(
    parts: &GraphParts<'_>,
    n_rows: usize,
    adapters: &[usize],
) -> Result<Option<StageGraph>> {
    let Some(unit) = parts.plan.head.as_ref().and_then(|head| head.unit.as_ref()) else {
        return Ok(None);
    };
    build_stage(parts, n_rows, adapters, |b, x| {
        blocks::head::build(&b.at(unit), x)
    })
    .map(Some)
}

/// The graph that computes logits from hidden states before the final norm, `[width, n_rows]`: one for each row, or
/// all that the head reads.
pub(super) fn build_lens(
    parts: &GraphParts<'_>,
    (width, n_rows): (u64, usize),
    adapters: &[usize],
) -> Result<Option<StageGraph>> {
    let head = parts.plan.head.as_ref();
    let Some((head, unit)) = head.and_then(|head| Some((head, head.unit.as_ref()?))) else {
        return Ok(None);
    };
    build_stage_of(parts, (width, n_rows), adapters, |b, x| {
        let read = head.read.as_ref().filter(|_| width > b.plan.n_embd);
        let x = match read {
            Some(unit) => mix::end(&b.at(unit), x)?,
            None => x.clone(),
        };
        let normed = match &head.norm {
            Some(norm) => b.norm(norm, &x)?,
            None => x,
        };
        blocks::head::build(&b.at(unit), &normed)
    })
    .map(Some)
}

/// The inputs and results of the graph of what tokens before add to logits.
pub(super) struct AfterTensors {
    /// Tokens before, i32 `[n]`.
    pub(super) before: Tensor,
    /// States after the final norm `[n_embd, n]`; none if nothing reads them.
    pub(super) hidden: Tensor,
    /// What is added to the logits `[n_logits, n]`.
    pub(super) added: Tensor,
    /// The logits of how likely the tokens are right `[1, n]`, if the head says so.
    pub(super) right: Option<Tensor>,
}

/// The graph of what tokens before add to the logits of `n_rows` rows.
pub(super) fn build_after(parts: &GraphParts<'_>, n_rows: usize) -> Result<(Graph, AfterTensors)> {
    let head = parts.plan.head.as_ref().and_then(|head| head.unit.as_ref());
    let unit = head.ok_or_else(|| Error::Arguments {
        op: "head",
        message: "there is no head".into(),
    })?;
    let (mut before, mut likely) = (None, None);
    let (mut g, ends) = build_stage(parts, n_rows, &[], |b, x| {
        let ids =
            b.g.index_input("before", TensorType::I32, &[n_rows as u64], b.plan.n_vocab)?;
        let (added, right) = blocks::head::after(&b.at(unit), &ids, x)?;
        (before, likely) = (Some(ids), right);
        Ok(added)
    })?;
    if let Some(right) = &likely {
        g.output(right)?;
    }
    let before = before.ok_or_else(|| Error::Arguments {
        op: "head",
        message: "it reads no tokens before".into(),
    })?;
    let after = AfterTensors {
        before,
        hidden: ends.hidden,
        added: ends.result,
        right: likely,
    };
    Ok((g, after))
}

/// The graph of a norm alone, for `n_rows` rows.
pub(super) fn build_norm(
    parts: &GraphParts<'_>,
    norm: &NormUse,
    n_rows: usize,
) -> Result<StageGraph> {
    build_stage(parts, n_rows, &[], |b, x| b.norm(norm, x))
}

/// The graph that reads rows of a weight `[width, n_rows]` or numbers of a bias `[1, n_rows]`, and the input with
/// the row indices.
pub(super) fn build_rows(
    parts: &GraphParts<'_>,
    (unit, key): (&Unit, &str),
    n_rows: usize,
) -> Result<(StageGraph, Tensor)> {
    let mut places = None;
    let stage = build_stage(parts, 1, &[], |b, _| {
        let weight = b.at(unit).required_weight(key)?;
        let table = match weight.shape() {
            [n, 1, 1, 1] => b.g.reshape(&weight, [1, n, 1, 1])?,
            _ => weight,
        };
        let (n, n_all) = (n_rows as u64, table.shape()[1]);
        let wanted = b.g.index_input("rows", TensorType::I32, &[n], n_all)?;
        places = Some(wanted.clone());
        b.g.get_rows(&table, &wanted)
    })?;
    let places = places.ok_or_else(|| Error::Arguments {
        op: "rows",
        message: format!("{} has no weight `{key}`", unit.path),
    })?;
    Ok((stage, places))
}

/// The graph of the layers after pooling: `[n_embd, 1]` to `[width, 1]`.
pub(super) fn build_pool(parts: &GraphParts<'_>, n_rows: usize) -> Result<StageGraph> {
    build_stage(parts, n_rows, &[], |b, x| {
        blocks::pool::build(&b.at(&parts.plan.pool), x)
    })
}

/// The graph of a stage that reads each row `[n_embd]` by itself.
fn build_stage(
    parts: &GraphParts<'_>,
    n_rows: usize,
    adapters: &[usize],
    stage: impl FnOnce(&mut GraphBuilder<'_>, &Tensor) -> Result<Tensor>,
) -> Result<StageGraph> {
    build_stage_of(parts, (parts.plan.n_embd, n_rows), adapters, stage)
}

/// The graph of a stage that reads each row `[width]` by itself.
fn build_stage_of(
    parts: &GraphParts<'_>,
    (width, n_rows): (u64, usize),
    adapters: &[usize],
    stage: impl FnOnce(&mut GraphBuilder<'_>, &Tensor) -> Result<Tensor>,
) -> Result<StageGraph> {
    let (plan, weights) = (parts.plan, &parts.weights);
    let update_nodes = weights.update_nodes;
    let mut g = Graph::new(
        NODES_ELSEWHERE + mix::NODES + update_nodes,
        n_leaves(plan, update_nodes),
    )?;
    let n = n_rows as u64;
    let hidden = g.input("hidden", TensorType::F32, &[width, n])?;
    let scales = AdapterScales::new(&g, "", adapters, n)?;
    let result = {
        let mut store = PassStore::default();
        let mut states = PassStates::without_rows(parts.states);
        let mut build = GraphBuilder {
            g: &g,
            plan,
            tensors: weights.tensors,
            adapters: weights.active(scales.0.clone()),
            // Stages after the last layer have no updates by switched adapters.
            switched: None,
            ids: None,
            n_tokens: n,
            grid: None,
            media: None,
            media_tokens: None,
            n_ctx: plan.n_ctx_train,
            inputs: &DerivedTensors::new("", n),
            store: &mut store,
            groups: &[],
            states: &mut states,
            flash_attn: false,
            is_quantised: [false; 2],
            selected: Selections::default(),
            lab: GraphLab::default(),
        };
        stage(&mut build, &hidden)?
    };
    g.output(&result)?;
    let ends = StageTensors {
        hidden,
        result,
        scales,
    };
    Ok((g, ends))
}
