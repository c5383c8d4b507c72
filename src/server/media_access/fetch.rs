//! Fetching from allowed hosts over HTTP.
//!
//! Invariant: a connection goes to an address that was checked. A name is resolved once, and its addresses are the ones that
//! are connected to; a redirection is a new address, which is checked as the first one. No proxy is used, since it would resolve
//! names itself.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::{HeaderMap, Uri, header};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

use super::MediaAccessError;

/// Maximum number of redirections.
const REDIRECTS: usize = 4;

/// A host from which media may be fetched: `HOST`, `HOST:PORT`, or `*` for all with public addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    /// None: all.
    host: Option<String>,
    /// None: the ports of `http` and `https`.
    port: Option<u16>,
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected `HOST`, `HOST:PORT` or `*`, found `{text}`");
        // The colons of an address of version 6 are within brackets.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, Some(port.parse().map_err(|_| wrong())?))
            }
            _ => (text, None),
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
        if host.is_empty() || (host != "*" && !host.chars().all(is_plain)) {
            return Err(wrong());
        }
        Ok(Self {
            host: (host != "*").then(|| host.to_ascii_lowercase()),
            port,
        })
    }
}

impl AllowedHost {
    fn allows(&self, host: &str, port: u16) -> bool {
        let is_host = self.host.as_ref().is_none_or(|own| own == host);
        is_host
            && self
                .port
                .map_or([80, 443].contains(&port), |own| own == port)
    }
}

#[derive(Debug)]
pub(super) struct Fetcher {
    hosts: Vec<AllowedHost>,
    agent: Agent,
}

impl Fetcher {
    pub(super) fn new(hosts: &[AllowedHost]) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("inference-lab-bench/", env!("CARGO_PKG_VERSION")))
            .build();
        // Whoever allows an address by its number means it, also a private one.
        let named = hosts
            .iter()
            .filter_map(|own| own.host.as_ref()?.parse().ok());
        let resolver = PublicResolver {
            named: named.collect(),
            inner: DefaultResolver::default(),
        };
        Self {
            hosts: hosts.to_vec(),
            agent: Agent::with_parts(config, DefaultConnector::default(), resolver),
        }
    }

    /// The address, if media may be fetched from its host.
    fn checked(&self, url: &str) -> Result<Uri, MediaAccessError> {
        let uri: Uri = url.parse().map_err(|_| MediaAccessError::Address)?;
        let (host, port) = match (uri.scheme_str(), uri.host(), uri.port_u16()) {
            (Some("http"), Some(host), port) => (host, port.unwrap_or(80)),
            (Some("https"), Some(host), port) => (host, port.unwrap_or(443)),
            _ => return Err(MediaAccessError::Address),
        };
        let name = host.to_ascii_lowercase();
        // A dot at the end names the same host.
        let name = name.strip_suffix('.').unwrap_or(&name);
        match self.hosts.iter().any(|own| own.allows(name, port)) {
            true => Ok(uri),
            false => Err(MediaAccessError::Host(short(&format!("{host}:{port}")))),
        }
    }

    pub(super) fn fetch(
        &self,
        url: &str,
        max_bytes: u64,
        end: Instant,
    ) -> Result<Vec<u8>, MediaAccessError> {
        let started = Instant::now();
        let time = end.saturating_duration_since(started);
        let fault = |uri: &Uri, error: Error| match error {
            Error::Timeout(_) => MediaAccessError::Time(time.as_secs_f64().round() as u64),
            Error::BodyExceedsLimit(_) => MediaAccessError::TooLarge(max_bytes),
            Error::Other(error) if error.is::<NoPublicAddress>() => {
                MediaAccessError::Private(short(uri.host().unwrap_or_default()))
            }
            error => MediaAccessError::Transport(short(&error.to_string())),
        };
        let mut uri = self.checked(url)?;
        for _ in 0..=REDIRECTS {
            let left = end.saturating_duration_since(Instant::now());
            let request = self
                .agent
                .get(uri.clone())
                .header(header::ACCEPT, "image/*, audio/*")
                .header(header::ACCEPT_ENCODING, "identity")
                .config()
                .timeout_global(Some(left.max(Duration::from_millis(1))))
                .build();
            let mut response = request.call().map_err(|error| fault(&uri, error))?;
            let (status, headers) = (response.status(), response.headers());
            if status.is_redirection() {
                let to = text(headers, &header::LOCATION).unwrap_or_default();
                uri = self.checked(&joined(&uri, to))?;
                continue;
            }
            if !status.is_success() {
                return Err(MediaAccessError::Status(status.as_u16()));
            }
            let kind = text(headers, &header::CONTENT_TYPE).unwrap_or_default();
            if !is_of_media(kind) {
                return Err(MediaAccessError::Type(short(kind)));
            }
            let length = response.body().content_length();
            if length.is_some_and(|length| length > max_bytes) {
                return Err(MediaAccessError::TooLarge(max_bytes));
            }
            let body = response.body_mut().with_config().limit(max_bytes);
            return body.read_to_vec().map_err(|error| fault(&uri, error));
        }
        Err(MediaAccessError::Redirects(REDIRECTS))
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// A text of others, as much of it as an error shows.
fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// The address to which a redirection leads.
fn joined(from: &Uri, to: &str) -> String {
    let (scheme, host) = (
        from.scheme_str().unwrap_or_default(),
        from.authority().map_or("", |authority| authority.as_str()),
    );
    let path = from.path();
    match to {
        to if to.contains("://") => to.to_owned(),
        to if to.starts_with("//") => format!("{scheme}:{to}"),
        to if to.starts_with('/') => format!("{scheme}://{host}{to}"),
        to => format!(
            "{scheme}://{host}{}/{to}",
            &path[..path.rfind('/').unwrap_or(0)]
        ),
    }
}

/// Whether a content type can be that of a medium: some servers name none, or that of any bytes.
fn is_of_media(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let kind = kind.to_ascii_lowercase();
    let kinds = [
        "",
        "application/octet-stream",
        "binary/octet-stream",
        "application/ogg",
    ];
    kinds.contains(&kind.as_str())
        || ["image/", "audio/", "video/"]
            .iter()
            .any(|own| kind.starts_with(own))
}

/// Resolves names to public addresses only.
#[derive(Debug)]
struct PublicResolver {
    /// Further addresses that are allowed.
    named: Vec<IpAddr>,
    inner: DefaultResolver,
}

/// All addresses of a host are private.
#[derive(Debug, thiserror::Error)]
#[error("no public address")]
struct NoPublicAddress;

impl Resolver for PublicResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        // By its number alone: a name that leads to it is not what was allowed.
        let host = uri.host().unwrap_or_default();
        let host: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let is_named = host.is_some_and(|host| self.named.contains(&host));
        let mut allowed = self.inner.empty();
        for address in found.iter() {
            if is_named || is_public(address.ip()) {
                allowed.push(*address);
            }
        }
        match allowed.is_empty() {
            true => Err(Error::Other(Box::new(NoPublicAddress))),
            false => Ok(allowed),
        }
    }
}

