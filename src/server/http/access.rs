//! Access control: API keys, and protection from web pages of other origins.
//!
//! A page in a visitor's browser can send requests to a server on the visitor's machine. So a request with an `Origin`
//! must come from the server's own pages, from a page or program of the visitor's machine, or from an allowed origin.
//! Without API keys its `Host` must be an address, a name that nobody can register on the internet, or an allowed name:
//! otherwise a page could point a name of its own at this server. With API keys the name does not matter, because the
//! page does not know a key.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::api_keys::{ApiKeys, Role};
use super::client::KeyHolder;
use super::error::{Error, quoted};
use super::proxies::{RequestSource, TrustedProxy};
use crate::http::context::RequestContext;
use crate::rate_limits::RateLimits;

/// The clients that may use a server.
#[derive(Clone, Debug, Default)]
pub struct Access {
    keys: Arc<ApiKeys>,
    /// The requests of each client.
    rates: Arc<RateLimits>,
    /// Origins whose pages may use the server; `*` allows all.
    origins: Vec<String>,
    hosts: Vec<String>,
    machine: Option<String>,
    proxies: Vec<TrustedProxy>,
}

/// Response headers that a page may read.
const EXPOSED_HEADERS: &str = "x-request-id, x-bench-ignored, x-bench-model, retry-after, x-should-retry, x-ratelimit-limit-requests, \
     x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, \
     x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";
/// Endings of names that nobody can register on the internet: those of this machine (RFC 6761), of the local network
/// (RFC 6762) and of private networks (reserved by ICANN), such as `host.docker.internal`.
const PRIVATE_SUFFIXES: &[&str] = &[".localhost", ".local", ".internal"];
/// Schemes of the pages of programs that are installed on the visitor's machine. No web page has one.
const DESKTOP_SCHEMES: &[&str] = &["app", "file", "tauri", "vscode-webview", "vscode-file"];

impl Access {
    /// Access for clients with one of these keys (for all clients if there are none), for pages of these origins, and
    /// under these host names.
    pub fn new(keys: Arc<ApiKeys>, origins: Vec<String>, hosts: Vec<String>) -> Self {
        Self {
            keys,
            rates: Arc::default(),
            origins,
            hosts,
            machine: machine(),
            proxies: Vec::new(),
        }
    }

    /// The same behind these proxies.
    #[must_use]
    pub fn behind(self, proxies: Vec<TrustedProxy>) -> Self {
        Self { proxies, ..self }
    }

    /// Where a request comes from.
    pub(crate) fn source(&self, request: &Request) -> RequestSource {
        let peer = request.extensions().get().copied();
        RequestSource::of(&self.proxies, peer, request.headers())
    }

    /// Whether a request may be served. `needs`: the role that a request of a method to a path needs; none if it needs no key.
    fn check(
        &self,
        needs: fn(&Method, &str) -> Option<Role>,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        source: &RequestSource,
    ) -> Result<(), Error> {
        self.check_origin(headers, source)?;
        if self.keys.is_empty() {
            return self.check_host(uri, headers, source);
        }
        let Some(role) = needs(method, uri.path()) else {
            return Ok(());
        };
        let found = key(headers);
        let Some((holder, roles)) = found.and_then(|key| self.keys.find(key)) else {
            return Err(Error::ApiKey {
                is_missing: found.is_none(),
            });
        };
        let record = RequestContext::current();
        record.set_client(holder);
        if !roles.contains(&role) {
            let client = record.client().in_words();
            return Err(Error::Forbidden {
                code: "role_missing",
                message: format!(
                    "{client} has no role `{}`, which {method} {} needs",
                    role.name(),
                    quoted(uri.path())
                ),
            });
        }
        // What only reads, and what is for the server itself, costs little.
        match method == Method::POST && role != Role::Admin {
            true => Ok(record.take_request(&self.rates)?),
            false => Ok(()),
        }
    }

    /// The client of the name that stands for it.
    pub(crate) fn holder(&self, owner: &str) -> KeyHolder {
        self.keys.holder(owner)
    }

