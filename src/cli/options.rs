//! Options that several commands share, and the values that they resolve to.

use std::path::{Path, PathBuf};
use std::sync::Once;

use clap::{ArgGroup, Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use lab_base::util::granted_memory;
use lab_base::util::limited_read::{self, MAX_DEFINITION};
use lab_base::weights::{self, FiniteCheck, TensorType, Value};
use lab_core::arch::Library;
use lab_core::blocks::REGISTRY;
use lab_core::engine::{DiffusionOptions, DraftOptions, Limits, PrefixStoreOptions};
use lab_core::model::{Model, Options};
use lab_core::models::DrafterChoice;
use lab_core::models::mmproj::MmprojChoice;
use lab_core::models::quantise::Mix;
use lab_core::models::sampling_defaults::SamplingDefaults;
use lab_core::models::{self, lora};
use lab_core::models::{Definitions, ModelSource, OpenedModel};
use lab_core::plan::{MediaAttention, Plan};
use lab_server::served::ServedModel;

use super::Failure;
use super::context::{self, SMALL_CTX, own_context, trained};
use super::hub::model_source;
use super::output::at;
use super::placement::PlacementOptions;
use super::values::{cache_type, mix, positive, tokens};

/// Maximum number of tokens of a prompt that attend to each other in both directions, unless the context is shorter.
const MEDIA_BATCH: usize = 2048;
/// Metadata key of chat templates; a name may follow.
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
/// Name of the template of `--chat-template-file`.
const TEMPLATE_OF_FILE: &str = "file";

/// The model of a command that has one.
#[derive(Debug, Args)]
pub(super) struct ModelArg {
    /// The model, in place of `-m`
    #[arg(value_name = "MODEL")]
    pub(super) model_path: Option<PathBuf>,
    /// The model: a file, a folder, a name OWNER/REPO[:QUANT][@REVISION] of the Hugging Face Hub, tiny-chat or
    /// tiny-diffusion; default: tiny-chat, which is built in
    #[arg(short, long, value_name = "MODEL", conflicts_with = "model_path")]
    pub(super) model: Option<PathBuf>,
}

impl ModelArg {
    /// The path or name of the model, if one is given.
    pub(super) fn path(&self) -> Option<&Path> {
        self.model.as_deref().or(self.model_path.as_deref())
    }

    /// The model; downloaded if it is named by its repository and the cache does not have it.
    pub(super) fn source(&self) -> Result<ModelSource, Failure> {
        model_source(self.path())
    }
}

/// `-m` of a command with two models, which are else its arguments.
#[derive(Debug, Args)]
pub(super) struct TwoModels {
    /// Model A, and given twice A and B, in place of the arguments
    #[arg(short, long, value_name = "MODEL")]
    model: Vec<PathBuf>,
}

impl TwoModels {
    /// A, and B if it is given; `arguments` follow the models of `-m`. Without any, A is the default model.
    pub(super) fn of<'a>(
        &'a self,
        arguments: [Option<&'a PathBuf>; 2],
    ) -> Result<(ModelSource, Option<ModelSource>), Failure> {
        let all = self.model.iter().chain(arguments.into_iter().flatten());
        let mut all = all.map(|path| model_source(Some(path)));
        let (a, b) = (all.next().transpose()?, all.next().transpose()?);
        if all.next().is_some() {
            anyhow::bail!(
                "expected at most two models, A and B, by `-m` and as arguments together"
            );
        }
        Ok((a.unwrap_or_else(|| ModelSource::of(None)), b))
    }
}

/// Where definitions come from.
#[derive(Debug, Args)]
pub(super) struct ArchOptions {
    /// Folder with more architecture definitions (NAME.arch.toml) and maps of Hugging Face folders
    /// (NAME.arch.stmap.toml); may be repeated
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    archs: Vec<PathBuf>,
}

impl ArchOptions {
    /// The embedded definitions, and those in the given folders.
    pub(super) fn library(&self) -> Result<Library, Failure> {
        Ok(Library::open(&REGISTRY, &self.archs)?)
    }

    /// The definitions of drafters, embedded and in the given folders.
    pub(super) fn drafters(&self) -> Result<Library, Failure> {
        Ok(Library::drafters(&REGISTRY, &self.archs)?)
    }

    /// The definitions of towers, embedded and in the given folders.
    pub(super) fn towers(&self) -> Result<Library, Failure> {
        Ok(Library::towers(&REGISTRY, &self.archs)?)
    }
}

/// How models are opened.
#[derive(Debug, Args)]
pub(super) struct OpenOptions {
    #[command(flatten)]
    archs: ArchOptions,
    /// Ignore tensors and config.json keys of a Hugging Face folder that its map (NAME.arch.stmap.toml) does not
    /// mention; default: refuse the folder
    #[arg(long, hide_short_help = true)]
    allow_unmapped: bool,
    /// Refuse a model with unused tensors or unused metadata keys of its architecture
    #[arg(long, hide_short_help = true)]
    strict: bool,
    /// GGUF file with the towers that read pictures and sounds for the model (clip); default: the one beside a GGUF
    /// model with `mmproj` in its name that fits it
    #[arg(long, value_name = "FILE")]
    mmproj: Option<PathBuf>,
    /// Load no towers for pictures and sounds
    #[arg(
        long,
        conflicts_with = "mmproj",
        alias = "no-mmproj-auto",
        hide_short_help = true
    )]
    no_mmproj: bool,
    /// Model or drafter (GGUF file or folder) that drafts the next tokens; default: the drafter in the model's own file, if it
    /// has one (docs/speculation.md)
    #[arg(long, value_name = "MODEL", alias = "model-draft")]
    draft_model: Option<PathBuf>,
    /// Load no drafter
    #[arg(long, conflicts_with = "draft_model", hide_short_help = true)]
    no_draft_model: bool,
}

