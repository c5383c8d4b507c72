//! The endpoints, one file each.

pub(crate) mod adapters;
pub(crate) mod anthropic;
pub(crate) mod batches;
pub(crate) mod chat;
pub(crate) mod chat_request;
pub(crate) mod completions;
pub(crate) mod diagram;
pub(crate) mod embeddings;
pub(crate) mod health;
pub(crate) mod infill;
pub(crate) mod lab;
pub(crate) mod llama_server;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod ollama;
pub(crate) mod pooling;
pub(crate) mod props;
pub(crate) mod quit;
pub(crate) mod render;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod sampling;
pub(crate) mod slots;
pub(crate) mod tokens;
pub(crate) mod tool_forms;
pub(crate) mod transcriptions;
