//! The book-keeping over whole lives of sequences, beside a storage that remembers what was written.

use std::collections::HashMap;

use proptest::prelude::*;

use super::ledger::GONE;
use super::*;
use crate::blocks::cache::{Cache as Visibility, Window};

const WINDOW: u64 = 20;
const N_SEQS: u32 = 3;

fn rule(size: u64) -> Visibility {
    Visibility {
        causal: true,
        size,
        window: Window::Standard,
        alibi: 0.0,
    }
}

fn group(n_blocks: usize, size: u64) -> Group {
    Group {
        n_cells: n_blocks * BLOCK,
        rule: rule(size),
    }
}

/// A ledger, and cells and rows that hold the text they were written for.
struct Twin {
    ledger: Ledger,
    groups: Vec<Group>,
    n_rows: Option<usize>,
    cells: HashMap<(usize, usize), Vec<u32>>,
    rows: HashMap<usize, Vec<u32>>,
    texts: HashMap<SequenceId, Vec<u32>>,
}

impl Twin {
    fn new(groups: Vec<Group>, n_rows: Option<usize>) -> Self {
        Self {
            ledger: Ledger::new(groups.clone(), n_rows),
            groups,
            n_rows,
            cells: HashMap::new(),
            rows: HashMap::new(),
            texts: HashMap::new(),
        }
    }

    fn resume(&mut self, id: SequenceId, tokens: &[u32]) -> Resumed {
        let (resumed, copy) = self.ledger.resume(id, tokens);
        self.copy(copy);
        assert_eq!(self.ledger.next(id) as usize, resumed.n_cached);
        self.texts.insert(id, tokens[..resumed.n_cached].to_vec());
        resumed
    }

    fn copy(&mut self, copy: Option<BlockCopy>) {
        let Some(copy) = copy else { return };
        assert!((1..BLOCK).contains(&copy.n_cells));
        for (pool, (from, to)) in copy.from.iter().zip(&copy.to).enumerate() {
            let Some(from) = from else { continue };
            for i in 0..copy.n_cells {
                let text = self.cells.get(&(pool, *from as usize * BLOCK + i)).cloned();
                let text = text.expect("a cell that was written");
                self.cells.insert((pool, *to as usize * BLOCK + i), text);
            }
        }
    }

    /// A pass over the next tokens of sequences; checks all that its queries see.
    fn pass(&mut self, next: &[(SequenceId, &[u32])], fails: bool) -> bool {
        let mut places = Vec::new();
        let mut tokens = Vec::new();
        for (id, new) in next {
            let from = self.ledger.next(*id);
            places.extend((from..).zip(*new).map(|(position, _)| (*id, position)));
            tokens.extend_from_slice(new);
        }
        let Ok(taken) = self.ledger.take(&places, &tokens) else {
            return false;
        };
        let before = self.rows.clone();
        for (i, (id, new)) in next.iter().enumerate() {
            let text = self.texts.entry(*id).or_default();
            if let Some(n_rows) = self.n_rows {
                let read = taken.rows.read[i];
                let state = before.get(&read).filter(|_| read < n_rows);
                assert_eq!(state.cloned().unwrap_or_default(), *text, "state of {id}");
                text.extend_from_slice(new);
                self.rows.insert(taken.rows.write[i], text.clone());
            } else {
                text.extend_from_slice(new);
            }
        }
        for (pool, cells) in taken.cells.iter().enumerate() {
            for ((id, position), cell) in places.iter().zip(cells) {
                let text = self.texts[id][..=*position as usize].to_vec();
                self.cells.insert((pool, *cell), text);
            }
        }
        self.check_seen(&places);
        if fails {
            self.ledger.give_back(&places);
            for (pool, cells) in taken.cells.iter().enumerate() {
                let garbage = |cell: &usize| ((pool, *cell), vec![u32::MAX]);
                self.cells.extend(cells.iter().map(garbage));
            }
            for (id, _) in next {
                let next = self.ledger.next(*id) as usize;
                self.texts.entry(*id).or_default().truncate(next);
            }
        }
        true
    }

    /// Every visible position lies in a cell that holds the sequence's own text.
    fn check_seen(&self, places: &[(SequenceId, u32)]) {
        for (pool, group) in self.groups.iter().enumerate() {
            let n_kv = self.ledger.views(places)[pool];
            let mask = self.ledger.mask(pool, n_kv, places);
            for ((id, position), row) in places.iter().zip(mask.as_f32().chunks(n_kv)) {
                let text = &self.texts[id];
                let mut seen: Vec<&Vec<u32>> = (0..n_kv)
                    .filter(|cell| row[*cell] == 0.0)
                    .map(|cell| &self.cells[&(pool, cell)])
                    .collect();
                seen.sort_by_key(|text| text.len());
                let first = group.rule.first_visible(*position) as usize;
                let expected: Vec<Vec<u32>> = (first..=*position as usize)
                    .map(|at| text[..=at].to_vec())
                    .collect();
                assert!(seen.into_iter().eq(expected.iter()), "pool {pool} of {id}");
            }
        }
    }

