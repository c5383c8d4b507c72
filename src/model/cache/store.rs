//! Storage of keys and values, and how the graph of a pass reaches it.
//!
//! Rows are written by index, so that one built graph serves any slots.

use std::collections::HashMap;

use super::super::devices::Arenas;
use super::SlotCopy;
use crate::blocks::{AttentionView, BlockRows, KeyValueStore, VisibleKeyValues};
use crate::ggml::{Device, Error, Graph, Tensor};
use crate::plan::{KeyValuePlan, KeysOf, Plan};
use crate::weights::TensorType;

/// Storage of keys and values for the slots of all pools.
pub(in crate::model) struct KeyValues {
    /// Keys and values of each unit by its path: `[row, n_slots]`.
    rows: HashMap<String, (Tensor, Option<Tensor>)>,
    /// The rows by which a unit selects keys.
    indexes: HashMap<String, Tensor>,
    /// The same tensors with the pool of their slots.
    pools: Vec<(usize, Tensor)>,
    /// On each device.
    bytes: Vec<u64>,
}

impl KeyValues {
    pub(in crate::model) fn new(
        plan: &Plan,
        devices: &[Device],
        n_slots: &[usize],
        [k, v]: [TensorType; 2],
    ) -> Result<Self, Error> {
        let (mut described, arenas) = Self::describe(plan, devices, n_slots, [k, v])?;
        described.bytes =
            arenas.allocate(|device, arena| device.allocate(arena, "the key/value cache"))?;
        Ok(described)
    }

    /// The same without memory, and what describes it.
    pub(in crate::model) fn describe<'d>(
        plan: &Plan,
        devices: &'d [Device],
        n_slots: &[usize],
        [k, v]: [TensorType; 2],
    ) -> Result<(Self, Arenas<'d>), Error> {
        let states: Vec<_> = plan
            .key_values()
            .filter(|(_, rows)| n_slots[rows.cache] > 0)
            .collect();
        let mut arenas = Arenas::new(devices, 3 * states.len());
        let mut rows = HashMap::with_capacity(states.len());
        let mut indexes = HashMap::new();
        let mut pools = Vec::with_capacity(2 * states.len());
        for (unit, state) in states {
            let n_slots = n_slots[state.cache] as u64;
            let mut rows_of = |name: &str, ty: TensorType, width: u64| {
                let name = format!("{}.{name}", unit.path);
                arenas.tensor(unit.device, &name, ty, &[width, n_slots])
            };
            let keys = rows_of("cache_k", k, state.k)?;
            let values = match state.v_in_k {
                true => None,
                false => Some(rows_of("cache_v", v, state.v)?),
            };
            let index = match state.index {
                0 => None,
                width => Some(rows_of("cache_index", k, width)?),
            };
            let all = [Some(&keys), values.as_ref(), index.as_ref()];
            let all = all.into_iter().flatten().cloned();
            pools.extend(all.map(|tensor| (state.cache, tensor)));
            indexes.extend(index.map(|index| (unit.path.clone(), index)));
            rows.insert(unit.path.clone(), (keys, values));
        }
        let bytes = Vec::new();
        let described = Self {
            rows,
            indexes,
            pools,
            bytes,
        };
        Ok((described, arenas))
    }

    /// Copies rows in all layers, on their devices and in this order.
    ///
    /// # Errors
    /// Slots that do not exist.
    pub(in crate::model) fn copy(&self, copies: &[SlotCopy]) -> Result<(), Error> {
        for copy in copies {
            let tensors = self.pools.iter().filter(|(pool, _)| *pool == copy.pool);
            for (_, tensor) in tensors {
                Device::copy_rows(tensor, copy.from, copy.to, copy.n)?;
            }
        }
        Ok(())
    }

    pub(in crate::model) fn bytes(&self) -> &[u64] {
        &self.bytes
    }
}

/// The store of a pass over cached keys and values.
pub(in crate::model) struct CachedStore<'a> {
    pub(in crate::model) cache: &'a KeyValues,
    /// Cell of each token in each pool, i64 `[n_tokens]`.
    /// None where the pass writes none.
    pub(in crate::model) slots: Vec<Option<Tensor>>,
    /// The tokens that the keys of each pool belong to.
    pub(in crate::model) keys: Vec<KeysOf>,
    /// What is seen, by cache group.
    pub(in crate::model) views: Vec<AttentionView>,
    /// Rows of blocks, by cache group, where keys are pooled.
    pub(in crate::model) blocks: Vec<Option<BlockRows>>,
    /// What the units of this pass may see, by their paths.
    pub(in crate::model) visible: HashMap<String, (Tensor, Option<Tensor>)>,
}

