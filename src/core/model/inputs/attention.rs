//! Inputs for the keys of a KV group that the queries of a pass attend to: block tables, or runs with a mask.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::blocks::cache::CacheOptions as Visibility;
use crate::blocks::position_bias::TABLE;
use crate::blocks::selection::{Selection, TAIL};
use crate::blocks::{AttentionView, RunView, Runs, SpanView};
use crate::plan::{CachePlan, KeyTokens, Plan, RowLayout, Unit};
use lab_base::ggml::{Error, Executor, Graph, Result, Tensor};
use lab_base::weights::TensorType;

use super::super::cache::{SequenceId, mask_of_tokens};
use super::super::graph_shape::GraphParts;
use super::super::key_shape::{KeyShape, table_len};
use super::data::PassData;
use super::visible::VisibleKeys;

/// The entry that pads a table.
const NO_BLOCK: i32 = -1;

/// The attention view of one KV group.
pub(super) struct ViewInput {
    pub(super) view: AttentionView,
    /// The view over rows of positions and of whole blocks, if blocks have keys.
    pub(super) whole: Option<AttentionView>,
    /// The selection of spans, if there is one.
    selection: Option<Selection>,
    /// The distance from which the bias of the scores is constant, if there is a bias.
    far: Option<u64>,
}

/// The selection of spans in a KV group, if there is one.
pub(super) fn spans_of(plan: &Plan, group: usize) -> Option<Selection> {
    let of_group = plan
        .key_values()
        .filter(|(_, rows)| rows.cache == group && rows.index > 0);
    let selections = of_group.filter_map(|(unit, _)| plan.selection(unit));
    let mut read = selections.map(|unit| Selection::read(&unit.options));
    read.find(|selection| selection.span > 1)
}

/// The distance from which the bias of the scores of a KV group is constant, if there is a bias.
fn far_of(plan: &Plan, group: usize) -> Option<u64> {
    let is_of_group = |unit: &&Unit| unit.key_values().is_some_and(|rows| rows.cache == group);
    let mut biased = plan.units().filter(is_of_group);
    biased.find_map(|unit| unit.weight(TABLE).and(unit.option_int("max_distance")))
}

impl ViewInput {
    /// The view of a KV group for a pass of `n` tokens. Block tables: `queries` i32 `[4, n]` and `table` i32
    /// `[len]`. Runs: masks `[n_kv, n_tokens, 1, n_runs]`, f16 for flash attention, else f32.
    pub(super) fn new(
        g: &Graph,
        parts: &GraphParts<'_>,
        group: usize,
        n: u64,
        keys: &KeyShape,
    ) -> Result<Self> {
        let (plan, options) = (parts.plan, parts.options);
        let (selection, far) = (spans_of(plan, group), far_of(plan, group));
        let cache = &plan.caches[group];
        let group = &cache.name;
        let ty = match options.flash_attn {
            true => TensorType::F16,
            false => TensorType::F32,
        };
        let view = match keys {
            KeyShape::Table(len) => AttentionView::Blocks {
                queries: g.input(&format!("queries.{group}"), TensorType::I32, &[4, n])?,
                table: g.input(&format!("table.{group}"), TensorType::I32, &[*len as u64])?,
            },
            KeyShape::Runs(views) => {
                let with_mask = views.iter().enumerate().map(|(i, runs)| {
                    let name = match i {
                        0 => format!("mask.{group}"),
                        _ => format!("mask.{group}.{i}"),
                    };
                    let shape = [runs.n_kv, runs.n_tokens, 1, runs.n_runs].map(|n| n as u64);
                    let spans = selection
                        .as_ref()
                        .map(|s| span_inputs(g, &name, runs, s.span));
                    let distances = far.map(|far| distance_input(g, &name, &shape, far));
                    Ok(RunView {
                        runs: *runs,
                        mask: g.input(&name, ty, &shape)?,
                        spans: spans.transpose()?,
                        distances: distances.transpose()?,
                        layout: None,
                    })
                });
                AttentionView::Runs(with_mask.collect::<Result<_>>()?)
            }
        };
        let whole = match &view {
            _ if cache.span().is_none() => None,
            AttentionView::Blocks { .. } => Some(view.clone()),
            AttentionView::Runs(views) => {
                let of_rows = views.iter().enumerate().map(|(i, view)| {
                    let layout = layout(cache, &view.runs, options.n_ctx > 0);
                    let runs = rows_of_runs(&view.runs, layout);
                    let shape = [runs.n_kv, runs.n_tokens, 1, runs.n_runs].map(|n| n as u64);
                    Ok(RunView {
                        runs,
                        mask: g.input(&format!("whole.{group}.{i}"), ty, &shape)?,
                        spans: None,
                        distances: None,
                        layout: Some(layout),
                    })
                });
                Some(AttentionView::Runs(of_rows.collect::<Result<_>>()?))
            }
        };
        Ok(Self {
            view,
            whole,
            selection,
            far,
        })
    }

