//! An LLM inference server and lab bench: a model architecture is a TOML file, never code.
//!
//! Data flows down this list, and imports never point back up:
//!
//! - `wording`: numbers and lists as people write them
//! - [`parallel`]: work in pieces on all cores
//! - [`weights`]: a file on disk as metadata and named tensors, whatever the format
//! - [`arch`]: TOML text to a checked definition
//! - [`stmap`]: a folder of safetensors as a file with the names and shapes of a definition
//! - [`plan`]: definition and metadata to a [`plan::Plan`], which is executed, drawn and measured
//! - [`ggml`]: safe handles over the tensor library
//! - [`blocks`]: the maths, one file per block
//! - [`text`]: tokens to text and back
//! - [`retype`]: weights in other element types
//! - [`strangers`]: what is at a path that holds no model
//! - [`lora`]: adapters, which update some weights of a model
//! - [`models`]: finding and opening models
//! - [`synth`]: a random model of any architecture
//! - [`convert`]: models into files of other formats and types
//! - [`describe`]: a model in words
//! - [`model`]: a plan with its weights on devices, and the forward pass
//! - [`diagram`]: a model as pictures, drawn from what runs
//! - [`compare`]: where two computations part
//! - [`measure`]: what repeated measurements say, and what the machine can do
//! - [`sampling`]: logits to token, a chain of small stages
//! - [`constraint`]: what an answer must look like, as masks over the vocabulary
//! - [`engine`]: requests to tokens: sequences, scheduler, the thread that owns the model
//! - [`serving`]: a model ready to answer
//! - [`api`]: HTTP, in the shapes of OpenAI's API
//! - [`abilities`]: what a model can do here
//! - [`cli`]: the command line

pub mod abilities;
pub mod api;
pub mod arch;
pub mod blocks;
pub mod cli;
pub mod compare;
pub mod constraint;
pub mod convert;
pub mod describe;
pub mod diagram;
pub mod engine;
#[expect(unsafe_code, reason = "the safe layer over ggml")]
pub mod ggml;
pub mod lora;
pub mod measure;
pub mod model;
pub mod models;
pub mod parallel;
pub mod plan;
pub mod retype;
pub mod sampling;
pub mod serving;
pub mod stmap;
pub mod strangers;
pub mod synth;
pub mod text;
pub mod weights;
mod wording;
