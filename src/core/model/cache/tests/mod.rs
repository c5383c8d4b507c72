//! The KV block manager over whole lives of sequences, checked against a storage that records every write.

mod ahead;
mod runs;

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use ahead::Fate;

use super::block_manager::OUT_OF_WINDOW;
use super::runs::span_of;
use super::*;
use crate::blocks::cache::{CacheOptions as Visibility, Window};
use crate::plan::KeyTokens;

const WINDOW: u64 = 20;
const N_SEQS: u32 = 3;

fn rule(size: u64) -> Visibility {
    Visibility {
        causal: true,
        size,
        window: Window::Standard,
        span: 0,
        alibi: 0.0,
        grid_height: 0,
        grid_width: 0,
        grid_filled: false,
        causal_after: false,
    }
}

fn group(n_blocks: usize, size: u64) -> KvGroup {
    KvGroup {
        n_slots: n_blocks * BLOCK,
        rule: rule(size),
        keys: KeyTokens::Tokens,
    }
}

/// A block_manager, and slots and rows that hold the text they were written for.
struct Mirror {
    block_manager: BlockManager,
    groups: Vec<KvGroup>,
    n_rows: Option<usize>,
    slots: HashMap<(usize, usize), Vec<u32>>,
    rows: HashMap<usize, Vec<u32>>,
    texts: HashMap<SequenceId, Vec<u32>>,
    /// The hashes of the blocks that are cached, as events tell.
    told: HashSet<u64>,
}

impl Mirror {
    fn new(groups: Vec<KvGroup>, n_rows: Option<usize>) -> Self {
        Self::of(BlockManager::new(groups.clone(), n_rows), groups, n_rows)
    }

    /// Where the blocks of a sequence lie in one run.
    fn in_runs(groups: Vec<KvGroup>, n_rows: Option<usize>, n_seqs: usize) -> Self {
        let block_manager = BlockManager::in_runs(groups.clone(), n_rows, n_seqs);
        Self::of(block_manager, groups, n_rows)
    }

    fn of(mut block_manager: BlockManager, groups: Vec<KvGroup>, n_rows: Option<usize>) -> Self {
        block_manager.log_events();
        block_manager.announce(&[], None);
        Self {
            block_manager,
            groups,
            n_rows,
            slots: HashMap::new(),
            rows: HashMap::new(),
            texts: HashMap::new(),
            told: HashSet::new(),
        }
    }

    /// What events tell of the cache is what it has.
    fn check_told(&mut self) {
        for event in self.block_manager.take_events() {
            match event {
                KvEvent::BlockStored { hashes, tokens, .. } => {
                    assert_eq!(hashes.len() * BLOCK, tokens.len());
                    let new = hashes.iter().filter(|hash| self.told.insert(**hash));
                    assert_eq!(new.count(), hashes.len(), "each was told once");
                }
                KvEvent::BlockRemoved { hashes } => {
                    let removed = hashes.iter().filter(|hash| self.told.remove(hash));
                    assert_eq!(removed.count(), hashes.len(), "each was told before");
                }
                KvEvent::AllBlocksCleared => unreachable!("an engine ends, not its cache"),
            }
        }
        assert_eq!(self.told, self.block_manager.tree.announced());
    }

    fn resume(&mut self, id: SequenceId, tokens: &[u32]) -> CachedPrefix {
        let resumed = self.block_manager.resume(id, tokens);
        let resumed = self.copied(resumed);
        assert_eq!(self.block_manager.next(id) as usize, resumed.n_cached);
        self.texts.insert(id, tokens[..resumed.n_cached].to_vec());
        resumed
    }

    fn copied<T>(&mut self, change: AfterCopies<T>) -> T {
        let (result, _) = change.make(|copy| {
            assert!(copy.n > 0 && copy.from.abs_diff(copy.to) >= copy.n);
            for i in 0..copy.n {
                let text = self.slots.get(&(copy.pool, copy.from + i)).cloned();
                let text = text.expect("a slot that was written");
                self.slots.insert((copy.pool, copy.to + i), text);
            }
            Ok::<_, std::convert::Infallible>(())
        });
        result
    }