impl OpenOptions {
    /// The definitions, maps and strictness with which models are opened.
    pub(super) fn definitions(&self) -> Result<Definitions, Failure> {
        Ok(Definitions {
            allow_unmapped: self.allow_unmapped,
            strict: self.strict,
            mmproj: match (&self.mmproj, self.no_mmproj) {
                (Some(file), _) => MmprojChoice::File(file.clone()),
                (None, true) => MmprojChoice::None,
                (None, false) => MmprojChoice::Found,
            },
            drafter: match (&self.draft_model, self.no_draft_model) {
                (Some(path), _) => DrafterChoice::Named(model_source(Some(path))?),
                (None, true) => DrafterChoice::None,
                (None, false) => DrafterChoice::Found,
            },
            ..Definitions::open(&self.archs.archs)?
        })
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnOff {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Which weights a model computes with, on how many threads.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model and compute")]
pub(super) struct ModelOptions {
    #[command(flatten)]
    pub(super) opening: OpenOptions,
    /// LoRA adapter: a GGUF file or a PEFT folder, and the scale of its updates (default 1; 0 = off); may be
    /// repeated
    #[arg(long, value_name = "FILE[=SCALE]")]
    lora: Vec<lora::AdapterSource>,
    /// Quantise weight matrices at load to a type such as q8_0, or to a mix of types such as q4_k_m (`bench help
    /// convert` lists them); default: as stored
    #[arg(long = "type", value_name = "TYPE", value_parser = mix)]
    ty: Option<Mix>,
    /// Number of compute threads, 1 or more, at most one per core; default: one per core
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Check every weight for NaN and infinity first, and refuse a model that has any
    #[arg(long, hide_short_help = true)]
    check_tensors: bool,
}

/// How a model is loaded and run.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("placement").multiple(true))]
pub(super) struct LoadOptions {
    #[command(flatten)]
    pub(super) model: ModelOptions,
    /// Context length in tokens such as 4096 or 4k, in `serve` of each request; 0 = that of the model; default: that
    /// of the model as far as memory allows; in `compare` and `logits` that of the model, in `perf` and `lab drift`
    /// what the measurement needs
    #[arg(short, long, value_name = "N", value_parser = tokens, aliases = ["ctx-size", "max-model-len"], allow_negative_numbers = true)]
    ctx: Option<usize>,
    /// Element type of the KV cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl, if its blocks divide a
    /// head; default: f16, in `compare`, `logits` and `lab drift` f32
    #[arg(
        long,
        value_name = "TYPE",
        value_parser = cache_type,
        aliases = ["cache-type-k", "kv-cache-dtype"]
    )]
    kv_type: Option<TensorType>,
    /// Element type of the values in the KV cache; default: that of the keys
    #[arg(
        long,
        value_name = "TYPE",
        value_parser = cache_type,
        alias = "cache-type-v",
        hide_short_help = true
    )]
    v_type: Option<TensorType>,
    /// Flash attention: compute attention without storing the attention matrix, in less memory; default: on, in
    /// `compare`, `logits` and `lab drift` off
    #[arg(long, value_name = "on|off", hide_short_help = true)]
    flash_attn: Option<OnOff>,
    /// Compute with f32 numbers: `--type f32 --kv-type f32 --flash-attn off`, which agrees with a float64 computation
    /// to about 1e-6; in more memory, and slower
    #[arg(
        long,
        conflicts_with_all = ["ty", "kv_type", "v_type", "flash_attn"],
        hide_short_help = true
    )]
    exact: bool,
    /// Batch-invariant results: the logits of a sequence are the same bits whatever else is in the batch and for any
    /// number of threads; prefill is slower for some weight types; default: off
    #[arg(long, hide_short_help = true)]
    deterministic: bool,
    /// Use quantised weights as they are in the file; default: where memory allows, matrices on the processor are copied
    /// with their rows interleaved, so that tokens come faster; with --deterministic both give the same bits
    #[arg(long, hide_short_help = true)]
    no_repack: bool,
    /// Name of one of the chat templates in the model; default: `tool_use` for requests with tools, else `default`
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    chat_template: Option<String>,
    /// File with a chat template (Jinja) in place of those in the model
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "chat_template",
        hide_short_help = true
    )]
    chat_template_file: Option<PathBuf>,
    /// Sampling parameters for requests that do not set them: those that the model's authors recommend
    /// (generation_config.json, or `general.sampling` of a GGUF file), or neutral ones
    #[arg(
        long,
        default_value = "model",
        value_name = "model|neutral",
        hide_short_help = true
    )]
    sampling_defaults: SamplingSource,
    #[command(flatten)]
    pub(super) placement: PlacementOptions,
}