    /// Users of every block are the tables that hold it, and no block is lost.
    fn check_users(&self) {
        for (i, pool) in self.ledger.pools.iter().enumerate() {
            let mut users = vec![0; pool.len()];
            for sequence in self.ledger.sequences.values() {
                for block in sequence.tables[i].iter().filter(|block| **block != GONE) {
                    users[*block as usize] += 1;
                }
            }
            let ids = 0..pool.len() as u32;
            let found: Vec<u32> = ids.clone().map(|block| pool.n_users(block)).collect();
            assert_eq!(found, users);
            let unused = users.iter().filter(|n| **n == 0).count();
            assert_eq!(pool.available(), unused);
        }
        assert!(self.ledger.tree.is_tidy());
        if let Some(rows) = &self.ledger.rows {
            let mut users = vec![0; rows.len()];
            let held = self.ledger.sequences.values().filter_map(|s| s.row);
            held.for_each(|row| users[row as usize] += 1);
            let found: Vec<u32> = (0..rows.len() as u32)
                .map(|row| rows.n_users(row))
                .collect();
            assert_eq!(found, users);
        }
    }

    fn release_all(&mut self) {
        for id in 0..N_SEQS {
            self.ledger.release(id);
        }
        self.texts.clear();
    }
}

/// What may happen to a sequence.
#[derive(Clone, Debug)]
enum Act {
    /// A text of a few kinds begins.
    Begin(SequenceId, u32, usize),
    /// So many next tokens, all of one value, alone or together with everyone else's.
    Read(SequenceId, usize, u32, bool),
    /// A pass that fails.
    Fail(SequenceId, usize),
    Forget(SequenceId, usize),
    Release(SequenceId),
}

fn acts() -> impl Strategy<Value = Act> {
    let id = 0..N_SEQS;
    prop_oneof![
        (id.clone(), 0..3u32, 1..90usize).prop_map(|(id, kind, n)| Act::Begin(id, kind, n)),
        (id.clone(), 1..40usize, 0..2u32, any::<bool>())
            .prop_map(|(id, n, token, all)| Act::Read(id, n, token, all)),
        (id.clone(), 1..3usize, 0..2u32, Just(true))
            .prop_map(|(id, n, token, all)| Act::Read(id, n, token, all)),
        (id.clone(), 1..20usize).prop_map(|(id, n)| Act::Fail(id, n)),
        (id.clone(), 0..60usize).prop_map(|(id, n)| Act::Forget(id, n)),
        id.prop_map(Act::Release),
    ]
}

