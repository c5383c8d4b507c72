//! Starts the engine thread, and decides whether a model can decode text at all.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc;

use crate::constraint;
use crate::model::{Model, Options};
use crate::plan::Plan;
use crate::text::tokenizer::Tokenizer;

use super::adapters::Adapters;
use super::diffusion::ModelConfig;
use super::engine_loop::EngineLoop;
use super::handle::{Handle, Kind, SourceOf};
use super::limits::Limits;
use super::pooling::PooledModel;
use super::stats::Stats;

/// Starts the engine thread. `load` makes the model there, since models do not change threads.
///
/// # Errors
/// The error of `load`, or that no thread could be started.
pub fn start<E: Send + 'static>(
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    load: impl FnOnce() -> Result<Model, E> + Send + 'static,
) -> Result<(Handle, JoinHandle<()>), StartError<E>> {
    let (queue, requests) = mpsc::unbounded_channel();
    let (ready, loaded) = std::sync::mpsc::sync_channel(1);
    let for_thread = Arc::clone(&tokenizer);
    let stats = Arc::<Stats>::default();
    let reported = Arc::clone(&stats);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || match load() {
            Ok(model) => {
                let kind = kind_of(&model, &for_thread);
                let plan = model.plan();
                let pooled = can_pool(plan).map(|()| PooledModel::of(plan));
                let adapters = Arc::new(Adapters::new(model.adapters()));
                let points = Arc::clone(model.points());
                let points_of_loop = Arc::clone(&points);
                let made = kind
                    .map_err(StartError::Unfit)
                    .map(|kind| (kind, pooled, adapters, points));
                // Nobody waiting for the answer means nobody wants the engine.
                if ready.send(made).is_err() {
                    return;
                }
                if kind.is_ok() {
                    let engine = EngineLoop::new(model, for_thread, limits);
                    let engine = engine.with_points(points_of_loop);
                    engine.reporting(reported).serve(requests);
                }
            }
            Err(error) => {
                let _ = ready.send(Err(StartError::Load(error)));
            }
        })
        .map_err(StartError::Thread)?;
    match loaded.recv() {
        Ok(Ok((kind, pooled, adapters, points))) => Ok((
            Handle {
                queue,
                places: Arc::default(),
                constraints: Arc::new(constraint::Compiler::new(Arc::clone(&tokenizer))),
                tokenizer,
                limits,
                adapters,
                kind,
                pooled,
                points,
                stats,
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
    /// It decodes by text diffusion, and its vocabulary has no mask token.
    #[error("the vocabulary names no mask token (`tokenizer.ggml.mask_token_id`)")]
    NoMask,
}

/// Whether a model has no logits: its results are vectors or the scores of classes.
pub fn ends_in_vectors(plan: &Plan) -> bool {
    plan.head.as_ref().is_none_or(|head| head.unit.is_none())
}

/// Whether a model with this vocabulary answers with text.
///
/// # Errors
/// What it lacks.
pub fn can_answer(plan: &Plan, tokenizer: &Tokenizer) -> Result<(), Unfit> {
    if ends_in_vectors(plan) {
        return Err(Unfit::Vectors {
            n_embd: plan.n_embd,
        });
    }
    match plan.diffusion {
        Some(_) => mask_of(plan, tokenizer).map(drop),
        None => Ok(()),
    }
}

/// The mask token.
fn mask_of(plan: &Plan, tokenizer: &Tokenizer) -> Result<u32, Unfit> {
    let mask = tokenizer.mask();
    mask.filter(|id| u64::from(*id) < plan.n_vocab)
        .ok_or(Unfit::NoMask)
}

/// Whether tokens of a sequence can be taken back, which speculative decoding and contrastive search need.
///
/// # Errors
/// Why they cannot.
pub fn can_take_back(plan: &Plan, options: &Options) -> Result<(), &'static str> {
    match (options.n_ctx, plan.recurrent().next()) {
        (0, _) => Err("without a context nothing of a sequence is cached"),
        (_, Some(_)) => Err("recurrent states cannot be taken back"),
        (_, None) => Ok(()),
    }
}

/// Whether the hidden states of a text can be pooled: always, unless the model has logits too.
///
/// # Errors
/// Why they cannot, as what the model does.
pub fn can_pool(plan: &Plan) -> Result<(), &'static str> {
    if ends_in_vectors(plan) {
        return Ok(());
    }
    match (plan.diffusion, &plan.source, plan.recurrent().next()) {
        (Some(_), ..) => Err("decodes by text diffusion, which is not pooled"),
        (_, Some(_), _) => Err("reads a source, which is not pooled"),
        (.., Some(_)) => Err("has recurrent states, whose hidden states are not pooled"),
        (_, None, None) => Ok(()),
    }
}

/// How a model decodes.
fn kind_of(model: &Model, tokenizer: &Tokenizer) -> Result<Kind, Unfit> {
    let (plan, options) = (model.plan(), model.options());
    if ends_in_vectors(plan) || options.embeddings {
        let n_embd = plan.n_embd;
        return Ok(Kind::Vectors(Unfit::Vectors { n_embd }));
    }
    can_answer(plan, tokenizer)?;
    if plan.diffusion.is_some() {
        let mask = mask_of(plan, tokenizer)?;
        let config = ModelConfig::of(plan, mask, options.n_batch, options.n_ctx > 0);
        return config.map(Kind::Diffusion).ok_or(Unfit::NoMask);
    }
    let can = can_take_back(plan, options).is_ok();
    let takes_back = can.then_some(plan.n_embd as usize);
    let source = plan.source.as_ref().map(|source| SourceOf {
        start: source.start,
        n_most: options.n_batch,
    });
    Ok(Kind::Autoregressive { takes_back, source })
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
