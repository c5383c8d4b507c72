//! All inputs of the graph of a pass.

use std::collections::HashMap;
use std::sync::Arc;

use crate::blocks::lab::GraphLab;
use crate::plan::{KeyTokens, Plan, PooledPlan, RowLayout};
use lab_base::ggml::{Executor, Graph, Result, Tensor};
use lab_base::weights::TensorType;

use super::super::adapters::ModelAdapters;
use super::super::batch::Batch;
use super::super::cache::states::PassStates;
use super::super::cache::store::{CachedSlots, PassStore, PassViews, SpanView};
use super::super::cache::{BlockManager, SequenceId};
use super::super::graph_shape::{GraphParts, GraphShape};
use super::super::media::SequenceMedia;
use super::attention::{ViewInput, spans_of};
use super::data::PassData;
use super::lab::LabInputs;
use super::list::{BatchTokens, ListInputs, SourceTokens};
use super::rows::{
    EndedRows, KvSlots, MediaInput, MediaTokens, NextTokens, OutputRows, PooledRows, RowLookup,
    StateRows,
};
use super::visible::VisibleKeys;

/// All inputs of the graph of a pass.
pub(crate) struct PassInputs {
    pub(crate) tokens: ListInputs,
    /// The inputs of the sources; none if the pass reads no source.
    pub(crate) source: Option<ListInputs>,
    /// What stands for the values of the target `[width, n_tokens]`; none if the model is no drafter that reads any.
    pub(crate) target: Option<Tensor>,
    /// The rows of media; none if the pass has none.
    pub(crate) media: Option<MediaInput>,
    /// The tokens that branches for media are for; none if the pass or the model has none.
    pub(crate) media_tokens: Option<MediaTokens>,
    /// Rows that want a result; none if all rows do, or no row does.
    pub(crate) output_rows: Option<OutputRows>,
    /// What makes the tokens of the next pass, if devices do.
    pub(crate) next: Option<NextTokens>,
    /// The slots that the pass writes, for each KV group with a cache.
    slots: Vec<Option<KvSlots>>,
    /// The attention view of each KV group.
    views: Vec<ViewInput>,
    /// The rows of pooled keys, for each KV group that has them.
    pooled: Vec<Option<PooledRows>>,
    /// For each KV group in which whole blocks have keys and some end in the pass: their rows, and the group of the
    /// rows from which these keys are made.
    ended: Vec<Option<(EndedRows, usize)>>,
    layouts: Vec<RowLayout>,
    /// The rows of recurrent states, if the model has any.
    states: Option<StateRows>,
    lab: LabInputs,
}

/// The rows from which the keys of whole blocks of a KV group are made, the same in all its units.
fn pooled_of(plan: &Plan, group: usize) -> Option<&PooledPlan> {
    let of_group = plan.key_values().filter(|(_, rows)| rows.cache == group);
    of_group.filter_map(|(_, rows)| rows.pooled.as_ref()).next()
}