fn live(twin: &mut Twin, acts: &[Act]) {
    for act in acts {
        match *act {
            Act::Begin(id, kind, n) => {
                twin.ledger.release(id);
                let text: Vec<u32> = (0..n as u32).map(|i| i / 24 * kind).collect();
                let n_cached = twin.resume(id, &text).n_cached;
                assert!(n_cached < n);
                twin.pass(&[(id, &text[n_cached..])], false);
            }
            Act::Read(id, n, token, is_together) => {
                let new = vec![token; n];
                let one = [token];
                let all: Vec<(SequenceId, &[u32])> = (0..N_SEQS)
                    .filter(|other| is_together || *other == id)
                    .map(|other| (other, if other == id { &new[..] } else { &one[..] }))
                    .collect();
                twin.pass(&all, false);
            }
            Act::Fail(id, n) => {
                twin.pass(&[(id, &vec![0; n])], true);
            }
            Act::Forget(id, from) => {
                let len = twin.ledger.next(id);
                let (next, copy) = twin.ledger.forget(id, from as u32);
                twin.copy(copy);
                assert!(next <= len.min(from as u32));
                assert_eq!(next, twin.ledger.next(id));
                twin.texts.entry(id).or_default().truncate(next as usize);
            }
            Act::Release(id) => {
                twin.ledger.release(id);
                twin.texts.remove(&id);
            }
        }
        for id in 0..N_SEQS {
            let next = twin.ledger.next(id) as usize;
            twin.texts.entry(id).or_default().truncate(next);
        }
        twin.check_users();
    }
    twin.release_all();
    twin.check_users();
    let all: usize = twin.groups.iter().map(|g| g.n_cells).min().unwrap_or(0);
    assert_eq!(twin.ledger.free().unwrap_or(0), all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_query_sees_the_text_of_its_sequence(
        acts in prop::collection::vec(acts(), 1..60),
        n_blocks in 6..20usize,
        rows in prop::option::of(3..7usize),
        has_window: bool,
    ) {
        let mut groups = vec![group(n_blocks, 0)];
        if has_window {
            groups.push(group(n_blocks.min(14), WINDOW));
        }
        live(&mut Twin::new(groups, rows), &acts);
    }

    #[test]
    fn a_state_without_keys_is_that_of_the_text(
        acts in prop::collection::vec(acts(), 1..60),
        rows in 3..7usize,
    ) {
        live(&mut Twin::new(Vec::new(), Some(rows)), &acts);
    }
}

fn text(n: u32) -> Vec<u32> {
    (0..n).collect()
}

#[test]
fn a_text_that_was_read_is_not_read_again() {
    let mut twin = Twin::new(vec![group(8, 0)], None);
    assert_eq!(twin.resume(0, &text(40)).miss, Miss::Unknown);
    assert!(twin.pass(&[(0, &text(40))], false));
    // While the first still runs, and after it has ended.
    let first = twin.resume(1, &text(40));
    assert_eq!((first.n_cached, first.miss), (32, Miss::None));
    twin.ledger.release(0);
    twin.ledger.release(1);
    assert_eq!(twin.resume(2, &text(33)).n_cached, 32);
    twin.ledger.release(2);
    assert_eq!(twin.resume(2, &text(32)).n_cached, 31, "one token is read");
    assert_eq!(twin.resume(1, &[5; 40]).miss, Miss::Unknown);
}

#[test]
fn the_begin_of_a_block_is_taken_over() {
    let mut twin = Twin::new(vec![group(8, 0)], None);
    assert!(twin.pass(&[(0, &text(40))], false));
    // Another way from within a block that is in use.
    let other = [&text(25)[..], &[9; 20]].concat();
    let found = twin.resume(1, &other);
    assert_eq!((found.n_cached, found.miss), (25, Miss::Unknown));
    assert!(twin.pass(&[(1, &other[25..])], false));
    assert!(twin.pass(&[(0, &[40, 41])], false));
    // A text that ended within a block goes on.
    twin.ledger.release(0);
    let longer = twin.resume(2, &text(60));
    assert_eq!((longer.n_cached, longer.miss), (42, Miss::Unknown));
    assert!(twin.pass(&[(2, &text(60)[42..])], false));
    twin.check_users();
}

#[test]
fn nothing_is_known_of_a_pass_that_failed() {
    let mut twin = Twin::new(vec![group(8, 0)], None);
    assert!(twin.pass(&[(0, &text(40))], true));
    assert_eq!(twin.resume(1, &text(40)).n_cached, 0);
    assert!(twin.pass(&[(1, &text(20))], false));
    assert!(twin.pass(&[(1, &text(40)[20..])], true));
    twin.ledger.release(1);
    assert_eq!(twin.resume(2, &text(40)).n_cached, 20);
}

#[test]
fn what_was_used_least_recently_makes_room() {
    let mut twin = Twin::new(vec![group(4, 0)], None);
    for (id, token) in [(0, 100), (1, 200)] {
        assert!(twin.pass(&[(id, &[token; 32])], false));
        twin.ledger.release(id);
    }
    assert_eq!(twin.resume(0, &[100; 33]).n_cached, 32);
    twin.ledger.release(0);
    // Two more blocks: the other text goes, its end first.
    assert!(twin.pass(&[(2, &[7; 16])], false));
    assert_eq!(twin.resume(1, &[200; 33]).n_cached, 16);
    assert_eq!(twin.resume(1, &[200; 33]).miss, Miss::None, "it runs");
    twin.ledger.release(1);
    assert_eq!(twin.resume(0, &[100; 33]).n_cached, 32);
}

#[test]
fn a_window_and_what_is_remembered_of_it_do_not_grow() {
    let mut twin = Twin::new(vec![group(64, 0), group(7, WINDOW)], None);
    for token in text(500) {
        assert!(twin.pass(&[(0, &[token])], false), "{token}");
    }
    let idle = twin.ledger.pools[1].available();
    assert!(idle >= 4, "{idle} of 7");
    twin.ledger.release(0);
    // The end of the text is there, with its window; the middle has made room.
    assert_eq!(twin.resume(1, &text(500)).n_cached, 499);
    twin.ledger.release(1);
    let middle = twin.resume(1, &text(250));
    assert_eq!((middle.n_cached, middle.miss), (0, Miss::Evicted));
}

#[test]
fn states_are_remembered_where_blocks_and_passes_end() {
    let mut twin = Twin::new(Vec::new(), Some(4));
    assert!(twin.pass(&[(0, &text(32))], false));
    assert!(twin.pass(&[(0, &text(60)[32..])], false));
    let found = twin.resume(1, &text(60));
    assert_eq!((found.n_cached, found.miss), (32, Miss::NoState));
    assert!(twin.pass(&[(1, &[9; 3])], false), "it goes its own way");
    for token in 60..96 {
        assert!(twin.pass(&[(0, &[token])], false));
    }
    // Of an answer only the latest place; that of the prompt stays.
    twin.ledger.release(0);
    assert_eq!(twin.resume(2, &text(90)).n_cached, 32);
    twin.ledger.release(2);
    assert_eq!(twin.resume(2, &text(100)).n_cached, 96);
}

#[test]
fn a_shortage_changes_nothing() {
    let mut twin = Twin::new(vec![group(2, 0)], Some(1));
    assert!(twin.pass(&[(0, &text(20))], false));
    assert!(!twin.pass(&[(0, &text(13))], false), "cells");
    assert!(!twin.pass(&[(1, &text(1))], false), "rows");
    assert!(twin.pass(&[(0, &text(12))], false));
    twin.check_users();
}
