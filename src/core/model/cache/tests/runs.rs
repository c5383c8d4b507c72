//! Where runs lie, when they move, and what is looked at together.

use super::super::super::batch::Batch;
use super::super::super::padding;
use super::super::super::sub_batch::by_sequence;
use super::*;

fn in_runs(n_blocks: usize, n_seqs: usize) -> Mirror {
    Mirror::in_runs(vec![group(n_blocks, 0)], None, n_seqs)
}

/// Block at which the run of a sequence starts.
fn start(mirror: &Mirror, id: SequenceId) -> usize {
    let table = &mirror.block_manager.sequences[&id].tables[0];
    *table.iter().min().expect("a run") as usize
}

/// A pass over some tokens of each sequence, and what is copied for it.
fn copies(mirror: &mut Mirror, id: SequenceId, new: &[u32]) -> Vec<SlotCopy> {
    let mut trial = mirror.block_manager.clone();
    let from = trial.next(id);
    let places: Vec<(SequenceId, u32)> = (from..).zip(new).map(|(at, _)| (id, at)).collect();
    let (_, copies) = apart(trial.allocate(&places, new).expect("there is room"));
    assert!(mirror.pass(&[(id, new)], false));
    copies
}

/// A change, and the copies that it needs.
fn apart<T>(change: AfterCopies<T>) -> (T, Vec<SlotCopy>) {
    let mut copies = Vec::new();
    let (result, _) = change.make(|copy| {
        copies.push(*copy);
        Ok::<_, std::convert::Infallible>(())
    });
    (result, copies)
}

#[test]
fn every_sequence_has_a_home_and_may_outgrow_it() {
    let mut mirror = in_runs(12, 3);
    for id in 0..3 {
        assert!(copies(&mut mirror, id, &[id + 1; 16]).is_empty());
        assert_eq!(start(&mirror, id), 4 * id as usize);
    }
    // The home after its own is free again.
    mirror.block_manager.release(2);
    // What is cached there makes way.
    let cleared = SlotCopy {
        pool: 0,
        from: 8 * BLOCK,
        to: 2 * BLOCK,
        n: BLOCK,
    };
    assert_eq!(copies(&mut mirror, 1, &[2; 80]), [cleared]);
    assert_eq!(start(&mirror, 1), 4);
    // That of the other is not, nor is there a place as large: everyone moves.
    let moved = copies(&mut mirror, 0, &[1; 64]);
    assert_eq!(start(&mirror, 0), 0);
    assert_eq!(start(&mirror, 1), 5);
    // The first block of the run goes to its end.
    let from: Vec<usize> = moved.iter().map(|copy| copy.from / BLOCK).collect();
    assert_eq!(from, [4, 2], "{moved:?}");
    assert_eq!(moved[0].to, 10 * BLOCK);
    assert_eq!(moved[1].to, 11 * BLOCK);
    mirror.check_users();
}

#[test]
fn one_sequence_takes_the_whole_context() {
    let mut mirror = in_runs(12, 4);
    assert!(mirror.pass(&[(0, &[1; 16]), (1, &[2; 16])], false));
    mirror.block_manager.release(0);
    for step in 0..11 {
        assert!(mirror.pass(&[(1, &[3; 16])], false), "{step}");
    }
    assert_eq!(start(&mirror, 1), 0);
    assert!(!mirror.pass(&[(1, &[3])], false), "full");
    mirror.check_users();
}

#[test]
fn a_follow_up_goes_on_where_it_lies() {
    let mut mirror = in_runs(12, 3);
    assert!(mirror.pass(&[(0, &text(40)), (1, &[7; 20])], false));
    mirror.block_manager.release(0);
    let (resumed, copies) = apart(mirror.block_manager.resume(2, &text(60)));
    assert_eq!((resumed.n_cached, copies), (40, Vec::new()));
    mirror.texts.insert(2, text(40));
    assert_eq!(start(&mirror, 2), 0);
    assert!(mirror.pass(&[(2, &text(60)[40..])], false));
    mirror.check_users();
}

