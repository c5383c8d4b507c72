//! The interface to the engine thread. Requests are checked here, before they are queued.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;

use crate::model::Points;
use crate::models::lora::Adapter;
use lab_base::grammar;
use lab_base::grammar::{CompiledConstraint, Constraint};
use lab_base::tokenizer::Tokenizer;
use lab_base::util::lock::lock;
use lab_sampling::{ContrastiveSearch, Params, Sampler};

use super::adapters::Adapters;
use super::capabilities::Unsupported;
use super::client::{Client, QueuePermit, TakenPlaces};
use super::diffusion::DiffusionModel;
use super::event::Events;
use super::event_sender::EventSender;
use super::lab::{CompiledLab, LabPlan};
use super::limits::Limits;
use super::pooling::{Passage, PoolingModel};
use super::rejected::Rejected;
use super::request::Request;
use super::stats::{self, Stats};
use super::submission::{CheckedRequest, Decoding, Order, Submitted};

/// Maximum number of entries of all lists of most probable tokens of a request. As JSON, an entry takes 60 to 100 bytes.
const MAX_LISTED: u64 = 1 << 20;

/// The interface to the engine thread. It can be cloned freely; the engine ends when the last clone is dropped.
#[derive(Clone)]
pub struct Handle {
    pub(super) queue: mpsc::UnboundedSender<Order>,
    pub(super) places: Arc<TakenPlaces>,
    /// Whose requests it submits.
    pub(super) client: Client,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) constraints: Arc<grammar::Compiler>,
    pub(super) limits: Limits,
    pub(super) adapters: Arc<Adapters>,
    pub(super) kind: DecodingKind,
    pub(super) pooled: Result<PoolingModel, &'static str>,
    pub(super) points: Arc<Points>,
    pub(super) stats: Arc<Stats>,
    /// The folder of the files that clients name, and the maximum size of all of them.
    pub(super) slots: Option<(PathBuf, u64)>,
    /// Whether somebody is told of the prefix cache.
    pub(super) is_announced: bool,
}

/// How the model of an engine decodes.
#[derive(Clone, Copy, Debug)]
pub(super) enum DecodingKind {
    /// Token by token.
    Autoregressive {
        /// Width of the hidden state, if tokens of a sequence can be rolled back.
        rolls_back: Option<usize>,
        /// How the model reads prompts, if it reads them as a source.
        source: Option<SourceLimits>,
    },
    /// By text diffusion: masked tokens become fixed in any order.
    Diffusion(DiffusionModel),
    /// The model does not decode: its results are vectors.
    Vectors(Unsupported),
}

/// A model that reads prompts as a source.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceLimits {
    /// The token that completions start with.
    pub(super) start: u32,
    /// Whether it reads rows, which a text does not have.
    pub(super) is_rows: bool,
    /// Maximum number of tokens of a source, which is read in one pass.
    pub(super) n_most: usize,
}

impl Handle {
    /// The interface for the requests of a client.
    pub fn of_client(&self, client: Client) -> Self {
        Self {
            client,
            ..self.clone()
        }
    }

    /// Queues a request. Its events come in the order of the completion and end with `Done` or `Failed`.
    ///
    /// # Errors
    /// The request cannot be served. It is refused before it is queued.
    pub fn submit(&self, request: Request) -> Result<Events, Rejected> {
        let mut all = self.submit_all(vec![request])?;
        all.pop().ok_or(Rejected::EmptyPrompt)
    }

    /// Queues all of several requests, or none.
    ///
    /// # Errors
    /// A request cannot be served. The error is that of the first such request, and nothing is queued.
    pub fn submit_all(&self, mut requests: Vec<Request>) -> Result<Vec<Events>, Rejected> {
        self.limit_lists(&mut requests)?;
        let mut lab_bytes = self.limits.lab_bytes;
        let checked = requests.into_iter().map(|mut request| {
            if request.prompt.is_empty() {
                return Err(Rejected::EmptyPrompt);
            }
            let decoding = self.decoding(&request)?;
            let scales = self.adapters.of(request.adapters.as_deref())?;
            let source = match self.source() {
                None => Vec::new(),
                Some(of) if of.is_rows => rows_of(&request).ok_or(Rejected::NoSource)?,
                Some(of) => std::mem::replace(&mut request.prompt, vec![of.start]),
            };
            let lab = self.lab(&request, &decoding, &mut lab_bytes)?;
            Ok(CheckedRequest {
                request,
                source,
                decoding,
                scales,
                lab,
            })
        });
        self.enqueue(checked.collect::<Result<_, Rejected>>()?)
    }