impl PassInputs {
    /// The inputs of a graph of this shape.
    pub(crate) fn new(g: &Graph, parts: &GraphParts<'_>, shape: &GraphShape) -> Result<Self> {
        let (plan, options) = (parts.plan, parts.options);
        let n = shape.n_tokens as u64;
        let some_rows =
            shape.n_outputs > 0 && (shape.n_outputs < shape.n_tokens || shape.is_padded);
        let groups = || plan.caches.iter().enumerate();
        Ok(Self {
            tokens: ListInputs::new(g, "", shape.n_tokens, plan, &shape.adapters)?,
            source: match shape.n_source {
                0 => None,
                n => Some(match shape.source_is_rows {
                    true => ListInputs::of_rows(g, "source.", n, plan, &shape.adapters)?,
                    false => ListInputs::new(g, "source.", n, plan, &shape.adapters)?,
                }),
            },
            target: match shape.target.width(plan) {
                0 => None,
                width => Some(g.input("target", TensorType::F32, &[width, n])?),
            },
            media: match shape.n_media as u64 {
                0 => None,
                n_media => Some(MediaInput::new(g, (plan.media_width(), n_media), n)?),
            },
            media_tokens: match shape.n_media_tokens as u64 {
                0 => None,
                n_media => Some(MediaTokens::new(g, n_media, n)?),
            },
            output_rows: match some_rows {
                true => Some(OutputRows::new(g, shape.n_outputs as u64, n)?),
                false => None,
            },
            next: match shape.is_padded && shape.n_top > 0 && options.feeds_next(plan) {
                true => Some(NextTokens::new(g, shape.n_outputs as u64, n)?),
                false => None,
            },
            slots: groups()
                .filter(|_| options.n_ctx > 0)
                .map(|(i, group)| {
                    let n = match group.keys {
                        KeyTokens::Tokens => shape.n_tokens,
                        KeyTokens::Source => shape.n_source,
                        KeyTokens::Pass => 0,
                    };
                    let n_slots = group.layout().rows(parts.n_slots[i] as u64);
                    let slots = (n > 0).then(|| KvSlots::new(g, &group.name, n as u64, n_slots));
                    slots.transpose()
                })
                .collect::<Result<_, _>>()?,
            views: groups()
                .map(|(i, group)| {
                    let n = match group.keys {
                        KeyTokens::Pass => shape.n_source as u64,
                        _ => n,
                    };
                    ViewInput::new(g, parts, i, n, &shape.keys[i])
                })
                .collect::<Result<_, _>>()?,
            ended: groups()
                .map(|(i, group)| {
                    let (Some(pooled), m @ 1..) = (pooled_of(plan, i), shape.n_ended[i]) else {
                        return Ok(None);
                    };
                    let n_slots = |group: usize| parts.n_slots[group] as u64;
                    let n_rows = match options.n_ctx {
                        0 => [n; 3],
                        _ => [
                            n_slots(pooled.cache),
                            group.layout().rows(n_slots(i)),
                            n_slots(i),
                        ],
                    };
                    let sizes = (pooled.span, pooled.reach);
                    let rows = EndedRows::new(g, &group.name, m as u64, n_rows, sizes)?;
                    Ok(Some((rows, pooled.cache)))
                })
                .collect::<Result<_>>()?,
            layouts: plan.caches.iter().map(|group| group.layout()).collect(),
            pooled: groups()
                .map(|(i, group)| {
                    let spans = spans_of(plan, i).filter(|s| s.pooled && group.span().is_none());
                    let Some(span) = spans.map(|s| s.span) else {
                        return Ok(None);
                    };
                    let n_rows = match options.n_ctx {
                        0 => n,
                        _ => parts.n_slots[i] as u64,
                    };
                    PooledRows::new(g, &group.name, (n, n_rows), span).map(Some)
                })
                .collect::<Result<_, _>>()?,
            states: match parts.states.is_empty() {
                true => None,
                false => Some(StateRows::new(g, options, &shape.groups)?),
            },
            lab: LabInputs::new(g, parts, shape)?,
        })
    }