    /// A pass over the next tokens of sequences; checks all that its queries attend to.
    fn pass(&mut self, next: &[(SequenceId, &[u32])], fails: bool) -> bool {
        let mut places = Vec::new();
        let mut tokens = Vec::new();
        for (id, new) in next {
            let from = self.block_manager.next(*id);
            places.extend((from..).zip(*new).map(|(position, _)| (*id, position)));
            tokens.extend_from_slice(new);
        }
        let allocated = match self.block_manager.allocate(&places, &tokens) {
            Ok(allocated) => allocated,
            Err(shortage) => {
                let blocks = |(id, new): &(SequenceId, &[u32])| {
                    let len = self.block_manager.next(*id) as usize;
                    (len + new.len()).div_ceil(BLOCK) - len.div_ceil(BLOCK)
                };
                let needed: usize = next.iter().map(blocks).sum();
                let free = self.block_manager.free().unwrap_or(usize::MAX);
                assert_eq!(shortage == Shortage::Slots, needed > free / BLOCK);
                return false;
            }
        };
        let allocated = self.copied(allocated);
        let before = self.rows.clone();
        for (i, (id, new)) in next.iter().enumerate() {
            let text = self.texts.entry(*id).or_default();
            if let Some(n_rows) = self.n_rows {
                let read = allocated.rows.read[i];
                let state = before.get(&read).filter(|_| read < n_rows);
                assert_eq!(state.cloned().unwrap_or_default(), *text, "state of {id}");
                text.extend_from_slice(new);
                self.rows.insert(allocated.rows.write[i], text.clone());
            } else {
                text.extend_from_slice(new);
            }
        }
        for (pool, slots) in allocated.slots.iter().enumerate() {
            for ((id, position), slot) in places.iter().zip(slots) {
                let text = self.texts[id][..=*position as usize].to_vec();
                self.slots.insert((pool, *slot), text);
            }
        }
        self.check_seen(&places);
        if fails {
            self.block_manager.roll_back(&places);
            for (pool, slots) in allocated.slots.iter().enumerate() {
                let garbage = |slot: &usize| ((pool, *slot), vec![u32::MAX]);
                self.slots.extend(slots.iter().map(garbage));
            }
            for (id, _) in next {
                let next = self.block_manager.next(*id) as usize;
                self.texts.entry(*id).or_default().truncate(next);
            }
        }
        true
    }

    /// Every visible position lies in a slot that holds the sequence's own text.
    fn check_seen(&self, places: &[(SequenceId, u32)]) {
        for pool in 0..self.groups.len() {
            let mut left = places;
            for view in &self.block_manager.views_of(pool, places) {
                let (own, after) = left.split_at(view.n_tokens * view.n_runs);
                left = after;
                assert!(view.n_runs == 1 || view.n_kv <= view.stride, "{view:?}");
                let mask: Vec<f32> = self.block_manager.mask(pool, view, own);
                for (i, row) in mask.chunks(view.n_kv).enumerate() {
                    let start = view.first + i / view.n_tokens * view.stride;
                    assert!(start + view.n_kv <= self.groups[pool].n_slots);
                    self.check_row(pool, own[i], start, row);
                }
            }
            assert!(left.is_empty());
        }
    }

    /// The row of a mask over slots from `start` on.
    fn check_row(&self, pool: usize, (id, position): (SequenceId, u32), start: usize, row: &[f32]) {
        if id == NOBODY {
            let n_seen = row.iter().filter(|value| value.is_finite()).count();
            assert_eq!((row[0], n_seen), (0.0, 1), "row of nobody");
            return;
        }
        let text = &self.texts[&id];
        let mut seen: Vec<&Vec<u32>> = (0..row.len())
            .filter(|slot| row[*slot] == 0.0)
            .map(|slot| &self.slots[&(pool, start + slot)])
            .collect();
        seen.sort_by_key(|text| text.len());
        let first = self.groups[pool].rule.first_visible(position) as usize;
        let expected: Vec<Vec<u32>> = (first..=position as usize)
            .map(|at| text[..=at].to_vec())
            .collect();
        assert!(seen.into_iter().eq(expected.iter()), "pool {pool} of {id}");
    }

