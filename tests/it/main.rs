//! Tests through the public interface, in one binary.
#![allow(clippy::unwrap_used, clippy::print_stdout, unreachable_pub, missing_docs, reason = "tests")]

mod golden_templates;
mod golden_tokenizers;
mod goldens;
mod support;
mod zoo;
