//! `GET /`: a page to chat with the models, and its files below `/page/`, all built into the program.
//!
//! The page itself needs no API key; its requests do. It loads nothing from other servers, and its
//! [`policy`] forbids it; it may ask origins that a setting names.

pub(crate) mod markdown;
pub(crate) mod policy;

use std::sync::LazyLock;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::http::error::Error;
use policy::PagePolicy;

struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($name:literal $kind:literal;)*) => {
        &[$(File { name: $name, kind: $kind, text: include_str!($name) },)*]
    };
}

/// The first file is the page itself.
const FILES: &[File] = files! {
    "page.html" "text/html; charset=utf-8";
    "page.css" "text/css; charset=utf-8";
    "page.js" "text/javascript; charset=utf-8";
    "api.js" "text/javascript; charset=utf-8";
    "ask.js" "text/javascript; charset=utf-8";
    "calls.js" "text/javascript; charset=utf-8";
    "chat.js" "text/javascript; charset=utf-8";
    "clean.js" "text/javascript; charset=utf-8";
    "clock.js" "text/javascript; charset=utf-8";
    "diffusion.js" "text/javascript; charset=utf-8";
    "dom.js" "text/javascript; charset=utf-8";
    "exported.js" "text/javascript; charset=utf-8";
    "files.js" "text/javascript; charset=utf-8";
    "imported.js" "text/javascript; charset=utf-8";
    "keep.js" "text/javascript; charset=utf-8";
    "keys.js" "text/javascript; charset=utf-8";
    "lab.js" "text/javascript; charset=utf-8";
    "library.js" "text/javascript; charset=utf-8";
    "looks.js" "text/javascript; charset=utf-8";
    "markdown.js" "text/javascript; charset=utf-8";
    "mcp.js" "text/javascript; charset=utf-8";
    "media.js" "text/javascript; charset=utf-8";
    "menu.js" "text/javascript; charset=utf-8";
    "meter.js" "text/javascript; charset=utf-8";
    "model.js" "text/javascript; charset=utf-8";
    "notice.js" "text/javascript; charset=utf-8";
    "panels.js" "text/javascript; charset=utf-8";
    "presets.js" "text/javascript; charset=utf-8";
    "prose.js" "text/javascript; charset=utf-8";
    "pull.js" "text/javascript; charset=utf-8";
    "servers.js" "text/javascript; charset=utf-8";
    "settings.js" "text/javascript; charset=utf-8";
    "sidebar.js" "text/javascript; charset=utf-8";
    "store.js" "text/javascript; charset=utf-8";
    "tokens.js" "text/javascript; charset=utf-8";
    "tree.js" "text/javascript; charset=utf-8";
    "turn.js" "text/javascript; charset=utf-8";
    "icon.svg" "image/svg+xml";
};

static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let tag = |file: &File| {
        let digest = Sha256::digest(file.text.as_bytes());
        let digits = digest.iter().take(8).map(|byte| format!("{byte:02x}"));
        format!("\"{}\"", digits.collect::<String>())
    };
    FILES.iter().map(tag).collect()
});

/// Whether a path belongs to the page, which needs no key.
pub(super) fn is_file(path: &str) -> bool {
    path == "/"
        || path
            .strip_prefix("/page/")
            .is_some_and(|name| at(name).is_some())
}

fn at(name: &str) -> Option<usize> {
    FILES.iter().position(|file| file.name == name)
}

fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    let known = known.filter_map(|value| value.to_str().ok());
    known.flat_map(|value| value.split(',')).any(|one| {
        let one = one.trim();
        one == "*" || one.trim_start_matches("W/") == tag
    })
}

fn respond(at: usize, policy: &PagePolicy, headers: &HeaderMap) -> Response {
    let (file, tag) = (&FILES[at], TAGS[at].as_str());
    let mut response = match is_known(headers, tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, file.kind)], file.text).into_response(),
    };
    let out = response.headers_mut();
    out.insert(header::CONTENT_SECURITY_POLICY, policy.header());
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        out.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(tag) {
        out.insert(header::ETAG, tag);
    }
    response
}

pub(super) async fn page(State(policy): State<PagePolicy>, headers: HeaderMap) -> Response {
    respond(0, &policy, &headers)
}

pub(super) async fn file(
    State(policy): State<PagePolicy>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let found = name.ok().and_then(|Path(name)| at(&name));
    let found = found.ok_or_else(|| Error::NoRoute(uri.path().to_owned()))?;
    Ok(respond(found, &policy, &headers))
}
