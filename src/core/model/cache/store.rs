//! Storage of keys and values, and the access of a graph to it.
//!
//! Rows are written by index, so that one graph serves any slots.

use std::collections::HashMap;

use super::super::devices::Arenas;
use super::{BLOCK, PoolBlock, SlotCopy};
use crate::blocks::{AttentionView, EndedSpans, KeyValueStore, SpanRows, VisibleKeyValues};
use crate::plan::{KeyTokens, KeyValuePlan, Plan, RowLayout};
use lab_base::ggml::{Device, Error, Graph, Result, Tensor, dequantize};
use lab_base::weights::TensorType;

/// Number of blocks that are read at once to check their numbers.
const BLOCKS_AT_ONCE: usize = 64;

/// Storage of keys and values for the slots of all pools.
pub(in crate::model) struct KvCache {
    /// Keys and values of each unit `[row, n_slots]`, by path.
    rows: HashMap<String, (Tensor, Option<Tensor>)>,
    /// The index rows by which a unit selects keys, by path.
    indexes: HashMap<String, Tensor>,
    /// The rows from which a unit makes the keys of whole blocks, by path.
    pooled: HashMap<String, Tensor>,
    /// All these tensors with the pool of their slots, and their row layout if they have further rows than those of
    /// slots.
    pools: Vec<(usize, Tensor, Option<RowLayout>)>,
    bytes: Vec<u64>,
}

impl KvCache {
    pub(in crate::model) fn new(
        plan: &Plan,
        devices: &[Device],
        n_slots: &[usize],
        [k, v]: [TensorType; 2],
    ) -> Result<Self> {
        let (mut described, arenas) = Self::describe(plan, devices, n_slots, [k, v])?;
        described.bytes =
            arenas.allocate(|device, arena| device.allocate(arena, "the key/value cache"))?;
        Ok(described)
    }

