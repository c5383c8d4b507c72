//! HTTP: connections, what every request passes on its way, bodies, errors, and the list of routes.

pub(crate) mod access;
pub(crate) mod app;
pub(crate) mod body;
pub(crate) mod context;
pub(crate) mod error;
pub(crate) mod error_format;
pub(crate) mod framing;
pub(crate) mod json;
pub(crate) mod openapi;
pub(crate) mod routes;
pub mod transport;
