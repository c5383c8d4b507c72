//! The settings of the Hub, as its Python client reads them from the environment.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the Hub is, where its cache is, and who asks.
#[derive(Clone)]
pub struct Settings {
    /// The address, without a slash at its end.
    pub endpoint: String,
    /// The folder that holds `models--owner--repo`.
    pub cache: PathBuf,
    /// A token of the user.
    pub token: Option<String>,
    /// No request is made.
    pub offline: bool,
    /// Connections at a time.
    pub connections: usize,
    /// How long a second of waiting between attempts takes, in milliseconds; tests wait less.
    pub second_ms: u64,
}

/// Whether a variable of the environment is set to a word for true.
fn is_on(value: Option<String>) -> bool {
    value.is_some_and(|v| matches!(v.to_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
}

/// A path with `~` for the home folder.
fn expanded(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(&rest[1..]),
        _ => PathBuf::from(path),
    }
}

impl Settings {
    /// From the environment: `HF_ENDPOINT`, `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`.
    #[must_use]
    pub fn from_env() -> Self {
        Self::from_variables(|name| env::var(name).ok())
    }

    /// As [`Settings::from_env`], with the variables of the caller. An empty variable is one that is not set.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|v| !v.trim().is_empty());
        let home = set("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
        let path = |name: &str| set(name).map(|p| expanded(&p, &home));
        let caches = path("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let hf_home = path("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .unwrap_or_else(|| hf_home.join("hub"));
        let stored = path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
        let token = set("HF_TOKEN")
            .or_else(|| set("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| fs::read_to_string(stored).ok());
        let token = token.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let offline = is_on(set("HF_HUB_OFFLINE")) || is_on(set("TRANSFORMERS_OFFLINE"));
        Self {
            endpoint,
            cache,
            token,
            offline,
            connections: 8,
            second_ms: 1000,
        }
    }
}