/// Where sampling parameters come from that a request does not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SamplingSource {
    /// What the model's authors recommend.
    Model,
    /// The neutral values of docs/sampling.md.
    Neutral,
}

/// A command's values for options that are not set.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadDefaults {
    pub(super) kv_type: TensorType,
    pub(super) flash_attn: bool,
    /// Maximum context length that is taken from the file; none: what memory allows.
    pub(super) max_ctx: Option<usize>,
    /// Whether a context above the positions of the model is cut and not refused.
    pub(super) is_cut: bool,
    /// Whether the model is described and not loaded, so that no device is asked.
    pub(super) is_described: bool,
    pub(super) n_batch: usize,
    /// The same where layers are on other devices than the processor.
    pub(super) n_batch_on_devices: usize,
}

impl LoadDefaults {
    /// The defaults for one local user: fast, and in little memory.
    pub(super) const LOCAL: Self = Self {
        kv_type: TensorType::F16,
        flash_attn: true,
        max_ctx: None,
        is_cut: false,
        is_described: false,
        n_batch: Options::N_BATCH,
        n_batch_on_devices: Options::N_BATCH_ON_DEVICES,
    };

    /// The defaults for comparisons of numbers: an f32 KV cache, no flash attention, any context.
    pub(super) fn exact(n_batch: usize) -> Self {
        Self {
            kv_type: TensorType::F32,
            flash_attn: false,
            max_ctx: Some(usize::MAX),
            n_batch,
            n_batch_on_devices: n_batch,
            ..Self::LOCAL
        }
    }
}

