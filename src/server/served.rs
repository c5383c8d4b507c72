//! A model that serves requests: engine, vocabulary and chat template.
//!
//! The command line and the API both use it, so that they serve the same.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use lab_base::chat::template;
use lab_base::chat::template::{ChatTemplate, Moment, RenderError, RenderInput};
use lab_base::chat::tool_calls::ChatDialect;
use lab_base::tokenizer::{self, Tokenizer};
use lab_base::util::clock::unix_seconds;
use lab_base::weights;
use lab_base::weights::{Array, FileBytes, Metadata, Weights};
use lab_core::arch::{ArchDef, Mode};
use lab_core::artifacts::store::ArtifactStore;
use lab_core::artifacts::vectors::VectorStore;
use lab_core::engine::{
    self, Failure, Handle, Limits, LoadedModel, PooledOutput, PrefixStoreOptions, StartError,
    Unsupported,
};
use lab_core::model::{self, MediaTowers, Model, Options};
use lab_core::models::lora::Adapter;
use lab_core::models::media::MediaProcessors;
use lab_core::models::prompts::Prompts;
use lab_core::models::sampling_defaults::SamplingDefaults;
use lab_core::models::towers::OpenedMedia;
use lab_core::models::transcription::TranscriptTokens;
use lab_core::models::{OpenedModel, tokenizer_of};
use lab_core::plan::{Media, Plan};

use crate::media_access::MediaAccess;
use crate::rate_limits::RateLimits;

/// A name that selects the only model, whatever its own name.
pub(crate) const DEFAULT_MODEL: &str = "default";
const RERANK_TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// A running model.
pub struct ServedModel {
    /// Name of the model for clients.
    pub name: String,
    /// The engine.
    pub handle: Handle,
    /// Identifies what the results depend on: program, ggml, model, definition and options.
    pub fingerprint: String,
    /// Unix time in seconds at which the model was started.
    pub created: u64,
    /// The chat templates for conversations without tools and with tools.
    templates: [Option<ChatTemplate>; 2],
    /// The source of the chat template.
    pub chat_template: Option<String>,
    /// How the model writes reasoning and tool calls.
    pub dialect: ChatDialect,
    bos: String,
    eos: String,
    /// Memory use, files and workers of the model.
    pub loaded: LoadedModel,
    /// The results of pooling, or the reason why there are none.
    pub pooled: Result<PooledOutput, String>,
    /// The prompts that an embedding model defines for its texts.
    pub prompts: Prompts,
    /// The sampling parameters for requests that do not set them.
    pub sampling: SamplingDefaults,
    /// How it takes media; none if it takes texts alone.
    pub media: Option<ServedMedia>,
    /// Which media may be read that requests name.
    pub media_access: Arc<MediaAccess>,
    /// The tokens of transcripts; none if the model has none.
    pub transcripts: Option<Arc<TranscriptTokens>>,
    /// The template that makes one text of query and document, for a reranker that reads them together.
    pub rerank_template: Option<String>,
    /// Names of the classes, if the model scores classes and names them.
    pub labels: Vec<String>,
    /// Numbers of the model.
    pub info: ModelInfo,
    /// Identifies what the stored results were computed with.
    pub identity: Identity,
    /// The store of results for later requests.
    pub artifacts: Option<ArtifactStore>,
    /// The vectors that requests may name.
    pub vectors: Arc<VectorStore>,
    /// The tokens of each client.
    pub(crate) rates: Arc<RateLimits>,
    /// Reads adapters for the model; none if they are not loaded while it is served.
    pub adapter_opener: Option<AdapterOpener>,
}

/// Reads the adapter of a path for a model.
pub type AdapterOpener = Box<dyn Fn(&Path) -> Result<Adapter, String> + Send + Sync>;

/// Identifies what results are computed with, for those who store them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// SHA-256, in hexadecimal digits, of the metadata, and of name, type, shape and first row of each tensor.
    pub model: String,
    /// SHA-256 of the definition as text.
    pub definition: String,
    /// The types of the tensors, each with their number, such as `f32 73, q4_k 196`.
    pub types: String,
}

