//! Models over HTTP, in the shapes of OpenAI's API and of others.
//!
//! - [`http`]: connections, and what every request passes on its way
//! - `request`: the fields of requests
//! - `response`: what answers share
//! - `endpoints`: one file each
//! - `pool`: the models of a server, and which of them are loaded
//! - `process`: engine processes, and the requests that are forwarded to them
//! - `page`: the chat page
//! - `local`: a chat request without HTTP, for `bench chat`

mod endpoints;
pub mod http;
mod local;
mod page;
mod pool;
mod process;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use endpoints::diagram::DiagramView;
pub use endpoints::lab::{LabRequest, Painter, patched as lab_patch, pieces as lab_pieces};
pub use http::access::Access;
pub use http::app::app;
pub use local::{Refusal, Reply, ReplyEvent, check, prompt, refusal, reply};
pub use pool::{
    Describer, Description, Drawer, Finder, LoadError, LoadLimits, LoadRequest, Loader, Pool,
    StartedEngine, Strictness,
};
pub use process::{
    EXIT_MODEL_CHANGED, EXIT_WORKER_LOST, EngineProcess, EngineProcessConfig, LineCallback,
    LoadReport,
};
pub use response::completion_parser::CompletionDelta;
