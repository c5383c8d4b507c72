//! The findings about a model, obtained without loading it.

use crate::engine::serving;
use crate::inspect::capabilities::Capability;
use crate::inspect::describe::Share;
use crate::inspect::template_probe::Probe;
use crate::model::{DeviceUse, MemoryUse, Options};
use crate::plan::Plan;
use crate::text::template::{self, ChatTemplate, Moment};
use crate::text::tokenizer::Tokenizer;
use crate::weights::{Metadata, TensorInfo};

/// The findings about a model, obtained without loading it.
pub(in crate::cli) struct Findings {
    pub(super) label: String,
    pub(in crate::cli) metadata: Metadata,
    pub(in crate::cli) tensors: Vec<TensorInfo>,
    pub(in crate::cli) tokenizer: Result<Tokenizer, String>,
    /// `None` if the model has no template.
    pub(in crate::cli) template: Option<Result<Probe, String>>,
    pub(in crate::cli) planned: Result<Planned, String>,
    /// Names of the chat templates, the default one first.
    pub(super) templates: Vec<String>,
    /// Metadata keys that nothing reads.
    pub(in crate::cli) unread: Vec<String>,
}

/// The findings that follow from a plan.
pub(in crate::cli) struct Planned {
    pub(in crate::cli) plan: Plan,
    pub(super) description: String,
    pub(super) shares: Vec<Share>,
    pub(in crate::cli) options: Options,
    /// Bytes of weights that are read for one token; `None` if no graph could be built.
    pub(super) weights_read: Option<u64>,
    pub(super) contexts: Vec<Context>,
    /// Memory use on each device with the configured context; empty if the CPU is the only device.
    pub(in crate::cli) devices: Vec<DeviceUse>,
    pub(in crate::cli) capabilities: Vec<Capability>,
}

/// The memory use of a context with one sequence.
pub(super) struct Context {
    pub(super) n_ctx: u64,
    /// `None` if the model cannot be run with this context.
    pub(super) memory: Option<MemoryUse>,
    /// Bytes of recurrent states, which [`MemoryUse::cache`] includes; `None` on overflow.
    pub(super) states: Option<u64>,
    /// Bytes of keys, values and states that the last token reads, in autoregressive models.
    pub(super) read: Option<u64>,
    /// The reason why this context would be refused.
    pub(super) refusal: Option<String>,
}

impl Findings {
    /// The findings of a model without a plan; `why` is the reason.
    pub(super) fn new(
        label: String,
        (metadata, tensors): (Metadata, Vec<TensorInfo>),
        tokenizer: Result<Tokenizer, String>,
        why: String,
    ) -> Self {
        Self {
            template: probe(&metadata, &tokenizer),
            templates: template::names(&metadata),
            unread: Vec::new(),
            label,
            metadata,
            tensors,
            tokenizer,
            planned: Err(why),
        }
    }
}

/// Probes the features of the chat template.
fn probe(
    metadata: &Metadata,
    tokenizer: &Result<Tokenizer, String>,
) -> Option<Result<Probe, String>> {
    let source = template::choose(metadata, None, false).ok().flatten()?;
    let name = |id: Option<u32>| {
        let tokenizer = tokenizer.as_ref().ok()?;
        Some(tokenizer.token_text(id?)?.into_owned())
    };
    let named = |role: fn(&Tokenizer) -> Option<u32>| {
        name(tokenizer.as_ref().ok().and_then(role)).unwrap_or_default()
    };
    let (bos, eos) = (named(Tokenizer::bos), named(Tokenizer::eos));
    let now = Moment::from_unix_seconds(serving::now() as i64);
    let template = ChatTemplate::new(source).map_err(|error| error.to_string());
    Some(template.map(|template| Probe::new(&template, &bos, &eos, now)))
}
