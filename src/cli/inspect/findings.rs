//! The findings about a model, obtained without loading it: all that are possible, even if it cannot be planned.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Failure;
use super::super::options::LoadOptions;
use super::super::sequences::ParallelOption;
use lab_base::chat::template::{self, ChatTemplate, Moment};
use lab_base::tokenizer::{self, Tokenizer};
use lab_base::util::clock::unix_seconds;
use lab_base::weights::{self, Metadata, TensorInfo, TensorType, Weights};
use lab_core::arch::Mode;
use lab_core::engine::PooledOutput;
use lab_core::model::{DeviceUse, Estimator, MemoryUse, Options, TowerUse, drafter_memory};
use lab_core::models;
use lab_core::models::drafters::OpenedDrafter;
use lab_core::models::lora::Adapter;
use lab_core::models::{Definitions, ModelSource, OpenedModel, tokenizer_of, unread_keys};
use lab_core::plan::{CacheCapacity, Plan, SlotLayout};
use lab_inspect::capabilities::{Capability, CapabilityInput, capabilities};
use lab_inspect::describe::{WeightShare, describe, weight_shares};
use lab_inspect::drafter::DrafterReport;
use lab_inspect::template_probe::TemplateProbe;
use lab_inspect::towers::{TowerReport, towers};

/// Context lengths for which memory is computed, besides the requested one and that of the training.
pub(super) const CONTEXTS: [u64; 3] = [2048, 8192, 32768];

/// The findings about a model, obtained without loading it.
pub(in crate::cli) struct Findings {
    pub(super) label: String,
    pub(in crate::cli) metadata: Metadata,
    pub(in crate::cli) tensors: Vec<TensorInfo>,
    pub(in crate::cli) tokenizer: Result<Tokenizer, String>,
    /// `None` if the model has no template.
    pub(in crate::cli) template: Option<Result<TemplateProbe, String>>,
    pub(in crate::cli) planned: Result<PlanFindings, String>,
    /// Names of the chat templates, the default one first.
    pub(super) templates: Vec<String>,
    /// Metadata keys that nothing reads.
    pub(in crate::cli) unread: Vec<String>,
    /// The towers with which it takes media.
    pub(in crate::cli) towers: Vec<TowerReport>,
    /// What drafts its next tokens; none if nothing with weights does.
    pub(in crate::cli) drafter: Option<DrafterReport>,
    /// Bytes of the tensors in the file, if the options convert them while they are loaded.
    pub(in crate::cli) stored: Option<u64>,
}

pub(in crate::cli) struct PlanFindings {
    pub(in crate::cli) plan: Plan,
    pub(super) description: String,
    pub(super) shares: Vec<WeightShare>,
    pub(in crate::cli) options: Options,
    /// Bytes of weights that are read for one token; `None` if no graph could be built.
    pub(super) weights_read: Option<u64>,
    pub(super) contexts: Vec<ContextMemory>,
    /// Memory use with the options; `None` if the model cannot be run with them.
    pub(in crate::cli) memory: Option<MemoryUse>,
    /// Memory use on each device with the configured context; empty if the CPU is the only device.
    pub(in crate::cli) devices: Vec<DeviceUse>,
    pub(in crate::cli) capabilities: Vec<Capability>,
}