    /// Users of every block are the tables that hold it, and no block is lost.
    fn check_users(&mut self) {
        self.check_told();
        for (i, pool) in self.block_manager.pools.iter().enumerate() {
            let mut users = vec![0; pool.len()];
            for sequence in self.block_manager.sequences.values() {
                for block in sequence.tables[i]
                    .iter()
                    .filter(|block| **block != OUT_OF_WINDOW)
                {
                    users[*block as usize] += 1;
                }
            }
            let ids = 0..pool.len() as u32;
            let found: Vec<u32> = ids.clone().map(|block| pool.n_users(block)).collect();
            assert_eq!(found, users);
            if self.block_manager.n_homes.is_some() {
                assert!(users.iter().all(|n| *n <= 1), "{users:?}");
            }
            let unused = users.iter().filter(|n| **n == 0).count();
            assert_eq!(pool.available(), unused);
        }
        self.check_runs();
        assert!(self.block_manager.tree.is_tidy());
        if let Some(rows) = &self.block_manager.rows {
            let mut users = vec![0; rows.len()];
            let held = self.block_manager.sequences.values().filter_map(|s| s.row);
            held.for_each(|row| users[row as usize] += 1);
            let found: Vec<u32> = (0..rows.len() as u32)
                .map(|row| rows.n_users(row))
                .collect();
            assert_eq!(found, users);
        }
    }

    /// Where runs are asked for, no block of another sequence lies between the blocks of a sequence.
    fn check_runs(&self) {
        let manager = &self.block_manager;
        let pools = 0..manager.pools.len();
        let in_runs = pools.filter(|i| manager.n_homes.is_some() && !manager.is_windowed(*i));
        for pool in in_runs {
            let tables = manager.sequences.values().map(|s| &s.tables[pool]);
            let mut spans: Vec<_> = tables.filter_map(|table| span_of(table)).collect();
            spans.sort_unstable_by_key(|span| span.start);
            let are_apart = spans.windows(2).all(|pair| pair[0].end <= pair[1].start);
            assert!(are_apart, "{spans:?}");
        }
    }

    /// Puts the blocks of a text from the block `first` on into the cache, each with the parts in a set of bits.
    fn put(&mut self, text: &[u32], first: usize, parts: u64, is_written: bool) {
        let n = text.len() / BLOCK - first;
        let manager = &mut self.block_manager;
        let taken = manager.take_parts(&[], text, first, &vec![parts; n]);
        for (at, places) in (first..).zip(&taken.places) {
            for (part, block) in places {
                assert!(parts >> part & 1 == 1);
                if *part == self.groups.len() {
                    self.rows
                        .insert(*block as usize, text[..(at + 1) * BLOCK].to_vec());
                    continue;
                }
                for i in 0..BLOCK {
                    let slot = *block as usize * BLOCK + i;
                    let own = match is_written {
                        true => text[..=at * BLOCK + i].to_vec(),
                        false => vec![u32::MAX],
                    };
                    self.slots.insert((*part, slot), own);
                }
            }
        }
        manager.keep_parts(taken, is_written);
    }

    fn release_all(&mut self) {
        for id in 0..N_SEQS {
            self.block_manager.release(id);
        }
        self.texts.clear();
    }
}

/// What may happen to a sequence.
#[derive(Clone, Debug)]
enum Act {
    /// A text of a few kinds begins.
    Start(SequenceId, u32, usize),
    /// So many next tokens, all of one value, alone or together with everyone else's.
    Read(SequenceId, usize, u32, bool),
    /// A pass that fails.
    Fail(SequenceId, usize),
    Forget(SequenceId, usize),
    Release(SequenceId),
    Discard(SequenceId),
    /// Blocks of a text come from elsewhere: its kind, the first block, their number, the parts, and whether they are written.
    Put(u32, usize, usize, u64, bool),
    /// A text of a kind, of so many blocks, is erased.
    Erase(u32, usize),
    /// All sequences read a token, and the pass after that is prepared.
    Ahead(Fate),
}

