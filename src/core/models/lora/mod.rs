//! LoRA adapters: low-rank updates of some weights of a model, read from a GGUF file or a PEFT folder.
//!
//! An [`Adapter`] has two small matrices for each weight that it updates, with the names and the layout of llama.cpp's
//! adapter files, for all sources: `lora_a [n_in, rank]` and `lora_b [rank, n_out]`, with a third dimension where the
//! weight has one for each expert or head; for a table `lora_a [rank, n_rows]` and `lora_b [rank, width]`. Reading
//! checks an adapter against the plan of its model; the weights of the model are neither read nor changed. Adapters are
//! read when a model is opened.
//!
//! Invariant: an unsupported feature of an adapter is refused by name, never ignored.

mod adapter;
mod error;
mod pairs;
mod peft;
mod source;

pub use adapter::Adapter;
pub use error::Error;
pub use pairs::LoraPair;
pub use peft::AdaptedModel;
pub use source::AdapterSource;
