//! Tests through the public interface and the program itself, in one binary.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "tests"
)]

mod advisories;
mod api_keys;
mod artifacts;
mod attribution;
mod backends;
mod bad_definitions;
mod bad_folders;
mod batches;
mod behaviours;
mod chat;
mod clients;
mod collect;
mod completions;
mod config;
mod constraints;
mod contact;
mod convert;
mod deploy;
mod describe;
mod devices;
mod diagram_compare;
mod diagram_execution;
mod diagram_html;
mod diagram_overlay;
mod diagrams;
mod diffusion;
mod drafter_folders;
mod drafters;
mod drift;
mod embeddings;
mod faults;
mod fields;
mod folders;
mod fused;
mod golden_templates;
mod golden_tokenizers;
mod golden_zoo;
mod goldens;
mod growth;
mod habits;
mod head_folders;
mod heads;
mod hf;
mod hostile_neighbours;
mod hostile_requests;
mod hostile_workers;
mod inputs;
mod inspect;
mod kept;
mod keys;
#[cfg(feature = "kv-events")]
mod kv_events;
mod lab;
mod lenient;
#[cfg(unix)]
mod listening;
mod load;
mod loading;
mod lora;
mod lora_origin;
mod lost_workers;
mod media_goldens;
mod media_lab;
mod media_requests;
mod metadata;
mod mixes;
mod model_routes;
mod models_page;
mod mutated_folders;
mod mutated_models;
mod named_models;
mod native;
mod observability;
mod ollama;
mod outputs;
mod packages;
mod page;
mod patching;
mod peers;
mod perf;
mod pictures;
mod placement;
mod porting;
mod prepared_passes;
#[cfg(target_os = "linux")]
mod process;
mod program;
mod programs;
mod published;
mod published_keys;
mod quantised;
mod readiness;
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
mod sounds;
mod source;
#[cfg(feature = "otel")]
mod spans;
mod stored_prefixes;
mod stored_responses;
mod structure;
mod support;
mod terminal;
mod text_diffusion;
mod text_drafters;
mod text_parts;
mod tidy;
mod tools;
mod trained_drafter;
mod transcripts;
mod vectors;