    pub(super) fn write(
        &self,
        executor: &mut Executor,
        group: usize,
        data: &PassData<'_>,
    ) -> Result<()> {
        let manager = data.block_manager;
        let (tokens, source) = (
            data.batch.positions.as_slice(),
            data.source.positions.as_slice(),
        );
        match (&self.view, &data.keys[group]) {
            (AttentionView::Blocks { queries, table }, VisibleKeys::Table(of_pass)) => {
                let mut blocks = of_pass.blocks.clone();
                blocks.resize(table_len(blocks.len()), NO_BLOCK);
                if queries.is_allocated() {
                    executor.write(queries, of_pass.queries.as_flattened())?;
                }
                match table.is_allocated() {
                    true => executor.write(table, &blocks),
                    false => Ok(()),
                }
            }
            (AttentionView::Runs(views), VisibleKeys::Runs(all)) => {
                let mut left = tokens;
                // The views of the graph may have been moved, so the runs are those of the pass.
                for (at, (view, runs)) in views.iter().zip(all).enumerate() {
                    let (own, after) = left.split_at(runs.n_tokens * runs.n_runs);
                    left = after;
                    if view.mask.is_allocated() {
                        match view.mask.ty() {
                            TensorType::F16 => {
                                let mask: Vec<f16> = manager.mask(group, runs, own);
                                executor.write(&view.mask, &mask)?;
                            }
                            _ => {
                                let mask: Vec<f32> = manager.mask(group, runs, own);
                                executor.write(&view.mask, &mask)?;
                            }
                        }
                    }
                    let seen = |i| manager.seen(group, runs, own, i);
                    self.write_whole(executor, at, (own, manager.rule(group)), seen)?;
                    self.write_spans(executor, view, seen)?;
                    self.write_distances(executor, view, own, seen)?;
                }
                Ok(())
            }
            (AttentionView::Runs(views), VisibleKeys::Pass(..)) => {
                let (queries, keys) = match manager.keys(group) {
                    KeyTokens::Tokens => (tokens, tokens),
                    KeyTokens::Source => (tokens, source),
                    KeyTokens::Pass => (source, source),
                };
                let mut left = queries;
                for (at, view) in views.iter().enumerate() {
                    let runs = &view.runs;
                    let (own, after) = left.split_at(runs.n_tokens * runs.n_runs);
                    left = after;
                    let keys_of = |i: usize| {
                        let start = runs.first + i / runs.n_tokens * runs.stride;
                        &keys[start..][..runs.n_kv]
                    };
                    let rule = manager.rule(group);
                    let around = |(id, position)| manager.around(group, id, position);
                    let values = mask_of_tokens(own, keys_of, rule, around);
                    if view.mask.is_allocated() {
                        write_mask(executor, &view.mask, &values)?;
                    }
                    let row = |i| &values[i * runs.n_kv..][..runs.n_kv];
                    let seen = |i: usize| {
                        let rows = row(i).iter().zip(keys_of(i)).enumerate();
                        let seen = rows.filter(|(_, (value, _))| value.is_finite());
                        seen.map(|(at, (_, place))| (place.1, at)).collect()
                    };
                    self.write_whole(executor, at, (own, manager.rule(group)), seen)?;
                    self.write_spans(executor, view, seen)?;
                    self.write_distances(executor, view, own, seen)?;
                }
                Ok(())
            }
            (AttentionView::Runs(_), VisibleKeys::Nothing) => Ok(()),
            _ => Err(Error::Arguments {
                op: "inputs",
                message: "the graph has another attention view than the pass".into(),
            }),
        }
    }
}

impl ViewInput {
    /// Writes the blocks of positions for the queries of a view. `seen` gives the positions that a query attends
    /// to, with their rows.
    fn write_spans(
        &self,
        executor: &mut Executor,
        view: &RunView,
        seen: impl Fn(usize) -> Vec<(u32, usize)>,
    ) -> Result<()> {
        let (Some(spans), Some(selection)) = (&view.spans, &self.selection) else {
            return Ok(());
        };
        // If all blocks are selected, nothing reads them.
        if !spans.rows.is_allocated() {
            return Ok(());
        }
        let [n_positions, n, ..] = spans.rows.shape().map(|n| n as usize);
        let (n_kv, span) = (view.runs.n_kv, selection.span as usize);
        let n_blocks = n_positions / span;
        let mut rows = vec![0i32; n_positions * n];
        let mut blocks = vec![0i32; n_kv * n];
        let mut bonus = vec![0f32; n_blocks * n];
        for i in 0..n {
            let seen = seen(i);
            let mut is_seen = vec![false; n_kv];
            seen.iter().for_each(|(_, row)| is_seen[*row] = true);
            // A row that the query does not attend to. There is none only if it attends to all rows.
            let hidden = is_seen.iter().position(|seen| !seen).unwrap_or(0);
            let of = &mut rows[i * n_positions..][..n_positions];
            of.fill(hidden as i32);
            for (position, row) in &seen {
                let block = *position as usize / span;
                blocks[i * n_kv + row] = block.min(n_blocks - 1) as i32;
                // The rest of the block too, until later positions overwrite it.
                let of_block = (block + 1) * span;
                let after = *position as usize..of_block.min(n_positions);
                of.get_mut(after).unwrap_or_default().fill(*row as i32);
            }
            let last = seen
                .last()
                .map_or(0, |(position, _)| *position as usize / span);
            let end = (last + 1).min(n_blocks);
            let first = end.saturating_sub(selection.local as usize);
            bonus[i * n_blocks + first..i * n_blocks + end].fill(ALWAYS);
            let n_seen = seen.last().map_or(0, |(position, _)| position + 1) as usize;
            if selection.pooled && !n_seen.is_multiple_of(span) {
                bonus[i * n_blocks + last] = TAIL;
            }
        }
        executor.write_indices(&spans.rows, &rows)?;
        executor.write_indices(&spans.spans, &blocks)?;
        executor.write(&spans.bonus, &bonus)
    }
}

