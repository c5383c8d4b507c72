//! What the server keeps for later requests, each in bounds and for the client that it belongs to: responses, files,
//! batches.

pub(crate) mod batch_store;
pub(crate) mod file_store;
pub(crate) mod response_store;
