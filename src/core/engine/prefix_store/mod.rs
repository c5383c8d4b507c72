//! Prefixes that outlive the KV cache: in the host's memory, and in a folder.
//!
//! The engine's thread hands over segments of ended sequences, and asks for those of a prompt. Two threads do the rest: one
//! writes files and evicts, one reads and checks. What a file says is never trusted ([`segment`]). Not here: when the engine
//! reads out of the KV cache and writes into it (`engine_loop/prefixes.rs`).

mod folder;
mod index;
mod segment;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab_base::util::background::yield_to_others;
use lab_base::util::lock::lock;
use sha2::{Digest, Sha256};

use crate::model::{CacheMiss, PrefixBlocks, PrefixLayout};

use super::kv_events::KvEventSender;
use folder::CacheFolder;
pub(super) use index::ReadPlan;
use index::{PrefixIndex, SegmentId, header_of};
pub(crate) use segment::PrefixSeed;
use segment::{PrefixHash, SegmentError};

/// Bytes of the blocks of a segment, unless a single block has more.
pub(super) const SEGMENT_BYTES: usize = 32 << 20;
/// Maximum number of bytes that wait to be written.
const PENDING_BYTES: u64 = 4 * SEGMENT_BYTES as u64;
/// Time for which nothing is written after a failure.
const PAUSE: Duration = Duration::from_secs(30);

/// Where prefixes are kept besides the KV cache, and who is told of those in it.
#[derive(Clone, Debug, Default)]
pub struct PrefixStoreOptions {
    /// The folder with their files; none: no files.
    pub folder: Option<PathBuf>,
    /// Maximum size of all files in the folder, in bytes.
    pub disk_bytes: u64,
    /// Maximum number of bytes in the host's memory.
    pub host_bytes: u64,
    /// The folder of the files that clients name (`/slots/{id}?action=save`); none: there are none.
    pub slots: Option<PathBuf>,
    /// Identifies model, definition and all settings on which cached values depend.
    pub identity: [u8; 32],
    /// Who is told which KV blocks are cached; none: nobody.
    pub events: Option<KvEventSender>,
}

/// Where a segment was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    Host,
    Disk,
}

/// A part of the answer to [`PrefixStore::read`].
pub(super) enum ReadSegment {
    Blocks(Arc<PrefixBlocks>, Tier),
    /// There is no more.
    End,
}

/// What the store has and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Bytes in the host's memory.
    pub host_bytes: u64,
    /// Bytes in the folder, those of other models included.
    pub disk_bytes: u64,
    /// Segments that were written to files.
    pub n_written: u64,
    /// Files that were dropped because they did not fit.
    pub n_dropped: u64,
    /// Segments that were not written because that failed.
    pub n_failed: u64,
}

struct Shared {
    layout: PrefixLayout,
    host_limit: u64,
    folder: Option<CacheFolder>,
    index: Mutex<PrefixIndex>,
    pending_bytes: AtomicU64,
    /// The last reading that was asked for. Earlier ones are given up.
    reading: AtomicU64,
    n_written: AtomicU64,
    n_dropped: AtomicU64,
    n_failed: AtomicU64,
    /// Until when nothing is written.
    paused: Mutex<Option<Instant>>,
    /// Whether the last attempt to write failed.
    is_failing: AtomicBool,
}

struct Written {
    id: SegmentId,
    seed: PrefixSeed,
    before: PrefixHash,
    blocks: Arc<PrefixBlocks>,
}

struct ReadOrder {
    ticket: u64,
    segments: Vec<SegmentId>,
}

/// The store of one model. Dropping it waits until what it was given is written.
pub(super) struct PrefixStore {
    shared: Arc<Shared>,
    writes: Option<mpsc::Sender<Written>>,
    reads: Option<mpsc::Sender<ReadOrder>>,
    pub(super) results: mpsc::Receiver<(u64, ReadSegment)>,
    threads: Vec<JoinHandle<()>>,
}