impl ViewInput {
    /// Writes the mask over rows of positions and of whole blocks for view `at`; `seen` as in `write_spans`.
    fn write_whole(
        &self,
        executor: &mut Executor,
        at: usize,
        (queries, rule): (&[(SequenceId, u32)], &Visibility),
        seen: impl Fn(usize) -> Vec<(u32, usize)>,
    ) -> Result<()> {
        let Some(AttentionView::Runs(views)) = &self.whole else {
            return Ok(());
        };
        let RunView {
            runs, mask, layout, ..
        } = &views[at];
        let Some(layout) = layout.filter(|_| mask.is_allocated()) else {
            return Ok(());
        };
        let mut values = vec![f32::NEG_INFINITY; mask.elements() as usize];
        let of_queries = values.chunks_exact_mut(runs.n_kv).zip(queries);
        for (i, (row, (_, query))) in of_queries.enumerate() {
            for (position, at) in seen(i) {
                if rule.is_near(*query, position) {
                    row[layout.own(at as u64) as usize] = 0.0;
                }
                if (u64::from(position) + 1).is_multiple_of(rule.span) {
                    row[layout.further(at as u64) as usize] = 0.0;
                }
            }
        }
        write_mask(executor, mask, &values)
    }
}

/// The row layout of runs. Rows of a pass without a cache are followed by a further row for each token.
fn layout(cache: &CachePlan, runs: &Runs, is_cached: bool) -> RowLayout {
    let n = runs.n_kv.max(1) as u64;
    match is_cached {
        true => cache.layout(),
        false => RowLayout {
            block: n,
            further: n,
        },
    }
}

/// Runs of slots as runs of rows. They start and end at block boundaries.
fn rows_of_runs(runs: &Runs, layout: RowLayout) -> Runs {
    let rows = |n: usize| layout.rows(n as u64) as usize;
    Runs {
        first: rows(runs.first),
        stride: rows(runs.stride),
        n_kv: rows(runs.n_kv),
        ..*runs
    }
}

impl ViewInput {
    /// Writes the distance of each key that a query of a view attends to, as a row of the bias; `seen` as in
    /// `write_spans`.
    fn write_distances(
        &self,
        executor: &mut Executor,
        view: &RunView,
        queries: &[(SequenceId, u32)],
        seen: impl Fn(usize) -> Vec<(u32, usize)>,
    ) -> Result<()> {
        let (Some(distances), Some(far)) = (&view.distances, self.far) else {
            return Ok(());
        };
        if !distances.is_allocated() {
            return Ok(());
        }
        let far = far as i64;
        // Positions that are not attended to may have any bias.
        let mut rows = vec![0i32; distances.elements() as usize];
        let of_queries = rows.chunks_exact_mut(view.runs.n_kv).zip(queries);
        for (i, (row, (_, query))) in of_queries.enumerate() {
            for (position, at) in seen(i) {
                let distance = i64::from(position) - i64::from(*query);
                row[at] = (distance.clamp(-far, far) + far) as i32;
            }
        }
        executor.write_indices(distances, &rows)
    }
}

/// Larger than any score.
const ALWAYS: f32 = 1e30;

/// The input of distances for a mask of this shape.
fn distance_input(g: &Graph, name: &str, shape: &[u64; 4], far: u64) -> Result<Tensor> {
    let n = [shape.iter().product()];
    g.index_input(
        &format!("distances.{name}"),
        TensorType::I32,
        &n,
        2 * far + 1,
    )
}

fn span_inputs(g: &Graph, name: &str, runs: &Runs, span: u64) -> Result<SpanView> {
    let (n_kv, n) = (runs.n_kv as u64, (runs.n_tokens * runs.n_runs) as u64);
    let n_blocks = n_kv.div_ceil(span);
    let index = |what: &str, shape: [u64; 2], bound: u64| {
        g.index_input(&format!("{what}.{name}"), TensorType::I32, &shape, bound)
    };
    Ok(SpanView {
        rows: index("rows", [n_blocks * span, n], n_kv)?,
        spans: index("blocks", [n_kv, n], n_blocks)?,
        bonus: g.input(&format!("bonus.{name}"), TensorType::F32, &[n_blocks, n])?,
    })
}

fn write_mask(executor: &mut Executor, mask: &Tensor, values: &[f32]) -> Result<()> {
    match mask.ty() {
        TensorType::F16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            executor.write(mask, &halves)
        }
        _ => executor.write(mask, values),
    }
}
