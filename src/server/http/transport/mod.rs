//! HTTP connections: those of clients, and those between the server and engine processes.
//!
//! Knows no route and no model: a router answers each request, and answers are bodies. What is public takes and returns
//! concrete types, so that the code of a connection is compiled here, at this package's level of optimisation. Called
//! by the server and by the command line.

mod address;
mod events;
mod exchange;
mod guarded_body;
mod listener;
mod runtime;
mod socket;
mod stream;
mod tls;

pub use address::{ListenAddress, Listener};
pub use events::{FailureEvent, SseEvents, StreamFraming, event_stream, relay};
pub(crate) use events::{event_response, is_event_stream};
pub use exchange::{AnswerBody, ConnectionPool, PooledConnection, send};
pub(crate) use guarded_body::{BodyGuard, guarded};
pub use listener::{ConnectionTimeouts, serve};
pub use runtime::{MAX_BODY_BYTES, runtime};
pub use socket::serve_socket;
pub use tls::TlsFiles;