impl Identity {
    fn of(def: &ArchDef, weights: &Weights) -> Self {
        let hex = |digest: &[u8]| digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut hash = Sha256::new();
        for (key, value) in weights.metadata().iter() {
            // The description of a vocabulary of 151 936 tokens takes about 20 ms.
            if let weights::Value::Array(Array::Str(strings)) = value {
                let (bytes, ends) = strings.joined();
                hash.update(format!("{key} {}\n", ends.len()));
                ends.iter()
                    .for_each(|end| hash.update((*end as u64).to_le_bytes()));
                hash.update(bytes);
            } else {
                hash.update(format!("{key} {value:?}\n"));
            }
        }
        let mut types: BTreeMap<&str, usize> = BTreeMap::new();
        for tensor in weights.tensors() {
            let (name, ty) = (&tensor.name, tensor.ty.name());
            hash.update(format!("{name} {ty} {:?}\n", tensor.shape));
            // Rows of lazy tensors are left out: one may need an element of each stored row.
            if let Some((bytes, start)) = weights.place(tensor) {
                hash.update(&bytes[start..start + tensor.row_bytes() as usize]);
            }
            *types.entry(ty).or_default() += 1;
        }
        let types = types.iter().map(|(ty, n)| format!("{ty} {n}"));
        Self {
            model: hex(&hash.finalize()),
            definition: hex(&Sha256::digest(def.to_toml())),
            types: types.collect::<Vec<_>>().join(", "),
        }
    }
}

/// The chat templates of a model, and how it writes.
pub(crate) struct ChatSetup {
    /// The text of the template for conversations without tools; none if the model has none.
    pub(crate) source: Option<String>,
    /// The template without tools and with tools.
    templates: [Option<ChatTemplate>; 2],
    bos: String,
    eos: String,
    pub(crate) dialect: ChatDialect,
}

impl ChatSetup {
    /// `template` is the name of the template; `model` names the model in errors.
    pub(crate) fn of(
        weights: &Weights,
        template: Option<&str>,
        tokenizer: &Tokenizer,
        model: &str,
    ) -> Result<Self, ServeError> {
        let source = |has_tools: bool| {
            let source = template::choose_template(weights.metadata(), template, has_tools);
            source.map_err(|source| ServeError::new(model, source))
        };
        let compiled = |has_tools: bool| {
            let compiled = source(has_tools)?.map(ChatTemplate::new).transpose();
            compiled.map_err(|source| ServeError::new(model, source))
        };
        let templates = [compiled(false)?, compiled(true)?];
        let text = |id: Option<u32>| {
            id.and_then(|id| tokenizer.token_text(id))
                .unwrap_or_default()
                .into_owned()
        };
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let is_token = |text: &str| tokenizer.id_of(text).is_some();
        let dialect = templates[1]
            .as_ref()
            .map_or_else(ChatDialect::unknown, |template| {
                ChatDialect::probe(template, &bos, &eos, is_token)
            });
        Ok(Self {
            source: source(false)?.map(str::to_owned),
            templates,
            bos,
            eos,
            dialect,
        })
    }

    /// What the template writes for a medium of a kind between two texts, if that has its marker.
    fn written_medium(&self, kind: Media, marker: &str) -> Option<String> {
        const AROUND: [&str; 2] = ["qzbeforeqz", "qzafterqz"];
        let text = |text: &str| json!({ "type": "text", "text": text });
        let parts = json!([text(AROUND[0]), { "type": kind.name() }, text(AROUND[1])]);
        let rendered = self.templates[0].as_ref()?.render(&RenderInput {
            messages: &json!([{ "role": "user", "content": parts }]),
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &Map::new(),
            bos_token: &self.bos,
            eos_token: &self.eos,
            now: Moment::from_unix_seconds(0),
        });
        let rendered = rendered.ok()?;
        let (_, after) = rendered.split_once(AROUND[0])?;
        let (between, _) = after.split_once(AROUND[1])?;
        between.contains(marker).then(|| between.trim().to_owned())
    }
}

fn labels(arch: &str, metadata: &Metadata) -> Vec<String> {
    let key = format!("{arch}.classifier.output_labels");
    let labels = metadata.array(&key).and_then(Array::as_strings);
    let labels = labels.map(|labels| labels.iter().map(String::from_utf8_lossy));
    labels.into_iter().flatten().map(Cow::into_owned).collect()
}

/// Numbers of a model that clients ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name of the architecture.
    pub arch: String,
    /// How the model is executed.
    pub mode: Mode,
    /// Tokens of the vocabulary.
    pub n_vocab: u64,
    /// Elements of a hidden state.
    pub n_embd: u64,
    /// Elements of all tensors.
    pub n_params: u64,
    /// Size of all tensors in bytes.
    pub n_bytes: u64,
    /// Context length of the training; 0 if unknown.
    pub n_ctx_train: u64,
    /// Name of the element type that has most of the bytes.
    pub ty: &'static str,
}

