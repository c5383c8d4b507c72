//! The cache on disk, laid out as `huggingface_hub` does: `models--owner--repo/{blobs,refs,snapshots}`, with locks beside.
//!
//! A file is stored once, under its entity tag, in `blobs`; `snapshots/COMMIT` holds relative links to blobs; `refs/REVISION` holds a commit.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::select::{Selection, is_complete, is_latest, select};
use crate::{HubError, ModelName};

/// The folder of the cache.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// A model of which every file is in the cache.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// Under which it can be asked for.
    pub name: ModelName,
    /// The commit of its snapshot.
    pub commit: String,
    /// What to open: a GGUF file or a folder.
    pub path: PathBuf,
    /// The size of its files, without that of a projector, which other models may share.
    pub bytes: u64,
    /// When the newest of its files was stored.
    pub modified: Option<SystemTime>,
}

/// What a removal freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Links and blobs.
    pub files: usize,
    /// Of the blobs that no other snapshot uses.
    pub bytes: u64,
}

/// Whether a text is the id of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// All files below a folder that exist, links followed, as paths with `/`, sorted.
fn files_below(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, before: &str, depth: usize, out: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = format!("{before}{name}");
            match fs::metadata(entry.path()) {
                Ok(m) if m.is_dir() && depth > 0 => {
                    walk(&entry.path(), &format!("{path}/"), depth - 1, out)
                }
                Ok(m) if m.is_file() => out.push(path),
                _ => {}
            }
        }
    }
    let mut out = Vec::new();
    walk(folder, "", 4, &mut out);
    out.sort();
    out
}

impl Cache {
    /// Of a folder that need not exist.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a repository: `models--owner--repo`.
    pub(crate) fn repo(&self, repo: &str) -> PathBuf {
        self.folder
            .join(format!("models--{}", repo.replace('/', "--")))
    }

    /// Where a file with an entity tag is stored.
    pub(crate) fn blob(&self, repo: &str, etag: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(etag)
    }

