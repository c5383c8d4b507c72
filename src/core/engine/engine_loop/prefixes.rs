//! Prefixes between the KV cache and what outlives it: read out after a sequence has ended, put back before one starts.
//!
//! Reading out takes a small part of the time of steps while sequences run, and all of it while none does. A waiting
//! completion whose prompt is stored waits until it is read, while others go on. Not here: threads and files
//! (`prefix_store`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use super::super::compute::{BLOCK, Compute};
use super::super::prefix_order::{KnownPrefix, PrefixOrder, SlotError};
use super::super::prefix_store::{
    PrefixSeed, PrefixStore, ReadSegment, SEGMENT_BYTES, Tier, seed_of,
};
use super::super::sequence::{Restored, Sequence};
use super::EngineLoop;
use crate::model::{CacheMiss, CachedPrefix, PrefixBlocks, PrefixLayout};

/// Minimum number of blocks that are worth a segment, or a reading.
const LEAST: usize = 4;
/// The part of the time of steps in which blocks are read out while sequences run.
const SHARE: i64 = 64;
/// Maximum number of ended prefixes that wait to be read out. The oldest are dropped.
const MAX_ENDED: usize = 256;
/// Maximum time for which a completion waits for its stored prefix.
const READ_TIME: Duration = Duration::from_secs(20);
/// How long the engine waits for a segment while nothing else is to be done.
pub(super) const NAP: Duration = Duration::from_millis(2);
/// Maximum time in which the rest is read out when the engine ends.
const LAST_TIME: Duration = Duration::from_secs(10);
/// Tokens before and after the first difference that the log shows.
const SHOWN: usize = 8;

/// A prefix whose blocks are being read out.
struct Spilling {
    of: KnownPrefix,
    /// The hash of the prefix after each block.
    hashes: Vec<PrefixSeed>,
    /// The parts that are to be read of each block.
    wanted: Vec<u64>,
    /// The next block.
    at: usize,
    /// Blocks that were read.
    read: PrefixBlocks,
}

/// What a waiting completion gets from the store.
struct Restoring {
    ticket: u64,
    of: KnownPrefix,
    wanted: Vec<u64>,
    since: Instant,
    /// Blocks that came from each tier.
    restored: Restored,
}

/// A prefix whose blocks a client saves.
struct Saving {
    of: KnownPrefix,
    at: usize,
    to: SyncSender<PrefixBlocks>,
    /// What could not be sent yet.
    held: Option<PrefixBlocks>,
}

/// The prefixes of an engine beyond its KV cache.
#[derive(Default)]
pub(in super::super) struct Prefixes {
    store: Option<PrefixStore>,
    /// The layout of blocks, if they can be kept.
    layout: Option<PrefixLayout>,
    identity: [u8; 32],
    /// Hashes that identify the adapters, by their ids.
    pub(super) adapters: Vec<[u8; 32]>,
    ended: VecDeque<KnownPrefix>,
    spilling: Option<Spilling>,
    restoring: Option<Restoring>,
    saving: Vec<Saving>,
    /// The last prefix of each slot.
    pub(super) slots: Vec<Option<KnownPrefix>>,
    /// Time that may be spent on reading out, in nanoseconds.
    credit: i64,
}

impl Prefixes {
    /// The prefixes of a model that is identified so, with adapters that are.
    pub(in super::super) fn new(
        store: Option<PrefixStore>,
        layout: Option<PrefixLayout>,
        identity: [u8; 32],
        adapters: Vec<[u8; 32]>,
    ) -> Self {
        Self {
            store,
            layout,
            identity,
            adapters,
            ..Self::default()
        }
    }

    /// The seed of prefixes with these scales of adapters; none if an adapter is not known.
    pub(in super::super) fn seed(&self, scales: &[f32]) -> Option<PrefixSeed> {
        let on = scales
            .iter()
            .enumerate()
            .filter(|(_, scale)| **scale != 0.0);
        let on = on.map(|(id, scale)| Some((*self.adapters.get(id)?, *scale)));
        Some(seed_of(&self.identity, &on.collect::<Option<Vec<_>>>()?))
    }

