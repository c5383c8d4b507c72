//! Requests to tokens: one thread that owns the model, and the handle that others talk to it by.
//!
//! The engine thread is the only one that touches ggml. A request goes in over a bounded queue,
//! its events come back over a channel of its own; dropping the receiver cancels it within one
//! step. Nothing here knows HTTP. A step that fails is tried again for each of its requests alone, so
//! that it ends those that cannot go on, never the others or the engine.

mod adapters;
mod answer;
mod constrained;
mod contrast;
pub mod diffusion;
mod draft;
mod runner;
mod scheduler;
mod sequence;
#[cfg(test)]
mod tests;
mod way;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

pub use adapters::Adapters;

pub use crate::blocks::Remasking;
use crate::constraint::{self, Compiled, Constraint};
use crate::model::{Model, Options};
use crate::plan::Plan;
pub use crate::sampling::TokenLogprob;
use crate::sampling::{Contrastive, ParamError, Params, Sampler};
use crate::text::tokenizer::Tokenizer;
use diffusion::Facts;
pub use diffusion::{Diffusion, Fixed};

/// What shall be generated.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Most tokens generated; without a limit, as many as the context holds.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Params,
    /// Which of several answers to the same prompt; each draws its own random numbers.
    pub choice: u32,
    /// Texts that end the answer and are not part of it.
    pub stops: Vec<Vec<u8>>,
    /// Length of the list of likeliest tokens, if log-probabilities are wanted.
    pub top_logprobs: Option<usize>,
    /// Most tokens guessed ahead in a step, from what the text repeats; none: as the engine is set.
    /// What is answered does not depend on it.
    pub n_drafted: Option<usize>,
    /// What the answer must look like, made ready by [`Handle::compile`].
    pub constraint: Option<Compiled>,
    /// Adapters and their scales, the others being off; none: as the engine is set.
    pub adapters: Option<Vec<(usize, f32)>>,
    /// How the answer is filled in, by models that do so.
    pub diffusion: Option<Diffusion>,
    /// Whether every step of filling in is told, by models that do so.
    pub trace: bool,
}

/// A token of the answer, as far as it is part of the released text.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerToken {
    /// The bytes it contributes to the text.
    pub bytes: Vec<u8>,
    /// The token chosen; without a logarithm if none was asked for.
    pub chosen: Option<TokenLogprob>,
    /// The likeliest tokens, falling.
    pub top: Vec<TokenLogprob>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop text did.
    Stop,
    /// The limit of tokens or the context was reached.
    Length,
}

/// What an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were known from earlier requests.
    pub cached_tokens: usize,
    /// Tokens generated, the ending one included.
    pub completion_tokens: usize,
    /// Tokens guessed ahead.
    pub drafted_tokens: usize,
    /// Guesses that were right.
    pub accepted_tokens: usize,
    /// Passes that filled in the answer.
    pub passes: usize,
    /// Positions that they computed; what several answers share counts for one of them.
    pub positions: usize,
    /// Time until the prompt was read.
    pub prefill: Duration,
    /// Time from there to the end.
    pub decode: Duration,
}

/// What the engine says of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Text that is final, with the tokens it is made of.
    Text {
        /// Complete characters.
        text: String,
        /// The tokens whose bytes are the text's.
        tokens: Vec<AnswerToken>,
    },
    /// A step fixed positions of an answer that is filled in; told if that was asked for.
    Step {
        /// Number of the step, from 0.
        step: usize,
        /// What it fixed, the surest first.
        fixed: Vec<Fixed>,
        /// Positions that are still masked.
        n_masked: usize,
    },
    /// The answer is complete.
    Done {
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The answer cannot be completed.
    Failed(Failure),
}

/// Why an answer cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It waited too long for its turn.
    #[error("waited {0:?} for a turn, which is the limit")]
    QueueTime(Duration),
    /// It took too long.
    #[error("not complete after {0:?}, which is the limit")]
    AnswerTime(Duration),
    /// What was computed cannot be used, or could not be computed.
    #[error("{0}")]
    Computation(String),
    /// The model computed values that are no finite numbers.
    #[error("{fault}{}", place.as_deref().map(|place| format!("; {place}")).unwrap_or_default())]
    NotFinite {
        /// What is wrong with its logits.
        fault: String,
        /// Where it began, if that was found.
        place: Option<String>,
    },
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// Nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {found} tokens, and the context holds {limit}")]
    TooLong {
        /// Tokens of the prompt.
        found: usize,
        /// The context.
        limit: usize,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// Too many requests wait.
    #[error("{limit} requests are waiting already")]
    QueueFull {
        /// Most requests that wait.
        limit: usize,
    },
    /// Contrastive search cannot be run.
    #[error("`penalty_alpha`: contrastive search is not possible: {0}")]
    NoSearch(&'static str),
    /// The model cannot do what a field asks for.
    #[error("`{field}`: {message}")]
    Field {
        /// The field.
        field: &'static str,
        /// Why.
        message: String,
    },
    /// The engine has ended.
    #[error("the engine has ended")]
    Ended,
}

/// Limits of an engine, and what holds where a request says nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Positions of one sequence.
    pub n_ctx: usize,
    /// Sequences that run at once.
    pub n_parallel: usize,
    /// Requests that wait.
    pub n_queue: usize,
    /// Most tokens of prompts in a step in which answers run.
    pub n_prompt: usize,
    /// Most tokens guessed ahead for a request that does not say.
    pub n_drafted: usize,
    /// How answers are filled in where a request does not say.
    pub diffusion: Diffusion,
    /// Longest time a request waits for its turn.
    pub queue_time: Option<Duration>,
    /// Longest time from its turn to the end of its answer.
    pub answer_time: Option<Duration>,
}

