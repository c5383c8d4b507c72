//! Proxies in front of the server, and what they say about the clients for which they ask.
//!
//! Anyone can send `X-Forwarded-*`, so these headers count only where a trusted proxy sends them. Nobody is trusted by default, not even
//! programs of this machine: a visitor's own program would choose its address.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// By which address the server tells an engine process where a request comes from.
pub(crate) const ADDRESS_HEADER: HeaderName = HeaderName::from_static("x-bench-address");

/// Who opened the connection of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Address(IpAddr),
    /// A program that may open a socket in the file system.
    Unix,
}

/// The peers whose `X-Forwarded-*` headers count: a network such as 10.0.0.0/8, an address, or `unix` for sockets in the file
/// system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustedProxy {
    /// The addresses whose first bits are those of this one.
    Network(IpAddr, u32),
    /// All that connect to a socket in the file system.
    Unix,
}

impl FromStr for TrustedProxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unix" {
            return Ok(Self::Unix);
        }
        let expected = || "expected an address, a network such as 10.0.0.0/8, or unix".to_owned();
        let (address, n_bits) = match text.split_once('/') {
            Some((address, n_bits)) => (address, Some(n_bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| expected())?;
        let most = n_most(address);
        let n_bits = match n_bits {
            None => most,
            Some(text) => text.parse().map_err(|_| expected())?,
        };
        if n_bits > most {
            return Err(format!("/{n_bits}, expected at most /{most}"));
        }
        if address != first_of(address, n_bits) {
            let first = first_of(address, n_bits);
            return Err(format!(
                "`{address}` is not the first address of its network, {first}/{n_bits}"
            ));
        }
        Ok(Self::Network(address, n_bits))
    }
}

impl fmt::Display for TrustedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address, n_bits) => write!(f, "{address}/{n_bits}"),
            Self::Unix => f.write_str("unix"),
        }
    }
}

impl TrustedProxy {
    fn is(&self, peer: Peer) -> bool {
        match (self, peer) {
            (Self::Unix, Peer::Unix) => true,
            (Self::Network(own, n_bits), Peer::Address(address)) => {
                let address = address.to_canonical();
                own.is_ipv4() == address.is_ipv4() && first_of(address, *n_bits) == *own
            }
            _ => false,
        }
    }
}

/// Bits of an address.
fn n_most(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The first address of the network of an address, whose first `n_bits` bits they share.
fn first_of(address: IpAddr, n_bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - n_bits).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - n_bits).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

/// What stands for a client without an API key in the queue: its address. A client of IPv6 has a network of 64 bits for itself, so
/// that is what counts. No API key has such a name.
pub(crate) fn queue_name(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => format!("@{address}"),
        address @ IpAddr::V6(_) => format!("@{}", first_of(address, 64)),
    }
}

/// Where a request comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestSource {
    /// The address of the client; none for a program that connected to a socket in the file system.
    pub(crate) address: Option<IpAddr>,
    /// Whether a trusted proxy sent the request.
    is_proxied: bool,
}

impl RequestSource {
    /// The client of a request: the peer, or for a trusted proxy the last address of `X-Forwarded-For` that is not one's own proxy.
    pub(crate) fn of(proxies: &[TrustedProxy], peer: Option<Peer>, headers: &HeaderMap) -> Self {
        let trusts = |peer| proxies.iter().any(|proxy| proxy.is(peer));
        let mut address = match peer {
            Some(Peer::Address(address)) => Some(address.to_canonical()),
            Some(Peer::Unix) | None => None,
        };
        let is_proxied = peer.is_some_and(trusts);
        if is_proxied {
            let lines = headers.get_all("x-forwarded-for").iter().rev();
            let texts = lines.filter_map(|line| line.to_str().ok());
            for text in texts.flat_map(|text| text.rsplit(',')) {
                // What stands before something else than an address may be anything.
                let Some(found) = address_in(text.trim()) else {
                    break;
                };
                address = Some(found);
                if !trusts(Peer::Address(found)) {
                    break;
                }
            }
        }
        Self {
            address,
            is_proxied,
        }
    }

