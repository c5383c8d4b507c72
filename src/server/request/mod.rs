//! The fields of requests: how bodies are read, and the parts that endpoints share.

pub(crate) mod adapter_scales;
pub(crate) mod diffusion;
mod drafts;
pub(crate) mod fields;
pub(crate) mod generation;
pub(crate) mod input;
pub(crate) mod json_access;
pub(crate) mod lab;
pub(crate) mod logit_bias;
pub(crate) mod media;
pub(crate) mod messages;
pub(crate) mod object_fields;
pub(crate) mod page_query;
pub(crate) mod parts;
pub(crate) mod passages;
pub(crate) mod response_format;
pub(crate) mod sampling;
pub(crate) mod tools;
pub(crate) mod unsupported_fields;