    /// The storage without memory, and the arenas that describe it.
    pub(in crate::model) fn describe<'d>(
        plan: &Plan,
        devices: &'d [Device],
        n_slots: &[usize],
        [k, v]: [TensorType; 2],
    ) -> Result<(Self, Arenas<'d>)> {
        let states: Vec<_> = plan
            .key_values()
            .filter(|(_, rows)| n_slots[rows.cache] > 0)
            .collect();
        let mut arenas = Arenas::new(devices, 4 * states.len());
        let mut rows = HashMap::with_capacity(states.len());
        let (mut indexes, mut pooled) = (HashMap::new(), HashMap::new());
        let mut pools = Vec::with_capacity(2 * states.len());
        for (unit, state) in states {
            let all_slots = n_slots;
            let n_slots = n_slots[state.cache] as u64;
            let mut rows_of = |name: &str, ty: TensorType, width: u64, n_rows: u64| {
                let name = format!("{}.{name}", unit.path);
                arenas.tensor(unit.device, &name, ty, &[width, n_rows])
            };
            let layout = plan.caches[state.cache].layout();
            let keys = rows_of("cache_k", k, state.k, layout.rows(n_slots))?;
            let values = match state.v_in_k {
                true => None,
                false => Some(rows_of("cache_v", v, state.v, n_slots)?),
            };
            let index = match state.index {
                0 => None,
                width => Some(rows_of("cache_index", k, width, n_slots)?),
            };
            if let Some(from) = &state.pooled {
                // F32 like states, whatever the type of the cache.
                let n_slots = all_slots[from.cache] as u64;
                let rows = rows_of("cache_pooled", TensorType::F32, from.width, n_slots)?;
                pools.push((from.cache, rows.clone(), None));
                pooled.insert(unit.path.clone(), rows);
            }
            let further = Some(layout).filter(|layout| layout.further > 0);
            pools.push((state.cache, keys.clone(), further));
            let others = [values.as_ref(), index.as_ref()];
            let others = others.into_iter().flatten().cloned();
            pools.extend(others.map(|tensor| (state.cache, tensor, None)));
            indexes.extend(index.map(|index| (unit.path.clone(), index)));
            rows.insert(unit.path.clone(), (keys, values));
        }
        let bytes = Vec::new();
        let described = Self {
            rows,
            indexes,
            pooled,
            pools,
            bytes,
        };
        Ok((described, arenas))
    }

    /// Copies rows in all layers on their devices.
    pub(in crate::model) fn copy(&self, copy: &SlotCopy) -> Result<()> {
        let mut tensors = self.pools.iter().filter(|(pool, ..)| *pool == copy.pool);
        tensors.try_for_each(|(_, tensor, layout)| {
            let Some(layout) = layout else {
                return Device::copy_rows(tensor, copy.from, copy.to, copy.n);
            };
            // Copies whole blocks: slots after the last one are written before they are read.
            let slots = [copy.from, copy.to, copy.n.next_multiple_of(BLOCK)];
            let [from, to, n] = slots.map(|slot| layout.rows(slot as u64) as usize);
            Device::copy_rows(tensor, from, to, n)
        })
    }

    /// The blocks of all pools that hold numbers which are not finite.
    pub(in crate::model) fn not_finite(&self) -> Result<Vec<PoolBlock>> {
        let mut all = Vec::new();
        for (pool, tensor, layout) in &self.pools {
            let n_blocks = tensor.shape()[1] as usize / rows_of_block(*layout);
            all.extend((0..n_blocks).map(|block| (*pool, block)));
        }
        all.sort_unstable();
        all.dedup();
        self.not_finite_among(&all)
    }

    /// Those of some blocks, in ascending order, that hold numbers which are not finite.
    pub(in crate::model) fn not_finite_among(
        &self,
        blocks: &[PoolBlock],
    ) -> Result<Vec<PoolBlock>> {
        let (mut bytes, mut numbers) = (Vec::new(), Vec::new());
        let mut found = Vec::new();
        for (pool, tensor, layout) in &self.pools {
            let n_rows = rows_of_block(*layout);
            let own: Vec<usize> = blocks
                .iter()
                .filter_map(|(of, block)| (of == pool).then_some(*block))
                .collect();
            // Blocks that follow each other are read at once.
            for part in own.chunk_by(|a, b| a + 1 == *b) {
                for part in part.chunks(BLOCKS_AT_ONCE) {
                    Device::read_rows(tensor, part[0] * n_rows, part.len() * n_rows, &mut bytes)?;
                    let of_block = n_rows * tensor.shape()[0] as usize;
                    numbers.resize(part.len() * of_block, 0.0);
                    dequantize(&bytes, tensor.ty(), &mut numbers)?;
                    let of_blocks = part.iter().zip(numbers.chunks_exact(of_block));
                    let faulty = of_blocks.filter(|(_, own)| !own.iter().all(|n| n.is_finite()));
                    found.extend(faulty.map(|(block, _)| (*pool, *block)));
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    pub(in crate::model) fn clear(&self, blocks: &[PoolBlock]) -> Result<()> {
        for (pool, tensor, layout) in &self.pools {
            let n_rows = rows_of_block(*layout);
            let zeros = vec![0; n_rows * tensor.strides()[1]];
            let mut own = blocks.iter().filter(|(of, _)| of == pool);
            own.try_for_each(|(_, block)| Device::write_rows(tensor, block * n_rows, &zeros))?;
        }
        Ok(())
    }

    pub(in crate::model) fn bytes(&self) -> &[u64] {
        &self.bytes
    }
}

/// Rows of a block in a tensor.
fn rows_of_block(layout: Option<RowLayout>) -> usize {
    layout.map_or(BLOCK, |layout| layout.rows(BLOCK as u64) as usize)
}

/// What a pass attends to, and what its units have stored.
#[derive(Default)]
pub(in crate::model) struct PassViews {
    /// The attention view of each KV group.
    pub(in crate::model) views: Vec<AttentionView>,
    /// The view over rows of positions and of whole blocks, for each KV group in which whole blocks have keys.
    pub(in crate::model) whole: Vec<Option<SpanView>>,
    /// Rows of blocks, for each KV group whose keys are pooled.
    pub(in crate::model) blocks: Vec<Option<SpanRows>>,
    /// Keys and values that the units of this pass have stored, by path.
    pub(in crate::model) visible: HashMap<String, (Tensor, Option<Tensor>)>,
}

impl PassViews {
    /// These keys and values, in the view of their KV group.
    fn seen(&self, state: &KeyValuePlan, k: Tensor, v: Option<Tensor>) -> VisibleKeyValues {
        let view = self.views[state.cache].clone();
        VisibleKeyValues { k, v, view }
    }

    /// The keys and values that a unit stored in this pass.
    fn stored(&self, path: &str, state: &KeyValuePlan) -> Result<VisibleKeyValues> {
        let Some((k, v)) = self.visible.get(path) else {
            return Err(Error::Arguments {
                op: "stored",
                message: format!("{path} stored nothing in this pass"),
            });
        };
        Ok(self.seen(state, k.clone(), v.clone()))
    }

    /// The view of a KV group in which whole blocks have keys.
    fn whole(&self, path: &str, state: &KeyValuePlan) -> Result<&SpanView> {
        let found = self.whole.get(state.cache).and_then(Option::as_ref);
        found.ok_or_else(|| missing("whole_view", path, "the keys of whole blocks"))
    }

    fn ended(&self, state: &KeyValuePlan) -> Option<EndedSpans> {
        self.whole.get(state.cache)?.as_ref()?.ended.clone()
    }

    /// The rows of spans of a KV group.
    fn block_rows(&self, state: &KeyValuePlan) -> Result<SpanRows> {
        let known = self.blocks.get(state.cache).cloned().flatten();
        known.ok_or_else(|| Error::Arguments {
            op: "block_rows",
            message: "the keys of this group are not pooled".into(),
        })
    }
}

/// The store of a pass over cached keys and values.
pub(in crate::model) struct CachedStore<'a> {
    pub(in crate::model) cache: &'a KvCache,
    /// Slot of each token in each pool, i64 `[n_tokens]`; none if the pass writes none there.
    pub(in crate::model) slots: Vec<Option<Tensor>>,
    /// The tokens that the keys of each pool belong to.
    pub(in crate::model) keys: Vec<KeyTokens>,
    pub(in crate::model) pass: PassViews,
}

/// The attention view of a KV group in which whole blocks have keys.
#[derive(Clone)]
pub(in crate::model) struct SpanView {
    pub(in crate::model) view: AttentionView,
    /// The blocks that end in the pass; none if no block does.
    pub(in crate::model) ended: Option<EndedSpans>,
}

fn missing(op: &'static str, path: &str, what: &str) -> Error {
    Error::Arguments {
        op,
        message: format!("{path}: the graph has no input for {what}"),
    }
}

impl CachedStore<'_> {
    fn slots_of(&self, path: &str, state: &KeyValuePlan) -> Result<&Tensor> {
        self.slots[state.cache]
            .as_ref()
            .ok_or_else(|| Error::Arguments {
                op: "append",
                message: format!("{path} writes no keys in this pass"),
            })
    }
}

impl KeyValueStore for CachedStore<'_> {
    fn append(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        k: &Tensor,
        v: Option<&Tensor>,
    ) -> Result<VisibleKeyValues> {
        if self.keys[state.cache] == KeyTokens::Pass {
            let own = (k.clone(), v.cloned());
            self.pass.visible.insert(path.to_owned(), own);
            return self.stored(path, state);
        }
        let Some((keys, values)) = self.cache.rows.get(path) else {
            return Err(Error::Arguments {
                op: "append",
                message: format!("{path} has no cache"),
            });
        };
        let slots = self.slots_of(path, state)?;
        // Reading the result of `set_rows` orders the read after the write.
        let k = g.set_rows(keys, k, slots)?;
        let v = match (values, v) {
            (Some(values), Some(v)) => Some(g.set_rows(values, v, slots)?),
            _ => None,
        };
        self.pass.visible.insert(path.to_owned(), (k, v));
        self.stored(path, state)
    }

    fn stored(&self, path: &str, state: &KeyValuePlan) -> Result<VisibleKeyValues> {
        match self.cache.rows.get(path) {
            // The keys of a source that an earlier pass read.
            Some((k, v)) if self.slots[state.cache].is_none() => {
                Ok(self.pass.seen(state, k.clone(), v.clone()))
            }
            _ => self.pass.stored(path, state),
        }
    }

    fn append_index(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        rows: &Tensor,
    ) -> Result<VisibleKeyValues> {
        let Some(stored) = self.cache.indexes.get(path) else {
            return Err(Error::Arguments {
                op: "append_index",
                message: format!("{path} keeps no rows to select by"),
            });
        };
        let rows = g.set_rows(stored, rows, self.slots_of(path, state)?)?;
        Ok(self.pass.seen(state, rows, None))
    }

    fn append_pooled(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        rows: &Tensor,
    ) -> Result<Tensor> {
        const OP: &str = "append_pooled";
        let slots = state
            .pooled
            .as_ref()
            .and_then(|of| self.slots[of.cache].as_ref());
        match (self.cache.pooled.get(path), slots) {
            (Some(kept), Some(slots)) => g.set_rows(kept, rows, slots),
            _ => Err(missing(OP, path, "what keys of spans are made of")),
        }
    }

    fn ended(&self, state: &KeyValuePlan) -> Option<EndedSpans> {
        self.pass.ended(state)
    }

    fn append_with_ended(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        k: &Tensor,
        ended: Option<&Tensor>,
    ) -> Result<VisibleKeyValues> {
        let Some((keys, _)) = self.cache.rows.get(path) else {
            return Err(missing("append_with_ended", path, "keys"));
        };
        let mut k = g.set_rows(keys, k, self.slots_of(path, state)?)?;
        let SpanView {
            view,
            ended: places,
        } = self.pass.whole(path, state)?;
        if let (Some(keys), Some(places)) = (ended, places) {
            k = g.set_rows(&k, keys, &places.write)?;
        }
        let view = view.clone();
        Ok(VisibleKeyValues { k, v: None, view })
    }

    fn append_index_of_ended(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        ended: Option<&Tensor>,
    ) -> Result<VisibleKeyValues> {
        let Some(stored) = self.cache.indexes.get(path) else {
            return Err(missing("append_index_of_ended", path, "rows to select by"));
        };
        let places = &self.pass.whole(path, state)?.ended;
        let k = match (ended, places) {
            (Some(rows), Some(places)) => write_each(g, stored, rows, places)?,
            _ => stored.clone(),
        };
        Ok(self.pass.seen(state, k, None))
    }

    fn block_rows(&self, state: &KeyValuePlan) -> Result<SpanRows> {
        self.pass.block_rows(state)
    }
}