impl ModelInfo {
    /// The numbers of a plan.
    pub fn of(plan: &Plan) -> Self {
        let elements = plan.tensors.iter().map(|t| t.shape.iter().product::<u64>());
        let mut types: BTreeMap<&str, u64> = BTreeMap::new();
        for tensor in &plan.tensors {
            *types
                .entry(tensor.ty.map_or("f32", |ty| ty.name()))
                .or_default() += tensor.bytes;
        }
        let largest = types.into_iter().max_by_key(|(_, bytes)| *bytes);
        Self {
            arch: plan.arch.clone(),
            mode: plan.mode,
            n_vocab: plan.n_vocab,
            n_embd: plan.n_embd,
            n_params: elements.sum(),
            n_bytes: plan.weight_bytes(),
            n_ctx_train: plan.n_ctx_train,
            ty: largest.map_or("", |(name, _)| name),
        }
    }
}

/// A conversation to continue.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// An array of messages.
    pub messages: Value,
    /// Tools that the model may call, or null.
    pub tools: Value,
    /// Whether the prompt ends with the start of the assistant's message; none: yes, unless the last message is
    /// continued.
    pub add_generation_prompt: Option<bool>,
    /// Whether the last message is continued instead of answered.
    pub continue_final_message: bool,
    /// Further variables for the template.
    pub kwargs: Map<String, Value>,
}

/// Why a model cannot be served: its vocabulary, template or weights cannot be used, or its engine did not start.
#[derive(Debug, thiserror::Error)]
#[error("{model}: {source}")]
pub struct ServeError {
    model: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl ServeError {
    pub fn new(model: &str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self {
            model: model.to_owned(),
            source: Box::new(source),
        }
    }
}

/// Why a conversation has no prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template refuses the conversation or fails.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
}

/// Which media a model takes besides text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Modalities {
    /// Pictures.
    pub vision: bool,
    /// Sounds.
    pub audio: bool,
}

impl Modalities {
    /// Those of a model that prepares media so.
    pub fn of(processors: Option<&MediaProcessors>) -> Self {
        let takes = |kind| processors.is_some_and(|processors| processors.takes(kind));
        Self {
            vision: takes(Media::Image),
            audio: takes(Media::Audio),
        }
    }

    /// What prompts consist of, in OpenRouter's words.
    pub(crate) fn inputs(self) -> Vec<&'static str> {
        let all = [
            (true, "text"),
            (self.vision, "image"),
            (self.audio, "audio"),
        ];
        let own = all.into_iter().filter(|(is_own, _)| *is_own);
        own.map(|(_, name)| name).collect()
    }
}

/// How a model takes media.
#[derive(Clone, Debug)]
pub struct ServedMedia {
    /// How they are prepared.
    pub processors: MediaProcessors,
    /// Maximum number of tokens that attend to each other in both directions.
    pub n_batch: usize,
    /// What a prompt has for a medium of a kind, as the chat template writes it.
    written: Vec<(Media, String)>,
}

impl ServedMedia {
    fn new(opened: &OpenedMedia, n_batch: usize, chat: &ChatSetup) -> Self {
        let processors = opened.processors.clone();
        let written = Media::ALL.into_iter().filter_map(|kind| {
            let marker = processors.marker(kind)?;
            let written = chat.written_medium(kind, marker);
            Some((kind, written.unwrap_or_else(|| marker.to_owned())))
        });
        Self {
            written: written.collect(),
            processors,
            n_batch,
        }
    }

    /// What a prompt has for a medium of a kind, as the chat template writes it; none if media of the kind are no part of prompts.
    pub(crate) fn marker(&self, kind: Media) -> Option<&str> {
        let mut written = self.written.iter();
        written.find_map(|(own, text)| (*own == kind).then_some(text.as_str()))
    }
}

/// Called on the engine's thread with the number of bytes loaded and the total.
pub type Progress = Box<dyn FnMut(u64, u64) + Send>;

