//! Storage of keys and values, and the access of a graph to it.
//!
//! Rows are written by index, so that one graph serves any slots.

use std::collections::HashMap;

use super::super::devices::Arenas;
use super::{BLOCK, PoolBlock, SlotCopy};
use crate::blocks::{
    AttentionView, EndedSpans, KeyOwner, KeyValueStore, SpanRows, VisibleKeyValues,
};
use crate::plan::{KeyTokens, KeyValuePlan, Plan, RowLayout};
use lab_base::ggml::{Device, Error, Graph, Result, Tensor, dequantize};
use lab_base::weights::TensorType;

/// Number of blocks that are read at once to check their numbers.
const BLOCKS_AT_ONCE: usize = 64;

/// Storage of keys and values for the slots of all pools.
pub(crate) struct KvCache {
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
    pub(crate) fn new(
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
    pub(crate) fn describe<'d>(
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
    pub(crate) fn copy(&self, copy: &SlotCopy) -> Result<()> {
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
    pub(crate) fn not_finite(&self) -> Result<Vec<PoolBlock>> {
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
    pub(crate) fn not_finite_among(&self, blocks: &[PoolBlock]) -> Result<Vec<PoolBlock>> {
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

    pub(crate) fn clear(&self, blocks: &[PoolBlock]) -> Result<()> {
        for (pool, tensor, layout) in &self.pools {
            let n_rows = rows_of_block(*layout);
            let zeros = vec![0; n_rows * tensor.strides()[1]];
            let mut own = blocks.iter().filter(|(of, _)| of == pool);
            own.try_for_each(|(_, block)| Device::write_rows(tensor, block * n_rows, &zeros))?;
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// The tensors, each with its pool and the rows of a block in it.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (usize, &Tensor, usize)> {
        let all = self.pools.iter();
        all.map(|(pool, tensor, layout)| (*pool, tensor, rows_of_block(*layout)))
    }
}

/// Rows of a block in a tensor.
fn rows_of_block(layout: Option<RowLayout>) -> usize {
    layout.map_or(BLOCK, |layout| layout.rows(BLOCK as u64) as usize)
}

/// What a pass attends to, and what its units have stored.
#[derive(Default)]
pub(crate) struct PassViews {
    /// The attention view of each KV group.
    pub(crate) views: Vec<AttentionView>,
    /// The view over rows of positions and of whole blocks, for each KV group in which whole blocks have keys.
    pub(crate) whole: Vec<Option<SpanView>>,
    /// Rows of blocks, for each KV group whose keys are pooled.
    pub(crate) blocks: Vec<Option<SpanRows>>,
    /// Keys and values that the units of this pass have stored, by path.
    pub(crate) visible: HashMap<String, (Tensor, Option<Tensor>)>,
}

impl PassViews {
    /// These keys and values, in the view of their KV group.
    fn seen(&self, state: &KeyValuePlan, k: Tensor, v: Option<Tensor>) -> VisibleKeyValues {
        let view = self.views[state.cache].clone();
        VisibleKeyValues { k, v, view }
    }

    /// The keys and values that a unit stored in this pass.
    fn stored(&self, own: KeyOwner<'_>) -> Result<VisibleKeyValues> {
        let Some((k, v)) = self.visible.get(own.path) else {
            return Err(refused("stored", own, "stored nothing in this pass"));
        };
        Ok(self.seen(own.state, k.clone(), v.clone()))
    }

    /// The view of a KV group in which whole blocks have keys.
    fn whole(&self, own: KeyOwner<'_>) -> Result<&SpanView> {
        let found = self.whole.get(own.state.cache).and_then(Option::as_ref);
        found.ok_or_else(|| {
            refused(
                "whole_view",
                own,
                "has no input for the keys of whole blocks",
            )
        })
    }
}

/// The attention view of a KV group in which whole blocks have keys.
#[derive(Clone)]
pub(crate) struct SpanView {
    pub(crate) view: AttentionView,
    /// The blocks that end in the pass; none if no block does.
    pub(crate) ended: Option<EndedSpans>,
}

/// The error of a unit whose keys do not fit the pass.
fn refused(op: &'static str, own: KeyOwner<'_>, message: &str) -> Error {
    let message = format!("{} {message}", own.path);
    Error::Arguments { op, message }
}

/// The store of a pass. Without a cache, the tokens of the pass attend to each other alone.
#[derive(Default)]
pub(crate) struct PassStore<'a> {
    pub(crate) cached: Option<CachedSlots<'a>>,
    /// Rows from which the keys of whole blocks are made, by path; with a cache they are there.
    pub(crate) pooled: HashMap<String, Tensor>,
    pub(crate) pass: PassViews,
}

/// The cached keys and values, and where a pass writes its own.
pub(crate) struct CachedSlots<'a> {
    pub(crate) cache: &'a KvCache,
    /// Slot of each token in each pool, i64 `[n_tokens]`; none if the pass writes none there.
    pub(crate) slots: Vec<Option<Tensor>>,
    /// The tokens that the keys of each pool belong to.
    pub(crate) keys: Vec<KeyTokens>,
}

impl CachedSlots<'_> {
    /// Writes rows for the tokens of the pass. Reading the result orders the read after the write.
    fn set_rows(
        &self,
        g: &Graph,
        own: KeyOwner<'_>,
        stored: Option<&Tensor>,
        rows: &Tensor,
    ) -> Result<Tensor> {
        match (stored, &self.slots[own.state.cache]) {
            (Some(stored), Some(slots)) => g.set_rows(stored, rows, slots),
            (None, _) => Err(refused("append", own, "has no cache for these rows")),
            (_, None) => Err(refused("append", own, "writes no keys in this pass")),
        }
    }

    fn keys_of(&self, own: KeyOwner<'_>) -> Option<&Tensor> {
        Some(&self.cache.rows.get(own.path)?.0)
    }
}

impl KeyValueStore for PassStore<'_> {
    fn append(
        &mut self,
        g: &Graph,
        own: KeyOwner<'_>,
        k: &Tensor,
        v: Option<&Tensor>,
    ) -> Result<VisibleKeyValues> {
        let is_kept = |of: &&CachedSlots<'_>| of.keys[own.state.cache] != KeyTokens::Pass;
        let visible = match self.cached.as_ref().filter(is_kept) {
            None => (k.clone(), v.cloned()),
            Some(cached) => {
                let k = cached.set_rows(g, own, cached.keys_of(own), k)?;
                let values = cached.cache.rows.get(own.path);
                let v = match (values.and_then(|(_, values)| values.as_ref()), v) {
                    (Some(values), Some(v)) => Some(cached.set_rows(g, own, Some(values), v)?),
                    _ => None,
                };
                (k, v)
            }
        };
        self.pass.visible.insert(own.path.to_owned(), visible);
        self.stored(own)
    }

    fn stored(&self, own: KeyOwner<'_>) -> Result<VisibleKeyValues> {
        let cached = self.cached.as_ref();
        let cached = cached.filter(|cached| cached.slots[own.state.cache].is_none());
        match cached.and_then(|cached| cached.cache.rows.get(own.path)) {
            // The keys of a source that an earlier pass read.
            Some((k, v)) => Ok(self.pass.seen(own.state, k.clone(), v.clone())),
            None => self.pass.stored(own),
        }
    }

    fn append_index(
        &mut self,
        g: &Graph,
        own: KeyOwner<'_>,
        rows: &Tensor,
    ) -> Result<VisibleKeyValues> {
        let rows = match &self.cached {
            None => rows.clone(),
            Some(cached) => cached.set_rows(g, own, cached.cache.indexes.get(own.path), rows)?,
        };
        Ok(self.pass.seen(own.state, rows, None))
    }

    fn append_pooled(&mut self, g: &Graph, own: KeyOwner<'_>, rows: &Tensor) -> Result<Tensor> {
        let Some(cached) = &self.cached else {
            self.pooled.insert(own.path.to_owned(), rows.clone());
            return Ok(rows.clone());
        };
        let pooled = own.state.pooled.as_ref();
        let slots = pooled.and_then(|of| cached.slots[of.cache].as_ref());
        match (cached.cache.pooled.get(own.path), slots) {
            (Some(kept), Some(slots)) => g.set_rows(kept, rows, slots),
            _ => Err(refused("append_pooled", own, "has no cache for these rows")),
        }
    }

    fn ended(&self, state: &KeyValuePlan) -> Option<EndedSpans> {
        self.pass.whole.get(state.cache)?.as_ref()?.ended.clone()
    }

    fn append_with_ended(
        &mut self,
        g: &Graph,
        own: KeyOwner<'_>,
        k: &Tensor,
        ended: Option<&Tensor>,
    ) -> Result<VisibleKeyValues> {
        let whole = self.pass.whole(own)?;
        let with_ended = |rows: Tensor| match (ended, &whole.ended) {
            (Some(keys), Some(places)) => g.set_rows(&rows, keys, &places.write),
            _ => Ok(rows),
        };
        let k = match &self.cached {
            Some(cached) => with_ended(cached.set_rows(g, own, cached.keys_of(own), k)?)?,
            // A further row for each token. Only those at the end of a span are attended to.
            None => g.concat(k, &with_ended(g.fill(&g.cont(k)?, 0.0)?)?, 1)?,
        };
        let view = whole.view.clone();
        Ok(VisibleKeyValues { k, v: None, view })
    }

    fn append_index_of_ended(
        &mut self,
        g: &Graph,
        own: KeyOwner<'_>,
        ended: Option<&Tensor>,
    ) -> Result<VisibleKeyValues> {
        let all = match (&self.cached, self.pooled.get(own.path)) {
            (Some(cached), _) => cached.cache.indexes.get(own.path).cloned(),
            (None, None) => None,
            (None, Some(rows)) => {
                // A row for each token. Rows of tokens in incomplete blocks are never read.
                let (n, row) = (rows.shape()[1], rows.strides()[1]);
                let like = g.cont(&g.view(rows, [own.state.index, n, 1, 1], [row; 3], 0)?)?;
                Some(g.fill(&like, 0.0)?)
            }
        };
        let mut all =
            all.ok_or_else(|| refused("append_index", own, "has no rows to select by"))?;
        if let (Some(rows), Some(places)) = (ended, &self.pass.whole(own)?.ended) {
            all = write_each(g, &all, rows, places)?;
        }
        Ok(self.pass.seen(own.state, all, None))
    }

    fn span_rows(&self, state: &KeyValuePlan) -> Result<SpanRows> {
        let known = self.pass.blocks.get(state.cache).cloned().flatten();
        known.ok_or_else(|| Error::Arguments {
            op: "block_rows",
            message: "the keys of this group are not pooled".into(),
        })
    }
}

/// Writes the row of each block in `rows [width, m]` to the rows of all its positions.
fn write_each(g: &Graph, all: &Tensor, rows: &Tensor, places: &EndedSpans) -> Result<Tensor> {
    let [width, m, ..] = rows.shape();
    let n = places.write_each.elements();
    let each = g.repeat(&g.reshape(rows, [width, 1, m, 1])?, [width, n / m, m, 1])?;
    let each = g.reshape(&each, [width, n, 1, 1])?;
    g.set_rows(all, &each, &places.write_each)
}