    /// A header of the proxy; none if it is not trusted. Of several values, the proxy next to the server added the last.
    fn said<'h>(&self, headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
        if !self.is_proxied {
            return None;
        }
        let text = headers.get_all(name).iter().next_back()?.to_str().ok()?;
        let last = text.rsplit(',').next().map(str::trim);
        last.filter(|text| !text.is_empty())
    }

    /// The host that the client asked for, where a trusted proxy says so.
    pub(crate) fn host<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        self.said(headers, "x-forwarded-host")
    }

    /// The scheme by which the client asked, where a trusted proxy says so.
    pub(crate) fn scheme<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let scheme = self.said(headers, "x-forwarded-proto")?;
        Some(scheme).filter(|scheme| ["http", "https"].contains(scheme))
    }

    /// The path below which the proxy serves this server, where a trusted proxy says so: `/a/b`, without a slash at its end.
    pub(crate) fn prefix<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let prefix = self.said(headers, "x-forwarded-prefix")?;
        let prefix = prefix.trim_end_matches('/');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-._~%".contains(c);
        let is_path = prefix.starts_with('/') && !prefix.starts_with("//");
        Some(prefix).filter(|prefix| is_path && prefix.chars().all(is_plain))
    }

    /// The address for an engine process.
    pub(crate) fn header(address: IpAddr) -> Option<HeaderValue> {
        HeaderValue::try_from(address.to_string()).ok()
    }

    pub(crate) fn of_header(value: &HeaderValue) -> Option<IpAddr> {
        value.to_str().ok()?.parse().ok()
    }
}