#[test]
fn a_prefix_of_a_running_sequence_is_copied() {
    let mut mirror = in_runs(12, 3);
    assert!(mirror.pass(&[(0, &text(40))], false));
    let (resumed, copies) = apart(mirror.block_manager.resume(1, &text(60)[..37]));
    // One copy of neighbouring slots: a whole block, and the start of the next one.
    let copy = SlotCopy {
        pool: 0,
        from: 0,
        to: 4 * BLOCK,
        n: 36,
    };
    let whole = SlotCopy { n: 32, ..copy };
    assert_eq!(resumed.n_cached, 32);
    assert_eq!(copies, [whole]);
    mirror.block_manager.release(1);
    mirror.block_manager.release(0);
    let (resumed, copies) = apart(mirror.block_manager.resume(1, &text(60)[..37]));
    assert_eq!((resumed.n_cached, copies), (36, Vec::new()), "in place");
}

#[test]
fn a_short_common_prefix_does_not_evict_a_long_text() {
    let mut mirror = in_runs(30, 3);
    assert!(mirror.pass(&[(0, &text(150))], false));
    mirror.block_manager.release(0);
    let other = [&text(16)[..], &[9; 40]].concat();
    assert_eq!(mirror.resume(1, &other).n_cached, 16);
    assert_eq!(start(&mirror, 1), 10, "a home of its own");
    assert!(mirror.pass(&[(1, &other[16..])], false));
    assert_eq!(mirror.resume(0, &text(150)).n_cached, 149);
    assert_eq!(start(&mirror, 0), 0);
}

#[test]
fn an_evicted_original_leaves_its_copy_in_the_cache() {
    let mut mirror = in_runs(6, 2);
    assert!(mirror.pass(&[(0, &text(32))], false));
    assert_eq!(mirror.resume(1, &text(34)).n_cached, 32);
    mirror.block_manager.release(0);
    assert!(mirror.pass(&[(0, &[5; 48])], false), "over the original");
    mirror.block_manager.release(1);
    assert_eq!(mirror.resume(2, &text(40)).n_cached, 32);
    mirror.check_users();
}

fn views(mirror: &Mirror, ids: &[SequenceId]) -> Vec<(usize, usize, usize)> {
    let next = |id: &SequenceId| (*id, mirror.block_manager.next(*id) - 1);
    let places: Vec<(SequenceId, u32)> = ids.iter().map(next).collect();
    let views = mirror.block_manager.views_of(0, &places);
    let parts = views.iter().map(|v| (v.n_runs, v.first, v.n_kv));
    parts.collect()
}

#[test]
fn runs_at_equal_distances_are_looked_at_together() {
    let mut mirror = in_runs(4 * 64, 4);
    for (id, len) in (0..4).zip([300, 20, 100, 1]) {
        assert!(mirror.pass(&[(id, &vec![id + 1; len])], false));
    }
    let home = 64 * BLOCK;
    assert_eq!(views(&mirror, &[0, 1, 2, 3]), [(4, 0, 512)]);
    assert_eq!(views(&mirror, &[1, 2, 3]), [(3, home, 256)]);
    // A gap, and another order.
    assert_eq!(
        views(&mirror, &[0, 2, 3]),
        [(2, 0, 512), (1, 3 * home, 256)]
    );
    assert_eq!(
        views(&mirror, &[3, 1]),
        [(1, 3 * home, 256), (1, home, 256)]
    );
    // What is looked at of one does not depend on the others.
    assert!(mirror.pass(&[(0, &[9; 700])], false));
    assert_eq!(views(&mirror, &[1]), [(1, home, 256)]);
    // A short one beside a long one costs less by itself.
    assert_eq!(views(&mirror, &[0, 1]), [(2, 0, 1024)]);
    assert_eq!(
        views(&mirror, &[0, 1, 2, 3]),
        [(3, 0, 1024), (1, 3 * home, 256)]
    );
}

#[test]
fn a_window_stays_in_its_home() {
    let mut mirror = Mirror::in_runs(vec![group(64, 0), group(3 * 7 + 2, WINDOW)], None, 3);
    for step in 0..30u32 {
        let new = [step; 20];
        let all = [(0, &new[..]), (1, &new[..1]), (2, &new[..7])];
        assert!(mirror.pass(&all, false));
        let places = [0, 1, 2].map(|id| (id, mirror.block_manager.next(id) - 1));
        let windows = mirror.block_manager.views_of(1, &places);
        assert_eq!(windows.len(), 1, "{step}: {windows:?}");
        mirror.check_users();
    }
}

