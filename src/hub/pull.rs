//! From a name to files: what the repository has, which of it the model needs, whether it fits on the disk, and the download.

use std::path::Path;

use crate::client::is_address;
use crate::download::{self, Progress};
use crate::select::select;
use crate::{CachedModel, Hub, HubError, ModelName};

/// The part of the disk that a download leaves free, in bytes.
const SPARE: u64 = 256 << 20;

/// The free space of the disk on which a folder is or will be; none where the system does not tell.
#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// The free space of the disk on which a folder is or will be; none where the system does not tell.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|f| f.exists())?;
    let stats = rustix::fs::statvfs(existing).ok()?;
    Some(stats.f_bavail.saturating_mul(stats.f_frsize))
}

impl Hub {
    /// A model in the newest state of its revision: what is missing is downloaded, the rest is taken from the cache.
    ///
    /// # Errors
    /// A [`HubError`] that says what is wrong and what helps. What was downloaded before an error is kept; the next call goes on from there.
    pub fn pull(&self, name: &ModelName, progress: &dyn Progress) -> Result<CachedModel, HubError> {
        let folder = self.cache.folder().to_owned();
        if self.settings.offline {
            return self.cache.find(name).ok_or(HubError::Offline {
                name: name.to_string(),
                cache: folder,
            });
        }
        if !is_address(&self.settings.endpoint) {
            let reason = "it is no address that begins with http:// or https://".to_owned();
            return Err(HubError::Protocol {
                url: self.settings.endpoint.clone(),
                reason,
            });
        }
        let (repo, revision) = (name.repo.as_str(), name.revision());
        let listing = self.listing(repo, revision)?;
        let selection = select(repo, &listing.files, name.variant.as_deref())?;
        let mut files = Vec::new();
        for file in selection.files.iter().chain(&selection.projector) {
            files.push(self.metadata(repo, &listing.commit, file)?);
        }
        let total: u64 = files.iter().map(|f| f.size).fold(0, u64::saturating_add);
        let present: u64 = files.iter().map(|f| download::present(self, repo, f)).sum();
        let needed = total.saturating_sub(present).saturating_add(SPARE);
        if let Some(free) = free_bytes(&folder).filter(|free| *free < needed && total > present) {
            return Err(HubError::DiskSpace {
                path: folder,
                free,
                needed,
            });
        }
        progress.start(total, present);
        for file in &files {
            download::download(self, repo, &listing.commit, file, progress)?;
        }
        // After the files, so that a revision never names a snapshot that was not complete once.
        self.cache.write_ref(repo, revision, &listing.commit)?;
        let found = self.cache.find(name);
        found.ok_or_else(|| HubError::NoModel {
            repo: name.repo.clone(),
            reason: "shards that its index lists but the repository does not have".to_owned(),
            available: Vec::new(),
        })
    }

    /// A model in the cache, or else downloaded. A model that is there is not compared with the server.
    ///
    /// # Errors
    /// As [`Hub::pull`].
    pub fn find_or_pull(
        &self,
        name: &ModelName,
        progress: &dyn Progress,
    ) -> Result<CachedModel, HubError> {
        match self.cache.find(name) {
            Some(model) => Ok(model),
            None => self.pull(name, progress),
        }
    }
}