fn acts() -> impl Strategy<Value = Act> {
    let id = 0..N_SEQS;
    prop_oneof![
        (id.clone(), 0..3u32, 1..90usize).prop_map(|(id, kind, n)| Act::Start(id, kind, n)),
        (id.clone(), 1..40usize, 0..2u32, any::<bool>())
            .prop_map(|(id, n, token, all)| Act::Read(id, n, token, all)),
        (id.clone(), 1..3usize, 0..2u32, Just(true))
            .prop_map(|(id, n, token, all)| Act::Read(id, n, token, all)),
        (id.clone(), 1..20usize).prop_map(|(id, n)| Act::Fail(id, n)),
        (id.clone(), 0..60usize).prop_map(|(id, n)| Act::Forget(id, n)),
        id.clone().prop_map(Act::Release),
        (0..3u32, 0..4usize, 1..5usize, 0..8u64, any::<bool>()).prop_map(
            |(kind, first, n, parts, is_written)| Act::Put(kind, first, n, parts, is_written)
        ),
        (0..3u32, 1..5usize).prop_map(|(kind, n)| Act::Erase(kind, n)),
        ahead::fates().prop_map(Act::Ahead),
        id.prop_map(Act::Discard),
    ]
}

/// A text of a kind. Kinds begin alike.
fn text_of(kind: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i / 24 * kind).collect()
}

fn live(mirror: &mut Mirror, acts: &[Act]) {
    for act in acts {
        match *act {
            Act::Start(id, kind, n) => {
                mirror.block_manager.release(id);
                let text = text_of(kind, n);
                let n_cached = mirror.resume(id, &text).n_cached;
                assert!(n_cached < n);
                mirror.pass(&[(id, &text[n_cached..])], false);
            }
            Act::Read(id, n, token, is_together) => {
                let new = vec![token; n];
                let one = [token];
                let all: Vec<(SequenceId, &[u32])> = (0..N_SEQS)
                    .filter(|other| is_together || *other == id)
                    .map(|other| (other, if other == id { &new[..] } else { &one[..] }))
                    .collect();
                mirror.pass(&all, false);
            }
            Act::Fail(id, n) => {
                mirror.pass(&[(id, &vec![0; n])], true);
            }
            Act::Forget(id, from) => {
                let len = mirror.block_manager.next(id);
                let next = mirror.block_manager.forget(id, from as u32);
                let next = mirror.copied(next);
                assert!(next <= from.min(len as usize));
                assert_eq!(next, mirror.block_manager.next(id) as usize);
                mirror.texts.entry(id).or_default().truncate(next);
            }
            Act::Release(id) => {
                mirror.block_manager.release(id);
                mirror.texts.remove(&id);
            }
            Act::Discard(id) => {
                mirror.block_manager.discard(id);
                mirror.texts.remove(&id);
            }
            Act::Put(kind, first, n, parts, is_written) => {
                mirror.put(
                    &text_of(kind, (first + n) * BLOCK),
                    first,
                    parts,
                    is_written,
                );
            }
            Act::Ahead(fate) => mirror.ahead(fate),
            Act::Erase(kind, n) => {
                mirror.block_manager.erase(&[], &text_of(kind, n * BLOCK));
            }
        }
        for id in 0..N_SEQS {
            let next = mirror.block_manager.next(id) as usize;
            mirror.texts.entry(id).or_default().truncate(next);
        }
        mirror.check_users();
    }
    mirror.release_all();
    mirror.check_users();
    let all: usize = mirror.groups.iter().map(|g| g.n_slots).min().unwrap_or(0);
    assert_eq!(mirror.block_manager.free().unwrap_or(0), all);
}