/// A place among the requests that wait or run, given back when it is dropped.
struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    /// A place, if fewer than `limit` are taken.
    fn take(places: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let more = |n| (n < limit).then_some(n + 1);
        let taken = places.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok().map(|_| Self(Arc::clone(places)))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request on its way to the engine.
struct Submitted {
    request: Request,
    sampler: Sampler,
    /// Scale of each adapter.
    scales: Vec<f32>,
    /// Chooses in place of the sampler.
    contrast: Option<Contrastive>,
    caller: Caller,
}

/// Who waits for a request.
struct Caller {
    /// Closed by the receiver when nobody waits any more.
    events: mpsc::UnboundedSender<Event>,
    arrived: Instant,
    _ticket: Ticket,
}

/// The way to the engine thread. Cloned freely; the engine ends when the last one goes.
#[derive(Clone)]
pub struct Handle {
    queue: mpsc::UnboundedSender<Submitted>,
    places: Arc<AtomicUsize>,
    tokenizer: Arc<Tokenizer>,
    constraints: Arc<constraint::Compiler>,
    limits: Limits,
    adapters: Arc<Adapters>,
    kind: Kind,
}

/// How the model of an engine generates.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Token by token.
    Growing {
        /// Width of the stream of a model whose tokens can be taken back.
        takes_back: Option<usize>,
    },
    /// All tokens of an answer, in any order.
    Filling(Facts),
}

impl Handle {
    /// Queues a request. Events come in the order of the answer and end with `Done` or `Failed`.
    ///
    /// # Errors
    /// A request that cannot be served, told before anything is queued.
    pub fn submit(&self, request: Request) -> Result<mpsc::UnboundedReceiver<Event>, Rejected> {
        if request.prompt.is_empty() {
            return Err(Rejected::EmptyPrompt);
        }
        self.check_kind(&request)?;
        if request.prompt.len() >= self.limits.n_ctx {
            return Err(Rejected::TooLong {
                found: request.prompt.len(),
                limit: self.limits.n_ctx,
            });
        }
        let (sampler, contrast) = self.choosers(&request)?;
        let scales = self.adapters.of(request.adapters.as_deref())?;
        let limit = self.limits.n_queue;
        let most = limit.max(1).saturating_add(self.limits.n_parallel);
        let ticket = Ticket::take(&self.places, most).ok_or(Rejected::QueueFull { limit })?;
        let (events, receiver) = mpsc::unbounded_channel();
        let submitted = Submitted {
            request,
            sampler,
            scales,
            contrast,
            caller: Caller {
                events,
                arrived: Instant::now(),
                _ticket: ticket,
            },
        };
        self.queue.send(submitted).map_err(|_| Rejected::Ended)?;
        Ok(receiver)
    }

    /// Refuses what this kind of model cannot do.
    fn check_kind(&self, request: &Request) -> Result<(), Rejected> {
        let field = match self.kind {
            Kind::Filling(facts) => return facts.settings(request, &self.limits).map(drop),
            Kind::Growing { .. } if request.diffusion.is_some() => "diffusion",
            Kind::Growing { .. } if request.trace => "diffusion_trace",
            Kind::Growing { .. } => return Ok(()),
        };
        Err(Rejected::Field {
            field,
            message: "this model writes its answers token by token".into(),
        })
    }

    /// Whether answers are filled in.
    pub fn fills_in(&self) -> bool {
        matches!(self.kind, Kind::Filling(_))
    }

    /// What chooses the tokens of a request.
    fn choosers(&self, request: &Request) -> Result<(Sampler, Option<Contrastive>), Rejected> {
        let params = &request.sampling;
        if params.penalty_alpha == 0.0 {
            return Ok((Sampler::new(params, request.choice)?, None));
        }
        let Kind::Growing {
            takes_back: Some(n_embd),
        } = self.kind
        else {
            return Err(Rejected::NoSearch(
                "this model's states cannot be taken back",
            ));
        };
        if request.constraint.is_some() {
            return Err(Rejected::NoSearch("the answer is constrained"));
        }
        let plain = Params::default();
        let search = Contrastive::new(params, n_embd)?;
        Ok((Sampler::new(&plain, request.choice)?, Some(search)))
    }