    /// Queues all of several passages, whose vectors or scores are wanted, or none. Each gives one
    /// [`Event::Pooled`], then the end.
    ///
    /// # Errors
    /// A passage cannot be read, or the model gives no vector of a text. Nothing is queued.
    pub fn submit_passages(
        &self,
        passages: Vec<Passage>,
        lab: Option<&Arc<LabPlan>>,
        adapters: Option<&[(usize, f32)]>,
    ) -> Result<Vec<Events>, Rejected> {
        let pooled = self.pooled.map_err(Rejected::NotPooled)?;
        let scales = self.adapters.of(adapters)?;
        let mut lab_bytes = self.limits.lab_bytes;
        let checked = passages.into_iter().map(|passage| {
            if passage.tokens.is_empty() {
                return Err(Rejected::EmptyPrompt);
            }
            let request = Request {
                lab: lab.cloned(),
                ..Request::reading(passage.tokens)
            };
            self.check_length(&request)?;
            let decoding = Decoding::Pooling(pooled, passage.second);
            let lab = self.lab(&request, &decoding, &mut lab_bytes)?;
            Ok(CheckedRequest {
                request,
                source: Vec::new(),
                decoding,
                scales: scales.clone(),
                lab,
            })
        });
        self.enqueue(checked.collect::<Result<_, Rejected>>()?)
    }

    /// Limits the entries of the lists of most probable tokens, which are kept until a completion is sent. Completions
    /// without a maximum length get one.
    fn limit_lists(&self, requests: &mut [Request]) -> Result<(), Rejected> {
        let product = |a: usize, b: usize| (a as u64).saturating_mul(b as u64);
        let most = |of: &Request| self.limits.n_ctx.saturating_sub(of.prompt.len());
        let length = |of: &Request| of.top_logprobs.unwrap_or(0);
        let (mut found, mut of_open) = (0u64, 0u64);
        for request in &*requests {
            let of_prompt = request.prompt_logprobs.unwrap_or(0);
            found = found.saturating_add(product(of_prompt, request.prompt.len()));
            match request.max_tokens {
                Some(n) => {
                    let own = product(length(request), n.min(most(request)));
                    found = found.saturating_add(own);
                }
                None => of_open += length(request) as u64,
            }
        }
        let limit = MAX_LISTED;
        let left = limit.saturating_sub(found);
        let each = left.checked_div(of_open);
        if found > limit || each == Some(0) {
            let found = found.saturating_add(of_open);
            return Err(Rejected::Lists { found, limit });
        }
        for request in requests.iter_mut().filter(|request| length(request) > 0) {
            let each = each.unwrap_or(0) as usize;
            if request.max_tokens.is_none() && each < most(request) {
                request.max_tokens = Some(each);
            }
        }
        Ok(())
    }

    fn enqueue(&self, checked: Vec<CheckedRequest>) -> Result<Vec<Events>, Rejected> {
        let limit = self.limits.n_queue;
        let most = limit.max(1).saturating_add(self.limits.n_parallel);
        let permit = QueuePermit::take(&self.places, &self.client, most).map_err(|own| {
            stats::count(&self.stats.n_refused, checked.len());
            let limit = limit.min(own);
            Rejected::QueueFull { limit }
        })?;
        let submitted = checked.into_iter().map(|checked| {
            let (events, receiver) = mpsc::unbounded_channel();
            let caller = EventSender {
                events,
                arrived: Instant::now(),
                stats: Arc::clone(&self.stats),
                permit: Arc::clone(&permit),
            };
            let order = Order::Run(Box::new(Submitted { checked, caller }));
            self.queue.send(order).map_err(|_| Rejected::Ended)?;
            Ok(receiver)
        });
        submitted.collect()
    }