/// Whether an address is one of the public Internet: no private, loopback, link-local, multicast or reserved one (IANA's registries
/// of special-purpose addresses), in neither version.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let is_special = v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_broadcast()
                || v4.is_multicast()
                || v4.is_documentation();
            let is_reserved = match (a, b, c) {
                (0, ..) | (240.., ..) | (192, 0, 0) | (192, 88, 99) => true,
                // Of providers, and of benchmarks.
                (100, 64..128, _) | (198, 18..20, _) => true,
                _ => false,
            };
            !is_special && !is_reserved
        }
        IpAddr::V6(v6) => {
            // Addresses of version 4 in other spellings: mapped, translated, tunnelled.
            let parts = v6.segments();
            let v4 = |high: u16, low: u16| {
                let bits = u32::from(high) << 16 | u32::from(low);
                is_public(IpAddr::V4(bits.into()))
            };
            match parts {
                [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                    v4(high, low)
                }
                [0x2002, high, low, ..] => v4(high, low),
                _ => is_public_v6(&v6),
            }
        }
    }
}

/// Whether an address is within the global unicast block and none of its special parts.
fn is_public_v6(address: &Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let is_special = match (a, b) {
        // Protocols, tunnels and examples.
        (0x2001, 0..0x200) | (0x2001, 0xdb8) | (0x3fff, 0..0x1000) => true,
        _ => false,
    };
    a & 0xe000 == 0x2000 && !is_special
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn private_and_special_addresses_are_not_public() {
        for address in [
            "8.8.8.8",
            "1.1.1.1",
            "100.63.0.1",
            "172.32.0.1",
            "193.0.0.1",
            "2606:4700:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ] {
            assert!(is_public(address.parse().expect("an address")), "{address}");
        }
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "203.0.113.7",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "64:ff9b:1::1",
            "::127.0.0.1",
            "fec0::1",
        ] {
            assert!(
                !is_public(address.parse().expect("an address")),
                "{address}"
            );
        }
    }

    #[test]
    fn a_host_is_allowed_at_its_port_or_the_usual_ones() {
        let allows = |rule: &str, host: &str, port| {
            let rule: AllowedHost = rule.parse().expect("a rule");
            rule.allows(host, port)
        };
        assert!(
            allows("Example.com", "example.com", 443) && allows("example.com", "example.com", 80)
        );
        assert!(!allows("example.com", "example.com", 8080));
        assert!(!allows("example.com", "a.example.com", 443));
        assert!(allows("example.com:8080", "example.com", 8080));
        assert!(!allows("example.com:8080", "example.com", 443));
        assert!(allows("*", "any.example", 443) && !allows("*", "any.example", 22));
        assert!(allows("[::1]:90", "[::1]", 90) && allows("[::1]", "[::1]", 80));
        for wrong in [
            "",
            ":80",
            "a:b",
            "a:99999",
            "http://a",
            "a/b",
            "*.example.com",
            "a b",
        ] {
            assert!(wrong.parse::<AllowedHost>().is_err(), "{wrong}");
        }
    }

    /// A server that answers each request to a path by `answer`.
    fn server(answer: fn(&str, &mut TcpStream, SocketAddr)) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                std::thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
                    let first = lines.next().expect("a line").expect("a text");
                    let path = first.split(' ').nth(1).expect("a path").to_owned();
                    while lines
                        .next()
                        .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
                    {
                    }
                    answer(&path, &mut stream, address);
                });
            }
        });
        address
    }

    fn answer(path: &str, stream: &mut TcpStream, address: SocketAddr) {
        let mut send = |text: &str| {
            // The client may have left.
            let _ = stream.write_all(text.as_bytes());
        };
        let port = address.port();
        let mut redirect = |to: &str| {
            send(&format!(
                "HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            ));
        };
        match path {
            "/a" => send(
                "HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 3\r\nconnection: close\r\n\r\npng",
            ),
            "/page" => send(
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 3\r\nconnection: close\r\n\r\n<a>",
            ),
            "/large" => send("HTTP/1.1 200 OK\r\ncontent-length: 99\r\nconnection: close\r\n\r\nx"),
            "/slow" => std::thread::sleep(Duration::from_secs(30)),
            "/endless" => {
                send("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
                while stream.write_all(b"xxxx").is_ok() {}
            }
            "/drip" => {
                send("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
                while stream.write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(900));
                }
            }
            "/on" => redirect("/a"),
            "/beside" => redirect("a"),
            "/loop" => redirect("/loop"),
            "/localhost" => redirect(&format!("http://localhost:{port}/a")),
            "/metadata" => redirect("http://169.254.169.254/latest"),
            "/file" => redirect("file:///etc/passwd"),
            _ => send("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        }
    }

    #[test]
    fn what_a_server_sends_is_bounded_and_checked() {
        let address = server(answer);
        let rules = [
            address.to_string(),
            format!("*:{}", address.port()),
            "*".to_owned(),
        ];
        let rules = rules.map(|rule| rule.parse().expect("a rule"));
        let fetcher = Fetcher::new(&rules);
        let fetch = |path: &str| {
            let end = Instant::now() + Duration::from_secs(2);
            fetcher.fetch(&format!("http://{address}{path}"), 8, end)
        };
        for path in ["/a", "/on", "/beside"] {
            assert_eq!(fetch(path).expect(path), b"png", "{path}");
        }
        for (path, expected) in [
            ("/none", "status 404"),
            ("/page", "`text/html`"),
            ("/large", "more than 8 bytes"),
            ("/endless", "more than 8 bytes"),
            ("/slow", "within 2 seconds"),
            ("/drip", "within 2 seconds"),
            ("/loop", "more than 4 others"),
            ("/localhost", "`localhost` has no public address"),
            ("/metadata", "`169.254.169.254` has no public address"),
            ("/file", "none of `http` or `https`"),
        ] {
            let started = Instant::now();
            let error = fetch(path).expect_err(path).to_string();
            assert!(error.contains(expected), "{path}: {error}");
            assert!(started.elapsed() < Duration::from_secs(5), "{path}");
        }
    }

    #[test]
    fn hosts_that_are_not_allowed_are_not_asked() {
        let address = server(answer);
        let fetcher = Fetcher::new(&["example.com".parse().expect("a rule")]);
        let end = Instant::now() + Duration::from_secs(5);
        for url in [
            format!("http://{address}/a"),
            "https://example.com.evil.example/a".into(),
        ] {
            let error = fetcher.fetch(&url, 8, end).expect_err("it is refused");
            assert!(matches!(error, MediaAccessError::Host(_)), "{url}: {error}");
        }
        // With all public hosts, a private one is none of them, by its number or by a name.
        let rule = format!("*:{}", address.port()).parse().expect("a rule");
        let fetcher = Fetcher::new(&[rule]);
        for host in [
            "127.0.0.1",
            "localhost",
            "0.0.0.0",
            "[::1]",
            "2130706433",
            "0x7f.1",
        ] {
            let url = format!("http://{host}:{}/a", address.port());
            let error = fetcher.fetch(&url, 8, end).expect_err("it is refused");
            let is_private = matches!(error, MediaAccessError::Private(_));
            // Some systems do not resolve the last spellings at all.
            let is_unknown =
                matches!(error, MediaAccessError::Transport(_)) && !host.contains("localhost");
            assert!(is_private || is_unknown, "{url}: {error:?}");
        }
        for wrong in ["http:///a", "http://", "gopher://a/b", "https://a b/"] {
            let error = fetcher.fetch(wrong, 8, end).expect_err("it is refused");
            assert!(
                matches!(error, MediaAccessError::Address),
                "{wrong}: {error}"
            );
        }
    }
}
