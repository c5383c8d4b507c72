//! One file: its bytes in pieces over several connections, appended in order, so that what an interrupted download leaves is a beginning of the file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::client::RemoteFile;
use crate::{Hub, HubError};

/// Who is told how a download goes, and may end it. Called from several threads.
pub trait Progress: Sync {
    /// Once before the first byte: what will be downloaded, in bytes, and what of it an earlier download left.
    fn start(&self, total: u64, present: u64);
    /// Bytes were received; negative when a piece is fetched again.
    fn advance(&self, bytes: i64);
    /// Asked for each piece of some kilobytes.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Bytes that one request asks for.
pub(crate) const PIECE: u64 = 16 << 20;
/// Attempts at a piece that bring no byte.
const ATTEMPTS: u32 = 5;

/// The checksum that an entity tag is of: SHA-256 (64 digits) or Git's SHA-1 of a blob (40 digits). Tags of other lengths are not checked.
enum Checksum {
    Sha256(Sha256),
    Git(Sha1),
    None,
}

impl Checksum {
    fn new(etag: &str, size: u64) -> Self {
        let is_hex = etag.bytes().all(|b| b.is_ascii_hexdigit());
        match etag.len() {
            64 if is_hex => Self::Sha256(Sha256::new()),
            40 if is_hex => Self::Git(Sha1::new().chain_update(format!("blob {size}\0"))),
            _ => Self::None,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
            Self::None => {}
        }
    }

    /// As hexadecimal digits; none where nothing is checked.
    fn finish(self) -> Option<String> {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        match self {
            Self::Sha256(hash) => Some(hex(&hash.finalize())),
            Self::Git(hash) => Some(hex(&hash.finalize())),
            Self::None => None,
        }
    }
}

/// What the connections of a file share.
struct Shared {
    /// The next piece that nobody fetches.
    next: u64,
    /// Pieces that are written.
    written: u64,
    /// Fetched, not written. At most as many as there are connections.
    fetched: BTreeMap<u64, Vec<u8>>,
    /// Where the bytes are; renewed when the address has expired.
    location: String,
    /// The first failure ends all.
    error: Option<HubError>,
}

struct Transfer<'a> {
    hub: &'a Hub,
    repo: &'a str,
    commit: &'a str,
    file: &'a RemoteFile,
    /// The first byte that is missing.
    start: u64,
    progress: &'a dyn Progress,
    shared: Mutex<Shared>,
    changed: Condvar,
}

