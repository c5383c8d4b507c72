//! What can go wrong between a name and the files of a model, each with the sentence that helps.

use std::io;
use std::path::PathBuf;

/// An error of the Hub, of its cache, or of a name.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The text is no name of a model.
    #[error(
        "`{name}` is not a model name: {reason}; expected `owner/repo`, `owner/repo:QUANT` or `owner/repo@revision`"
    )]
    Name {
        /// What was written.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Downloads are turned off and the cache does not have it.
    #[error("`{name}` is not in the cache ({cache}), and `HF_HUB_OFFLINE` forbids downloads")]
    Offline {
        /// The model or file.
        name: String,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// There is no such repository, or it is private.
    #[error(
        "`{repo}` was not found at {endpoint}: check the spelling; if the repository is private, set `HF_TOKEN` to a token that may read it"
    )]
    RepoNotFound {
        /// `owner/repo`.
        repo: String,
        /// The address of the Hub.
        endpoint: String,
    },
    /// The repository has no such branch, tag or commit.
    #[error("`{repo}` has no revision `{revision}`")]
    RevisionNotFound {
        /// `owner/repo`.
        repo: String,
        /// The branch, tag or commit.
        revision: String,
    },
    /// The repository has no such file.
    #[error("`{repo}` has no file `{file}`")]
    FileNotFound {
        /// `owner/repo`.
        repo: String,
        /// The path in the repository.
        file: String,
    },
    /// The owner asks for an agreement first.
    #[error(
        "`{repo}` is gated: accept its conditions at {endpoint}/{repo} and set `HF_TOKEN` to a token of the account that did"
    )]
    Gated {
        /// `owner/repo`.
        repo: String,
        /// The address of the Hub.
        endpoint: String,
    },
    /// The token is not accepted.
    #[error(
        "the token was refused for `{repo}` (HTTP {status}): set `HF_TOKEN` to a valid token, or unset it for public repositories"
    )]
    Unauthorized {
        /// `owner/repo`.
        repo: String,
        /// 401 or 403.
        status: u16,
    },
    /// Too many requests, also after waiting.
    #[error(
        "{endpoint} limits the rate of requests (HTTP 429): try again in {seconds} s; requests with `HF_TOKEN` have higher limits"
    )]
    RateLimited {
        /// The address of the Hub.
        endpoint: String,
        /// What the server asks for, or the last wait.
        seconds: u64,
    },
    /// Another answer than expected.
    #[error("{url} answered HTTP {status}{detail}")]
    Status {
        /// What was asked for.
        url: String,
        /// The status.
        status: u16,
        /// The server's own message, if it sent one; begins with `: `.
        detail: String,
    },
    /// The answer is not one of a Hub.
    #[error(
        "{url}: {reason}; expected a server that speaks the Hugging Face Hub's protocol (see `HF_ENDPOINT`)"
    )]
    Protocol {
        /// What was asked for.
        url: String,
        /// Found and expected.
        reason: String,
    },
    /// No connection, or it broke more often than is tried.
    #[error(
        "{url}: {source}; what was downloaded is kept, and the next attempt goes on from there"
    )]
    Transport {
        /// What was asked for.
        url: String,
        /// The last failure.
        source: Box<ureq::Error>,
    },
    /// The content is not what the repository lists.
    #[error("`{file}` has the checksum {found}, expected {expected}: the download was discarded")]
    Checksum {
        /// The path in the repository.
        file: String,
        /// Of what was received.
        found: String,
        /// Of the repository.
        expected: String,
    },
    /// The disk is too full.
    #[error("{} of free disk at {path} are too little for {}", gigabytes(*free), gigabytes(*needed))]
    DiskSpace {
        /// The folder of the cache.
        path: PathBuf,
        /// Bytes.
        free: u64,
        /// Bytes.
        needed: u64,
    },
    /// No file of the repository fits.
    #[error("`{repo}` has {reason}{}", listed(available))]
    NoModel {
        /// `owner/repo`.
        repo: String,
        /// What is missing.
        reason: String,
        /// What can be asked for instead.
        available: Vec<String>,
    },
    /// The caller's [`Progress`](crate::Progress) asked to stop.
    #[error("the download was cancelled; what was downloaded is kept")]
    Cancelled,
    /// A file of the cache.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl HubError {
    /// For `map_err`: an error of the system at a path.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

fn gigabytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let gigabytes = bytes as f64 / 1e9;
    format!("{gigabytes:.1} GB")
}

fn listed(available: &[String]) -> String {
    match available {
        [] => String::new(),
        names => format!("; it has {}", names.join(", ")),
    }
}