/// The source of the tokens of a command.
#[derive(Debug, Args)]
pub(super) struct SourceTokens {
    /// Token ids of the encoder input (source) of an encoder-decoder model, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    source: Vec<u32>,
}

impl SourceTokens {
    /// Number of tokens per pass that suffices for `n` tokens and for the source.
    pub(super) fn n_batch(&self, n: usize) -> usize {
        n.max(self.source.len())
    }

    /// Number of positions of the source in the cache.
    pub(super) fn len(&self) -> usize {
        self.source.len()
    }

    /// Sets the source as the default of the model.
    pub(super) fn set(&self, model: &mut Model) -> Result<(), Failure> {
        match self.source.is_empty() {
            true => Ok(()),
            false => Ok(model.set_default_source(&self.source)?),
        }
    }
}

impl ModelOptions {
    /// Opens a model, logs its warnings, and checks its weights if the options ask for it.
    pub(super) fn open(&self, source: &ModelSource) -> Result<OpenedModel, Failure> {
        let opened = self.open_as(source, &self.opening.definitions()?, self.ty.as_ref())?;
        self.check(&opened)?;
        Ok(opened)
    }

    /// [`Self::open`] with given definitions and mix of types, and without the check.
    fn open_as(
        &self,
        source: &ModelSource,
        definitions: &Definitions,
        mix: Option<&Mix>,
    ) -> Result<OpenedModel, Failure> {
        let opened = models::open(source, definitions)?;
        let opened = match mix {
            Some(mix) => opened.quantised(mix)?,
            None => opened,
        };
        Ok(opened.adapted(&self.lora, source, definitions)?)
    }

    /// Refuses weights with NaN or infinity, if the options ask for the check.
    pub(super) fn check(&self, opened: &OpenedModel) -> Result<(), Failure> {
        if !self.check_tensors {
            return Ok(());
        }
        let tensors = opened.plan.tensors.iter();
        let names: Vec<&str> = tensors.map(|t| t.name.as_str()).collect();
        let checked = weights::check(&opened.weights, &names)?;
        for (name, result) in names.iter().zip(checked) {
            if result == FiniteCheck::Missing {
                tracing::warn!(tensor = name, "not in the file, so not checked");
            }
        }
        Ok(())
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.map_or_else(cores, at_most_cores)
    }
}

impl LoadOptions {
    /// Opens a model with its weights as they are stored, whatever `--type` says.
    pub(super) fn open_as_stored(&self, source: &ModelSource) -> Result<OpenedModel, Failure> {
        let definitions = self.model.opening.definitions()?;
        self.model.open_as(source, &definitions, None)
    }

    /// [`ModelOptions::open`], with the chat template of the options.
    pub(super) fn open(&self, source: &ModelSource) -> Result<OpenedModel, Failure> {
        let opened = self.open_with(source, &self.model.opening.definitions()?)?;
        self.model.check(&opened)?;
        Ok(opened)
    }

    /// [`Self::open`] with given definitions and without the check.
    pub(super) fn open_with(
        &self,
        source: &ModelSource,
        definitions: &Definitions,
    ) -> Result<OpenedModel, Failure> {
        let exact = self.exact.then(|| Mix::from(TensorType::F32));
        let mix = exact.as_ref().or(self.model.ty.as_ref());
        let mut opened = self.model.open_as(source, definitions, mix)?;
        opened.template = self.chat_template.clone();
        if let Some(path) = &self.chat_template_file {
            let text = limited_read::text(path, MAX_DEFINITION).map_err(|error| at(path, error))?;
            let key = format!("{CHAT_TEMPLATE}.{TEMPLATE_OF_FILE}");
            let metadata = [(key, Value::Str(text))].into_iter().collect();
            opened.weights.add_metadata(&metadata);
            opened.template = Some(TEMPLATE_OF_FILE.to_owned());
        }
        if self.sampling_defaults == SamplingSource::Neutral {
            opened.sampling = SamplingDefaults::default();
        }
        Ok(opened)
    }

    /// Whether the weights are converted while they are loaded.
    pub(super) fn converts(&self) -> bool {
        self.exact || self.model.ty.is_some()
    }