    /// The way to decode a request, unless this kind of model cannot.
    fn decoding(&self, request: &Request) -> Result<Decoding, Rejected> {
        let is_diffusion = self.is_diffusion();
        let searches = request.sampling.penalty_alpha != 0.0;
        if is_diffusion || searches {
            let message = "not possible with text diffusion or contrastive search";
            Rejected::if_set(&[("thinking_budget", request.thinking.is_some())], message)?;
            let of_prompt = match is_diffusion {
                true => "this model decodes by text diffusion, which does not score prompts",
                false => "a prompt cannot be scored with contrastive search",
            };
            let fields = [
                ("prompt_logprobs", request.prompt_logprobs.is_some()),
                ("max_tokens", request.max_tokens == Some(0)),
            ];
            Rejected::if_set(&fields, of_prompt)?;
            Rejected::if_set(&[("logprobs_mode", request.post_sampling)], message)?;
        }
        match self.kind {
            DecodingKind::Vectors(unfit) => Err(Rejected::NoText(unfit)),
            DecodingKind::Diffusion(config) => {
                let settings = config.settings(request, &self.limits)?;
                self.check_length(request)?;
                let sampler = Sampler::new(&request.sampling, request.choice)?;
                Ok(Decoding::Diffusion(sampler, settings))
            }
            DecodingKind::Autoregressive { rolls_back, source } => {
                let fields = [
                    ("diffusion", request.diffusion.is_some()),
                    ("diffusion_trace", request.trace),
                ];
                let message = "this model decodes token by token, not by text diffusion";
                Rejected::if_set(&fields, message)?;
                self.check_length(request)?;
                if let Some(source) = source {
                    source.check(request)?;
                }
                if request.sampling.penalty_alpha != 0.0 {
                    return contrastive(request, rolls_back);
                }
                let sampler = Sampler::new(&request.sampling, request.choice)?;
                Ok(Decoding::Autoregressive(sampler))
            }
        }
    }

    /// The lab plan of a request for its prompt. The size of its results is subtracted from `bytes`.
    fn lab(
        &self,
        request: &Request,
        decoding: &Decoding,
        bytes: &mut u64,
    ) -> Result<Option<CompiledLab>, Rejected> {
        let Some(plan) = &request.lab else {
            return Ok(None);
        };
        let refuse = |message: &str| Err(Rejected::field("lab", message));
        match decoding {
            Decoding::Autoregressive(_) | Decoding::Pooling(..) => {}
            Decoding::Contrastive(_) => return refuse("not possible with contrastive search"),
            Decoding::Diffusion(..) => return refuse("not possible with text diffusion"),
        }
        let n_prompt = request.prompt.len();
        let n_left = self.limits.n_ctx.saturating_sub(n_prompt);
        let n_more = request.max_tokens.unwrap_or(n_left).min(n_left);
        let n_vocab = self.tokenizer.vocab_len();
        let media = request.media.as_deref();
        let compiled = plan.compiled(&self.points, media, (n_prompt, n_more), n_vocab, *bytes)?;
        *bytes -= compiled.n_bytes;
        Ok(Some(compiled))
    }

    pub fn points(&self) -> &Points {
        &self.points
    }

    /// Whether a prompt of `found` tokens fits into the context, before it is copied for several completions.
    pub fn check_prompt(&self, found: usize) -> Result<(), Rejected> {
        self.check_room(found, 0)
    }

    /// Whether a prompt of `found` tokens and `n_more` positions fit into the context.
    fn check_room(&self, found: usize, n_more: usize) -> Result<(), Rejected> {
        let limit = self.limits.n_ctx;
        match found + n_more <= limit {
            true => Ok(()),
            false => Err(Rejected::TooLong { found, limit }),
        }
    }

    fn check_length(&self, request: &Request) -> Result<(), Rejected> {
        let n_source = match self.source() {
            None => 0,
            Some(of) if of.is_rows => rows_of(request).map_or(0, |rows| rows.len()),
            // The start token of the completion takes one more position.
            Some(_) => 1,
        };
        let n_more = usize::from(request.max_tokens != Some(0)) + n_source;
        self.check_room(request.prompt.len(), n_more)
    }

    /// How the model reads prompts, if it reads them as a source.
    fn source(&self) -> Option<SourceLimits> {
        match self.kind {
            DecodingKind::Autoregressive { source, .. } => source,
            _ => None,
        }
    }

    /// Whether the model decodes by text diffusion.
    pub fn is_diffusion(&self) -> bool {
        matches!(self.kind, DecodingKind::Diffusion(_))
    }

