//! Which blocks of prefixes are stored, and where: known without reading their files.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::segment::{BLOCK, PrefixHash, PrefixSeed, SegmentHeader, hashes};
use crate::model::{CacheMiss, PrefixBlocks, PrefixLayout};

/// Number of evicted segments whose last block is remembered, so that a miss can say that it was evicted.
const N_EVICTED: usize = 1 << 14;

pub(super) type SegmentId = u64;

/// A segment that is stored.
#[derive(Debug)]
pub(super) struct StoredSegment {
    /// The name of its file, once it is written.
    pub(super) file: Option<String>,
    /// Its blocks, where they are in the host's memory.
    pub(super) held: Option<Arc<PrefixBlocks>>,
    /// Whether it waits to be written.
    pub(super) is_pending: bool,
    /// The hashes of the prefix after each of its blocks.
    hashes: Vec<PrefixHash>,
    /// Hash of the tokens of its first block alone, if a prefix starts there.
    start: Option<PrefixHash>,
    last_used: u64,
}

impl StoredSegment {
    /// The hash of the prefix up to its end.
    pub(super) fn last_hash(&self) -> Option<PrefixHash> {
        self.hashes.last().copied()
    }
}

/// Segments to read for a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct ReadPlan {
    /// In the order of their first blocks that are wanted.
    pub(in super::super) segments: Vec<SegmentId>,
    /// The parts of each block of the prefix that are wanted, as sets of bits.
    pub(in super::super) wanted: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    segments: HashMap<SegmentId, StoredSegment>,
    /// The segments with the block after which a prefix has this hash, each with the parts that it has.
    blocks: HashMap<PrefixHash, Vec<(SegmentId, u64)>>,
    /// Numbers of segments by the hash of the tokens of a prefix's first block.
    starts: HashMap<PrefixHash, usize>,
    evicted: HashSet<PrefixHash>,
    evicted_in_order: VecDeque<PrefixHash>,
    last_id: SegmentId,
    clock: u64,
    /// Bytes of the segments in the host's memory.
    pub(super) host_bytes: u64,
}

/// The hash of the first block of a prompt, whatever it is computed with.
fn start_of(tokens: &[u32]) -> Option<PrefixHash> {
    hashes(&[0; 32], tokens.get(..BLOCK)?).first().copied()
}

impl PrefixIndex {
    /// Adds a segment; its blocks are in the host's memory or in a file.
    pub(super) fn insert(
        &mut self,
        header: &SegmentHeader,
        file: Option<String>,
        held: Option<Arc<PrefixBlocks>>,
    ) -> SegmentId {
        self.last_id += 1;
        self.clock += 1;
        let id = self.last_id;
        let hashes = hashes(&header.before, &header.tokens);
        for (hash, parts) in hashes.iter().zip(&header.parts) {
            self.blocks.entry(*hash).or_default().push((id, *parts));
        }
        let start = (header.first == 0).then(|| start_of(&header.tokens));
        let start = start.flatten();
        if let Some(start) = start {
            *self.starts.entry(start).or_default() += 1;
        }
        self.host_bytes += held.as_ref().map_or(0, |held| held.bytes() as u64);
        let segment = StoredSegment {
            is_pending: file.is_none(),
            file,
            held,
            hashes,
            start,
            last_used: self.clock,
        };
        self.segments.insert(id, segment);
        id
    }

    pub(super) fn get(&self, id: SegmentId) -> Option<&StoredSegment> {
        self.segments.get(&id)
    }