/// Writes the row of each block in `rows [width, m]` to the rows of all its positions.
fn write_each(g: &Graph, all: &Tensor, rows: &Tensor, places: &EndedSpans) -> Result<Tensor> {
    let [width, m, ..] = rows.shape();
    let n = places.write_each.elements();
    let each = g.repeat(&g.reshape(rows, [width, 1, m, 1])?, [width, n / m, m, 1])?;
    g.set_rows(
        all,
        &g.reshape(&each, [width, n, 1, 1])?,
        &places.write_each,
    )
}

/// The store of a pass without a cache: its tokens attend to each other alone.
#[derive(Default)]
pub(in crate::model) struct PassStore {
    /// Rows from which the keys of whole blocks are made, by path.
    pub(in crate::model) pooled: HashMap<String, Tensor>,
    pub(in crate::model) pass: PassViews,
}

impl KeyValueStore for PassStore {
    fn append(
        &mut self,
        _: &Graph,
        path: &str,
        state: &KeyValuePlan,
        k: &Tensor,
        v: Option<&Tensor>,
    ) -> Result<VisibleKeyValues> {
        let own = (k.clone(), v.cloned());
        self.pass.visible.insert(path.to_owned(), own);
        self.stored(path, state)
    }

    fn stored(&self, path: &str, state: &KeyValuePlan) -> Result<VisibleKeyValues> {
        self.pass.stored(path, state)
    }

