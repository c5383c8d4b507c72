//! Graphs of the stages after the last layer by themselves: the head, where logits are computed some
//! rows at a time, and what follows pooling. Called by passes and by pooling.

use std::cell::RefCell;

use crate::blocks::lab::Lab;
use crate::blocks::{self, Build, Selections};
use crate::ggml::{Error, Graph, Tensor};
use crate::weights::TensorType;

use super::cache::states::PassStates;
use super::cache::store::PassStore;
use super::graph::{NODES_ELSEWHERE, n_leaves};
use super::inputs::{AdapterScales, Derived};
use super::shape::Sources;

/// A graph of a stage after the last layer, and what it takes and gives.
pub(super) type Stage = (Graph, StageEnds);

/// What a graph of a stage after the last layer takes and gives.
#[derive(Clone)]
pub(super) struct StageEnds {
    /// `[n_embd, n_rows]`.
    pub(super) hidden: Tensor,
    /// `[width, n_rows]`.
    pub(super) result: Tensor,
    /// Scales of the rows for each adapter that is on.
    pub(super) scales: AdapterScales,
}

/// The graph that makes logits `[n_vocab, n_rows]` of rows of hidden states after the final norm
/// `[n_embd, n_rows]`; none if the model ends in vectors.
pub(super) fn build_head(
    sources: &Sources<'_>,
    n_rows: usize,
    adapters: &[usize],
) -> Result<Option<Stage>, Error> {
    let Some(unit) = sources
        .plan
        .head
        .as_ref()
        .and_then(|head| head.unit.as_ref())
    else {
        return Ok(None);
    };
    build_stage(sources, n_rows, adapters, |b, x| {
        blocks::head::build(b, unit, x)
    })
    .map(Some)
}

/// The same from rows of hidden states before the final norm.
pub(super) fn build_lens(
    sources: &Sources<'_>,
    n_rows: usize,
    adapters: &[usize],
) -> Result<Option<Stage>, Error> {
    let head = sources.plan.head.as_ref();
    let Some((head, unit)) = head.and_then(|head| Some((head, head.unit.as_ref()?))) else {
        return Ok(None);
    };
    build_stage(sources, n_rows, adapters, |b, x| {
        let normed = match &head.norm {
            Some(norm) => b.norm(norm, x)?,
            None => x.clone(),
        };
        blocks::head::build(b, unit, &normed)
    })
    .map(Some)
}

/// The graph of the final norm by itself, of `n_rows` rows; none if there is no norm.
pub(super) fn build_norm(sources: &Sources<'_>, n_rows: usize) -> Result<Option<Stage>, Error> {
    let norm = sources
        .plan
        .head
        .as_ref()
        .and_then(|head| head.norm.as_ref());
    let built = norm.map(|norm| build_stage(sources, n_rows, &[], |b, x| b.norm(norm, x)));
    built.transpose()
}

/// The graph that gives the row of a token of the output matrix `[n_embd, 1]` or, with `is_bias`, its bias `[1, 1]`, and the
/// place of the token; none if the model has no such weight.
pub(super) fn build_row(
    sources: &Sources<'_>,
    is_bias: bool,
) -> Result<Option<(Stage, Tensor)>, Error> {
    let unit = sources
        .plan
        .head
        .as_ref()
        .and_then(|head| head.unit.as_ref());
    let key = if is_bias { "output.bias" } else { "output" };
    let Some(unit) = unit.filter(|unit| unit.weight(key).is_some()) else {
        return Ok(None);
    };
    let mut place = None;
    let stage = build_stage(sources, 1, &[], |b, _| {
        let weight = b.need(unit, key)?;
        let table = match is_bias {
            true => b.g.reshape(&weight, [1, weight.elements(), 1, 1])?,
            false => weight,
        };
        let n = table.shape()[1];
        let token = b.g.index_input("token", TensorType::I32, &[1], n)?;
        place = Some(token.clone());
        b.g.get_rows(&table, &token)
    })?;
    Ok(place.map(|place| (stage, place)))
}

/// The graph of what follows pooling: `[n_embd, 1]` to `[width, 1]`.
pub(super) fn build_pool(sources: &Sources<'_>) -> Result<Stage, Error> {
    build_stage(sources, 1, &[], |b, x| {
        blocks::pool::build(b, &sources.plan.pool, x)
    })
}

/// The graph of a stage after the last layer, which looks at each row `[n_embd]` by itself.
fn build_stage(
    sources: &Sources<'_>,
    n_rows: usize,
    adapters: &[usize],
    stage: impl FnOnce(&Build<'_>, &Tensor) -> Result<Tensor, Error>,
) -> Result<Stage, Error> {
    let (plan, weights) = (sources.plan, &sources.weights);
    let update_nodes = weights.update_nodes;
    let mut g = Graph::new(NODES_ELSEWHERE + update_nodes, n_leaves(plan, update_nodes))?;
    let n = n_rows as u64;
    let hidden = g.input("hidden", TensorType::F32, &[plan.n_embd, n])?;
    let scales = AdapterScales::new(&g, "", adapters, n)?;
    let result = {
        let mut store = PassStore::default();
        let mut states = PassStates::without_rows(sources.states);
        let build = Build {
            g: &g,
            plan,
            tensors: weights.tensors,
            adapters: weights.at_work(scales.0.clone()),
            // What follows the last layer has no updates.
            switched: None,
            n_tokens: n,
            n_ctx: plan.n_ctx_train,
            inputs: &Derived::new("", n),
            side: None,
            saved: None,
            store: &mut store,
            groups: &[],
            states: &mut states,
            flash_attn: false,
            selected: Selections::default(),
            lab: Lab::default(),
            named: RefCell::default(),
        };
        stage(&build, &hidden)?
    };
    g.output(&result)?;
    let ends = StageEnds {
        hidden,
        result,
        scales,
    };
    Ok((g, ends))
}