#[test]
fn what_is_discarded_is_not_found_again() {
    let (full, window) = (group(30, 0), group(30, WINDOW));
    for (groups, n_rows) in [(vec![full.clone()], None), (vec![full, window], Some(8))] {
        let mut mirror = Mirror::new(groups, n_rows);
        let text: Vec<u32> = (0..50).collect();
        for id in [0, 1] {
            assert_eq!(mirror.resume(id, &text).n_cached, 0);
            mirror.pass(&[(id, &text[..48])], false);
            mirror.pass(&[(id, &text[48..])], false);
            mirror.block_manager.discard(id);
            mirror.texts.remove(&id);
            mirror.check_users();
        }
        mirror.pass(&[(0, &text[..48])], false);
        mirror.pass(&[(0, &text[48..])], false);
        // What another sequence uses stays, for it and for later ones.
        let n_cached = mirror.resume(1, &text).n_cached;
        assert!(n_cached >= 48, "{n_cached}");
        mirror.pass(&[(1, &text[n_cached..])], false);
        mirror.block_manager.discard(0);
        mirror.texts.remove(&0);
        mirror.check_users();
        mirror.pass(&[(1, &[7])], false);
        mirror.block_manager.release(1);
        let n_cached = mirror.resume(2, &text).n_cached;
        assert!(n_cached >= 48 || n_rows.is_some(), "{n_cached}");
        mirror.check_users();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_query_attends_to_the_text_of_its_sequence(
        acts in prop::collection::vec(acts(), 1..60),
        n_blocks in 6..20usize,
        rows in prop::option::of(3..7usize),
        has_window: bool,
        n_seqs in prop::option::of(1..5usize),
    ) {
        let mut groups = vec![group(n_blocks, 0)];
        if has_window {
            groups.push(group(n_blocks.min(14), WINDOW));
        }
        live(&mut match n_seqs {
            None => Mirror::new(groups, rows),
            Some(n_seqs) => Mirror::in_runs(groups, rows, n_seqs),
        }, &acts);
    }

    #[test]
    fn a_state_without_keys_is_that_of_the_text(
        acts in prop::collection::vec(acts(), 1..60),
        rows in 3..7usize,
    ) {
        live(&mut Mirror::new(Vec::new(), Some(rows)), &acts);
    }
}

fn text(n: u32) -> Vec<u32> {
    (0..n).collect()
}

#[test]
fn a_text_that_was_read_is_not_read_again() {
    let mut mirror = Mirror::new(vec![group(8, 0)], None);
    assert_eq!(mirror.resume(0, &text(40)).miss, CacheMiss::Nothing);
    assert!(mirror.pass(&[(0, &text(40))], false));
    // While the first still runs, and after it has ended.
    let first = mirror.resume(1, &text(40));
    assert_eq!((first.n_cached, first.miss), (32, CacheMiss::None));
    mirror.block_manager.release(0);
    mirror.block_manager.release(1);
    assert_eq!(mirror.resume(2, &text(33)).n_cached, 32);
    mirror.block_manager.release(2);
    assert_eq!(
        mirror.resume(2, &text(32)).n_cached,
        31,
        "one token is read"
    );
    assert_eq!(mirror.resume(1, &[5; 40]).miss, CacheMiss::Nothing);
}

#[test]
fn blocks_from_elsewhere_are_found_as_those_that_were_read() {
    for window in [0, WINDOW] {
        let mut mirror = Mirror::new(vec![group(8, 0), group(8, window)], None);
        let text = text(80);
        mirror.put(&text, 0, 0b11, true);
        let whole = [&text[..], &[7]].concat();
        let found = mirror.resume(0, &whole);
        assert_eq!((found.n_cached, found.miss), (80, CacheMiss::None));
        assert!(mirror.pass(&[(0, &[7])], false));
        mirror.block_manager.release(0);
        assert_eq!(
            mirror.block_manager.parts(&[], &text),
            mirror.block_manager.parts(&[], &whole)
        );
        // Nothing is evicted for blocks that have no room beside those of their own prefix.
        let longer: Vec<u32> = (0..200).collect();
        mirror.put(&longer[..192], 5, 0b11, true);
        assert!(mirror.resume(1, &longer).n_cached >= 80);
        mirror.block_manager.release(1);
        mirror.check_users();
        assert_eq!(mirror.block_manager.erase(&[], &text), 80);
        assert_eq!(mirror.resume(1, &whole).miss, CacheMiss::Evicted);
    }
}

#[test]
fn a_miss_says_why() {
    let mut mirror = Mirror::new(vec![group(8, 0)], None);
    mirror.block_manager.set_prefix_key(2, &[5], 0);
    assert!(mirror.pass(&[(2, &text(40))], false));
    assert_eq!(
        mirror.resume(0, &text(40)).miss,
        CacheMiss::OtherComputation
    );
    mirror.block_manager.release(2);
    assert_eq!(mirror.resume(1, &[9; 40]).miss, CacheMiss::Nothing);
    assert!(mirror.pass(&[(1, &[9; 40])], false));
    let found = mirror.resume(0, &[&[9; 20][..], &[3; 20]].concat());
    assert_eq!(
        (found.n_cached, found.miss),
        (20, CacheMiss::Differs { at: 20 })
    );
    let manager = &mirror.block_manager;
    let instead = manager.cached_instead(0, &[&[9; 20][..], &[3; 20]].concat());
    assert_eq!(instead, Some(&[9; BLOCK][..]));
}

#[test]
fn the_start_of_a_block_is_taken_over() {
    let mut mirror = Mirror::new(vec![group(8, 0)], None);
    assert!(mirror.pass(&[(0, &text(40))], false));
    // Another way from within a block that is in use.
    let other = [&text(25)[..], &[9; 20]].concat();
    let found = mirror.resume(1, &other);
    assert_eq!(
        (found.n_cached, found.miss),
        (25, CacheMiss::Differs { at: 25 })
    );
    assert!(mirror.pass(&[(1, &other[25..])], false));
    assert!(mirror.pass(&[(0, &[40, 41])], false));
    // A text that ended within a block goes on.
    mirror.block_manager.release(0);
    let longer = mirror.resume(2, &text(60));
    assert_eq!(
        (longer.n_cached, longer.miss),
        (42, CacheMiss::Ends { at: 42 })
    );
    assert!(mirror.pass(&[(2, &text(60)[42..])], false));
    mirror.check_users();
}

#[test]
fn nothing_is_known_of_a_pass_that_failed() {
    let mut mirror = Mirror::new(vec![group(8, 0)], None);
    assert!(mirror.pass(&[(0, &text(40))], true));
    assert_eq!(mirror.resume(1, &text(40)).n_cached, 0);
    assert!(mirror.pass(&[(1, &text(20))], false));
    assert!(mirror.pass(&[(1, &text(40)[20..])], true));
    mirror.block_manager.release(1);
    assert_eq!(mirror.resume(2, &text(40)).n_cached, 20);
}

#[test]
fn what_was_used_least_recently_is_evicted() {
    let mut mirror = Mirror::new(vec![group(4, 0)], None);
    for (id, token) in [(0, 100), (1, 200)] {
        assert!(mirror.pass(&[(id, &[token; 32])], false));
        mirror.block_manager.release(id);
    }
    assert_eq!(mirror.resume(0, &[100; 33]).n_cached, 32);
    mirror.block_manager.release(0);
    // Two more blocks: the other text goes, its end first.
    assert!(mirror.pass(&[(2, &[7; 16])], false));
    assert_eq!(mirror.resume(1, &[200; 33]).n_cached, 16);
    assert_eq!(
        mirror.resume(1, &[200; 33]).miss,
        CacheMiss::None,
        "it runs"
    );
    mirror.block_manager.release(1);
    assert_eq!(mirror.resume(0, &[100; 33]).n_cached, 32);
}

#[test]
fn a_window_and_its_cached_blocks_do_not_grow() {
    let mut mirror = Mirror::new(vec![group(64, 0), group(7, WINDOW)], None);
    for token in text(500) {
        assert!(mirror.pass(&[(0, &[token])], false), "{token}");
    }
    let idle = mirror.block_manager.pools[1].available();
    assert!(idle >= 4, "{idle} of 7");
    mirror.block_manager.release(0);
    // The end of the text is there, with its window; the middle was evicted.
    assert_eq!(mirror.resume(1, &text(500)).n_cached, 499);
    mirror.block_manager.release(1);
    let middle = mirror.resume(1, &text(250));
    assert_eq!((middle.n_cached, middle.miss), (0, CacheMiss::WindowPassed));
}

#[test]
fn states_are_cached_where_blocks_and_passes_end() {
    let mut mirror = Mirror::new(Vec::new(), Some(4));
    assert!(mirror.pass(&[(0, &text(32))], false));
    assert!(mirror.pass(&[(0, &text(60)[32..])], false));
    let found = mirror.resume(1, &text(60));
    assert_eq!((found.n_cached, found.miss), (32, CacheMiss::NoState));
    assert!(mirror.pass(&[(1, &[9; 3])], false), "it goes its own way");
    for token in 60..96 {
        assert!(mirror.pass(&[(0, &[token])], false));
    }
    // Of an answer only the latest place; that of the prompt stays.
    mirror.block_manager.release(0);
    assert_eq!(mirror.resume(2, &text(90)).n_cached, 32);
    mirror.block_manager.release(2);
    assert_eq!(mirror.resume(2, &text(100)).n_cached, 96);
}

#[test]
fn a_shortage_changes_nothing() {
    let mut mirror = Mirror::new(vec![group(2, 0)], Some(1));
    assert!(mirror.pass(&[(0, &text(20))], false));
    assert!(!mirror.pass(&[(0, &text(13))], false), "slots");
    assert!(!mirror.pass(&[(1, &text(1))], false), "rows");
    assert!(mirror.pass(&[(0, &text(12))], false));
    mirror.check_users();
}

#[test]
fn routers_are_told_of_full_blocks_and_of_their_end() {
    let mut mirror = Mirror::new(vec![group(4, 0)], None);
    assert!(mirror.pass(&[(0, &text(40))], false));
    mirror.block_manager.release(0);
    let events = mirror.block_manager.take_events();
    let [
        KvEvent::BlockStored {
            hashes,
            parent: None,
            tokens,
            adapter: None,
        },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((hashes.len(), &tokens[..]), (2, &text(32)[..]));
    // A text that goes on where the first one ended needs all blocks but two.
    assert_eq!(mirror.resume(1, &text(64)).n_cached, 40);
    assert!(mirror.pass(&[(1, &text(64)[40..])], false));
    mirror.block_manager.release(1);
    let events = mirror.block_manager.take_events();
    let [
        KvEvent::BlockStored {
            hashes: more,
            parent,
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((more.len(), *parent), (2, hashes.last().copied()));
    // Another text takes the place of the end.
    assert!(mirror.pass(&[(2, &[9; 16])], false));
    mirror.block_manager.release(2);
    let events = mirror.block_manager.take_events();
    let [
        KvEvent::BlockRemoved { hashes: gone },
        KvEvent::BlockStored { parent: None, .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(gone[..], more[1..]);
}

#[test]
fn texts_with_adapters_are_told_with_their_names_and_those_with_edits_not_at_all() {
    let mut mirror = Mirror::new(vec![group(20, 0)], None);
    let adapter = BlockAdapter {
        id: Some(1),
        name: "sql".into(),
    };
    for (id, key, adapter) in [(0, 1, Some(adapter.clone())), (1, 2, None)] {
        let manager = &mut mirror.block_manager;
        if adapter.is_some() {
            manager.announce(&[key], adapter);
        }
        manager.set_prefix_key(id, &[key], 0);
        assert!(mirror.pass(&[(id, &text(16))], false));
        mirror.block_manager.release(id);
    }
    assert!(mirror.pass(&[(2, &text(16))], false));
    mirror.block_manager.release(2);
    let told = mirror.block_manager.take_events().into_iter();
    let told = told.map(|event| match event {
        KvEvent::BlockStored {
            hashes, adapter, ..
        } => (hashes[0], adapter),
        other => panic!("{other:?}"),
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0].1.as_deref(), Some(&adapter));
    assert_eq!(told[1].1, None);
    assert_ne!(told[0].0, told[1].0);
}