    /// Whether layers may be placed on other devices than the processor.
    pub(super) fn has_devices(&self) -> Result<bool, Failure> {
        self.placement.has_devices()
    }

    /// Whether the options set the context length.
    pub(super) fn has_context(&self) -> bool {
        self.ctx.is_some()
    }

    /// The context length for a model, if the options set one.
    pub(super) fn context(&self, plan: &Plan) -> Option<usize> {
        match self.ctx {
            Some(0) => Some(trained(plan).unwrap_or(SMALL_CTX)),
            ctx => ctx,
        }
    }

    /// Places the layers of a model on devices, for a run with these options. A context that is longer than the model's
    /// is logged.
    pub(super) fn place(&self, opened: &mut OpenedModel, options: &Options) -> Result<(), Failure> {
        let (name, plan) = (&opened.name, &opened.plan);
        let wanted = self.context(plan).unwrap_or(0);
        match (positions(plan), trained(plan)) {
            (Some(most), _) if wanted > most => tracing::warn!(
                "a context of {wanted} tokens (--ctx): `{name}` has a table of {most} positions, and so a context of {most} tokens"
            ),
            (_, Some(trained)) if wanted > trained => tracing::warn!(
                "a context of {wanted} tokens (--ctx): `{name}` was trained with {trained} tokens; what it makes of longer texts is likely to be \
                 worse"
            ),
            _ => {}
        }
        self.placement.place(opened, options)
    }

    /// The options with which the model runs.
    pub(super) fn resolve(
        &self,
        opened: &OpenedModel,
        defaults: LoadDefaults,
    ) -> Result<Options, Failure> {
        let plan = &opened.plan;
        let most = positions(plan).unwrap_or(usize::MAX);
        // Rows that the model reads before its tokens come on top.
        let n_ctx = opened.n_source_rows
            + match self.context(plan) {
                Some(n) if n > most && !defaults.is_cut => anyhow::bail!(
                    "--ctx {n}: `{}` has a table of {most} positions; expected a context of at most {most} tokens",
                    opened.name
                ),
                Some(n) => n.min(most),
                None => own_context(opened, defaults.max_ctx).min(most),
            };
        let kv_type = match self.exact {
            true => Some(TensorType::F32),
            false => self.kv_type,
        };
        let ty = kv_type.unwrap_or(defaults.kv_type);
        let attends_ahead = opened.media.as_ref().is_some_and(|media| {
            let mut tokens = media.processors.tokens.iter();
            tokens.any(|of| of.attention == MediaAttention::Prefix)
        });
        let n_batch = match self.placement.has_devices()? {
            true => defaults.n_batch_on_devices,
            false => defaults.n_batch,
        };
        let mut options = Options {
            n_ctx,
            n_ctx_seq: n_ctx,
            n_seqs: 1,
            n_checkpoints: 0,
            // Every denoising step runs over the whole sequence; a source must be read in one pass, and a prompt with media
            // whose tokens attend to later ones.
            n_batch: match (&opened.plan.diffusion, &opened.plan.source) {
                (None, None) if !attends_ahead => n_batch,
                (None, None) => n_batch.max(n_ctx.min(MEDIA_BATCH)),
                _ => n_batch.max(n_ctx),
            },
            n_outputs: 0,
            top_logits: true,
            feeds_tokens: true,
            n_threads: self.model.threads(),
            k_type: ty,
            v_type: self.v_type.unwrap_or(ty),
            flash_attn: match (self.exact, self.flash_attn) {
                (true, _) => false,
                (false, None) => defaults.flash_attn,
                (false, Some(switch)) => switch == OnOff::On,
            },
            // Whether devices read them is found out when their model is loaded.
            device_tables: false,
            deterministic: self.deterministic,
            embeddings: false,
            non_causal: false,
            capture: false,
            for_drafter: None,
            interleave: true,
            plain: self.placement.is_plain(),
        };
        if self.ctx.is_none() && defaults.max_ctx.is_none() {
            let budget = self.cache_budget(opened, defaults)?.unwrap_or(0);
            context::fit_context(opened, &mut options, (budget, n_batch))?;
        }
        options.interleave = !self.no_repack
            && granted_memory::available()
                .is_none_or(|free| context::has_room_for_copies(opened, &options, free));
        Ok(options)
    }

