//! The integration tests, in one binary.

mod golden_tokenizers;
