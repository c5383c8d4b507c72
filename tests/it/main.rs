//! Integration tests: one binary, one module per subject.

mod golden_templates;
