//! The store over whole lives: written, found, evicted, damaged.

use super::segment::tests::{blocks, layout};
use super::*;

const IDENTITY: [u8; 32] = [3; 32];

fn options(folder: &Path, disk_bytes: u64) -> PrefixStoreOptions {
    PrefixStoreOptions {
        folder: Some(folder.to_owned()),
        disk_bytes,
        identity: IDENTITY,
        ..PrefixStoreOptions::default()
    }
}

fn opened(options: &PrefixStoreOptions) -> PrefixStore {
    PrefixStore::open(options, layout()).expect("a store")
}

/// The segments that a plan reads.
fn read(store: &PrefixStore, plan: &ReadPlan) -> Vec<(Arc<PrefixBlocks>, Tier)> {
    let ticket = store.read(plan);
    let mut all = Vec::new();
    while let Ok((of, segment)) = store.results.recv() {
        assert_eq!(of, ticket);
        match segment {
            ReadSegment::Blocks(blocks, tier) => all.push((blocks, tier)),
            ReadSegment::End => return all,
        }
    }
    all
}

/// Blocks whose tokens start with `token`.
fn prefix(layout: &PrefixLayout, token: u32, n: usize) -> PrefixBlocks {
    let mut made = blocks(layout, 0, &vec![1; n]);
    made.tokens[0] = token;
    made
}

#[test]
fn what_one_store_kept_another_one_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    let seed = seed_of(&IDENTITY, &[]);
    let layout = layout();
    let (kept, options) = (prefix(&layout, 1, 6), options(folder.path(), 1 << 30));
    opened(&options).keep(seed, seed, kept.clone());
    let store = opened(&options);
    let plan = store
        .find(&seed, &kept.tokens, &[], 4)
        .expect("it is there");
    assert_eq!((plan.segments.len(), &plan.wanted), (1, &vec![1; 6]));
    let found = read(&store, &plan);
    assert_eq!((&*found[0].0, found[0].1), (&kept, Tier::Disk));
    // The cache has nearly as much.
    let few = store.find(&seed, &kept.tokens, &[1, 1, 1], 4);
    assert_eq!(few, Err(CacheMiss::None));
    // Other adapters, other tokens, more tokens.
    let other = seed_of(&IDENTITY, &[([9; 32], 1.0)]);
    let miss = store.find(&other, &kept.tokens, &[], 4);
    assert_eq!(miss, Err(CacheMiss::OtherComputation));
    let miss = store.find(&seed, &[7; 96], &[], 4);
    assert_eq!(miss, Err(CacheMiss::Nothing));
    let more = [&kept.tokens[..], &[5; 64]].concat();
    let miss = store.find(&seed, &more, &[1; 6], 4);
    assert_eq!(miss, Err(CacheMiss::Ends { at: 96 }));
    let another = PrefixStoreOptions {
        identity: [4; 32],
        ..options
    };
    assert!(opened(&another).find(&seed, &kept.tokens, &[], 4).is_err());
}

#[test]
fn a_damaged_file_is_dropped_and_the_rest_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let seed = seed_of(&IDENTITY, &[]);
    let layout = layout();
    let (kept, options) = (prefix(&layout, 1, 6), options(folder.path(), 1 << 30));
    opened(&options).keep(seed, seed, kept.clone());
    let file = std::fs::read_dir(folder.path()).expect("a folder").next();
    let path = file.expect("a file").expect("an entry").path();
    let mut bytes = std::fs::read(&path).expect("a file");
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).expect("a file");
    let store = opened(&options);
    let plan = store
        .find(&seed, &kept.tokens, &[], 4)
        .expect("by its header");
    assert!(read(&store, &plan).is_empty());
    assert!(!path.exists(), "it is dropped");
    assert_eq!(store.shared.counts().n_dropped, 1);
    let miss = store.find(&seed, &kept.tokens, &[], 4);
    assert_eq!(miss, Err(CacheMiss::Evicted));
    assert!(lock(&store.shared.index).is_tidy());
    // A cut file is dropped when the folder is read.
    store.keep(seed, seed, kept.clone());
    store.drain(Duration::from_secs(10));
    drop(store);
    let length = std::fs::metadata(&path).expect("the same name").len();
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("a file");
    file.set_len(length / 2).expect("a file");
    assert!(opened(&options).find(&seed, &kept.tokens, &[], 4).is_err());
    assert!(!path.exists());
}