    /// The store that receives the keys and values of the pass, with the attention views of its queries.
    pub(crate) fn key_value_store<'a>(&self, parts: &GraphParts<'a>) -> PassStore<'a> {
        let views = self.views.iter().map(|input| input.view.clone()).collect();
        let pooled = self.pooled.iter().map(Option::as_ref);
        let blocks = pooled.map(|own| Some(own?.rows.clone())).collect();
        let whole = self.views.iter().zip(&self.ended).map(|(input, ended)| {
            Some(SpanView {
                view: input.whole.clone()?,
                ended: ended.as_ref().map(|(rows, _)| rows.blocks.clone()),
            })
        });
        let pass = PassViews {
            views,
            whole: whole.collect(),
            blocks,
            visible: HashMap::new(),
        };
        let slots = self
            .slots
            .iter()
            .map(|slots| Some(slots.as_ref()?.0.clone()));
        let cached = || CachedSlots {
            cache: parts.cache,
            keys: parts.plan.caches.iter().map(|group| group.keys).collect(),
            slots: slots.collect(),
        };
        PassStore {
            cached: (parts.options.n_ctx > 0).then(cached),
            pooled: HashMap::new(),
            pass,
        }
    }

    /// The recurrent states that the pass reads and writes.
    pub(crate) fn state_store<'a>(&self, parts: &GraphParts<'a>) -> PassStates<'a> {
        let rows = self.states.as_ref();
        PassStates {
            states: parts.states,
            read: rows.map_or(Vec::new(), |rows| rows.read.clone()),
            write: rows.and_then(|rows| rows.write.clone()),
        }
    }

    /// The captures and edits of the graph at each point.
    pub(crate) fn lab(&self, parts: &GraphParts<'_>, shape: &GraphShape) -> GraphLab {
        self.lab.uses(parts.points, &shape.lab)
    }

    pub(crate) fn write(&self, executor: &mut Executor, data: &PassData<'_>) -> Result<()> {
        let batch = data.batch;
        let known = BatchTokens::new(data);
        self.tokens.write(executor, batch, data.adapters, &known)?;
        if let Some(source) = &self.source {
            source.write(executor, data.source, data.adapters, &SourceTokens)?;
            if let Some(rows) = &source.rows {
                executor.write(rows, data.source_rows)?;
            }
        }
        if let Some(rows) = &self.target {
            let width = rows.shape()[0] as usize;
            executor.write(rows, &data.target.of(&batch.positions, width))?;
        }
        if let Some(media) = &self.media {
            media.write(executor, data.media)?;
        }
        if let Some(tokens) = &self.media_tokens {
            tokens.write(executor, data.media)?;
        }
        if let Some(rows) = &self.output_rows {
            rows.write(executor, batch, data.rows)?;
        }
        if let Some(next) = &self.next {
            next.write(executor, batch, data.rows.unwrap_or(&[]))?;
        }
        if let Some(rows) = &self.states {
            rows.write(executor, &data.allocated.rows)?;
        }
        let of_groups = self.slots.iter().zip(&data.allocated.slots);
        for ((input, slots), layout) in of_groups.zip(&self.layouts) {
            if let Some(input) = input {
                input.write(executor, slots, *layout)?;
            }
        }
        self.lab.write(executor, data.lab)?;
        self.write_ended(executor, data)?;
        for (group, input) in self.views.iter().enumerate() {
            input.write(executor, group, data)?;
        }
        for (group, input) in self.pooled.iter().enumerate() {
            let Some(input) = input else { continue };
            match &data.keys[group] {
                VisibleKeys::Pass(..) => {
                    let places = batch.positions.iter().enumerate();
                    let rows: HashMap<_, _> = places.map(|(at, place)| (*place, at)).collect();
                    let row = |id, position| rows.get(&(id, position)).copied();
                    input.write(executor, &batch.positions, row)?;
                }
                _ => {
                    let slot = |id, position| data.block_manager.slot_of(group, id, position);
                    input.write(executor, &batch.positions, slot)?;
                }
            }
        }
        Ok(())
    }

    /// Writes again what the tokens of a batch decide. They have their places in the cache.
    pub(crate) fn write_tokens(
        &self,
        executor: &mut Executor,
        batch: &Batch,
        adapters: &ModelAdapters,
        (block_manager, media): (&BlockManager, &HashMap<SequenceId, Arc<SequenceMedia>>),
    ) -> Result<()> {
        let known = BatchTokens::stored(block_manager, media);
        self.tokens.write(executor, batch, adapters, &known)
    }

    /// Writes the inputs of the blocks that end in the pass.
    fn write_ended(&self, executor: &mut Executor, data: &PassData<'_>) -> Result<()> {
        let places = data.batch.positions.as_slice();
        for (group, input) in self.ended.iter().enumerate() {
            let Some((input, from)) = input else { continue };
            let (manager, layout) = (data.block_manager, self.layouts[group]);
            if let VisibleKeys::Pass(..) = &data.keys[group] {
                let all: HashMap<_, _> = places.iter().copied().zip(0..).collect();
                let row = |id, position| all.get(&(id, position)).copied();
                let rows = RowLookup {
                    read: &row,
                    each: &row,
                    whole: &|row| row,
                };
                input.write(executor, places, &rows)?;
            } else {
                let rows = RowLookup {
                    read: &|id, position| manager.row(*from, id, position),
                    each: &|id, position| manager.row(group, id, position),
                    whole: &|slot| layout.further(slot as u64) as usize,
                };
                input.write(executor, places, &rows)?;
            }
        }
        Ok(())
    }
}
