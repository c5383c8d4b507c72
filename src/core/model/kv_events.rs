//! The changes of a model's prefix cache, for routers.

use super::cache::{BlockAdapter, KvEvent, SequenceId};
use super::lifecycle::Model;

impl Model {
    /// Notes from now on which KV blocks become cached and which are not any more. To be called before the first sequence. Without effect where
    /// prefixes are not shared, or follow sources.
    pub fn log_kv_events(&mut self) {
        if self.is_shared() && !self.reads_source() {
            self.block_manager.log_events();
            self.announce(&self.adapters.default_key());
        }
    }

    /// What changed since this was called before.
    pub fn take_kv_events(&mut self) -> Vec<KvEvent> {
        self.block_manager.uncounted().take_events()
    }

    /// Announces the blocks of a sequence with this prefix key, unless it is computed with more than adapters.
    pub(super) fn announce_sequence(&mut self, sequence: SequenceId, key: &[u32]) {
        if self.block_manager.logs_events() && self.adapters.key_of(sequence) == key {
            self.announce(key);
        }
    }

    /// Announces the blocks that are computed with the adapters of a prefix key.
    pub(super) fn announce(&mut self, key: &[u32]) {
        if !self.block_manager.logs_events() {
            return;
        }
        let scales = key.iter().map(|bits| f32::from_bits(*bits));
        let on = scales.enumerate().filter(|(_, scale)| *scale != 0.0);
        let on: Vec<(usize, f32)> = on.collect();
        let name = |(id, scale): &(usize, f32)| match *scale {
            1.0 => self.adapters.all[*id].name.clone(),
            scale => format!("{}={scale}", self.adapters.all[*id].name),
        };
        let adapter = (!on.is_empty()).then(|| BlockAdapter {
            id: match on.as_slice() {
                [(id, _)] => Some(id + 1),
                _ => None,
            },
            name: on.iter().map(name).collect::<Vec<_>>().join(","),
        });
        self.block_manager.announce(key, adapter);
    }
}