#[test]
fn a_full_folder_loses_what_was_used_least_recently() {
    let folder = tempfile::tempdir().expect("a folder");
    let seed = seed_of(&IDENTITY, &[]);
    let layout = layout();
    let one = prefix(&layout, 1, 8).bytes() as u64;
    let options = options(folder.path(), 3 * one + one / 2);
    std::fs::write(folder.path().join("other.txt"), "mine").expect("a folder");
    let store = opened(&options);
    let texts: Vec<PrefixBlocks> = (0..5).map(|token| prefix(&layout, token, 8)).collect();
    let is_there = |at: usize| store.find(&seed, &texts[at].tokens, &[], 4);
    for (at, kept) in texts.iter().enumerate() {
        store.keep(seed, seed, kept.clone());
        store.drain(Duration::from_secs(10));
        if at == 2 {
            // The first one is used.
            let plan = is_there(0).expect("it is there");
            assert_eq!(read(&store, &plan).len(), 1);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let found: Vec<bool> = (0..5).map(|at| is_there(at).is_ok()).collect();
    assert_eq!(found, [true, false, false, true, true]);
    assert_eq!(is_there(1), Err(CacheMiss::Evicted));
    assert!(folder.path().join("other.txt").exists());
    assert!(store.shared.counts().disk_bytes <= options.disk_bytes);
    assert!(lock(&store.shared.index).is_tidy());
}

#[test]
fn the_hosts_memory_is_bounded_and_needs_no_folder() {
    let seed = seed_of(&IDENTITY, &[]);
    let layout = layout();
    let one = prefix(&layout, 1, 8).bytes() as u64;
    let store = opened(&PrefixStoreOptions {
        host_bytes: 2 * one,
        ..PrefixStoreOptions::default()
    });
    let texts: Vec<PrefixBlocks> = (0..3).map(|token| prefix(&layout, token, 8)).collect();
    for kept in &texts {
        store.keep(seed, seed, kept.clone());
    }
    store.drain(Duration::from_secs(10));
    assert!(store.find(&seed, &texts[0].tokens, &[], 4).is_err());
    let plan = store
        .find(&seed, &texts[2].tokens, &[], 4)
        .expect("the last");
    let found = read(&store, &plan);
    assert_eq!((&*found[0].0, found[0].1), (&texts[2], Tier::Host));
    assert_eq!(store.shared.counts().host_bytes, 2 * one);
}

#[test]
fn a_folder_that_cannot_be_written_costs_nothing_but_the_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let seed = seed_of(&IDENTITY, &[]);
    let layout = layout();
    let cache = folder.path().join("cache");
    let store = opened(&options(&cache, 1 << 30));
    // Also root cannot write there.
    std::fs::remove_dir(&cache).expect("an empty folder");
    std::fs::write(&cache, "a file in its place").expect("a folder");
    let kept = prefix(&layout, 1, 8);
    store.keep(seed, seed, kept.clone());
    store.drain(Duration::from_secs(10));
    assert!(store.find(&seed, &kept.tokens, &[], 4).is_err());
    assert!(store.is_paused());
    assert_eq!(store.shared.counts().n_failed, 1);
    drop(store);
    // No folder at all.
    assert!(PrefixStore::open(&options(&cache.join("below"), 1 << 30), layout).is_none());
}

/// A file of the folder may say anything: it is not read outside the prefixes whose hashes it has.
#[test]
fn a_file_of_another_prefix_under_the_same_name_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let seed = seed_of(&IDENTITY, &[]);
    let layout = layout();
    let options = options(folder.path(), 1 << 30);
    let (kept, other) = (prefix(&layout, 1, 6), prefix(&layout, 2, 6));
    opened(&options).keep(seed, seed, kept.clone());
    let store = opened(&options);
    let name = std::fs::read_dir(folder.path()).expect("a folder").next();
    let path = name.expect("a file").expect("an entry").path();
    let mut bytes = Vec::new();
    segment::write(&mut bytes, &layout, (&seed, &seed), &other).expect("memory");
    std::fs::write(&path, bytes).expect("a file");
    let plan = store
        .find(&seed, &kept.tokens, &[], 4)
        .expect("by its header");
    assert!(read(&store, &plan).is_empty());
}
