//! The fields of requests: how bodies are read, and the parts that endpoints share.

pub(crate) mod biases;
pub(crate) mod diffusion;
pub(crate) mod fields;
pub(crate) mod forms;
pub(crate) mod generation;
pub(crate) mod input;
pub(crate) mod known;
pub(crate) mod messages;
pub(crate) mod passages;
pub(crate) mod places;
pub(crate) mod response_format;
pub(crate) mod sampling;
pub(crate) mod shapes;
pub(crate) mod tools;