impl Transfer<'_> {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn n_pieces(&self) -> u64 {
        (self.file.size - self.start).div_ceil(PIECE)
    }

    /// The bytes of a piece. A broken connection goes on where it broke, an expired address is asked for again.
    fn piece(&self, index: u64) -> Result<Vec<u8>, HubError> {
        let from = self.start + index * PIECE;
        let to = (from + PIECE).min(self.file.size);
        let mut bytes = Vec::new();
        let mut failures = 0;
        loop {
            let at = from + bytes.len() as u64;
            if at == to {
                return Ok(bytes);
            }
            let before = bytes.len();
            let location = self.shared().location.clone();
            let result = self
                .hub
                .range(&location, at, to)
                .and_then(|(reader, first)| {
                    self.read(&location, reader, at - first.min(at), to - at, &mut bytes)
                });
            match result {
                Err(HubError::Status {
                    status: 401 | 403 | 410,
                    ..
                }) if failures < ATTEMPTS => {
                    let fresh = self.hub.metadata(self.repo, self.commit, &self.file.path)?;
                    self.shared().location = fresh.location;
                    failures += 1;
                }
                Err(HubError::Transport { .. }) | Ok(()) if bytes.len() > before => failures = 0,
                Err(e @ HubError::Transport { .. }) if failures == ATTEMPTS => return Err(e),
                Ok(()) if failures == ATTEMPTS => {
                    let reason = format!(
                        "`{}` ends after {at} bytes, expected {}",
                        self.file.path, self.file.size
                    );
                    return Err(HubError::Protocol {
                        url: location,
                        reason,
                    });
                }
                Err(HubError::Transport { .. }) | Ok(()) => failures += 1,
                Err(e) => return Err(e),
            }
        }
    }

    /// Appends at most `wanted` bytes of an answer, after leaving out the first `skip` (of servers that know no ranges).
    fn read(
        &self,
        location: &str,
        mut reader: impl Read,
        mut skip: u64,
        wanted: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), HubError> {
        let mut left = usize::try_from(wanted).unwrap_or(usize::MAX);
        let mut buffer = vec![0; 64 << 10];
        while left > 0 {
            if self.progress.is_cancelled() {
                return Err(HubError::Cancelled);
            }
            if self.shared().error.is_some() {
                return Err(HubError::Cancelled);
            }
            let broken = |e| HubError::Transport {
                url: location.to_owned(),
                source: Box::new(ureq::Error::Io(e)),
            };
            let n = reader.read(&mut buffer).map_err(broken)?;
            if n == 0 {
                return Ok(());
            }
            let skipped = skip.min(n as u64);
            skip -= skipped;
            let skipped = usize::try_from(skipped).unwrap_or(n);
            let taken = (n - skipped).min(left);
            out.extend_from_slice(&buffer[skipped..skipped + taken]);
            left -= taken;
            self.progress.advance(i64::try_from(taken).unwrap_or(0));
        }
        Ok(())
    }

    /// The work of one connection: piece after piece, never further ahead of the file than there are connections.
    fn fetch(&self, connections: u64) {
        loop {
            let mut shared = self.shared();
            while shared.error.is_none()
                && shared.next < self.n_pieces()
                && shared.next >= shared.written + connections
            {
                shared = self
                    .changed
                    .wait(shared)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if shared.error.is_some() || shared.next >= self.n_pieces() {
                return;
            }
            let index = shared.next;
            shared.next += 1;
            drop(shared);
            let result = self.piece(index);
            let mut shared = self.shared();
            match result {
                Ok(bytes) => _ = shared.fetched.insert(index, bytes),
                Err(e) => _ = shared.error.get_or_insert(e),
            }
            self.changed.notify_all();
        }
    }

    /// Appends pieces in their order.
    fn write(&self, out: &mut File, path: &Path, checksum: &mut Checksum) -> Result<(), HubError> {
        for index in 0..self.n_pieces() {
            let mut shared = self.shared();
            let bytes = loop {
                if let Some(bytes) = shared.fetched.remove(&index) {
                    break bytes;
                }
                if let Some(e) = shared.error.take() {
                    shared.error = Some(HubError::Cancelled);
                    return Err(e);
                }
                shared = self
                    .changed
                    .wait(shared)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            drop(shared);
            let written = out.write_all(&bytes).map_err(HubError::io(path));
            checksum.update(&bytes);
            let mut shared = self.shared();
            shared.written = index + 1;
            if written.is_err() {
                shared.error = Some(HubError::Cancelled);
            }
            self.changed.notify_all();
            drop(shared);
            written?;
        }
        Ok(())
    }
}

/// How much of a file an earlier download left.
pub(crate) fn present(hub: &Hub, repo: &str, file: &RemoteFile) -> u64 {
    let blob = hub.cache.blob(repo, &file.etag);
    match (fs::metadata(&blob), fs::metadata(incomplete(&blob))) {
        (Ok(_), _) => file.size,
        (_, Ok(m)) => m.len().min(file.size),
        _ => 0,
    }
}

fn incomplete(blob: &Path) -> std::path::PathBuf {
    let mut name = blob.file_name().unwrap_or_default().to_owned();
    name.push(".incomplete");
    blob.with_file_name(name)
}

/// Downloads a file into its blob, unless it is there, and links the snapshot to it.
pub(crate) fn download(
    hub: &Hub,
    repo: &str,
    commit: &str,
    file: &RemoteFile,
    progress: &dyn Progress,
) -> Result<(), HubError> {
    let blob = hub.cache.blob(repo, &file.etag);
    let folder = blob.parent().unwrap_or(&blob);
    fs::create_dir_all(folder).map_err(HubError::io(folder))?;
    let _lock = hub.cache.lock(repo, &file.etag)?;
    if !blob.exists() {
        let partial = incomplete(&blob);
        let mut out = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&partial)
            .map_err(HubError::io(&partial))?;
        let mut checksum = Checksum::new(&file.etag, file.size);
        let mut start = 0;
        // What is there counts for the checksum; what is more than the file is of something else.
        if out.metadata().is_ok_and(|m| m.len() > file.size) {
            out.set_len(0).map_err(HubError::io(&partial))?;
        }
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n = out.read(&mut buffer).map_err(HubError::io(&partial))?;
            if n == 0 {
                break;
            }
            checksum.update(&buffer[..n]);
            start += n as u64;
        }
        let shared = Shared {
            next: 0,
            written: 0,
            fetched: BTreeMap::new(),
            location: file.location.clone(),
            error: None,
        };
        let transfer = Transfer {
            hub,
            repo,
            commit,
            file,
            start,
            progress,
            shared: Mutex::new(shared),
            changed: Condvar::new(),
        };
        let connections = (hub.settings.connections.max(1) as u64).min(transfer.n_pieces());
        thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(|| transfer.fetch(connections));
            }
            transfer.write(&mut out, &partial, &mut checksum)
        })?;
        if let Some(found) = checksum
            .finish()
            .filter(|found| !found.eq_ignore_ascii_case(&file.etag))
        {
            fs::remove_file(&partial).map_err(HubError::io(&partial))?;
            return Err(HubError::Checksum {
                file: file.path.clone(),
                found,
                expected: file.etag.clone(),
            });
        }
        out.sync_all().map_err(HubError::io(&partial))?;
        fs::rename(&partial, &blob).map_err(HubError::io(&partial))?;
    }
    hub.cache.link(repo, commit, &file.path, &file.etag)
}
