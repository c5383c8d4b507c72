//! Starts the engine thread and determines how its model decodes.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc;

use crate::model::{DeviceUse, Model};
use lab_base::ggml::rpc::Worker;
use lab_base::grammar;
use lab_base::tokenizer::Tokenizer;
use lab_base::weights::FileBytes;

use super::adapters::Adapters;
use super::capabilities::{
    Unsupported, can_answer, can_pool, can_roll_back, ends_in_vectors, mask_of,
};
use super::client::Client;
use super::diffusion::DiffusionModel;
use super::engine_loop::{EngineLoop, Prefixes};
use super::handle::{DecodingKind, Handle, SourceLimits};
use super::limits::Limits;
use super::pooling::PoolingModel;
use super::prefix_store::{PrefixStore, PrefixStoreOptions};
use super::stats::Stats;

/// What the engine thread tells of the model that it has loaded.
#[derive(Clone)]
pub struct LoadedModel {
    pub memory: Vec<DeviceUse>,
    /// The files whose bytes are used as weights.
    pub files: Vec<FileBytes>,
    /// The workers on other machines that compute parts of the model.
    pub workers: Vec<Arc<Worker>>,
}

impl LoadedModel {
    fn of(model: &Model) -> Self {
        Self {
            memory: model.memory().devices,
            files: model.files().to_vec(),
            workers: model.workers().to_vec(),
        }
    }
}

/// Starts the engine thread. `load` creates the model there, because models cannot change threads. `store`: where prefixes are
/// kept besides the KV cache.
///
/// # Errors
/// `load` failed, the model cannot answer, or the thread could not be started.
pub fn start<E: Send + 'static>(
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    store: PrefixStoreOptions,
    load: impl FnOnce() -> Result<Model, E> + Send + 'static,
) -> Result<(Handle, JoinHandle<()>, LoadedModel), StartError<E>> {
    let (queue, requests) = mpsc::unbounded_channel();
    let (ready, loaded) = std::sync::mpsc::sync_channel(1);
    let slots = store.slots.clone().map(|path| (path, store.disk_bytes));
    let is_announced = store.events.is_some();
    let for_thread = Arc::clone(&tokenizer);
    let stats = Arc::<Stats>::default();
    let reported = Arc::clone(&stats);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || match load() {
            Ok(mut model) => {
                let kind = kind_of(&model, &for_thread);
                if let (Ok(DecodingKind::Autoregressive { .. }), Err(error)) =
                    (&kind, model.warm_up())
                {
                    tracing::warn!(%error, "no graph was run before the first request");
                }
                if store.events.is_some() {
                    model.log_kv_events();
                }
                let plan = model.plan();
                let pooled = can_pool(plan).map(|()| PoolingModel::of(&model));
                let adapters = Arc::new(Adapters::new(model.adapters()));
                let points = Arc::clone(model.points());
                let points_of_loop = Arc::clone(&points);
                let loaded = LoadedModel::of(&model);
                let layout = model.prefix_layout();
                let stamps = model.adapters().iter().map(|adapter| adapter.stamp);
                let kept = layout.clone().and_then(|of| PrefixStore::open(&store, of));
                if let Some(kept) = &kept {
                    reported.set_store(kept.counter());
                }
                let prefixes = Prefixes::new(kept, layout, store.identity, stamps.collect());
                let made = kind
                    .map_err(StartError::Unfit)
                    .map(|kind| (kind, pooled, adapters, points, loaded));
                // If the receiver is gone, the engine is not needed.
                if ready.send(made).is_err() {
                    return;
                }
                if kind.is_ok() {
                    let engine = EngineLoop::new(model, for_thread, limits);
                    let engine = engine.with_points(points_of_loop).keeping(prefixes);
                    let engine = engine.announcing(store.events);
                    engine.reporting(reported).serve(requests);
                }
            }
            Err(error) => {
                let _ = ready.send(Err(StartError::Load(error)));
            }
        })
        .map_err(StartError::Thread)?;
    match loaded.recv() {
        Ok(Ok((kind, pooled, adapters, points, loaded_model))) => Ok((
            Handle {
                queue,
                places: Arc::default(),
                client: Client::default(),
                constraints: Arc::new(grammar::Compiler::new(Arc::clone(&tokenizer))),
                tokenizer,
                limits,
                adapters,
                kind,
                pooled,
                points,
                stats,
                slots,
                is_announced,
            },
            thread,
            loaded_model,
        )),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(StartError::Ended),
    }
}

/// How a model decodes.
fn kind_of(model: &Model, tokenizer: &Tokenizer) -> Result<DecodingKind, Unsupported> {
    let (plan, options) = (model.plan(), model.options());
    if ends_in_vectors(plan) || options.embeddings {
        let n_embd = plan.n_embd;
        return Ok(DecodingKind::Vectors(Unsupported::Vectors { n_embd }));
    }
    can_answer(plan, tokenizer)?;
    if plan.diffusion.is_some() {
        let mask = mask_of(plan, tokenizer)?;
        let config = DiffusionModel::of(plan, mask, options.n_batch, options.n_ctx > 0);
        return config
            .map(DecodingKind::Diffusion)
            .ok_or(Unsupported::NoMask);
    }
    let can = can_roll_back(plan, options).is_ok();
    let rolls_back = can.then_some(plan.n_embd as usize);
    let source = plan.source.as_ref().map(|source| SourceLimits {
        start: source.start,
        is_rows: source.is_rows,
        n_most: options.n_batch,
    });
    Ok(DecodingKind::Autoregressive { rolls_back, source })
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError<E> {
    /// The model could not be loaded.
    #[error("{0}")]
    Load(E),
    /// The model does not answer with text.
    #[error(transparent)]
    Unfit(#[from] Unsupported),
    /// The thread could not be started.
    #[error("could not start the engine's thread: {0}")]
    Thread(std::io::Error),
    /// The thread ended while it loaded the model.
    #[error("the engine ended while it loaded the model")]
    Ended,
}
