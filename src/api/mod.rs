//! HTTP in the shapes of OpenAI's API: one endpoint per file, one error table.
//!
//! The only module that knows HTTP and its JSON. Handlers extract, validate, submit to the engine and write its events;
//! every refusal goes through `error`. Shared by the endpoints: `fields`, `known` and `shapes` (bodies), `messages` and
//! `dialogue` (conversations), `generation` and `sampling` (parameters), `answers` and `envelope` (responses, streamed
//! or not), `parts` (their reasoning and calls), `logprobs`, `places` (values within a body). Around them, in the order
//! of `assembly`: `access` (access control), `intake` (bodies, threads), `forward` (requests to engine processes, which
//! `process` starts and ends), `record` (the log). Connections are in `transport`. Called by `bench serve` and by tests,
//! which use the same [`app`]. `local` answers a chat request without HTTP, for `bench chat`.

mod access;
mod adapters;
mod answers;
mod anthropic;
mod assembly;
mod biases;
mod chat;
mod completions;
mod diagram;
mod dialect;
mod dialogue;
mod diffusion;
mod embeddings;
mod envelope;
mod error;
mod fields;
mod forward;
mod framing;
mod generation;
mod health;
mod infill;
mod input;
mod intake;
mod json;
mod kept;
mod known;
mod lab;
mod local;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod native;
mod openapi;
mod page;
mod parts;
mod passages;
mod places;
mod pool;
mod pooled;
mod pooling;
mod process;
mod props;
mod quit;
mod reading;
mod record;
mod rerank;
mod response_format;
mod responses;
mod routes;
mod sampling;
mod settings;
mod shapes;
#[cfg(test)]
mod tests;
mod tokens;
mod tools;

pub use access::Access;
pub use assembly::{app, refusal};
pub use diagram::View;
pub use lab::{
    Array as LabArray, Painter, Picture as LabPicture, Wanted as LabRequest, patched as lab_patch,
    pieces as lab_pieces,
};
pub use local::{Refusal, Reply, ReplyEvent, check, prompt, reply};
pub use parts::Piece;
pub use pool::{
    Describer, Description, Drawer, Finder, LoadFault, Loader, Pool, Residency, Started,
    Strictness, Wanted,
};
pub use process::{CHANGED, LOST, Launch, OnLine, Process, Report};

use crate::transport::MAX_BODY_BYTES;
