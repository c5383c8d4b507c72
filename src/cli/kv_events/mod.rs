//! The options by which routers are told which KV blocks a server has cached. Not here: what they are told (`lab_core`), its bytes
//! (`wire.rs`), and the sockets (`publisher.rs`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use clap::Args;

#[cfg(feature = "kv-events")]
mod publisher;
#[cfg(feature = "kv-events")]
mod wire;

#[cfg(feature = "kv-events")]
pub(super) use publisher::{end, start};

/// What a ZeroMQ socket does with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Endpoint {
    Listen(SocketAddr),
    /// `HOST:PORT`.
    Connect(String),
}

impl FromStr for Endpoint {
    type Err = String;

    /// Parses `tcp://*:PORT`, `@tcp://ADDRESS:PORT` or `tcp://HOST:PORT`.
    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || {
            format!("expected tcp://*:PORT, @tcp://ADDRESS:PORT or tcp://HOST:PORT, found `{text}`")
        };
        let (listens, rest) = match text.strip_prefix('@') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let rest = rest.strip_prefix("tcp://").ok_or_else(fault)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(fault)?;
        let port: u16 = port.parse().map_err(|_| fault())?;
        let in_brackets = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let address = match in_brackets.unwrap_or(host) {
            "*" => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            host => host.parse().ok(),
        };
        match address {
            Some(address) if listens || address.is_unspecified() => {
                Ok(Self::Listen((address, port).into()))
            }
            None if listens || host.is_empty() || host.contains(['/', '[', ']', ':']) => {
                Err(fault())
            }
            _ if port == 0 => Err(fault()),
            _ => Ok(Self::Connect(rest.to_owned())),
        }
    }
}

/// Who is told of the prefix cache.
#[derive(Debug, Args)]
pub(super) struct KvEventOptions {
    /// Where events of the prefix cache go, in vLLM's format, for routers: `tcp://*:PORT` listens for subscribers on all
    /// addresses, `@tcp://ADDRESS:PORT` on one, and `tcp://HOST:PORT` connects to a subscriber that listens; the events contain
    /// prompts; needs a program with the feature `kv-events`; default: nowhere
    #[arg(long, value_name = "ENDPOINT")]
    kv_events: Option<Endpoint>,
    /// Address to listen on for subscribers that ask for events which they missed: `tcp://*:PORT` or `@tcp://ADDRESS:PORT`
    #[arg(long, value_name = "ENDPOINT", requires = "kv_events")]
    kv_events_replay: Option<Endpoint>,
    /// Topic of the events, by which subscribers choose and routers know the server, such as `kv@ADDRESS@MODEL`; default: an empty one
    #[arg(long, value_name = "TOPIC", requires = "kv_events")]
    kv_events_topic: Option<String>,
}

impl KvEventOptions {
    pub(super) fn is_set(&self) -> bool {
        self.kv_events.is_some()
    }

    /// Refuses what no model could be started with. `is_collection`: several models have these options.
    pub(super) fn check(&self, is_collection: bool) -> Result<(), String> {
        if let Some(Endpoint::Connect(host)) = &self.kv_events_replay {
            return Err(format!(
                "--kv-events-replay: expected an address to listen on, such as @tcp://127.0.0.1:5558, found `tcp://{host}`"
            ));
        }
        if self.is_set() && cfg!(not(feature = "kv-events")) {
            return Err(
                "--kv-events: this program was built without the feature `kv-events` (cargo build --release --features kv-events)"
                    .into(),
            );
        }
        let listens = matches!(self.kv_events, Some(Endpoint::Listen(_)));
        if is_collection && (listens || self.kv_events_replay.is_some()) {
            return Err(
                "--kv-events: each of several models has sockets of its own, which cannot listen on one address: \
                 expected tcp://HOST:PORT of a subscriber that listens, or kv_events in tables [per_model.NAME]"
                    .into(),
            );
        }
        Ok(())
    }
}

/// The stub for programs without the sockets. [`KvEventOptions::check`] has refused the option.
#[cfg(not(feature = "kv-events"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature it may fail")]
pub(super) fn start(
    _: &KvEventOptions,
) -> Result<Option<lab_core::engine::KvEventSender>, super::Failure> {
    Ok(None)
}

#[cfg(not(feature = "kv-events"))]
pub(super) fn end() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_listens_or_connects_as_in_vllm() {
        let listen = |text: &str| Ok(Endpoint::Listen(text.parse().expect("an address")));
        let connect = |text: &str| Ok(Endpoint::Connect(text.to_owned()));
        for (text, expected) in [
            ("tcp://*:5557", listen("0.0.0.0:5557")),
            ("tcp://0.0.0.0:5557", listen("0.0.0.0:5557")),
            ("tcp://[::]:5557", listen("[::]:5557")),
            ("@tcp://127.0.0.1:0", listen("127.0.0.1:0")),
            ("@tcp://[::1]:5557", listen("[::1]:5557")),
            ("tcp://127.0.0.1:5557", connect("127.0.0.1:5557")),
            ("tcp://[::1]:5557", connect("[::1]:5557")),
            ("tcp://router.llm-d:5557", connect("router.llm-d:5557")),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
        for text in [
            "*:5557",
            "ipc:///tmp/socket",
            "tcp://*",
            "tcp://*:65536",
            "tcp://:5557",
            "tcp://host:0",
            "tcp://a/b:1",
            "@tcp://router:5557",
            "@@tcp://127.0.0.1:1",
        ] {
            let error = text.parse::<Endpoint>().expect_err(text);
            assert!(
                error.contains("expected tcp://") && error.contains(text),
                "{error}"
            );
        }
    }
}
