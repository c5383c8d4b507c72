//! The Hub's protocol over HTTP: the listing of a repository, the metadata of its files, and ranges of their bytes.

use std::io::Read;
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::{Agent, Body};

use crate::cache::is_commit;
use crate::{Cache, HubError, Settings};

/// A Hub and the cache of what came from it.
pub struct Hub {
    pub(crate) settings: Settings,
    pub(crate) cache: Cache,
    agent: Agent,
}

/// What a repository has at a revision.
#[derive(Clone, Debug)]
pub struct RepoListing {
    /// The commit of the revision.
    pub commit: String,
    /// Paths of files.
    pub files: Vec<String>,
}

/// A file of a repository as its server describes it.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    /// Its path in the repository.
    pub(crate) path: String,
    /// Bytes.
    pub(crate) size: u64,
    /// Names the content: SHA-256 of large files, Git's SHA-1 of small ones.
    pub(crate) etag: String,
    /// Where its bytes are; an address that may expire.
    pub(crate) location: String,
}

/// Attempts at a request before its failure is told.
const ATTEMPTS: u32 = 5;
/// The longest wait that a server may ask for, in seconds.
const LONGEST_WAIT: u64 = 60;
/// Addresses that follow each other.
const REDIRECTS: usize = 8;
/// The largest listing, in bytes.
const LISTING_LIMIT: u64 = 64 << 20;

/// The value of a header as text.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|v| v.to_str().ok())
}

/// An entity tag without quotes and `W/`, if it can be the name of a file.
fn plain_etag(etag: &str) -> Option<String> {
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    let is_plain = etag
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    (is_plain && !etag.is_empty() && etag.len() <= 128 && !etag.starts_with('.'))
        .then(|| etag.to_owned())
}

/// Whether a path of a listing stays below the folder that it is written to.
pub(crate) fn is_plain_path(path: &str) -> bool {
    let part = |p: &str| !p.is_empty() && p != "." && p != "..";
    path.len() < 1024 && !path.contains(['\\', '\0', ':']) && path.split('/').all(part)
}