/// The memory use of a context with the sequences of the options, and of the towers with a medium of a usual size.
pub(super) struct ContextMemory {
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

pub(in crate::cli) fn findings(
    source: &ModelSource,
    sequences: &ParallelOption,
    load: &LoadOptions,
) -> Result<Findings, Failure> {
    // Without `strict`, unread keys are reported and not refused.
    let definitions = Definitions {
        strict: false,
        ..load.model.opening.definitions()?
    };
    let why = match load.open_with(source, &definitions) {
        Ok(opened) => {
            let mut found = of_opened(load, sequences, opened)?;
            if load.converts() {
                let stored = models::read(source, &definitions)?;
                let sizes = stored.weights.tensors().iter().map(|tensor| tensor.bytes);
                found.stored = Some(sizes.fold(0, u64::saturating_add));
            }
            return Ok(found);
        }
        Err(error) => error.to_string(),
    };
    // A file with an unknown architecture, or without tensors, can be inspected too.
    let broken = match models::read(source, &definitions) {
        Ok(contents) => {
            let (label, header) = labelled(&contents.weights);
            return Ok(unplanned(label, header, contents.tokenizer(), why));
        }
        Err(broken) => broken,
    };
    if let Some(path) = source.file()
        && let Ok(header) = weights::gguf::header(path)
    {
        let (label, tokenizer) = (path.display(), Tokenizer::from_metadata(&header.0));
        return Ok(unplanned(label.to_string(), header, tokenizer, why));
    }
    Err(broken.into())
}

/// The name of a model, its metadata and its tensors.
fn labelled(weights: &Weights) -> (String, (Metadata, Vec<TensorInfo>)) {
    let header = (weights.metadata().clone(), weights.tensors().to_vec());
    (weights.label().to_owned(), header)
}

/// The findings of a model without a plan; `why` is the reason.
fn unplanned(
    label: String,
    (metadata, tensors): (Metadata, Vec<TensorInfo>),
    tokenizer: Result<Tokenizer, tokenizer::Error>,
    why: String,
) -> Findings {
    let tokenizer = tokenizer.map_err(|error| error.to_string());
    Findings {
        template: probe(&metadata, &tokenizer),
        templates: template::template_names(&metadata),
        unread: Vec::new(),
        towers: Vec::new(),
        drafter: None,
        label,
        metadata,
        tensors,
        tokenizer,
        planned: Err(why),
        stored: None,
    }
}

fn of_opened(
    load: &LoadOptions,
    sequences: &ParallelOption,
    mut opened: OpenedModel,
) -> Result<Findings, Failure> {
    load.model.check(&opened)?;
    let requested = load.context(&opened.plan);
    let resolved = sequences.resolve(load, &opened);
    let placed = resolved.and_then(|options| {
        load.place(&mut opened, &options)?;
        Ok(options)
    });
    let tokenizer = tokenizer_of(opened.vocabulary, &opened.weights);
    let (label, header) = labelled(&opened.weights);
    let mut found = unplanned(label, header, tokenizer, String::new());
    if let (Some(media), Ok(options)) = (&opened.media, &placed) {
        found.towers = towers(media, options);
    }
    if let (Some(drafter), Ok(options)) = (&opened.drafter, &placed) {
        let model = (&opened.weights, &opened.plan);
        found.drafter = Some(DrafterReport::of(drafter, model, options));
    }
    found.unread = unread_keys(&opened.plan, &found.metadata);
    let weights = (&opened.weights, opened.adapters.as_slice());
    let drafter = opened.drafter.as_ref();
    let planned = |options| planned((opened.plan, drafter), weights, options, requested, &found);
    found.planned = placed.map(planned).map_err(|error| error.to_string());
    Ok(found)
}

fn probe(
    metadata: &Metadata,
    tokenizer: &Result<Tokenizer, String>,
) -> Option<Result<TemplateProbe, String>> {
    let source = template::choose_template(metadata, None, false);
    let source = source.ok().flatten()?;
    let tokenizer = tokenizer.as_ref().ok();
    let named = |role: fn(&Tokenizer) -> Option<u32>| {
        let text = tokenizer.and_then(|own| own.token_text(role(own)?));
        text.unwrap_or_default().into_owned()
    };
    let (bos, eos) = (named(Tokenizer::bos), named(Tokenizer::eos));
    let now = Moment::from_unix_seconds(unix_seconds() as i64);
    let template = ChatTemplate::new(source).map_err(|error| error.to_string());
    Some(template.map(|template| TemplateProbe::new(&template, &bos, &eos, now)))
}

/// The findings of a plan. If the weights cannot be loaded, only those that do not need them.
fn planned(
    (plan, drafter): (Plan, Option<&OpenedDrafter>),
    (weights, adapters): (&Weights, &[Adapter]),
    options: Options,
    requested: Option<usize>,
    known: &Findings,
) -> PlanFindings {
    let mut found = PlanFindings {
        description: describe(&plan),
        shares: weight_shares(&plan),
        plan,
        options,
        weights_read: None,
        contexts: Vec::new(),
        memory: None,
        devices: Vec::new(),
        capabilities: Vec::new(),
    };
    let (plan, options) = (&found.plan, &found.options);
    let samples = known.towers.iter().filter_map(|of| of.sample.as_ref().ok());
    let towers: Vec<TowerUse> = samples.map(|sample| sample.memory.clone()).collect();
    let beside = |memory: MemoryUse, options: &Options| {
        let drafter = drafter.and_then(|of| drafter_memory(of, (weights, plan), options).ok());
        let memory = drafter.iter().fold(memory, MemoryUse::with_model);
        towers.iter().fold(memory, MemoryUse::with_tower)
    };
    let mut estimator = match Estimator::with(plan, weights, adapters) {
        Ok(estimator) => estimator,
        Err(error) => {
            let (what, why) = ("loading", error.to_string());
            let can = false;
            found.capabilities.push(Capability { what, can, why });
            return found;
        }
    };
    let lengths = lengths(plan, requested).into_iter();
    let contexts = lengths.map(|n_ctx| context(plan, &beside, &mut estimator, options, n_ctx));
    let contexts = contexts.collect();
    let subject = CapabilityInput {
        plan,
        tokenizer: known.tokenizer.as_ref().map_err(Clone::clone),
        template: match &known.template {
            None => Err("the file has no chat template".to_owned()),
            Some(probed) => probed.as_ref().map_err(Clone::clone),
        },
        pooled: PooledOutput::of(plan, &known.metadata),
        options,
    };
    let capabilities = capabilities(&subject, &mut estimator);
    let weights_read = estimator.weight_bytes_read(options).ok();
    let is_placed = !plan.devices.is_empty();
    let memory = estimator.memory(options).ok();
    let memory = memory.map(|memory| beside(memory, options));
    drop(estimator);
    if let Some(memory) = memory.as_ref().filter(|_| is_placed) {
        found.devices.clone_from(&memory.devices);
    }
    (found.weights_read, found.contexts) = (weights_read, contexts);
    (found.memory, found.capabilities) = (memory, capabilities);
    found
}

/// The context lengths that are reported: up to that of the training, and the requested one.
fn lengths(plan: &Plan, requested: Option<usize>) -> BTreeSet<u64> {
    let trained = Some(plan.n_ctx_train).filter(|n| *n > 0);
    let usual = CONTEXTS.into_iter();
    let usual = usual.filter(|n| trained.is_none_or(|trained| *n < trained));
    let all = usual.chain(trained).chain(requested.map(|n| n as u64));
    all.filter(|n| *n > 0).collect()
}

fn context(
    plan: &Plan,
    beside: &dyn Fn(MemoryUse, &Options) -> MemoryUse,
    estimator: &mut Estimator<'_>,
    options: &Options,
    n_ctx: u64,
) -> ContextMemory {
    let n = usize::try_from(n_ctx).unwrap_or(usize::MAX);
    let options = Options {
        n_ctx: n.saturating_mul(options.n_seqs),
        n_ctx_seq: n,
        // Text diffusion runs every pass over the whole sequence.
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
    // Models that read a text as a whole read no single token.
    let read = read.filter(|_| plan.mode == Mode::Causal);
    ContextMemory {
        n_ctx,
        memory: memory.ok().map(|memory| beside(memory, &options)),
        states: plan.recurrent_bytes((options.n_seqs + options.n_checkpoints) as u64 + 1),
        read,
        refusal: refusal.map(|error| error.to_string()),
    }
}

/// Bytes of a KV cache for one sequence, with keys and values of these types; `None` on overflow.
pub(in crate::cli) fn cache_bytes(plan: &Plan, n_ctx: u64, types: [TensorType; 2]) -> Option<u64> {
    let room = CacheCapacity {
        layout: SlotLayout::Blocks,
        n_ctx,
        n_seqs: 1,
        n_batch: Options::N_BATCH as u64,
    };
    let [k, v] = types;
    plan.cache_bytes(room, k, v)
}

pub(super) fn special_tokens(tokenizer: &Tokenizer) -> Vec<(&'static str, u32)> {
    let roles = [
        ("bos", tokenizer.bos()),
        ("eos", tokenizer.eos()),
        ("eot", tokenizer.eot()),
        ("sep", tokenizer.sep()),
        ("pad", tokenizer.pad()),
        ("unk", tokenizer.unk()),
        ("mask", tokenizer.mask()),
    ];
    let known = roles.into_iter().filter_map(|(role, id)| Some((role, id?)));
    known.collect()
}

pub(in crate::cli) struct TensorSizes {
    pub(in crate::cli) n_weights: u64,
    pub(in crate::cli) bytes: u64,
    /// Bytes of each type, the largest first.
    pub(in crate::cli) types: Vec<(&'static str, u64)>,
    /// Mean number of bits per weight.
    pub(in crate::cli) bits: f64,
}

impl TensorSizes {
    pub(in crate::cli) fn of(tensors: &[TensorInfo]) -> Self {
        let mut types: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut n_weights, mut bytes) = (0u64, 0u64);
        for tensor in tensors {
            let of_type = types.entry(tensor.ty.name()).or_default();
            *of_type = of_type.saturating_add(tensor.bytes);
            n_weights = n_weights.saturating_add(tensor.elements());
            bytes = bytes.saturating_add(tensor.bytes);
        }
        let mut types: Vec<(&str, u64)> = types.into_iter().collect();
        types.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        Self {
            n_weights,
            bytes,
            types,
            bits: bytes as f64 * 8.0 / n_weights.max(1) as f64,
        }
    }
}

/// The kind of a tokenizer and the size of its vocabulary, in words.
pub(in crate::cli) fn tokenizer_text(tokenizer: &Tokenizer) -> String {
    let kind = tokenizer.kind().unwrap_or("token ids only");
    format!("{kind}, {} tokens", tokenizer.vocab_len())
}

/// The element types of keys and values, in words.
pub(in crate::cli) fn cache_types_text(options: &Options) -> String {
    match [options.k_type, options.v_type].map(TensorType::name) {
        [k, v] if k == v => k.to_owned(),
        [k, v] => format!("{k} and {v}"),
    }
}
