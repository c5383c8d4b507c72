//! The command line: options as types, one file per command. No other module uses clap.
//!
//! Results go to stdout; messages go to the log, by default stderr. Names and formats are fixed, because scripts rely
//! on them.

mod arch;
mod batch;
mod chat;
mod command_line;
mod compare;
mod config;
mod constraint;
mod context;
mod convert;
mod devices;
mod diagram;
mod diffusion;
mod dispatch;
mod doctor;
mod engine;
mod engine_process;
mod evaluate;
mod help;
mod hub;
mod input_file;
mod inspect;
mod kv_events;
mod lab;
mod launch;
mod log;
mod logits;
mod media_files;
mod media_prompt;
mod options;
mod other_programs;
mod output;
mod perf;
mod placement;
mod plan;
mod points;
mod quantise;
mod run;
mod sampling;
mod sequences;
mod serve;
mod service_manager;
#[cfg(feature = "otel")]
mod spans;
mod synth;
mod template;
mod text_windows;
mod tokenize;
mod values;
mod version;

pub use command_line::Cli;
pub use dispatch::{parse, run};
pub use output::{Failure, exit_code, is_closed_pipe};