/// An address as proxies write it: with or without a port, that of IPv6 then in brackets.
fn address_in(text: &str) -> Option<IpAddr> {
    let bare = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => text,
    };
    let address: Option<IpAddr> = bare.parse().ok();
    let address = address.or_else(|| {
        let socket: std::net::SocketAddr = text.parse().ok()?;
        Some(socket.ip())
    });
    let address = address?.to_canonical();
    // Nobody asks from there.
    let is_one = !address.is_unspecified() && address != IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    is_one.then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(
        proxies: &[&str],
        peer: Peer,
        pairs: &[(&'static str, &str)],
    ) -> (RequestSource, HeaderMap) {
        let proxies = proxies.iter().map(|text| text.parse().expect(text));
        let proxies: Vec<TrustedProxy> = proxies.collect();
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().expect("a value"));
        }
        (RequestSource::of(&proxies, Some(peer), &headers), headers)
    }

    fn client(proxies: &[&str], peer: &str, forwarded: &[&str]) -> String {
        let peer = Peer::Address(peer.parse().expect(peer));
        let pairs: Vec<_> = forwarded.iter().map(|f| ("x-forwarded-for", *f)).collect();
        let (found, _) = source(proxies, peer, &pairs);
        found.address.expect("an address").to_string()
    }

    #[test]
    fn networks_are_addresses_with_a_number_of_bits() {
        let of = |text: &str| text.parse::<TrustedProxy>();
        for good in "10.0.0.0/8 127.0.0.1 0.0.0.0/0 ::1 fd00::/8 ::/0 unix".split(' ') {
            assert!(of(good).is_ok(), "{good}");
        }
        for bad in
            "10.0.0.1/8 10.0.0.0/33 fd00::/129 10.0.0.0/ /8 a 10.0.0/8 10.0.0.0/-1 Unix".split(' ')
        {
            assert!(of(bad).is_err(), "{bad}");
        }
        let is = |network: &str, address: &str| {
            let peer = Peer::Address(address.parse().expect(address));
            of(network).expect(network).is(peer)
        };
        assert!(is("10.0.0.0/8", "10.255.0.1") && !is("10.0.0.0/8", "11.0.0.1"));
        assert!(is("10.0.0.0/8", "::ffff:10.1.2.3") && !is("0.0.0.0/0", "::1"));
        assert!(is("0.0.0.0/0", "1.2.3.4") && is("::/0", "2001:db8::1"));
        assert!(is("127.0.0.1", "127.0.0.1") && !is("127.0.0.1", "127.0.0.2"));
        assert!(is("fd00::/8", "fdff::1") && !is("fd00::/8", "fe00::1"));
        assert!(of("unix").expect("a word").is(Peer::Unix) && !is("unix", "127.0.0.1"));
    }

    #[test]
    fn only_a_trusted_proxy_says_who_asks() {
        // Nobody is trusted unless an option says so, not even this machine.
        assert_eq!(client(&[], "127.0.0.1", &["1.2.3.4"]), "127.0.0.1");
        assert_eq!(
            client(&["10.0.0.0/8"], "127.0.0.1", &["1.2.3.4"]),
            "127.0.0.1"
        );
        assert_eq!(client(&["127.0.0.1"], "127.0.0.1", &["1.2.3.4"]), "1.2.3.4");
        let (unix, _) = source(
            &["127.0.0.1"],
            Peer::Unix,
            &[("x-forwarded-for", "1.2.3.4")],
        );
        assert_eq!(unix, RequestSource::default());
        let (unix, _) = source(&["unix"], Peer::Unix, &[("x-forwarded-for", "1.2.3.4")]);
        assert_eq!(
            unix.address.map(|a| a.to_string()).as_deref(),
            Some("1.2.3.4")
        );
    }

    #[test]
    fn what_a_client_writes_before_the_proxies_does_not_count() {
        let own = &["127.0.0.1", "10.0.0.0/8"];
        for (forwarded, expected) in [
            // The client says that it is another one; the proxy adds its address.
            (&["9.9.9.9, 1.2.3.4"][..], "1.2.3.4"),
            (&["9.9.9.9", "1.2.3.4"], "1.2.3.4"),
            (&["9.9.9.9, 1.2.3.4, 10.1.1.1"], "1.2.3.4"),
            (&["1.2.3.4, 10.1.1.1", "10.1.1.2"], "1.2.3.4"),
            (&["10.1.1.1"], "10.1.1.1"),
            (&["9.9.9.9, evil, 10.1.1.1"], "10.1.1.1"),
            (&["evil"], "127.0.0.1"),
            (&[""], "127.0.0.1"),
            (&[], "127.0.0.1"),
            (&["1.2.3.4:5678"], "1.2.3.4"),
            (&["[2001:db8::1]:5678"], "2001:db8::1"),
            (&["2001:db8::1"], "2001:db8::1"),
            (&["::ffff:1.2.3.4"], "1.2.3.4"),
            (&["0.0.0.0"], "127.0.0.1"),
        ] {
            assert_eq!(
                client(own, "127.0.0.1", forwarded),
                expected,
                "{forwarded:?}"
            );
        }
        // As many as a head can hold.
        let long = vec!["10.1.1.1"; 10_000].join(",");
        assert_eq!(client(own, "127.0.0.1", &[&long]), "10.1.1.1");
    }

    #[test]
    fn hosts_schemes_and_paths_are_those_of_a_trusted_proxy() {
        let pairs = [
            ("x-forwarded-host", "evil.example, chat.example"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-prefix", "/llm/"),
        ];
        let peer = Peer::Address("127.0.0.1".parse().expect("an address"));
        let (trusted, headers) = source(&["127.0.0.1"], peer, &pairs);
        assert_eq!(trusted.host(&headers), Some("chat.example"));
        assert_eq!(trusted.scheme(&headers), Some("https"));
        assert_eq!(trusted.prefix(&headers), Some("/llm"));
        let (other, headers) = source(&[], peer, &pairs);
        assert_eq!(other.host(&headers), None);
        assert_eq!(other.scheme(&headers), None);
        assert_eq!(other.prefix(&headers), None);
        for bad in [
            "//evil.example",
            "llm",
            "/a b",
            "/\"",
            "https://evil.example/",
        ] {
            let (trusted, headers) = source(
                &["127.0.0.1"],
                peer,
                &[("x-forwarded-prefix", bad), ("x-forwarded-proto", bad)],
            );
            assert_eq!(
                (trusted.prefix(&headers), trusted.scheme(&headers)),
                (None, None),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_client_of_ipv6_has_one_place_in_the_queue() {
        let of = |text: &str| queue_name(text.parse().expect(text));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:1.2.3.4"), of("1.2.3.4"));
        assert_ne!(of("1.2.3.4"), of("1.2.3.5"));
    }
}