/// What a unit stored in this pass.
fn stored(
    visible: &HashMap<String, (Tensor, Option<Tensor>)>,
    views: &[AttentionView],
    path: &str,
    state: &KeyValuePlan,
) -> Result<VisibleKeyValues, Error> {
    let Some((k, v)) = visible.get(path) else {
        return Err(Error::Arguments {
            op: "stored",
            message: format!("{path} stored nothing in this pass"),
        });
    };
    Ok(VisibleKeyValues {
        k: k.clone(),
        v: v.clone(),
        view: views[state.cache].clone(),
    })
}

impl CachedStore<'_> {
    fn slots_of(&self, path: &str, state: &KeyValuePlan) -> Result<&Tensor, Error> {
        self.slots[state.cache]
            .as_ref()
            .ok_or_else(|| Error::Arguments {
                op: "append",
                message: format!("{path} writes no keys in this pass"),
            })
    }
}

/// The rows of the blocks of a group.
fn block_rows(blocks: &[Option<BlockRows>], state: &KeyValuePlan) -> Result<BlockRows, Error> {
    let known = blocks.get(state.cache).cloned().flatten();
    known.ok_or_else(|| Error::Arguments {
        op: "block_rows",
        message: "the keys of this group are not pooled".into(),
    })
}

impl KeyValueStore for CachedStore<'_> {
    fn append(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        k: &Tensor,
        v: Option<&Tensor>,
    ) -> Result<VisibleKeyValues, Error> {
        if self.keys[state.cache] == KeysOf::Pass {
            self.visible
                .insert(path.to_owned(), (k.clone(), v.cloned()));
            return self.stored(path, state);
        }
        let Some((keys, values)) = self.cache.rows.get(path) else {
            return Err(Error::Arguments {
                op: "append",
                message: format!("{path} has no cache"),
            });
        };
        let slots = self.slots_of(path, state)?;
        // Reading what `set_rows` returns orders the reading after the writing.
        let k = g.set_rows(keys, k, slots)?;
        let v = match (values, v) {
            (Some(values), Some(v)) => Some(g.set_rows(values, v, slots)?),
            _ => None,
        };
        self.visible.insert(path.to_owned(), (k, v));
        self.stored(path, state)
    }

    fn stored(&self, path: &str, state: &KeyValuePlan) -> Result<VisibleKeyValues, Error> {
        match self.cache.rows.get(path) {
            // Of a source that was read in an earlier pass.
            Some((k, v)) if self.slots[state.cache].is_none() => Ok(VisibleKeyValues {
                k: k.clone(),
                v: v.clone(),
                view: self.views[state.cache].clone(),
            }),
            _ => stored(&self.visible, &self.views, path, state),
        }
    }

    fn append_index(
        &mut self,
        g: &Graph,
        path: &str,
        state: &KeyValuePlan,
        rows: &Tensor,
    ) -> Result<VisibleKeyValues, Error> {
        let Some(stored) = self.cache.indexes.get(path) else {
            return Err(Error::Arguments {
                op: "append_index",
                message: format!("{path} keeps no rows to select by"),
            });
        };
        Ok(VisibleKeyValues {
            k: g.set_rows(stored, rows, self.slots_of(path, state)?)?,
            v: None,
            view: self.views[state.cache].clone(),
        })
    }

    fn block_rows(&self, state: &KeyValuePlan) -> Result<BlockRows, Error> {
        block_rows(&self.blocks, state)
    }
}

/// The store of a pass that keeps nothing: its own tokens are all there is to see.
#[derive(Default)]
pub(in crate::model) struct PassStore {
    /// What is seen, by cache group.
    pub(in crate::model) views: Vec<AttentionView>,
    /// Rows of blocks, by cache group, where keys are pooled.
    pub(in crate::model) blocks: Vec<Option<BlockRows>>,
    /// What the units of this pass may see, by their paths.
    pub(in crate::model) visible: HashMap<String, (Tensor, Option<Tensor>)>,
}

impl KeyValueStore for PassStore {
    fn append(
        &mut self,
        _: &Graph,
        path: &str,
        state: &KeyValuePlan,
        k: &Tensor,
        v: Option<&Tensor>,
    ) -> Result<VisibleKeyValues, Error> {
        self.visible
            .insert(path.to_owned(), (k.clone(), v.cloned()));
        self.stored(path, state)
    }

    fn stored(&self, path: &str, state: &KeyValuePlan) -> Result<VisibleKeyValues, Error> {
        stored(&self.visible, &self.views, path, state)
    }

    fn append_index(
        &mut self,
        _: &Graph,
        _: &str,
        state: &KeyValuePlan,
        rows: &Tensor,
    ) -> Result<VisibleKeyValues, Error> {
        Ok(VisibleKeyValues {
            k: rows.clone(),
            v: None,
            view: self.views[state.cache].clone(),
        })
    }

    fn block_rows(&self, state: &KeyValuePlan) -> Result<BlockRows, Error> {
        block_rows(&self.blocks, state)
    }
}