/// A path in an address: all but letters, digits and `-._~/` as percent codes.
fn encoded(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    path.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

/// Scheme, host and port of an address.
fn origin(url: &str) -> &str {
    let after = url.find("://").map_or(0, |at| at + 3);
    &url[..url[after..]
        .find(['/', '?'])
        .map_or(url.len(), |at| after + at)]
}

/// An address to which another one leads: absolute, or below the same origin.
fn joined(from: &str, to: &str) -> String {
    if to.contains("://") {
        to.to_owned()
    } else if let Some(rest) = to.strip_prefix("//") {
        format!("{}//{rest}", &from[..from.find("//").unwrap_or(0)])
    } else if to.starts_with('/') {
        format!("{}{to}", origin(from))
    } else {
        let path = from.split('?').next().unwrap_or(from);
        format!("{}/{to}", &path[..path.rfind('/').unwrap_or(path.len())])
    }
}

#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

#[derive(Deserialize)]
struct Message {
    error: String,
}

impl Hub {
    /// Connects to nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("inference-lab-bench/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .max_idle_connections_per_host(settings.connections)
            .build();
        Self {
            cache: Cache::new(&settings.cache),
            agent: config.into(),
            settings,
        }
    }

    /// The cache.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Sends a request, with the token where the address is the Hub's. Waits and tries again after 429 and 5xx, and after broken connections.
    fn send(
        &self,
        method: &str,
        url: &str,
        range: Option<(u64, u64)>,
    ) -> Result<Response<Body>, HubError> {
        let is_hub = origin(url) == origin(&self.settings.endpoint);
        let token = self.settings.token.as_ref().filter(|_| is_hub);
        let mut wait = 1;
        for attempt in 1.. {
            let request = ureq::http::Request::builder()
                .method(method)
                .uri(url)
                .header(header::ACCEPT_ENCODING, "identity");
            let request = token.into_iter().fold(request, |r, t| {
                r.header(header::AUTHORIZATION, format!("Bearer {t}"))
            });
            let request = range.into_iter().fold(request, |r, (from, to)| {
                r.header(header::RANGE, format!("bytes={from}-{}", to - 1))
            });
            let request = request.body(()).map_err(|e| HubError::Protocol {
                url: url.to_owned(),
                reason: format!("no address: {e}"),
            })?;
            let last = attempt == ATTEMPTS;
            match self.agent.run(request) {
                Ok(response) if response.status() == 429 || response.status().is_server_error() => {
                    let asked =
                        text(response.headers(), "retry-after").and_then(|t| t.trim().parse().ok());
                    wait = asked.unwrap_or(wait);
                    if last || wait > LONGEST_WAIT {
                        return match response.status().as_u16() {
                            429 => Err(HubError::RateLimited {
                                endpoint: self.settings.endpoint.clone(),
                                seconds: wait,
                            }),
                            _ => Ok(response),
                        };
                    }
                }
                Ok(response) => return Ok(response),
                Err(ureq::Error::BadUri(reason)) => {
                    return Err(HubError::Protocol {
                        url: url.to_owned(),
                        reason,
                    });
                }
                Err(source) if last => {
                    return Err(HubError::Transport {
                        url: url.to_owned(),
                        source: Box::new(source),
                    });
                }
                Err(_) => {}
            }
            thread::sleep(Duration::from_millis(wait * self.settings.second_ms));
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        unreachable!("the last attempt returns")
    }

    /// An answer that is no success, as the sentence that helps. The Hub names the reason in `X-Error-Code`.
    fn refusal(
        &self,
        mut response: Response<Body>,
        url: &str,
        repo: &str,
        revision: &str,
        file: &str,
    ) -> HubError {
        let (repo, endpoint) = (repo.to_owned(), self.settings.endpoint.clone());
        let status = response.status().as_u16();
        let code = text(response.headers(), "x-error-code")
            .unwrap_or_default()
            .to_owned();
        let message = text(response.headers(), "x-error-message").map(str::to_owned);
        match (code.as_str(), status) {
            ("GatedRepo", _) => HubError::Gated { repo, endpoint },
            ("RevisionNotFound", _) => HubError::RevisionNotFound {
                repo,
                revision: revision.to_owned(),
            },
            ("EntryNotFound", _) => HubError::FileNotFound {
                repo,
                file: file.to_owned(),
            },
            ("RepoNotFound", _) | (_, 404) => HubError::RepoNotFound { repo, endpoint },
            // The Hub answers 401 for repositories that do not exist or are private, so that nobody learns which.
            (_, 401) if self.settings.token.is_none() => HubError::RepoNotFound { repo, endpoint },
            (_, 401 | 403) => HubError::Unauthorized { repo, status },
            _ => {
                let body = response
                    .body_mut()
                    .with_config()
                    .limit(4096)
                    .read_to_string()
                    .unwrap_or_default();
                let sent = serde_json::from_str::<Message>(&body).ok().map(|m| m.error);
                let detail = message
                    .or(sent)
                    .map_or_else(String::new, |m| format!(": {m}"));
                HubError::Status {
                    url: url.to_owned(),
                    status,
                    detail,
                }
            }
        }
    }

    /// The address of a file.
    fn file_url(&self, repo: &str, commit: &str, file: &str) -> String {
        format!(
            "{}/{repo}/resolve/{}/{}",
            self.settings.endpoint,
            encoded(commit),
            encoded(file)
        )
    }

    /// The commit and the files of a repository at a branch, tag or commit.
    ///
    /// # Errors
    /// A [`HubError`] that says what the server refused, or that it is no Hub.
    pub fn listing(&self, repo: &str, revision: &str) -> Result<RepoListing, HubError> {
        let revision_code = encoded(revision).replace('/', "%2F");
        let mut url = format!(
            "{}/api/models/{repo}/revision/{revision_code}",
            self.settings.endpoint
        );
        for _ in 0..REDIRECTS {
            let mut response = self.send("GET", &url, None)?;
            if response.status().is_redirection() {
                // A repository that was renamed.
                let to = text(response.headers(), "location").unwrap_or_default();
                url = joined(&url, to);
                continue;
            }
            if !response.status().is_success() {
                return Err(self.refusal(response, &url, repo, revision, ""));
            }
            let protocol = |reason: String| HubError::Protocol {
                url: url.clone(),
                reason,
            };
            let body = response
                .body_mut()
                .with_config()
                .limit(LISTING_LIMIT)
                .read_to_vec();
            let body = body.map_err(|e| HubError::Transport {
                url: url.clone(),
                source: Box::new(e),
            })?;
            let listing: Listing = serde_json::from_slice(&body)
                .map_err(|e| protocol(format!("no listing of a repository: {e}")))?;
            if !is_commit(&listing.sha) {
                return Err(protocol(format!(
                    "the commit is `{}`, expected 40 hexadecimal digits",
                    listing.sha
                )));
            }
            let files: Vec<String> = listing.siblings.into_iter().map(|s| s.rfilename).collect();
            if let Some(bad) = files.iter().find(|f| !is_plain_path(f)) {
                return Err(protocol(format!(
                    "the file `{}` lies outside of the repository",
                    bad.escape_debug()
                )));
            }
            return Ok(RepoListing {
                commit: listing.sha,
                files,
            });
        }
        Err(HubError::Protocol {
            reason: format!("more than {REDIRECTS} redirections"),
            url,
        })
    }

    /// Size, entity tag and location of a file. Relative redirections lead to another name of the repository, an absolute one to the bytes.
    pub(crate) fn metadata(
        &self,
        repo: &str,
        commit: &str,
        file: &str,
    ) -> Result<RemoteFile, HubError> {
        let mut url = self.file_url(repo, commit, file);
        for _ in 0..REDIRECTS {
            let response = self.send("HEAD", &url, None)?;
            let headers = response.headers();
            let location = text(headers, "location").map(|to| joined(&url, to));
            let is_redirection = response.status().is_redirection();
            if !(is_redirection || response.status().is_success()) {
                return Err(self.refusal(response, &url, repo, commit, file));
            }
            let linked = text(headers, "x-linked-etag");
            if let (true, None, Some(next)) = (is_redirection, linked, &location)
                && origin(next) == origin(&url)
            {
                url = location.unwrap_or_default();
                continue;
            }
            let protocol = |reason: &str| HubError::Protocol {
                url: url.clone(),
                reason: reason.to_owned(),
            };
            let etag = linked
                .or_else(|| text(headers, "etag"))
                .and_then(plain_etag);
            let etag = etag.ok_or_else(|| protocol("no entity tag that names the content"))?;
            let size = text(headers, "x-linked-size").or_else(|| text(headers, "content-length"));
            let size = size
                .and_then(|s| s.parse().ok())
                .ok_or_else(|| protocol("no size of the file"))?;
            let location = location
                .filter(|_| is_redirection)
                .unwrap_or_else(|| url.clone());
            return Ok(RemoteFile {
                path: file.to_owned(),
                size,
                etag,
                location,
            });
        }
        Err(HubError::Protocol {
            reason: format!("more than {REDIRECTS} redirections"),
            url,
        })
    }

    /// Bytes `from..to` of a file at an address. The second value: the first byte that comes (0 where the server knows no ranges).
    pub(crate) fn range(
        &self,
        location: &str,
        from: u64,
        to: u64,
    ) -> Result<(impl Read + 'static, u64), HubError> {
        let mut url = location.to_owned();
        for _ in 0..REDIRECTS {
            let response = self.send("GET", &url, Some((from, to)))?;
            let status = response.status();
            if status.is_redirection() {
                url = joined(
                    &url,
                    text(response.headers(), "location").unwrap_or_default(),
                );
                continue;
            }
            let start = match status.as_u16() {
                206 => from,
                200 => 0,
                status => {
                    return Err(HubError::Status {
                        url,
                        status,
                        detail: String::new(),
                    });
                }
            };
            return Ok((
                response
                    .into_body()
                    .into_with_config()
                    .limit(u64::MAX)
                    .reader(),
                start,
            ));
        }
        Err(HubError::Protocol {
            reason: format!("more than {REDIRECTS} redirections"),
            url,
        })
    }
}

/// Whether an address can be asked at all.
pub(crate) fn is_address(url: &str) -> bool {
    url.parse::<Uri>()
        .is_ok_and(|u| matches!(u.scheme_str(), Some("http" | "https")) && u.host().is_some())
}