    /// The memory that weights leave for caches, in bytes; none where it is not known.
    pub(super) fn cache_budget(
        &self,
        opened: &OpenedModel,
        defaults: LoadDefaults,
    ) -> Result<Option<u64>, Failure> {
        let free = self.placement.free_memory(defaults.is_described)?;
        Ok(free.map(|free| context::cache_budget(opened, free, defaults.is_cut)))
    }

    /// Places the layers of a model and loads it with a progress bar.
    pub(super) fn load(&self, mut opened: OpenedModel, options: Options) -> Result<Model, Failure> {
        self.place(&mut opened, &options)?;
        Self::load_placed(opened, options)
    }

    /// Loads a model with a progress bar.
    pub(super) fn load_placed(opened: OpenedModel, options: Options) -> Result<Model, Failure> {
        let bar = progress_bar("loading", &opened.name);
        let OpenedModel {
            plan,
            weights,
            adapters,
            ..
        } = opened;
        let progress = &mut shown_by(&bar);
        let model = Model::load_with(plan, &weights, &adapters, options, progress);
        bar.finish_and_clear();
        Ok(model?)
    }
}

/// The most positions of a sequence, if the model has a table of them.
pub(super) fn positions(plan: &Plan) -> Option<usize> {
    let n = plan.n_positions()?;
    Some(usize::try_from(n).unwrap_or(usize::MAX))
}

/// A progress bar on stderr for loading or writing a model; hidden if stderr is not a terminal.
pub(super) fn progress_bar(what: &str, name: &str) -> ProgressBar {
    let bar = ProgressBar::no_length();
    let style = ProgressStyle::with_template("{prefix} {msg} {bar:30} {bytes}/{total_bytes}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_prefix(what.to_owned());
    bar.set_message(name.to_owned());
    bar
}

/// A progress bar on stderr that counts requests; hidden if stderr is not a terminal.
pub(super) fn count_bar(n: u64, is_quiet: bool) -> ProgressBar {
    let bar = match is_quiet {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(n),
    };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} requests, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

/// A callback whose arguments, what is done and the total, are shown by a bar.
pub(super) fn shown_by(bar: &ProgressBar) -> impl FnMut(u64, u64) + use<> {
    let bar = bar.clone();
    move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}

/// The limits of an engine for `n_parallel` requests of this process.
pub(super) fn local_limits(options: &Options, n_parallel: usize) -> Limits {
    Limits {
        lab_bytes: 1 << 20,
        n_ctx: options.n_ctx,
        n_parallel,
        n_queue: n_parallel,
        n_prefill: options.n_batch,
        drafts: DraftOptions::OFF,
        diffusion: DiffusionOptions::default(),
        queue_time: None,
        answer_time: None,
        step_time: None,
    }
}

/// Starts the engine of a model, with a progress bar unless it is to be quiet.
pub(super) fn start_engine(
    opened: OpenedModel,
    options: Options,
    limits: Limits,
    is_quiet: bool,
) -> Result<ServedModel, Failure> {
    let bar = match is_quiet {
        true => ProgressBar::hidden(),
        false => progress_bar("loading", &opened.name),
    };
    let served = ServedModel::start(
        opened,
        options,
        limits,
        PrefixStoreOptions::default(),
        Box::new(shown_by(&bar)),
    );
    bar.finish_and_clear();
    Ok(served?)
}

/// A number of threads, cut to that of the cores: threads that wait for a core make all others wait in every operation.
/// That it is cut is said once.
pub(super) fn at_most_cores(n: usize) -> usize {
    let cores = cores();
    static SAID: Once = Once::new();
    if n > cores {
        SAID.call_once(|| {
            tracing::warn!(
                "--threads {n}: the program has {cores} cores here, and uses {cores} threads"
            );
        });
    }
    n.min(cores)
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
