//! `bench inspect`: what a model is, what it takes and what it can do here.
//!
//! Nothing is loaded: everything follows from the header of the file, the plan, and the steps of loading
//! that take no memory. What cannot be found out is said, with the reason, and does not keep the rest from
//! being shown.

mod json;
mod text;

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::arch::Mode;
use crate::engine::serving::{self, Pooled};
use crate::files::lora::Adapter;
use crate::files::models::{self, Definitions, Opened, Source, tokenizer_of, unread_keys};
use crate::inspect::capabilities::{Capability, Subject, capabilities};
use crate::inspect::describe::{Share, describe, shares};
use crate::inspect::template_probe::Probe;
use crate::model::{DeviceUse, Estimator, MemoryUse, Options};
use crate::plan::{Capacity, Plan};
use crate::text::template::{self, ChatTemplate, Moment};
use crate::text::tokenizer::Tokenizer;
use crate::weights::{self, Metadata, TensorInfo, TensorType, Weights};

use super::options::{Defaults, LoadOptions};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The model: a file or folder; default: tiny-chat, which is built in
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show every key of the metadata and every tensor
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    load: LoadOptions,
}

/// Context lengths for which memory is worked out, with the requested one and the one of the training.
const CONTEXTS: [u64; 3] = [2048, 8192, 32768];

/// The findings about a model that is not loaded.
pub(super) struct Findings {
    label: String,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) tokenizer: Result<Tokenizer, String>,
    /// None if the model has no template.
    pub(super) template: Option<Result<Probe, String>>,
    pub(super) planned: Result<Planned, String>,
    /// Names of the chat templates, the one that is used by default first.
    templates: Vec<String>,
    /// Keys of the metadata that nothing reads.
    pub(super) unread: Vec<String>,
}

/// What follows from a plan.
pub(super) struct Planned {
    pub(super) plan: Plan,
    description: String,
    shares: Vec<Share>,
    pub(super) options: Options,
    /// Bytes of weights that are read for one token; none if no graph could be built.
    weights_read: Option<u64>,
    contexts: Vec<Context>,
    /// What it takes on each device with the set context; none where there is the CPU alone.
    pub(super) devices: Vec<DeviceUse>,
    pub(super) capabilities: Vec<Capability>,
}

/// The memory of a context of one sequence.
struct Context {
    n_ctx: u64,
    /// None if it cannot be run.
    memory: Option<MemoryUse>,
    /// Bytes of states, which [`MemoryUse::cache`] includes; none if the number overflows.
    states: Option<u64>,
    /// Bytes of keys, values and states that the last token reads, in autoregressive models.
    read: Option<u64>,
    /// Why it would be refused.
    refusal: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let found = findings(&Source::of(args.file.as_deref()), &args.load)?;
    match args.json {
        true => output::line(serde_json::to_string_pretty(&json::of(&found))?)?,
        false => output::bytes(text::of(&found, args.all).as_bytes())?,
    }
    if !args.load.model.opening.definitions()?.strict {
        return Ok(());
    }
    let planned = found.planned.as_ref();
    let planned = planned.map_err(|error| anyhow::anyhow!("{error}"))?;
    let unread = [found.unread.as_slice(), &planned.plan.unclaimed].concat();
    if !unread.is_empty() {
        let (arch, names) = (&planned.plan.arch, unread.join(", "));
        anyhow::bail!("the definition `{arch}` does not read {names}");
    }
    Ok(())
}

/// All findings that are possible.
pub(super) fn findings(source: &Source, load: &LoadOptions) -> Result<Findings, Failure> {
    // What nothing reads is shown first.
    let definitions = Definitions {
        strict: false,
        ..load.model.opening.definitions()?
    };
    let unplanned = match load.open_with(source, &definitions) {
        Ok(opened) => return of_opened(load, opened),
        Err(error) => error,
    };
    // A file of an unknown architecture, or without tensors, is worth looking at too.
    let (label, header, tokenizer) = match models::read(source, &definitions) {
        Ok(contents) => {
            let weights = &contents.weights;
            let header = (weights.metadata().clone(), weights.tensors().to_vec());
            let label = weights.label().to_owned();
            (
                label,
                header,
                contents.tokenizer().map_err(|e| e.to_string()),
            )
        }
        Err(broken) => {
            let Source::File(path) = source else {
                return Err(broken.into());
            };
            let Ok(header) = weights::gguf::header(path) else {
                return Err(broken.into());
            };
            let tokenizer = Tokenizer::from_metadata(&header.0);
            let tokenizer = tokenizer.map_err(|e| e.to_string());
            (path.display().to_string(), header, tokenizer)
        }
    };
    let why = unplanned.to_string();
    Ok(Findings::new(label, header, tokenizer, why))
}