    fn append_index(
        &mut self,
        _: &Graph,
        _: &str,
        state: &KeyValuePlan,
        rows: &Tensor,
    ) -> Result<VisibleKeyValues> {
        Ok(self.pass.seen(state, rows.clone(), None))
    }

    fn append_pooled(
        &mut self,
        _: &Graph,
        path: &str,
        _: &KeyValuePlan,
        rows: &Tensor,
    ) -> Result<Tensor> {
        self.pooled.insert(path.to_owned(), rows.clone());
        Ok(rows.clone())
    }

    fn ended(&self, state: &KeyValuePlan) -> Option<EndedSpans> {
        self.pass.ended(state)
    }

    fn append_with_ended(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        k: &Tensor,
        ended: Option<&Tensor>,
    ) -> Result<VisibleKeyValues> {
        let SpanView {
            view,
            ended: places,
        } = self.pass.whole(path, state)?;
        // A row for each token. Only those at the end of a span are attended to.
        let mut further = g.fill(k, 0.0)?;
        if let (Some(keys), Some(places)) = (ended, places) {
            further = g.set_rows(&further, keys, &places.write)?;
        }
        let (k, view) = (g.concat(k, &further, 1)?, view.clone());
        Ok(VisibleKeyValues { k, v: None, view })
    }

    fn append_index_of_ended(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        ended: Option<&Tensor>,
    ) -> Result<VisibleKeyValues> {
        let Some(rows) = self.pooled.get(path) else {
            return Err(missing("append_index_of_ended", path, "rows to select by"));
        };
        // A row for each token. Rows of tokens in incomplete blocks are never read.
        let (n, row) = (rows.shape()[1], rows.strides()[1]);
        let like = g.cont(&g.view(rows, [state.index, n, 1, 1], [row; 3], 0)?)?;
        let nothing = g.fill(&like, 0.0)?;
        let places = &self.pass.whole(path, state)?.ended;
        let k = match (ended, places) {
            (Some(rows), Some(places)) => write_each(g, &nothing, rows, places)?,
            _ => nothing,
        };
        Ok(self.pass.seen(state, k, None))
    }

    fn block_rows(&self, state: &KeyValuePlan) -> Result<SpanRows> {
        self.pass.block_rows(state)
    }
}