    /// The folder of a commit.
    pub(crate) fn snapshot(&self, repo: &str, commit: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit)
    }

    /// Waits for the lock of a blob, which other processes and the Python client take too.
    pub(crate) fn lock(&self, repo: &str, etag: &str) -> Result<File, HubError> {
        let folder = self
            .folder
            .join(".locks")
            .join(format!("models--{}", repo.replace('/', "--")));
        fs::create_dir_all(&folder).map_err(HubError::io(&folder))?;
        let path = folder.join(format!("{etag}.lock"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(HubError::io(&path))?;
        file.lock().map_err(HubError::io(&path))?;
        Ok(file)
    }

    /// Notes the commit of a branch or tag.
    pub(crate) fn write_ref(
        &self,
        repo: &str,
        revision: &str,
        commit: &str,
    ) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.repo(repo).join("refs").join(revision);
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder).map_err(HubError::io(folder))?;
        let new = folder.join(format!(".{}.{}", commit, std::process::id()));
        fs::write(&new, commit)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(HubError::io(path))
    }

    /// Links a file of a snapshot to its blob. The link is relative, so that the cache can be moved.
    pub(crate) fn link(
        &self,
        repo: &str,
        commit: &str,
        file: &str,
        etag: &str,
    ) -> Result<(), HubError> {
        let path = self.snapshot(repo, commit).join(file);
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder).map_err(HubError::io(folder))?;
        let depth = file.matches('/').count();
        let target = PathBuf::from(format!("{}../../blobs/{etag}", "../".repeat(depth)));
        if fs::read_link(&path).is_ok_and(|old| old == target) {
            return Ok(());
        }
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(HubError::Io { path, source: e });
            }
            _ => {}
        }
        #[cfg(unix)]
        let linked = std::os::unix::fs::symlink(&target, &path);
        #[cfg(not(unix))]
        let linked = fs::hard_link(self.blob(repo, etag), &path);
        match linked {
            // Another process was as fast.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other.map_err(HubError::io(path)),
        }
    }

    /// The commit that a revision had when it was downloaded last.
    #[must_use]
    pub fn commit(&self, repo: &str, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return self
                .snapshot(repo, revision)
                .is_dir()
                .then(|| revision.to_owned());
        }
        let text = fs::read_to_string(self.repo(repo).join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|c| is_commit(c))
    }

    /// The model of a snapshot, if all its files are there.
    fn complete(&self, repo: &str, commit: &str, variant: Option<&str>) -> Option<Selection> {
        let folder = self.snapshot(repo, commit);
        let selection = select(repo, &files_below(&folder), variant).ok()?;
        let index = fs::read_to_string(folder.join("model.safetensors.index.json")).ok();
        let index = index.and_then(|text| serde_json::from_str(&text).ok());
        is_complete(&selection, index.as_ref()).then_some(selection)
    }

    fn cached(&self, name: ModelName, commit: &str, selection: &Selection) -> CachedModel {
        let folder = self.snapshot(&name.repo, commit);
        let metadata: Vec<_> = selection
            .files
            .iter()
            .filter_map(|f| fs::metadata(folder.join(f)).ok())
            .collect();
        let bytes = metadata.iter().map(fs::Metadata::len).sum();
        let modified = metadata.iter().filter_map(|m| m.modified().ok()).max();
        let path = selection
            .gguf
            .as_ref()
            .map_or_else(|| folder.clone(), |f| folder.join(f));
        CachedModel {
            name,
            commit: commit.to_owned(),
            path,
            bytes,
            modified,
        }
    }

    /// A model by its name, if all its files are in the cache. Nothing is asked of a server.
    #[must_use]
    pub fn find(&self, name: &ModelName) -> Option<CachedModel> {
        let commit = self.commit(&name.repo, name.revision())?;
        let selection = self.complete(&name.repo, &commit, name.variant.as_deref())?;
        let mut name = name.clone();
        // Not where the variant that was found is called so.
        let is_none = |variant: &String| {
            is_latest(variant)
                && !(selection.variant.as_ref())
                    .is_some_and(|found| found.to_lowercase().ends_with("latest"))
        };
        if name.variant.as_ref().is_some_and(is_none) {
            name.variant = None;
        }
        Some(self.cached(name, &commit, &selection))
    }

    /// The repositories in the cache.
    fn repos(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|e| e.file_name().into_string().ok());
        let repo = |name: String| {
            name.strip_prefix("models--")
                .map(|r| r.replacen("--", "/", 1))
        };
        let mut repos: Vec<String> = names.filter_map(repo).filter(|r| r.contains('/')).collect();
        repos.sort();
        repos
    }

    /// All models of which every file is in the cache, by name. A snapshot that a branch or tag names is listed under it, others under their commit.
    #[must_use]
    pub fn list(&self) -> Vec<CachedModel> {
        let mut models = Vec::new();
        for repo in self.repos() {
            let refs = self.repo(&repo).join("refs");
            let named: Vec<(String, String)> = files_below(&refs)
                .into_iter()
                .filter_map(|r| Some((self.commit(&repo, &r)?, r)))
                .collect();
            let entries = fs::read_dir(self.repo(&repo).join("snapshots"))
                .into_iter()
                .flatten()
                .flatten();
            let mut commits: Vec<String> = entries
                .filter_map(|e| e.file_name().into_string().ok())
                .filter(|c| is_commit(c))
                .collect();
            commits.sort();
            for commit in commits {
                let of_commit: Vec<&str> = named
                    .iter()
                    .filter(|(c, _)| *c == commit)
                    .map(|(_, r)| r.as_str())
                    .collect();
                let revision = match of_commit[..] {
                    [] => Some(commit.clone()),
                    ref refs if refs.contains(&"main") => None,
                    ref refs => refs.first().map(|r| (*r).to_owned()),
                };
                let files = files_below(&self.snapshot(&repo, &commit));
                let labels = crate::select::labels(&files);
                for variant in labels {
                    if let Some(selection) = self.complete(&repo, &commit, variant.as_deref()) {
                        let name = ModelName {
                            repo: repo.clone(),
                            variant,
                            revision: revision.clone(),
                        };
                        models.push(self.cached(name, &commit, &selection));
                    }
                }
            }
        }
        models
    }

    /// Removes the files of a model from its snapshot (without a variant: the whole snapshot), then the blobs to which no snapshot links any more,
    /// and what is left empty.
    ///
    /// # Errors
    /// [`HubError::NoModel`]: the cache does not have it; [`HubError::Io`].
    pub fn remove(&self, name: &ModelName) -> Result<Removed, HubError> {
        let none = || HubError::NoModel {
            repo: name.repo.clone(),
            reason: format!("no such model in the cache ({})", self.folder.display()),
            available: Vec::new(),
        };
        let commit = self.commit(&name.repo, name.revision()).ok_or_else(none)?;
        let folder = self.snapshot(&name.repo, &commit);
        let all = files_below(&folder);
        let files = match &name.variant {
            None => all,
            Some(variant) => {
                let own = select(&name.repo, &all, Some(variant));
                let own = own.map_err(|_| none())?.files;
                let is_left = |file: &&String| !own.contains(file);
                let left: Vec<String> = all.iter().filter(is_left).cloned().collect();
                // Without a model, the projector that its variants shared is of no use.
                match crate::select::labels(&left).is_empty() {
                    true => all,
                    false => own,
                }
            }
        };
        if files.is_empty() {
            return Err(none());
        }
        let mut removed = Removed::default();
        for file in &files {
            let path = folder.join(file);
            fs::remove_file(&path).map_err(HubError::io(&path))?;
            removed.files += 1;
        }
        let repo = self.repo(&name.repo);
        let snapshots = repo.join("snapshots");
        let linked = files_below(&snapshots)
            .into_iter()
            .filter_map(|f| fs::canonicalize(snapshots.join(f)).ok());
        let linked: HashSet<PathBuf> = linked.collect();
        for entry in fs::read_dir(repo.join("blobs"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            let is_used = fs::canonicalize(&path).is_ok_and(|p| linked.contains(&p));
            // Interrupted downloads belong to whoever goes on with them.
            if is_used || path.extension().is_some_and(|e| e == "incomplete") {
                continue;
            }
            removed.bytes += entry.metadata().map_or(0, |m| m.len());
            fs::remove_file(&path).map_err(HubError::io(&path))?;
            removed.files += 1;
        }
        if files_below(&snapshots).is_empty()
            && fs::read_dir(repo.join("blobs")).is_ok_and(|mut b| b.next().is_none())
        {
            fs::remove_dir_all(&repo).map_err(HubError::io(&repo))?;
        } else if files_below(&folder).is_empty() {
            fs::remove_dir_all(&folder).map_err(HubError::io(&folder))?;
        }
        Ok(removed)
    }
}