impl ServedModel {
    /// Loads a model and starts its engine. `store`: where prefixes are kept besides the KV cache, with what identifies the files
    /// of the model.
    ///
    /// # Errors
    /// The vocabulary, the template or the weights cannot be used, or memory is missing.
    pub fn start(
        opened: OpenedModel,
        mut options: Options,
        limits: Limits,
        mut store: PrefixStoreOptions,
        mut progress: Progress,
    ) -> Result<Self, ServeError> {
        let OpenedModel {
            name,
            weights,
            vocabulary,
            plan,
            template,
            adapters,
            prompts,
            sampling,
            media,
            def,
            n_source_rows: _,
            drafter,
        } = opened;
        options.for_drafter = drafter.as_ref().and_then(|of| of.plan.target.clone());
        // Of an encoder only the hidden states are used, also where it has a head.
        options.embeddings |= engine::ends_in_vectors(&plan);
        let model = weights.label().to_owned();
        let identity = Identity::of(&def, &weights);
        let tokenizer = tokenizer_of(vocabulary, &weights);
        let tokenizer = tokenizer.map_err(|source| ServeError::new(&model, source))?;
        // Checked before the weights are loaded, which may take minutes.
        match engine::can_answer(&plan, &tokenizer) {
            // The model gives vectors.
            Ok(()) | Err(Unsupported::Vectors { .. }) => {}
            Err(unfit) => {
                let source: StartError<model::Error> = unfit.into();
                return Err(ServeError::new(&model, source));
            }
        }
        let chat = ChatSetup::of(&weights, template.as_deref(), &tokenizer, &model)?;
        let of_media = |media| ServedMedia::new(media, options.n_batch, &chat);
        let served_media = media.as_ref().map(of_media);
        let ChatSetup {
            source: chat_template,
            templates,
            bos,
            eos,
            dialect,
        } = chat;
        tracing::info!(
            calls = dialect.format.as_ref().map(|format| &format.name),
            reasoning = dialect.reasoning.as_ref().map(|marks| &marks.open),
            "how the model writes"
        );
        let (pooled, info) = (
            PooledOutput::of(&plan, weights.metadata()),
            ModelInfo::of(&plan),
        );
        let labels = labels(&plan.arch, weights.metadata());
        let seconds = media
            .as_ref()
            .and_then(|media| media.processors.window_seconds());
        let transcripts = seconds.and_then(|seconds| {
            TranscriptTokens::of(&plan, &tokenizer, weights.metadata(), seconds)
        });
        let rerank_template = weights.metadata().str(RERANK_TEMPLATE).map(str::to_owned);
        let fingerprint = fingerprint(&name, &plan, &options);
        store.identity = identity_of_values(&store.identity, &identity, &plan, &options);
        let started = engine::start(Arc::new(tokenizer), limits, store, move || {
            let of_towers = Options {
                embeddings: false,
                ..options.clone()
            };
            let mut model = Model::load_with(plan, &weights, &adapters, options, &mut *progress)?;
            if let Some(OpenedMedia { towers, processors }) = media {
                let towers = MediaTowers::load(towers, processors, &of_towers, &mut |_, _| {})?;
                model.set_towers(towers);
            }
            if let Some(drafter) = drafter {
                model.load_drafter(drafter)?;
            }
            Ok::<_, model::Error>(model)
        });
        let started = started.map_err(|source| ServeError::new(&model, source));
        let (handle, _thread, loaded) = started?;
        Ok(Self {
            name,
            handle,
            sampling,
            media: served_media,
            media_access: Arc::default(),
            transcripts: transcripts.map(Arc::new),
            fingerprint,
            created: unix_seconds(),
            templates,
            chat_template,
            dialect,
            bos,
            eos,
            pooled,
            prompts,
            rerank_template,
            labels,
            info,
            loaded,
            identity,
            artifacts: None,
            vectors: Arc::default(),
            rates: Arc::default(),
            adapter_opener: None,
        })
    }

    /// Loads an adapter, which requests choose by this name. Blocks until it is loaded.
    ///
    /// # Errors
    /// The file is no adapter for the model, or the name is taken.
    pub fn load_adapter(&self, name: &str, path: &Path) -> Result<(), String> {
        let open = self.adapter_opener.as_ref();
        let open = open.ok_or("the model was loaded without a way to read adapters")?;
        let adapter = open(path)?;
        let loaded = self.handle.load_adapter(name, adapter);
        loaded.map_err(|rejected| rejected.to_string())
    }

    /// Checks that the files of its weights are unchanged, and that no worker on another machine is lost.
    ///
    /// # Errors
    /// A file was changed in place, or a worker is lost. The model must be loaded again.
    pub fn check(&self) -> Result<(), Failure> {
        let mut files = self.loaded.files.iter();
        files
            .try_for_each(FileBytes::check)
            .map_err(Failure::Changed)?;
        let mut workers = self.loaded.workers.iter();
        workers.try_for_each(|worker| {
            let checked = worker.check();
            checked.map_err(|error| Failure::Lost(error.to_string()))
        })
    }