impl Findings {
    /// Those without a plan, with the reason for that.
    fn new(
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

fn of_opened(load: &LoadOptions, mut opened: Opened) -> Result<Findings, Failure> {
    load.model.check(&opened)?;
    let defaults = Defaults {
        kv_type: TensorType::F16,
        flash_attn: true,
        max_ctx: super::serve::MAX_CTX,
        n_batch: Options::N_BATCH,
    };
    let options = load.resolve(&opened, defaults);
    let placed = load.place(&mut opened, &options);
    let tokenizer = tokenizer_of(opened.vocabulary, &opened.weights);
    let tokenizer = tokenizer.map_err(|error| error.to_string());
    let weights = &opened.weights;
    let header = (weights.metadata().clone(), weights.tensors().to_vec());
    let label = weights.label().to_owned();
    let mut found = Findings::new(label, header, tokenizer, String::new());
    found.unread = unread_keys(&opened.plan, &found.metadata);
    let weights = (weights, opened.adapters.as_slice());
    let planned = |()| planned(opened.plan, weights, options, load.ctx, &found);
    found.planned = placed.map(planned).map_err(|error| error.to_string());
    Ok(found)
}

/// What the chat template can do.
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

/// What follows from the plan; of weights that cannot be loaded, what there is to say without them.
fn planned(
    plan: Plan,
    (weights, adapters): (&Weights, &[Adapter]),
    options: Options,
    requested: Option<usize>,
    known: &Findings,
) -> Planned {
    let mut found = Planned {
        description: describe(&plan),
        shares: shares(&plan),
        plan,
        options,
        weights_read: None,
        contexts: Vec::new(),
        devices: Vec::new(),
        capabilities: Vec::new(),
    };
    let (plan, options) = (&found.plan, &found.options);
    let mut estimator = match Estimator::with(plan, weights, adapters) {
        Ok(estimator) => estimator,
        Err(error) => {
            found.capabilities.push(Capability {
                what: "loading",
                can: false,
                why: error.to_string(),
            });
            return found;
        }
    };
    let lengths = lengths(plan, requested).into_iter();
    let contexts = lengths.map(|n_ctx| context(plan, &mut estimator, options, n_ctx));
    let contexts = contexts.collect();
    let subject = Subject {
        plan,
        tokenizer: known.tokenizer.as_ref().map_err(Clone::clone),
        template: match &known.template {
            None => Err("the file has no chat template".to_owned()),
            Some(probed) => probed.as_ref().map_err(Clone::clone),
        },
        pooled: Pooled::of(plan, &known.metadata),
        options,
    };
    let capabilities = capabilities(&subject, &mut estimator);
    let weights_read = estimator.weight_bytes_read(options).ok();
    let is_placed = !plan.devices.is_empty();
    let memory = estimator.memory(options).ok().filter(|_| is_placed);
    drop(estimator);
    Planned {
        weights_read,
        contexts,
        devices: memory.map_or_else(Vec::new, |memory| memory.devices),
        capabilities,
        ..found
    }
}

/// Context lengths worth knowing about: up to that of the training, and the requested one.
fn lengths(plan: &Plan, requested: Option<usize>) -> Vec<u64> {
    let trained = plan.n_ctx_train;
    let mut lengths: Vec<u64> = CONTEXTS
        .into_iter()
        .filter(|n| trained == 0 || *n < trained)
        .chain((trained > 0).then_some(trained))
        .chain(requested.map(|n| n as u64))
        .filter(|n| *n > 0)
        .collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

fn context(plan: &Plan, estimator: &mut Estimator<'_>, options: &Options, n_ctx: u64) -> Context {
    let n = usize::try_from(n_ctx).unwrap_or(usize::MAX);
    let options = Options {
        n_ctx: n,
        n_ctx_seq: n,
        // Text diffusion reads the whole sequence in every pass.
        n_batch: match plan.diffusion {
            Some(_) => n.max(Options::N_BATCH),
            None => options.n_batch,
        },
        ..options.clone()
    };
    let memory = estimator.memory(&options);
    let refusal = estimator.check(&options).err();
    let last = n_ctx.saturating_sub(1);
    let rows = plan.cache_bytes_read(last, options.k_type, options.v_type);
    let read = rows.and_then(|rows| rows.checked_add(plan.recurrent_bytes(1)?));
    // Where texts are read as a whole no token is read by itself.
    let read = read.filter(|_| plan.mode == Mode::Causal);
    Context {
        n_ctx,
        memory: memory.ok(),
        states: plan.recurrent_bytes(2),
        read,
        refusal: refusal.map(|error| error.to_string()),
    }
}

/// Bytes of an f16 cache for one sequence, where they can be counted.
pub(super) fn cache_bytes(plan: &Plan, n_ctx: u64) -> Option<u64> {
    let room = Capacity {
        n_ctx,
        n_seqs: 1,
        n_batch: Options::N_BATCH as u64,
    };
    plan.cache_bytes(room, TensorType::F16, TensorType::F16)
}