    /// Makes a constraint ready for this model's answers. Blocks, milliseconds as a rule.
    ///
    /// # Errors
    /// A constraint that cannot be enforced, with what is wrong and where.
    pub fn compile(&self, constraint: Constraint) -> Result<Compiled, constraint::Error> {
        self.constraints.compile(constraint)
    }

    /// The model's vocabulary.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The model's adapters.
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// The engine's limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }
}

/// Starts the engine thread. `load` makes the model there, since models do not change threads.
///
/// # Errors
/// Whatever `load` says, or that no thread could be started.
pub fn start<E: Send + 'static>(
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    load: impl FnOnce() -> Result<Model, E> + Send + 'static,
) -> Result<(Handle, JoinHandle<()>), StartError<E>> {
    let (queue, requests) = mpsc::unbounded_channel();
    let (ready, loaded) = std::sync::mpsc::sync_channel(1);
    let for_thread = Arc::clone(&tokenizer);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || match load() {
            Ok(model) => {
                let kind = kind_of(&model, &for_thread);
                let adapters = Arc::new(Adapters::new(model.adapters()));
                let known = kind.map_err(StartError::Unfit).map(|kind| (kind, adapters));
                // Nobody waiting for the answer means nobody wants the engine.
                if ready.send(known).is_err() {
                    return;
                }
                match kind {
                    Ok(Kind::Growing { .. }) => {
                        way::serve(runner::Runner::new(model, for_thread, limits), requests);
                    }
                    Ok(Kind::Filling(facts)) => {
                        let runner = diffusion::Runner::new(model, for_thread, limits, facts);
                        way::serve(runner, requests);
                    }
                    Err(_) => {}
                }
            }
            Err(error) => {
                let _ = ready.send(Err(StartError::Load(error)));
            }
        })
        .map_err(StartError::Thread)?;
    match loaded.recv() {
        Ok(Ok((kind, adapters))) => Ok((
            Handle {
                queue,
                places: Arc::default(),
                constraints: Arc::new(constraint::Compiler::new(Arc::clone(&tokenizer))),
                tokenizer,
                limits,
                adapters,
                kind,
            },
            thread,
        )),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(StartError::Ended),
    }
}

/// Why a model cannot answer with text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It has no logits.
    #[error("the model ends in vectors of {n_embd} elements, and has no logits to choose text by")]
    Vectors {
        /// Elements of a vector.
        n_embd: u64,
    },
    /// It fills in masked tokens, and its vocabulary has no such token.
    #[error(
        "the vocabulary does not say which token stands for a masked one (`tokenizer.ggml.mask_token_id`)"
    )]
    NoMask,
}

/// Whether a model with this vocabulary answers with text.
///
/// # Errors
/// What it lacks.
pub fn can_answer(plan: &Plan, tokenizer: &Tokenizer) -> Result<(), Unfit> {
    if plan.head.as_ref().is_none_or(|head| head.unit.is_none()) {
        return Err(Unfit::Vectors {
            n_embd: plan.n_embd,
        });
    }
    match plan.diffusion {
        Some(_) => mask_of(plan, tokenizer).map(drop),
        None => Ok(()),
    }
}

/// The token that stands for a masked one.
fn mask_of(plan: &Plan, tokenizer: &Tokenizer) -> Result<u32, Unfit> {
    let mask = tokenizer.mask();
    mask.filter(|id| u64::from(*id) < plan.n_vocab)
        .ok_or(Unfit::NoMask)
}

/// Whether tokens of a sequence can be taken back, which guessing ahead and contrastive search need.
///
/// # Errors
/// Why they cannot.
pub fn can_take_back(plan: &Plan, options: &Options) -> Result<(), &'static str> {
    match (options.n_ctx, plan.recurrent().next()) {
        (0, _) => Err("nothing is kept of a text without a context"),
        (_, Some(_)) => Err("states cannot be taken back"),
        (_, None) => Ok(()),
    }
}

/// How a model generates.
fn kind_of(model: &Model, tokenizer: &Tokenizer) -> Result<Kind, Unfit> {
    let (plan, options) = (model.plan(), model.options());
    can_answer(plan, tokenizer)?;
    if options.embeddings {
        let n_embd = plan.n_embd;
        return Err(Unfit::Vectors { n_embd });
    }
    if plan.diffusion.is_some() {
        let mask = mask_of(plan, tokenizer)?;
        let facts = Facts::of(plan, mask, options.n_batch, options.n_ctx > 0);
        return facts.map(Kind::Filling).ok_or(Unfit::NoMask);
    }
    let can = can_take_back(plan, options).is_ok();
    let takes_back = can.then_some(plan.n_embd as usize);
    Ok(Kind::Growing { takes_back })
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError<E> {
    /// The model could not be loaded.
    #[error("{0}")]
    Load(E),
    /// The model does not answer with text.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// No thread.
    #[error("could not start the engine's thread: {0}")]
    Thread(std::io::Error),
    /// The thread ended while it loaded the model.
    #[error("the engine ended while it loaded the model")]
    Ended,
}
