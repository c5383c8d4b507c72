//! HTTP: connections, access, bodies, errors, and the log of requests. Knows no route's fields.

pub(crate) mod access;
pub(crate) mod api_keys;
pub(crate) mod body;
pub(crate) mod client;
pub(crate) mod context;
pub(crate) mod error;
pub(crate) mod error_format;
pub(crate) mod file_body;
pub(crate) mod form;
pub(crate) mod framing;
pub(crate) mod json;
pub(crate) mod local_client;
pub(crate) mod proxies;
pub(crate) mod quoted;
pub(crate) mod random;
pub(crate) mod request_counts;
pub(crate) mod trace_parent;
pub mod transport;