    /// What clients are told of a loaded model.
    pub fn properties(&self) -> Value {
        let takes = self.modalities();
        let scores = |pooled: &PooledOutput| matches!(pooled, PooledOutput::Scores { .. });
        json!({
            "created": self.created,
            "capabilities": {
                "completion": self.handle.writes_text(),
                "chat": self.handle.writes_text() && self.has_template(),
                "vision": takes.vision,
                "audio": takes.audio,
                "embedding": matches!(self.pooled, Ok(PooledOutput::Vector(_))),
                "rerank": self.pooled.as_ref().is_ok_and(PooledOutput::scores_pairs),
                "classify": self.pooled.as_ref().is_ok_and(scores),
                "token_classify": matches!(self.pooled, Ok(PooledOutput::TokenScores(_))),
            },
            "memory": self.loaded.memory,
            "sampling_defaults": self.sampling,
        })
    }

    /// Which media it takes.
    pub fn modalities(&self) -> Modalities {
        Modalities::of(self.media.as_ref().map(|media| &media.processors))
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.templates.iter().any(Option::is_some)
    }

    /// Whether the text of a chat template contains this word.
    pub fn template_mentions(&self, word: &str) -> bool {
        let mut all = self.templates.iter().flatten();
        all.any(|template| template.mentions(word))
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// The errors of [`Self::chat_text`], or the text cannot be tokenized.
    pub fn chat_prompt(&self, conversation: &Conversation) -> Result<Vec<u32>, PromptError> {
        self.prompt_of(&self.chat_text(conversation)?)
    }

    /// The prompt for a text that the chat template rendered.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    pub fn prompt_of(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        Ok(self.handle.tokenizer().encode_prompt(text)?)
    }

    /// The text that the chat template renders for a conversation.
    ///
    /// # Errors
    /// The model has no template, or the template refuses the conversation.
    pub fn chat_text(&self, conversation: &Conversation) -> Result<String, PromptError> {
        let has_tools = conversation
            .tools
            .as_array()
            .is_some_and(|tools| !tools.is_empty());
        let template = self.templates[usize::from(has_tools)].as_ref();
        let template = template.ok_or(PromptError::NoTemplate)?;
        Ok(template.render(&RenderInput {
            messages: &conversation.messages,
            tools: Some(&conversation.tools).filter(|tools| !tools.is_null()),
            documents: None,
            add_generation_prompt: conversation
                .add_generation_prompt
                .unwrap_or(!conversation.continue_final_message),
            continue_final_message: conversation.continue_final_message,
            kwargs: &conversation.kwargs,
            bos_token: &self.bos,
            eos_token: &self.eos,
            now: Moment::from_unix_seconds(unix_seconds() as i64),
        })?)
    }

    /// The prompt for a plain text.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    pub fn text_prompt(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        Ok(self.handle.tokenizer().encode(text, true, false)?)
    }
}

/// Identifies what the values in the KV cache depend on, besides tokens and adapters. Sizes that only say how much is cached at a
/// time change nothing.
fn identity_of_values(
    files: &[u8; 32],
    identity: &Identity,
    plan: &Plan,
    options: &Options,
) -> [u8; 32] {
    let options = Options {
        n_ctx: 0,
        n_seqs: 0,
        n_checkpoints: 0,
        n_outputs: 0,
        n_threads: 0,
        ..options.clone()
    };
    let (version, ggml) = (env!("CARGO_PKG_VERSION"), lab_base::ggml::version());
    let mut hash = Sha256::new();
    hash.update(files);
    hash.update(format!(
        "{version} {ggml} {identity:?} {plan:?} {options:?}"
    ));
    hash.finalize().into()
}

/// Twelve hexadecimal digits that differ if anything differs on which results depend.
fn fingerprint(name: &str, plan: &Plan, options: &Options) -> String {
    let (version, ggml) = (env!("CARGO_PKG_VERSION"), lab_base::ggml::version());
    let all = format!("{version} {ggml} {name} {plan:?} {options:?}");
    let digest = Sha256::digest(all.as_bytes());
    let digits = digest.iter().take(6).map(|byte| format!("{byte:02x}"));
    format!("fp_{}", digits.collect::<String>())
}