    /// The last prefix of a slot.
    fn of_slot(&self, slot: usize) -> Result<KnownPrefix, SlotError> {
        if self.layout.is_none() {
            return Err(SlotError::NotShared);
        }
        let slot = self.slots.get(slot).ok_or(SlotError::Unknown)?;
        slot.clone().ok_or(SlotError::Empty)
    }
}

impl<C: Compute> EngineLoop<C> {
    /// What the tokens of a sequence are computed with; none if that cannot be kept: edits, media, sources, several parts.
    fn known_prefix(&self, sequence: &Sequence, tokens: &[u32]) -> Option<KnownPrefix> {
        self.prefixes.layout.as_ref()?;
        let has_edits = |of: &Sequence| {
            let recorder = of.recorder.as_ref();
            recorder.is_some_and(|recorder| !recorder.lab().key().is_empty())
        };
        if sequence.media.is_some()
            || !sequence.source.is_empty()
            || sequence.n_parts != 1
            || has_edits(sequence)
        {
            return None;
        }
        Some(KnownPrefix {
            seed: self.prefixes.seed(&sequence.scales)?,
            scales: sequence.scales.clone(),
            tokens: tokens[..tokens.len() / BLOCK * BLOCK].to_vec(),
        })
    }

    /// Does work of the store. If that panics, there is no store from then on, and completions go on without it.
    pub(super) fn with_store<R: Default>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        done.unwrap_or_else(|_| {
            tracing::error!("the code of stored prefixes panicked; they are not used any more");
            let prefixes = &mut self.prefixes;
            (prefixes.store, prefixes.spilling, prefixes.restoring) = (None, None, None);
            prefixes.saving.clear();
            R::default()
        })
    }

    /// Notes the prefix of a sequence that ends.
    pub(super) fn note_prefix(&mut self, sequence: &Sequence) {
        let n = sequence.n_cached.min(sequence.tokens.len());
        let Some(prefix) = self.known_prefix(sequence, &sequence.tokens[..n]) else {
            return;
        };
        let slot = sequence
            .slot
            .unwrap_or(sequence.id as usize / super::N_PARTS as usize);
        if let Some(slot) = self.prefixes.slots.get_mut(slot) {
            *slot = Some(prefix.clone());
        }
        if self.prefixes.store.is_none() || prefix.tokens.is_empty() {
            return;
        }
        // What a longer one has is read out with it.
        let is_start =
            |of: &KnownPrefix| of.seed == prefix.seed && prefix.tokens.starts_with(&of.tokens);
        self.prefixes.ended.retain(|of| !is_start(of));
        if self.prefixes.ended.len() >= MAX_ENDED {
            self.prefixes.ended.pop_front();
        }
        self.prefixes.ended.push_back(prefix);
    }

    /// Reads out blocks after a step that took this long.
    pub(super) fn spill_after(&mut self, step: Duration) {
        let Some(store) = &self.prefixes.store else {
            return;
        };
        let of_step = step.as_nanos() as i64 / SHARE;
        let credit = (self.prefixes.credit + of_step).min(4 * of_step);
        self.prefixes.credit = credit;
        if credit < 0 || !store.has_room() {
            return;
        }
        let began = Instant::now();
        self.spill(1);
        // What was too much is made up for by later steps.
        self.prefixes.credit -= began.elapsed().as_nanos() as i64;
    }

    /// Does some of the work that is left while no sequence runs. Returns whether there is more, and whether it can be done now.
    pub(super) fn work_in_idle(&mut self) -> Option<bool> {
        if !self.prefixes.saving.is_empty() {
            let before = self.prefixes.saving.iter().map(|of| of.at).sum::<usize>();
            self.save_some();
            let after = self.prefixes.saving.iter().map(|of| of.at).sum::<usize>();
            return Some(before != after);
        }
        let store = self.prefixes.store.as_ref()?;
        if !store.has_room() {
            return Some(false);
        }
        self.spill(usize::MAX).then_some(true)
    }

    /// Reads out all that is left, for at most some seconds.
    pub(super) fn spill_rest(&mut self) {
        let end = Instant::now() + LAST_TIME;
        while Instant::now() < end {
            match self.work_in_idle() {
                None => return,
                Some(true) => {}
                Some(false) => std::thread::sleep(NAP),
            }
        }
        tracing::warn!("the prefix cache was not stored whole within {LAST_TIME:?}");
    }

    /// Reads out at most `n_most` blocks. Returns whether there may be more.
    fn spill(&mut self, n_most: usize) -> bool {
        let Some(store) = &self.prefixes.store else {
            return false;
        };
        if store.is_paused() {
            self.prefixes.ended.clear();
            self.prefixes.spilling = None;
            return false;
        }
        let Some(mut of) = self
            .prefixes
            .spilling
            .take()
            .or_else(|| self.next_spilling())
        else {
            return !self.prefixes.ended.is_empty();
        };
        let is_over = !self.spill_of(&mut of, n_most);
        if !is_over {
            self.prefixes.spilling = Some(of);
        }
        !is_over || !self.prefixes.ended.is_empty()
    }

    /// The next ended prefix, if it has parts that are not stored.
    fn next_spilling(&mut self) -> Option<Spilling> {
        let of = self.prefixes.ended.pop_front()?;
        let parts = self.model.prefix_parts(&of.scales, &of.tokens);
        let store = self.prefixes.store.as_ref()?;
        let hashes = store.hashes(&of.seed, &of.tokens);
        let stored = store.parts(&hashes);
        let layout = store.layout();
        // A block is of use if all before it can be read again: those that are seen by every later token.
        let all = layout.always_needed();
        let is_whole = |at: usize| (parts[at] | stored[at]) & all == all;
        let n = (0..parts.len()).take_while(|at| is_whole(*at)).count();
        let wanted = parts.iter().zip(&stored).take(n);
        let wanted: Vec<u64> = wanted.map(|(own, stored)| own & !stored).collect();
        let n_new = wanted.iter().filter(|wanted| **wanted != 0).count();
        let has_state = wanted.iter().any(|wanted| wanted & layout.state() != 0);
        (n_new >= LEAST || has_state).then_some(Spilling {
            of,
            hashes,
            wanted,
            at: 0,
            read: PrefixBlocks::default(),
        })
    }

    /// Reads out blocks of a prefix. Returns whether there are more.
    fn spill_of(&mut self, of: &mut Spilling, n_most: usize) -> bool {
        let Some(layout) = self.prefixes.layout.as_ref() else {
            return false;
        };
        if of.read.parts.is_empty() {
            let next = of.wanted[of.at..].iter().position(|wanted| *wanted != 0);
            let Some(next) = next else { return false };
            of.at += next;
        }
        let mut left = SEGMENT_BYTES.saturating_sub(of.read.bytes());
        let fitting = of.wanted[of.at..].iter().take(n_most).take_while(|wanted| {
            let bytes = layout.bytes_of(**wanted);
            let fits = **wanted != 0 && bytes <= left;
            left = left.saturating_sub(bytes);
            fits
        });
        let n = fitting.count();
        // A block that is larger than a segment has one of its own.
        let n = match of.read.parts.is_empty() {
            true => n.max(1),
            false => n,
        };
        let end = of.at + n;
        let mut is_known = true;
        if n > 0 {
            let tokens = &of.of.tokens[..end * BLOCK];
            let wanted = &of.wanted[of.at..end];
            let read = self.model.read_prefix(&of.of.scales, tokens, of.at, wanted);
            let Ok(read) = read.inspect_err(|error| {
                tracing::warn!(%error, "a prefix is not read out of the cache");
            }) else {
                return false;
            };
            // A block may have been evicted since.
            is_known = read.parts == wanted;
            of.read.append(read);
            of.at = end;
        }
        let is_over = of.at == of.wanted.len() || !is_known;
        let is_full = n == 0 || n_most > n || is_over;
        if is_full && !of.read.parts.is_empty() {
            let read = std::mem::take(&mut of.read);
            let before = match read.first {
                0 => of.of.seed,
                first => of.hashes[first - 1],
            };
            if let Some(store) = &self.prefixes.store {
                store.keep(of.of.seed, before, read);
            }
        }
        !is_over
    }

    /// Whether a waiting completion has what the store has of its prompt. Otherwise reading may begin.
    pub(super) fn is_restored(&mut self, at: usize) -> bool {
        let Some(store) = &self.prefixes.store else {
            return true;
        };
        let request = &self.queue[at];
        match request.sequence.restored {
            Some(_) => return true,
            // Two prompts may begin alike: what the first one gets, the second one has.
            None if self.prefixes.restoring.is_some() => return false,
            None => {}
        }
        let tokens = request.sequence.reusable();
        let whole = tokens[..tokens.len().saturating_sub(1)]
            .as_chunks::<BLOCK>()
            .0;
        let tokens = &tokens[..whole.len() * BLOCK];
        let prefix = match request.strategy.reuses_prefix() && !tokens.is_empty() {
            true => self.known_prefix(&request.sequence, tokens),
            false => None,
        };
        let Some(prefix) = prefix else {
            self.queue[at].sequence.restored = Some(Restored::default());
            return true;
        };
        let have = self.model.prefix_parts(&prefix.scales, &prefix.tokens);
        let n_before = store.layout().usable(&have) * BLOCK;
        match store.find(&prefix.seed, &prefix.tokens, &have, LEAST) {
            Ok(plan) => {
                let ticket = store.read(&plan);
                tracing::debug!(
                    segments = plan.segments.len(),
                    tokens = plan.wanted.len() * BLOCK,
                    "a stored prefix is read"
                );
                self.queue[at].sequence.restoring = Some(ticket);
                self.prefixes.restoring = Some(Restoring {
                    ticket,
                    of: prefix,
                    wanted: plan.wanted,
                    since: Instant::now(),
                    restored: Restored {
                        n_before,
                        miss: Some(CacheMiss::None),
                        ..Restored::default()
                    },
                });
                false
            }
            Err(miss) => {
                self.stats.count_lookup("store", miss.name());
                self.queue[at].sequence.restored = Some(Restored {
                    n_before,
                    miss: Some(miss),
                    ..Restored::default()
                });
                true
            }
        }
    }

    /// Puts what the store has read into the KV cache: a segment in each step while sequences run. Waits a little for one if there
    /// is nothing else to be done.
    pub(super) fn restore(&mut self) {
        let Some(restoring) = &self.prefixes.restoring else {
            return;
        };
        let (ticket, since) = (restoring.ticket, restoring.since);
        let is_wanted = |sequence: &Sequence| sequence.restoring == Some(ticket);
        let is_wanted = self
            .queue
            .iter()
            .any(|request| is_wanted(&request.sequence));
        if !is_wanted || since.elapsed() > READ_TIME {
            if let Some(store) = &self.prefixes.store {
                store.give_up();
            }
            return self.end_restoring();
        }
        let is_idle = self.active.is_empty() && self.awaiting_lens.is_empty();
        loop {
            let Some(store) = &self.prefixes.store else {
                return;
            };
            let next = match is_idle {
                true => store.results.recv_timeout(NAP).ok(),
                false => store.results.try_recv().ok(),
            };
            let Some((of, segment)) = next else { return };
            if of != ticket {
                continue;
            }
            let ReadSegment::Blocks(blocks, tier) = segment else {
                return self.end_restoring();
            };
            if !self.put(&blocks, tier) {
                if let Some(store) = &self.prefixes.store {
                    store.give_up();
                }
                return self.end_restoring();
            }
            if !is_idle {
                return;
            }
        }
    }

    /// Puts a segment into the KV cache. Returns whether that succeeded.
    fn put(&mut self, blocks: &PrefixBlocks, tier: Tier) -> bool {
        let Some(restoring) = &mut self.prefixes.restoring else {
            return false;
        };
        let (first, n) = (blocks.first, blocks.parts.len());
        let own = (first + n).min(restoring.wanted.len());
        let wanted = restoring.wanted.get(first..own).unwrap_or_default();
        let (Some(before), false) = (restoring.of.tokens.get(..first * BLOCK), wanted.is_empty())
        else {
            return false;
        };
        let mut all = wanted.to_vec();
        all.resize(n, 0);
        let n_new = wanted.iter().filter(|wanted| **wanted != 0).count();
        let put = self
            .model
            .write_prefix(&restoring.of.scales, before, blocks, &all);
        match tier {
            Tier::Host => restoring.restored.n_host += n_new,
            Tier::Disk => restoring.restored.n_disk += n_new,
        }
        put.inspect_err(|error| tracing::warn!(%error, "a stored prefix is not used"))
            .is_ok()
    }

    /// Lets the completion start for which a prefix was read.
    fn end_restoring(&mut self) {
        let Some(restoring) = self.prefixes.restoring.take() else {
            return;
        };
        let mut queue = self.queue.iter_mut().map(|request| &mut request.sequence);
        if let Some(sequence) = queue.find(|s| s.restoring == Some(restoring.ticket)) {
            sequence.restoring = None;
            sequence.restored = Some(restoring.restored);
        }
    }

    /// Notes what was found of a prompt, and why not more.
    pub(super) fn note_lookup(
        &self,
        sequence: &mut Sequence,
        tokens: &[u32],
        known: &CachedPrefix,
    ) {
        // The rest of the prompt is wanted for more than its keys and values.
        let is_whole = tokens.len() == sequence.tokens.len();
        let miss = match known.miss {
            CacheMiss::None if !is_whole => CacheMiss::Off,
            miss => miss,
        };
        self.stats.count_lookup("memory", miss.name());
        let restored = sequence.restored.take().unwrap_or_default();
        let gained = known.n_cached.saturating_sub(restored.n_before);
        // Blocks before a window or a state are not stored, and need not be computed either.
        let n_blocks = restored.n_disk + restored.n_host;
        let n_disk = (gained * restored.n_disk).checked_div(n_blocks);
        let n_disk = n_disk.unwrap_or(0);
        let n_host = if n_blocks > 0 { gained - n_disk } else { 0 };
        if n_blocks > 0 {
            let reason = if gained > 0 { "none" } else { "not_used" };
            self.stats.count_lookup("store", reason);
        }
        self.stats.count_restored(n_host, n_disk);
        let misses = [miss, restored.miss.unwrap_or(CacheMiss::Off)];
        sequence.answer.looked_up([n_host, n_disk], misses);
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let CacheMiss::Differs { at } = known.miss else {
            return;
        };
        let block = at / BLOCK * BLOCK;
        let text = |tokens: &[u32]| {
            let pieces = tokens.iter().flat_map(|token| self.tokenizer.piece(*token));
            String::from_utf8_lossy(&pieces.copied().collect::<Vec<u8>>()).into_owned()
        };
        let part = |from: usize, to: usize| &tokens[from.min(tokens.len())..to.min(tokens.len())];
        let instead = self.model.cached_instead(sequence.id, tokens);
        let instead = instead.unwrap_or_default();
        let instead = instead.get(at - block..).unwrap_or_default();
        tracing::debug!(
            at,
            before = text(part(at.saturating_sub(SHOWN), at)),
            found = text(part(at, at + SHOWN)),
            cached = text(&instead[..instead.len().min(SHOWN)]),
            "the prompt differs from the cached prefix"
        );
    }

    /// Begins to send the blocks of a slot's prefix. Returns their number of tokens.
    pub(super) fn save_slot(
        &mut self,
        slot: usize,
        to: SyncSender<PrefixBlocks>,
    ) -> Result<(PrefixSeed, usize), SlotError> {
        let prefix = self.prefixes.of_slot(slot)?;
        let parts = self.model.prefix_parts(&prefix.scales, &prefix.tokens);
        let layout = self.prefixes.layout.as_ref().ok_or(SlotError::NotShared)?;
        let n = layout.usable(&parts);
        if n == 0 {
            return Err(SlotError::Empty);
        }
        let mut of = prefix;
        of.tokens.truncate(n * BLOCK);
        let seed = of.seed;
        self.prefixes.saving.push(Saving {
            of,
            at: 0,
            to,
            held: None,
        });
        Ok((seed, n * BLOCK))
    }

    pub(super) fn follow_prefix(&mut self, order: PrefixOrder) {
        // Who asked may have left.
        match order {
            PrefixOrder::Info(scales, answer) => {
                let seed = self.prefixes.seed(&scales);
                let _ = answer.send(self.prefixes.layout.clone().zip(seed));
            }
            PrefixOrder::Save(slot, to, answer) => {
                let _ = answer.send(self.save_slot(slot, to));
            }
            PrefixOrder::Restore(slot, of, blocks, answer) => {
                let _ = answer.send(self.restore_slot(slot, of, &blocks));
            }
            PrefixOrder::Erase(slot, answer) => {
                let _ = answer.send(self.erase_slot(slot));
            }
            PrefixOrder::Flush(answer) => {
                self.spill_rest();
                if let Some(store) = &self.prefixes.store {
                    store.drain(LAST_TIME);
                }
                self.tell_all_cleared();
                let _ = answer.send(());
            }
        }
    }

    /// Sends a segment of each prefix that is saved.
    pub(super) fn save_some(&mut self) {
        if self.prefixes.saving.is_empty() {
            return;
        }
        let Some(layout) = self.prefixes.layout.clone() else {
            return self.prefixes.saving.clear();
        };
        for mut saving in std::mem::take(&mut self.prefixes.saving) {
            let n_blocks = saving.of.tokens.len() / BLOCK;
            let needed = layout.needed(n_blocks);
            let next = saving.held.take().or_else(|| {
                let mut left = SEGMENT_BYTES;
                let rest = needed[saving.at..].iter();
                let fitting = rest.take_while(|parts| {
                    let bytes = layout.bytes_of(**parts);
                    let fits = bytes <= left;
                    left = left.saturating_sub(bytes);
                    fits
                });
                let end = saving.at + fitting.count().max(1);
                let tokens = &saving.of.tokens[..end * BLOCK];
                let wanted = &needed[saving.at..end];
                let scales = &saving.of.scales;
                let read = self
                    .model
                    .read_prefix(scales, tokens, saving.at, wanted)
                    .ok()?;
                // Who saves it sees from the number of tokens that some are missing.
                (read.parts == wanted).then_some(read)
            });
            let Some(next) = next else { continue };
            let n = next.parts.len();
            match saving.to.try_send(next) {
                Ok(()) => saving.at += n,
                Err(TrySendError::Full(next)) => saving.held = Some(next),
                Err(TrySendError::Disconnected(_)) => continue,
            }
            if saving.at < n_blocks {
                self.prefixes.saving.push(saving);
            }
        }
    }

    /// Puts blocks that a client has after a prefix into the KV cache, and makes both the prefix of a slot.
    pub(super) fn restore_slot(
        &mut self,
        slot: usize,
        mut of: KnownPrefix,
        blocks: &PrefixBlocks,
    ) -> Result<(), String> {
        let slot = self.prefixes.slots.get_mut(slot);
        let slot = slot.ok_or_else(|| SlotError::Unknown.to_string())?;
        let wanted = vec![u64::MAX; blocks.parts.len()];
        let put = self
            .model
            .write_prefix(&of.scales, &of.tokens, blocks, &wanted);
        put.map_err(|error| error.to_string())?;
        of.tokens.extend_from_slice(&blocks.tokens);
        *slot = Some(of);
        Ok(())
    }

    /// Removes the prefix of a slot from the KV cache. Returns its number of tokens.
    pub(super) fn erase_slot(&mut self, slot: usize) -> Result<usize, SlotError> {
        let prefix = match self.prefixes.of_slot(slot) {
            Ok(prefix) => prefix,
            Err(SlotError::Empty) => return Ok(0),
            Err(error) => return Err(error),
        };
        self.prefixes.slots[slot] = None;
        self.prefixes.ended.retain(|of| *of != prefix);
        Ok(self.model.erase_prefix(&prefix.scales, &prefix.tokens))
    }
}