    /// Number of segments.
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn touch(&mut self, id: SegmentId) {
        self.clock += 1;
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.last_used = self.clock;
        }
    }

    /// Notes that a segment was written to a file, or is not going to be.
    pub(super) fn written(&mut self, id: SegmentId, file: Option<String>) {
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.file = file;
            segment.is_pending = false;
        }
    }

    /// Frees the host's memory of a segment. One without a file is removed.
    pub(super) fn drop_held(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        if let Some(held) = segment.held.take() {
            self.host_bytes -= held.bytes() as u64;
        }
        if segment.file.is_none() {
            self.remove(id);
        }
    }

    /// The least recently used segment in the host's memory that does not wait to be written.
    pub(super) fn oldest_held(&self) -> Option<SegmentId> {
        let held = self.segments.iter().filter(|(_, of)| of.held.is_some());
        let held = held.filter(|(_, of)| !of.is_pending);
        held.min_by_key(|(_, of)| of.last_used).map(|(id, _)| *id)
    }

    pub(super) fn of_file(&self, name: &str) -> Option<SegmentId> {
        let mut all = self.segments.iter();
        let found = all.find(|(_, of)| of.file.as_deref() == Some(name));
        found.map(|(id, _)| *id)
    }

    /// Forgets the file of a segment, which is gone.
    pub(super) fn drop_file(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        segment.file = None;
        if segment.held.is_none() {
            self.remove(id);
        }
    }

    pub(super) fn remove(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.remove(&id) else {
            return;
        };
        self.host_bytes -= segment.held.as_ref().map_or(0, |held| held.bytes() as u64);
        for hash in &segment.hashes {
            if let Some(all) = self.blocks.get_mut(hash) {
                all.retain(|(own, _)| *own != id);
                if all.is_empty() {
                    self.blocks.remove(hash);
                }
            }
        }
        if let Some(start) = segment.start
            && let Some(n) = self.starts.get_mut(&start)
        {
            *n -= 1;
            if *n == 0 {
                self.starts.remove(&start);
            }
        }
        if let Some(first) = segment
            .hashes
            .first()
            .filter(|hash| self.evicted.insert(**hash))
        {
            self.evicted_in_order.push_back(*first);
        }
        if self.evicted_in_order.len() > N_EVICTED
            && let Some(oldest) = self.evicted_in_order.pop_front()
        {
            self.evicted.remove(&oldest);
        }
    }

    /// The parts that are stored of each block whose prefix has this hash.
    pub(super) fn parts(&self, hash: &PrefixHash) -> u64 {
        let all = self.blocks.get(hash).into_iter().flatten();
        all.fold(0, |parts, (_, own)| parts | own)
    }

    /// The segments to read so that a sequence can continue further into its prompt than the parts in `have`, of its first blocks,
    /// allow: by at least `least` blocks. `hashes` are those of the prompt after each block.
    ///
    /// # Errors
    /// Why nothing is to be read.
    pub(super) fn find(
        &self,
        layout: &PrefixLayout,
        (tokens, hashes): (&[u32], &[PrefixHash]),
        have: &[u64],
        least: usize,
    ) -> Result<ReadPlan, CacheMiss> {
        let of = |at: usize| have.get(at).copied().unwrap_or(0);
        let is_known = |at: usize| at < have.len() || self.blocks.contains_key(&hashes[at]);
        // Blocks of which nothing is needed later are not stored, such as those before a window.
        let n_known = (0..hashes.len()).rposition(is_known).map_or(0, |at| at + 1);
        let all = (0..n_known).map(|at| of(at) | self.parts(&hashes[at]));
        let all: Vec<u64> = all.collect();
        let n = layout.usable(&all);
        if n < layout.usable(have) + least {
            return Err(self.reason(layout, (tokens, hashes), &all, n));
        }
        let needed = layout.needed(n).into_iter().enumerate();
        let wanted: Vec<u64> = needed.map(|(at, needed)| needed & !of(at)).collect();
        let mut segments: BTreeMap<(usize, SegmentId), ()> = BTreeMap::new();
        let mut chosen: HashMap<SegmentId, usize> = HashMap::new();
        for (at, wanted) in wanted.iter().enumerate() {
            let mut left = *wanted;
            while left != 0 {
                let stored = self.blocks.get(&hashes[at]).into_iter().flatten();
                let stored = stored.filter(|(_, own)| own & left != 0);
                // One that is read anyway, then one in memory.
                let rank = |(id, _): &&(SegmentId, u64)| {
                    let held = self.segments.get(id).is_some_and(|of| of.held.is_some());
                    (chosen.contains_key(id), held, *id)
                };
                let Some((id, own)) = stored.max_by_key(rank) else {
                    break;
                };
                left &= !own;
                let first = *chosen.entry(*id).or_insert(at);
                segments.insert((first, *id), ());
            }
        }
        Ok(ReadPlan {
            segments: segments.into_keys().map(|(_, id)| id).collect(),
            wanted,
        })
    }

    /// Why no more than the first `n` blocks of a prompt are stored, of whose first blocks the parts `all` are stored or cached.
    fn reason(
        &self,
        layout: &PrefixLayout,
        (tokens, hashes): (&[u32], &[PrefixHash]),
        all: &[u64],
        n: usize,
    ) -> CacheMiss {
        let always = layout.always_needed();
        if all.iter().any(|parts| parts & always != always) {
            return CacheMiss::Evicted;
        }
        if n < all.len() {
            let lacks_state = layout.state() != 0 && all[all.len() - 1] & layout.state() == 0;
            return match lacks_state {
                true => CacheMiss::NoState,
                false => CacheMiss::WindowPassed,
            };
        }
        match hashes.get(all.len()) {
            None => CacheMiss::None,
            Some(next) if self.evicted.contains(next) => CacheMiss::Evicted,
            Some(_) if !all.is_empty() => CacheMiss::Ends {
                at: all.len() * BLOCK,
            },
            Some(_) => {
                let start = start_of(tokens);
                match start.is_some_and(|start| self.starts.contains_key(&start)) {
                    true => CacheMiss::OtherComputation,
                    false => CacheMiss::Nothing,
                }
            }
        }
    }

    /// Whether it has no blocks of segments that are gone.
    #[cfg(test)]
    pub(super) fn is_tidy(&self) -> bool {
        let ids = self.blocks.values().flatten().map(|(id, _)| id);
        ids.into_iter().all(|id| self.segments.contains_key(id))
            && self.starts.values().all(|n| *n > 0)
    }
}

/// The header of a segment that was read out of the cache, whose size in a file is `size`.
pub(super) fn header_of(
    (seed, before): (&PrefixSeed, &PrefixHash),
    blocks: &PrefixBlocks,
) -> SegmentHeader {
    SegmentHeader {
        first: blocks.first,
        seed: *seed,
        before: *before,
        tokens: blocks.tokens.clone(),
        parts: blocks.parts.clone(),
        size: blocks.bytes() as u64,
    }
}