/// The rows of a padded pass over the last token of sequences.
fn padded(mirror: &Mirror, ids: &[SequenceId]) -> Vec<(SequenceId, u32)> {
    let manager = &mirror.block_manager;
    let mut batch = Batch::default();
    for id in ids {
        batch.push(0, *id, manager.next(*id) - 1, true);
    }
    let place = |id, n| (n, manager.order(id));
    let parts = by_sequence(&batch, usize::MAX, place, |_| false);
    let padded = padding::padded(&parts[0], manager, usize::MAX);
    let own = padded
        .batch
        .positions
        .iter()
        .filter(|(id, _)| *id != NOBODY);
    assert_eq!(own.count(), ids.len());
    padded.batch.positions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Sequences of any length up to that of a home, which arrive, share prefixes, grow and end in any order.
    #[test]
    fn sequences_in_their_homes_are_one_view_in_every_pool(
        acts in prop::collection::vec((0..6u32, 0..4usize, 1..40usize), 1..80),
        has_window: bool,
    ) {
        const N_SEQS: usize = 6;
        const HOME: usize = 256;
        let mut groups = vec![group(N_SEQS * HOME / BLOCK, 0)];
        if has_window {
            groups.push(group(N_SEQS * HOME / BLOCK, WINDOW));
        }
        let manager = BlockManager::in_runs(groups.clone(), None, N_SEQS).with_trash();
        let mut mirror = Mirror::of(manager, groups, None);
        for (id, kind, n) in acts {
            let len = mirror.block_manager.next(id) as usize;
            match kind {
                0 => {
                    mirror.block_manager.release(id);
                    mirror.texts.remove(&id);
                    continue;
                }
                1 if len == 0 => {
                    // A text that others may have read.
                    let tokens = text(3 * n as u32 + 2);
                    let n_cached = mirror.resume(id, &tokens).n_cached;
                    prop_assert!(mirror.pass(&[(id, &tokens[n_cached..])], false));
                }
                _ if len + n <= HOME => {
                    prop_assert!(mirror.pass(&[(id, &vec![7; n])], false));
                }
                _ => continue,
            }
            let running = |id: &SequenceId| mirror.block_manager.next(*id) > 0;
            let ids: Vec<SequenceId> = (0..N_SEQS as u32).filter(running).collect();
            let places = padded(&mirror, &ids);
            prop_assert!(places.len() <= 2 * ids.len().next_power_of_two(), "{places:?}");
            for pool in 0..mirror.groups.len() {
                let views = mirror.block_manager.views_of(pool, &places);
                prop_assert_eq!(views.len(), 1, "pool {}: {:?}", pool, views);
                prop_assert_eq!(views[0].n_kv % HOME, 0);
            }
            mirror.check_seen(&places);
            mirror.check_users();
        }
    }
}

#[test]
fn a_run_that_outgrew_its_home_is_a_view_of_its_own_until_there_is_room() {
    let groups = vec![group(4 * 16, 0)];
    let manager = BlockManager::in_runs(groups.clone(), None, 4).with_trash();
    let mut mirror = Mirror::of(manager, groups, None);
    for id in 0..4 {
        assert!(mirror.pass(&[(id, &[id + 1; 100])], false));
    }
    let n_views = |mirror: &Mirror, ids: &[SequenceId]| {
        let places = padded(mirror, ids);
        mirror.block_manager.views_of(0, &places).len()
    };
    assert_eq!(n_views(&mirror, &[0, 1, 2, 3]), 1);
    assert!(mirror.pass(&[(1, &[2; 200])], false), "all are shifted");
    assert!(n_views(&mirror, &[0, 1, 2, 3]) <= 4);
    // When others end, every run gets a home again.
    mirror.block_manager.release(0);
    mirror.block_manager.release(2);
    assert!(mirror.pass(&[(3, &[4; 1])], false));
    assert!(n_views(&mirror, &[1, 3]) <= 2);
    assert!(mirror.block_manager.regular_home(1).is_some());
    assert!(mirror.block_manager.regular_home(3).is_some());
    mirror.check_users();
}