impl PrefixStore {
    /// The store of a model with this layout. The headers of the files are read. None if nothing is kept.
    pub(super) fn open(options: &PrefixStoreOptions, layout: PrefixLayout) -> Option<Self> {
        let folder = options.folder.clone().and_then(|path| {
            let opened = CacheFolder::open(path.clone(), &options.identity, options.disk_bytes);
            let fault = |error| {
                tracing::error!(folder = %path.display(), %error, "--cache-dir: the prefix cache keeps no files");
            };
            opened.map_err(fault).ok()
        });
        if folder.is_none() && options.host_bytes == 0 {
            return None;
        }
        let shared = Arc::new(Shared {
            layout,
            host_limit: options.host_bytes,
            folder,
            index: Mutex::default(),
            pending_bytes: AtomicU64::new(0),
            reading: AtomicU64::new(0),
            n_written: AtomicU64::new(0),
            n_dropped: AtomicU64::new(0),
            n_failed: AtomicU64::new(0),
            paused: Mutex::default(),
            is_failing: AtomicBool::new(false),
        });
        shared.scan();
        let (writes, to_write) = mpsc::channel();
        let (reads, to_read) = mpsc::channel();
        // Few segments are in memory at a time, however slowly they are taken.
        let (send, results) = mpsc::sync_channel(1);
        let (writer, reader) = (Arc::clone(&shared), Arc::clone(&shared));
        let thread = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn(work).ok()
        };
        let threads = [
            thread(
                "prefix writer",
                Box::new(move || writer.write_all(&to_write)),
            ),
            thread(
                "prefix reader",
                Box::new(move || reader.read_all(&to_read, &send)),
            ),
        ];
        Some(Self {
            shared,
            writes: Some(writes),
            reads: Some(reads),
            results,
            threads: threads.into_iter().flatten().collect(),
        })
    }

    pub(super) fn layout(&self) -> &PrefixLayout {
        &self.shared.layout
    }

    /// Whether another segment may be handed over.
    pub(super) fn has_room(&self) -> bool {
        self.shared.pending_bytes.load(Ordering::Relaxed) < PENDING_BYTES
    }

    /// Whether segments are refused for now, because a file could not be written and none is kept in memory.
    pub(super) fn is_paused(&self) -> bool {
        let mut paused = lock(&self.shared.paused);
        let is_paused = paused.is_some_and(|until| Instant::now() < until);
        if !is_paused {
            *paused = None;
        }
        is_paused && self.shared.host_limit == 0
    }

    /// The hashes of the prefixes of `tokens` that end with whole blocks.
    pub(super) fn hashes(&self, seed: &PrefixSeed, tokens: &[u32]) -> Vec<PrefixHash> {
        segment::hashes(seed, tokens)
    }

    /// The parts that are stored of the blocks after which prefixes have these hashes.
    pub(super) fn parts(&self, hashes: &[PrefixHash]) -> Vec<u64> {
        let index = lock(&self.shared.index);
        hashes.iter().map(|hash| index.parts(hash)).collect()
    }

    /// Takes over blocks of a prefix, of which `before` is the hash up to their first one.
    pub(super) fn keep(&self, seed: PrefixSeed, before: PrefixHash, blocks: PrefixBlocks) {
        let (bytes, blocks) = (blocks.bytes() as u64, Arc::new(blocks));
        let header = header_of((&seed, &before), &blocks);
        let id = lock(&self.shared.index).insert(&header, None, Some(Arc::clone(&blocks)));
        self.shared
            .pending_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        let written = Written {
            id,
            seed,
            before,
            blocks,
        };
        if let Some(writes) = &self.writes {
            // The thread ends after this sender.
            let _ = writes.send(written);
        }
    }

    /// What is to be read so that a sequence can continue further into its prompt than the parts in `have` allow, by at least
    /// `least` blocks: the number of segments and the parts of each block that are wanted.
    ///
    /// # Errors
    /// Why nothing is to be read.
    pub(super) fn find(
        &self,
        seed: &PrefixSeed,
        tokens: &[u32],
        have: &[u64],
        least: usize,
    ) -> Result<ReadPlan, CacheMiss> {
        let hashes = segment::hashes(seed, tokens);
        let index = lock(&self.shared.index);
        index.find(&self.shared.layout, (tokens, &hashes), have, least)
    }

    /// Reads the segments of a plan. The results come with the number that is returned.
    pub(super) fn read(&self, plan: &ReadPlan) -> u64 {
        let ticket = self.shared.reading.fetch_add(1, Ordering::Relaxed) + 1;
        let segments = plan.segments.clone();
        if let Some(reads) = &self.reads {
            let _ = reads.send(ReadOrder { ticket, segments });
        }
        ticket
    }

    /// Waits until all is written that was handed over, for at most some time.
    pub(super) fn drain(&self, time: Duration) {
        let end = Instant::now() + time;
        while self.shared.pending_bytes.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What tells of the store's contents, for other threads.
    pub(super) fn counter(&self) -> Box<dyn Fn() -> StoreCounts + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Box::new(move || shared.counts())
    }

    /// Gives up what is being read.
    pub(super) fn give_up(&self) {
        self.shared.reading.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for PrefixStore {
    fn drop(&mut self) {
        self.give_up();
        (self.writes, self.reads) = (None, None);
        // A reader that waits with a result ends when nobody takes it.
        let (_, nobody) = mpsc::sync_channel(1);
        drop(std::mem::replace(&mut self.results, nobody));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn counts(&self) -> StoreCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreCounts {
            host_bytes: lock(&self.index).host_bytes,
            disk_bytes: self.folder.as_ref().map_or(0, CacheFolder::bytes),
            n_written: read(&self.n_written),
            n_dropped: read(&self.n_dropped),
            n_failed: read(&self.n_failed),
        }
    }

    /// Adds the files that are there to the index.
    fn scan(&self) {
        let Some(folder) = &self.folder else {
            return;
        };
        let found = folder.scan(&self.layout);
        let n = found.len();
        let mut index = lock(&self.index);
        for (name, header) in found {
            index.insert(&header, Some(name), None);
        }
        drop(index);
        tracing::info!(
            folder = %folder.path().display(),
            files = n,
            "the prefix cache of the model is found again"
        );
        self.evict();
    }

    fn write_all(&self, orders: &mpsc::Receiver<Written>) {
        yield_to_others();
        while let Ok(written) = orders.recv() {
            let bytes = written.blocks.bytes() as u64;
            let file = self.write(&written);
            drop(written.blocks);
            let mut index = lock(&self.index);
            index.written(written.id, file);
            // The oldest go; the limit may be 0.
            while index.host_bytes > self.host_limit
                && let Some(oldest) = index.oldest_held()
            {
                index.drop_held(oldest);
            }
            drop(index);
            self.evict();
            // Last: whoever drains finds the folder as it stays.
            self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Writes a segment to a file, unless there is no folder or the last attempt has just failed.
    fn write(&self, written: &Written) -> Option<String> {
        let folder = self.folder.as_ref()?;
        if lock(&self.paused).is_some_and(|until| Instant::now() < until) {
            self.n_failed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let hashes = (&written.seed, &written.before);
        match folder.write(&self.layout, hashes, &written.blocks) {
            Ok(name) => {
                self.n_written.fetch_add(1, Ordering::Relaxed);
                self.is_failing.store(false, Ordering::Relaxed);
                Some(name)
            }
            Err(error) => {
                // Once for a disk that stays full.
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(folder = %folder.path().display(), %error, "--cache-dir: the prefix cache cannot write; it tries again every {PAUSE:?}");
                }
                *lock(&self.paused) = Some(Instant::now() + PAUSE);
                self.n_failed.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    fn evict(&self) {
        let Some(folder) = &self.folder else {
            return;
        };
        let n_known = lock(&self.index).len();
        let removed = folder.evict(n_known);
        if removed.is_empty() {
            return;
        }
        tracing::debug!(
            files = removed.len(),
            "evicted from the prefix cache's folder"
        );
        let mut index = lock(&self.index);
        for name in removed {
            if let Some(id) = index.of_file(&name) {
                index.drop_file(id);
            }
        }
    }

    fn read_all(
        &self,
        orders: &mpsc::Receiver<ReadOrder>,
        results: &mpsc::SyncSender<(u64, ReadSegment)>,
    ) {
        while let Ok(order) = orders.recv() {
            for id in &order.segments {
                let is_wanted = self.reading.load(Ordering::Relaxed) == order.ticket;
                // Without one segment, those after it are of no use.
                let Some((blocks, tier)) = is_wanted.then(|| self.read(*id)).flatten() else {
                    break;
                };
                let read = ReadSegment::Blocks(blocks, tier);
                if results.send((order.ticket, read)).is_err() {
                    return;
                }
            }
            if results.send((order.ticket, ReadSegment::End)).is_err() {
                return;
            }
        }
    }

    /// A segment with its blocks, from the host's memory or from its file, which is dropped if it does not fit.
    fn read(&self, id: SegmentId) -> Option<(Arc<PrefixBlocks>, Tier)> {
        let mut index = lock(&self.index);
        index.touch(id);
        let segment = index.get(id)?;
        if let Some(held) = &segment.held {
            return Some((Arc::clone(held), Tier::Host));
        }
        let (name, own) = (segment.file.clone()?, segment.last_hash());
        drop(index);
        let folder = self.folder.as_ref()?;
        let read = folder.read(&name, &self.layout).and_then(|read| {
            // The file may have been replaced since its header was read.
            let last = segment::hashes(&read.0.before, &read.0.tokens).pop();
            match last == own {
                true => Ok(read),
                false => Err(SegmentError::Unfit("it is of another prefix")),
            }
        });
        match read {
            Ok((_, blocks)) => Some((Arc::new(blocks), Tier::Disk)),
            Err(error) => {
                folder.drop_unfit(&name, &error);
                self.n_dropped.fetch_add(1, Ordering::Relaxed);
                lock(&self.index).remove(id);
                None
            }
        }
    }
}

/// The seed of prefixes: what they are computed with. `adapters` are those that are on, each by a hash of its file, with their
/// scales.
pub(super) fn seed_of(identity: &[u8; 32], adapters: &[([u8; 32], f32)]) -> PrefixSeed {
    let mut hash = Sha256::new();
    hash.update(identity);
    for (adapter, scale) in adapters {
        hash.update(adapter);
        hash.update(scale.to_le_bytes());
    }
    hash.finalize().into()
}

/// Writes segments of one prefix to a file that replaces another one. Returns its length.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_file(
    path: &Path,
    layout: &PrefixLayout,
    seed: &PrefixSeed,
    segments: impl Iterator<Item = PrefixBlocks>,
) -> std::io::Result<u64> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = folder::write_private(&part, |out| {
        let mut before = *seed;
        for blocks in segments {
            segment::write(out, layout, (seed, &before), &blocks)?;
            before = segment::hashes(&before, &blocks.tokens)
                .pop()
                .unwrap_or(before);
        }
        Ok(())
    });
    let placed = written.and_then(|((), bytes)| std::fs::rename(&part, path).map(|()| bytes));
    placed.inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

/// Reads the segments of a file that [`write_file`] made with this seed, and hands each over. Returns the file's length.
///
/// # Errors
/// The file cannot be read, is not of this layout, seed or version, was changed, or `take` does not take a segment.
pub(super) fn read_file(
    path: &Path,
    layout: &PrefixLayout,
    seed: &PrefixSeed,
    mut take: impl FnMut(PrefixBlocks) -> Result<(), String>,
) -> Result<u64, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("it is no file".into());
    }
    let mut reader = std::io::BufReader::with_capacity(1 << 20, &file);
    let (mut left, mut before, mut first) = (about.len(), *seed, 0);
    while left > 0 {
        let read = segment::read(&mut reader, layout, left);
        let (header, blocks) = read.map_err(|error| error.to_string())?;
        if header.seed != *seed || header.before != before || header.first != first {
            return Err("it is of another model, other settings or another adapter".into());
        }
        left -= header.size;
        first += blocks.parts.len();
        let hash = segment::hashes(&before, &blocks.tokens).pop();
        before = hash.unwrap_or(before);
        take(blocks)?;
    }
    Ok(about.len())
}
