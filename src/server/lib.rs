//! Models over HTTP, in the shapes of OpenAI's API and of others.
//!
//! Each of these imports only those above it:
//!
//! - `media_access`: media that requests name by an address or a path
//! - `rate_limits`: how much a client may ask for in a minute
//! - [`served`]: a model as clients see it
//! - [`http`]: connections, access, bodies and errors
//! - `page`: the chat page
//! - `storage`: responses, files and batches that are kept for later requests
//! - `request`: the fields of requests
//! - `response`: what responses share
//! - `process`: engine processes, and the requests that are forwarded to them
//! - `pool`: the models of a server, and which of them are loaded
//! - `endpoints`: one file each
//! - `app`: the router, and what every request passes on its way to its endpoint
//! - `local`: a chat request without HTTP, for `bench chat`

mod app;
mod endpoints;
pub mod http;
mod local;
mod media_access;
mod page;
mod pool;
mod process;
mod rate_limits;
mod request;
mod response;
pub mod served;
mod storage;
#[cfg(test)]
mod tests;

pub use app::{app, local_client};
pub use endpoints::batches::lines::{BatchRequest, BatchResult, checked_lines};
pub use endpoints::lab::{patched as lab_patch, pieces as lab_pieces};
pub use http::access::Access;
pub use http::api_keys::ApiKeys;
pub use http::local_client::LocalClient;
pub use http::proxies::TrustedProxy;
pub use local::{Refusal, RenderedPrompt, Reply, ReplyEvent, check, prompt, refusal, reply};
pub use media_access::{AllowedHost, MediaAccess};
pub use page::policy::{PageOrigin, PagePolicy};
pub use pool::{
    Collection, Description, DiagramView, HostMode, LoadLimits, LoadRequest, Loader, NamedAdapter,
    Opener, Pool, PoolConfig, StartedEngine, Strictness, UnloadedModel, cached_source,
};
pub use process::{
    EXIT_MODEL_CHANGED, EXIT_WORKER_LOST, EngineProcess, EngineProcessConfig, LineCallback,
    LoadError, LoadReport,
};
pub use request::lab::LabRequest;
pub use response::completion_parser::CompletionDelta;
pub use storage::batch_store::BatchStore;
pub use storage::file_store::FileStore;