    /// Compiles a constraint for completions of this model with these parameters. Blocks the caller, usually for
    /// milliseconds.
    ///
    /// # Errors
    /// The constraint cannot be enforced. The error says what is wrong and where.
    pub fn compile(
        &self,
        constraint: Constraint,
        sampling: &Params,
    ) -> Result<CompiledConstraint, grammar::Error> {
        let is_ban =
            |(id, bias): &(u32, f32)| *bias == f32::NEG_INFINITY && self.tokenizer.is_text(*id);
        match sampling.logit_bias.iter().any(is_ban) {
            true => self.constraints.compile_without_forcing(constraint),
            false => self.constraints.compile(constraint),
        }
    }

    /// The model's vocabulary.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The model's adapters.
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// Loads an adapter between two steps, for requests that choose it by this name. Blocks until it is loaded.
    ///
    /// # Errors
    /// The name is taken, or the model cannot use the adapter.
    pub fn load_adapter(&self, name: &str, mut adapter: Adapter) -> Result<(), Rejected> {
        let _turn = lock(&self.adapters.loading);
        self.adapters.check_new(name)?;
        adapter.name = name.to_owned();
        let path = adapter.path.clone();
        let (answer, answered) = std::sync::mpsc::channel();
        let order = Order::AddAdapter(Box::new(adapter), answer);
        self.queue.send(order).map_err(|_| Rejected::Ended)?;
        let added = answered.recv().map_err(|_| Rejected::Ended)?;
        added.map_err(|error| Rejected::field("lora_path", error.to_string()))?;
        self.adapters.push(name, path);
        Ok(())
    }

    /// Unloads the adapter of a name: later requests cannot choose it, and it is freed once no request uses it.
    ///
    /// # Errors
    /// No adapter of this name is loaded.
    pub fn unload_adapter(&self, name: &str) -> Result<(), Rejected> {
        let _turn = lock(&self.adapters.loading);
        let order = Order::RemoveAdapter(self.adapters.retire(name)?);
        self.queue.send(order).map_err(|_| Rejected::Ended)
    }

    /// Counters and the current state of the engine.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Whether the model answers with text.
    pub fn writes_text(&self) -> bool {
        !matches!(self.kind, DecodingKind::Vectors(_))
    }

    /// Whether the current step has exceeded its time limit.
    pub fn is_stalled(&self) -> bool {
        let limit = self.limits.step_time;
        limit.is_some_and(|limit| self.stats.step_time() > Some(limit))
    }

    /// The engine's limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }
}

impl SourceLimits {
    /// Refuses prompts that are too long for one pass, and fields that do not apply to a source.
    fn check(self, request: &Request) -> Result<(), Rejected> {
        let (found, what) = match self.is_rows {
            true => (rows_of(request).map_or(0, |rows| rows.len()), "rows"),
            false => (request.prompt.len(), "tokens"),
        };
        let limit = self.n_most;
        if found > limit {
            let message = format!(
                "the model reads all of it in one pass: found {found} {what}, expected at most {limit}"
            );
            return Err(Rejected::field("prompt", message));
        }
        Rejected::if_set(
            &[("prompt_logprobs", request.prompt_logprobs.is_some())],
            "not possible with an encoder-decoder model: the prompt is the encoder input and has no log-probabilities",
        )
    }
}

/// The source of a request to a model that reads rows.
fn rows_of(request: &Request) -> Option<Vec<u32>> {
    request.media.as_ref()?.as_source()
}

/// Contrastive search. `rolls_back` is the width of the hidden states, if tokens can be rolled back.
fn contrastive(request: &Request, rolls_back: Option<usize>) -> Result<Decoding, Rejected> {
    let states = "it needs a KV cache and a model without recurrent states";
    let n_embd = rolls_back.ok_or(Rejected::NoSearch(states))?;
    let fields = [("min_tokens", request.stop.min_tokens > 0)];
    Rejected::if_set(&fields, "not possible with contrastive search")?;
    if request.constraint.is_some() || request.rules.is_some() {
        return Err(Rejected::NoSearch("the completion is constrained"));
    }
    let search = ContrastiveSearch::new(&request.sampling, n_embd)?;
    Ok(Decoding::Contrastive(search))
}