    fn check_host(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        source: &RequestSource,
    ) -> Result<(), Error> {
        let host = headers
            .get(header::HOST)
            .map(|host| host.to_str().unwrap_or("?"));
        // Browsers always send a host.
        let host = host.or(uri.authority().map(|authority| authority.as_str()));
        let Some(host) = source.host(headers).or(host) else {
            return Ok(());
        };
        let name = without_port(host);
        let is_local =
            name == "localhost" || PRIVATE_SUFFIXES.iter().any(|ending| name.ends_with(ending));
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let mut named = self.hosts.iter().chain(&self.machine);
        let is_named = named.any(|own| own.eq_ignore_ascii_case(&name));
        match is_local || is_address || is_named {
            true => Ok(()),
            false => Err(Error::Forbidden {
                code: "host_not_allowed",
                message: format!(
                    "the host `{}` is not allowed; `--allow-host` allows it, and an API key makes it unnecessary",
                    quoted(host)
                ),
            }),
        }
    }

    fn check_origin(&self, headers: &HeaderMap, source: &RequestSource) -> Result<(), Error> {
        match headers.get(header::ORIGIN) {
            Some(origin) if !self.is_own(origin, headers, source) && !self.is_allowed(origin) => {
                let origin = quoted(origin.to_str().unwrap_or("?"));
                Err(Error::Forbidden {
                    code: "origin_not_allowed",
                    message: format!(
                        "pages of `{origin}` may not use this server; `--cors-origin` allows it"
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    fn is_allowed(&self, origin: &HeaderValue) -> bool {
        let is_it = |own: &String| own == "*" || own.as_bytes() == origin.as_bytes();
        self.origins.iter().any(is_it) || origin.to_str().is_ok_and(is_of_machine)
    }

    /// Whether the page that sent a request came from this server: the browser says so, or its origin has the name of the
    /// server. No page can set this header. Behind a proxy the name may be another one.
    fn is_own(&self, origin: &HeaderValue, headers: &HeaderMap, source: &RequestSource) -> bool {
        if headers
            .get("sec-fetch-site")
            .is_some_and(|site| site == "same-origin")
        {
            return true;
        }
        let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
        let host = source.host(headers).map(str::as_bytes).or(host);
        let origin = origin.to_str().ok().and_then(|o| o.split_once("://"));
        let is_scheme = |own: &str| source.scheme(headers).is_none_or(|scheme| scheme == own);
        origin.is_some_and(|(scheme, origin)| Some(origin.as_bytes()) == host && is_scheme(scheme))
    }
}

fn machine() -> Option<String> {
    #[cfg(unix)]
    let name = rustix::system::uname()
        .nodename()
        .to_str()
        .ok()
        .map(str::to_owned);
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").ok();
    name.filter(|name| !name.is_empty())
}

/// Whether an origin is a page or program of the visitor's own machine.
fn is_of_machine(origin: &str) -> bool {
    let Some((scheme, host)) = origin.split_once("://") else {
        return false;
    };
    match scheme {
        "http" | "https" => {
            let name = without_port(host);
            let address = name.trim_matches(['[', ']']).parse::<IpAddr>();
            name == "localhost"
                || name.ends_with(".localhost")
                || address.is_ok_and(|address| address.is_loopback())
        }
        scheme => DESKTOP_SCHEMES.contains(&scheme),
    }
}

fn without_port(host: &str) -> String {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn key(headers: &HeaderMap) -> Option<&[u8]> {
    // The first header is Anthropic's, the second Azure's.
    if let Some(key) = headers.get("x-api-key").or(headers.get("api-key")) {
        return Some(key.as_bytes());
    }
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| key.trim_ascii())
}

/// The response to a preflight request, by which a browser asks whether a page may send a request.
fn preflight(headers: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let usual = HeaderValue::from_static("authorization, content-type, x-api-key, api-key");
    let out = response.headers_mut();
    let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
    out.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    out.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        asked.cloned().unwrap_or(usual),
    );
    out.insert(
        header::ACCESS_CONTROL_MAX_AGE,
        HeaderValue::from_static("600"),
    );
    let network = HeaderName::from_static("access-control-allow-private-network");
    if headers.contains_key("access-control-request-private-network") {
        out.insert(network, HeaderValue::from_static("true"));
    }
    response
}

/// Refuses requests without access, and tells browsers what is allowed.
pub(crate) async fn layer<F: Future<Output = Response>>(
    access: &Access,
    needs: fn(&Method, &str) -> Option<Role>,
    source: &RequestSource,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let headers = request.headers();
    let origin = headers.get(header::ORIGIN).cloned();
    let is_preflight = request.method() == Method::OPTIONS
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_preflight {
        match access.check_origin(headers, source) {
            Ok(()) => preflight(headers),
            Err(error) => error.into_response(),
        }
    } else {
        match access.check(needs, request.method(), request.uri(), headers, source) {
            Ok(()) => next(request).await,
            Err(error) => error.into_response(),
        }
    };
    if let Some(origin) = origin.filter(|origin| access.is_allowed(origin)) {
        let out = response.headers_mut();
        out.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        out.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(EXPOSED_HEADERS),
        );
        out.append(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::proxies::Peer;

    fn keys(keys: &[&str]) -> Arc<ApiKeys> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        Arc::new(ApiKeys::new(&keys, &[], None).expect("no file"))
    }

    fn checked(access: &Access, pairs: &[(&'static str, &str)]) -> Option<&'static str> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().expect("a value"));
        }
        let uri = Uri::from_static("/v1/models");
        let peer = Some(Peer::Address(IpAddr::from([127, 0, 0, 1])));
        let source = RequestSource::of(&access.proxies, peer, &headers);
        let needs = |_: &Method, _: &str| Some(Role::Use);
        let check = || access.check(needs, &Method::GET, &uri, &headers, &source);
        match RequestContext::detached().enter(check) {
            Ok(()) => None,
            Err(Error::Forbidden { code, .. }) => Some(code),
            Err(Error::ApiKey { is_missing: true }) => Some("missing"),
            Err(_) => Some("wrong"),
        }
    }

    #[test]
    fn hosts_are_addresses_or_allowed_names() {
        let access = Access::new(Arc::default(), Vec::new(), vec!["bench.lan".into()]);
        for good in
            "localhost localhost:11116 LOCALHOST. a.localhost:1 127.0.0.1:80 [::1]:80 [::1] \
            192.168.1.2 bench.lan:11116 Bench.LAN host.docker.internal:11116 printer.local \
            GPU.Internal."
                .split(' ')
        {
            assert_eq!(checked(&access, &[("host", good)]), None, "{good}");
        }
        for bad in "evil.example evil.example:11116 127.0.0.1.evil.example localhost.evil.example \
            bench.lan.evil host.docker.internal.evil.example evil-local local internal \
            notlocalhost docker.internal@evil.example 1.2.3.4:x"
            .split(' ')
        {
            assert_eq!(
                checked(&access, &[("host", bad)]),
                Some("host_not_allowed"),
                "{bad}"
            );
        }
        assert!(checked(&access, &[("host", "")]).is_some());
        assert_eq!(checked(&access, &[]), None);
        if let Some(own) = machine() {
            assert_eq!(checked(&access, &[("host", &own)]), None, "{own}");
            let other = format!("{own}.evil.example");
            assert!(checked(&access, &[("host", &other)]).is_some(), "{other}");
        }
    }

    #[test]
    fn pages_are_the_servers_own_or_allowed() {
        let access = Access::new(
            Arc::default(),
            vec!["https://ui.example".into()],
            Vec::new(),
        );
        let with = |access: &Access, origin: &str| {
            checked(access, &[("host", "127.0.0.1:11116"), ("origin", origin)])
        };
        assert_eq!(with(&access, "http://127.0.0.1:11116"), None);
        assert_eq!(with(&access, "https://ui.example"), None);
        for own in "http://localhost:3000 https://localhost http://app.localhost:5173 \
            http://127.0.0.1:80 http://[::1]:8080 app://obsidian.md file:// tauri://localhost \
            vscode-webview://1a2b vscode-file://vscode-app"
            .split(' ')
        {
            assert_eq!(with(&access, own), None, "{own}");
        }
        for bad in "null localhost http://localhost.evil.example http://localhost@evil.example \
            http://evil.example/localhost http://127.0.0.1.evil.example http://192.168.1.2 \
            http://printer.local https://app apps://x chrome-extension://abc \
            https://ui.example.evil http://ui.example"
            .split(' ')
        {
            assert_eq!(with(&access, bad), Some("origin_not_allowed"), "{bad}");
        }
        assert_eq!(with(&access, ""), Some("origin_not_allowed"));
        // What a browser says of a page of the server's own behind a proxy that changes the name.
        let by_browser = |site: &str| {
            let host = ("host", "127.0.0.1:11116");
            checked(
                &access,
                &[
                    host,
                    ("origin", "https://chat.example"),
                    ("sec-fetch-site", site),
                ],
            )
        };
        assert_eq!(by_browser("same-origin"), None);
        for other in ["same-site", "cross-site", "none", ""] {
            assert_eq!(by_browser(other), Some("origin_not_allowed"), "{other}");
        }
        // A name that was pointed at this server has pages of its own, and is refused by its host.
        let rebound = [
            ("host", "evil.example"),
            ("origin", "https://evil.example"),
            ("sec-fetch-site", "same-origin"),
        ];
        assert_eq!(checked(&access, &rebound), Some("host_not_allowed"));
        let none = Access::new(Arc::default(), vec!["null".into()], Vec::new());
        assert_eq!(with(&none, "null"), None);
        let all = Access::new(Arc::default(), vec!["*".into()], Vec::new());
        assert_eq!(with(&all, "https://anywhere.example"), None);
    }

    #[test]
    fn the_origin_of_a_page_is_the_site_of_a_trusted_proxy() {
        let plain = || Access::new(Arc::default(), Vec::new(), vec!["chat.example".into()]);
        let trusting = plain().behind(vec!["127.0.0.1".parse().expect("an address")]);
        let with = |access: &Access, origin: &str, host: &str| {
            let pairs = [
                ("host", "127.0.0.1:11116"),
                ("origin", origin),
                ("x-forwarded-host", host),
                ("x-forwarded-proto", "https"),
            ];
            checked(access, &pairs)
        };
        let (site, refused) = ("https://chat.example", Some("origin_not_allowed"));
        assert_eq!(with(&trusting, site, "chat.example"), None);
        assert_eq!(with(&plain(), site, "chat.example"), refused);
        assert_eq!(
            with(&trusting, "http://chat.example", "chat.example"),
            refused
        );
        assert_eq!(
            with(&trusting, "https://evil.example", "chat.example"),
            refused
        );
        // A name that was pointed at the proxy is refused as one that was pointed at the server.
        let found = with(&trusting, "https://evil.example", "evil.example");
        assert_eq!(found, Some("host_not_allowed"));
    }

    #[test]
    fn keys_are_bearer_tokens_or_headers() {
        let access = Access::new(keys(&["one", "two"]), Vec::new(), Vec::new());
        let with = |name, value: &str| checked(&access, &[("host", "any.example"), (name, value)]);
        assert_eq!(with("authorization", "Bearer one"), None);
        assert_eq!(with("authorization", "bearer  two "), None);
        assert_eq!(with("x-api-key", "two"), None);
        assert_eq!(with("api-key", "two"), None);
        assert_eq!(with("api-key", "three"), Some("wrong"));
        assert_eq!(with("authorization", "Bearer three"), Some("wrong"));
        assert_eq!(with("authorization", "Bearer "), Some("wrong"));
        assert_eq!(with("x-api-key", "on"), Some("wrong"));
        assert_eq!(with("authorization", "Basic one"), Some("missing"));
        assert_eq!(checked(&access, &[]), Some("missing"));
    }
}
