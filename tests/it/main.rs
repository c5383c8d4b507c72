//! Tests through the public interface and the program itself, in one binary.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "tests"
)]

mod artifacts;
mod attribution;
mod backends;
mod bad_definitions;
mod bad_folders;
mod behaviours;
mod chat;
mod clients;
mod collect;
mod completions;
mod config;
mod constraints;
mod contact;
mod convert;
mod describe;
mod devices;
mod diagram_compare;
mod diagram_execution;
mod diagram_html;
mod diagram_overlay;
mod diagrams;
mod diffusion;
mod drift;
mod embeddings;
mod faults;
mod fields;
mod folders;
mod golden_templates;
mod golden_tokenizers;
mod golden_zoo;
mod goldens;
mod growth;
mod habits;
mod hf;
mod hostile_neighbours;
mod hostile_requests;
mod hostile_workers;
mod inputs;
mod inspect;
mod kept;
mod keys;
mod lab;
mod lenient;
mod load;
mod loading;
mod lora;
mod lora_origin;
mod lost_workers;
mod metadata;
mod model_routes;
mod models_page;
mod mutated_folders;
mod mutated_models;
mod named_models;
mod native;
mod outputs;
mod page;
mod patching;
mod peers;
mod perf;
mod pictures;
mod placement;
mod porting;
#[cfg(target_os = "linux")]
mod process;
mod program;
mod programs;
mod published;
mod published_keys;
mod quantised;
mod referee;
mod reference;
mod replayed;
mod runs;
mod schema;
mod search;
mod server;
mod serving;
mod shapes;
mod shared;
mod shown;
mod source;
mod structure;
mod support;
mod terminal;
mod text_diffusion;
mod text_parts;
mod tidy;
mod tools;
mod vectors;
