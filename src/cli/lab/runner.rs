//! Runs a lab plan on one or thousands of prompts. Many prompts share a step, and results come in the order of the
//! prompts.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args as ClapArgs;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::cli::run::too_long;
use lab_core::artifacts::vectors::VectorStore;
use lab_core::engine::{Event, LabPlan, LabResult, Limits, Request, ends_in_vectors};
use lab_core::models::ModelSource;
use lab_server::served::ServedModel;
use lab_server::{LabRequest, RenderedPrompt};

use super::Prompt;
use crate::cli::Failure;
use crate::cli::media_files::{MediaFiles, user_message};
use crate::cli::options::{LoadDefaults, LoadOptions, local_limits, start_engine};
use crate::cli::output::at;
use crate::cli::values::byte_count;

/// A model with a lab plan for its prompts.
pub(super) struct LabRunner {
    pub(super) served: Arc<ServedModel>,
    pub(super) request: LabRequest,
    /// Maximum number of prompts that run at once.
    n_parallel: usize,
}

/// How many bytes values may take.
#[derive(Debug, ClapArgs)]
pub(super) struct BytesOption {
    /// Maximum size of the values of one prompt, and of sums over all prompts, in bytes; 0 = captures are refused
    #[arg(long, default_value = "1G", value_name = "BYTES", value_parser = byte_count)]
    pub(super) lab_bytes: u64,
}

/// Vectors for a plan, and the maximum size of its values.
#[derive(Debug, ClapArgs)]
pub(super) struct PlanOptions {
    #[command(flatten)]
    pub(super) bytes: BytesOption,
    /// File with vectors that the plan may name by its name without ending; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(super) lab_vectors: Vec<PathBuf>,
}

/// Reads a plan from a file: the object `lab` of a request, as JSON if the name ends in `.json`, otherwise as TOML.
pub(super) fn plan(path: &Path) -> Result<Map<String, Value>, Failure> {
    let text = super::read_text(path)?;
    match path.extension().is_some_and(|ending| ending == "json") {
        true => serde_json::from_str(&text).map_err(|error| at(path, error)),
        false => toml::from_str(&text).map_err(|error| at(path, error)),
    }
}

impl LabRunner {
    /// Starts a model for prompts of which `n_parallel` run at once.
    pub(super) fn start(
        load: &LoadOptions,
        source: &ModelSource,
        plan: Map<String, Value>,
        n_parallel: usize,
        (bytes, vectors): (&BytesOption, &[PathBuf]),
    ) -> Result<Self, Failure> {
        let at = |message: String| anyhow::anyhow!("--lab-vectors: {message}");
        let vectors = VectorStore::new(vectors, None, 0).map_err(at)?;
        vectors.check().map_err(|error| at(error.to_string()))?;
        let request = LabRequest::new(plan).map_err(Failure::msg)?;
        let mut opened = load.open(source)?;
        let mut options = load.resolve(&opened, LoadDefaults::LOCAL)?;
        if ends_in_vectors(&opened.plan) {
            anyhow::bail!(
                "{}: the model ends in vectors; see /v1/embeddings",
                opened.name
            );
        }
        let n_ctx_seq = options.n_ctx;
        options.n_seqs = n_parallel;
        // Further prompts wait for room in the cache, so that memory does not grow with the number of prompts.
        let several = usize::from(n_parallel > 1) * 4 * options.n_batch;
        options.n_ctx = (n_ctx_seq + several).next_multiple_of(256);
        options.n_ctx_seq = n_ctx_seq;
        let limits = Limits {
            lab_bytes: bytes.lab_bytes,
            n_ctx: n_ctx_seq,
            // A place in the queue is released a little after its result arrives.
            n_queue: 4 * n_parallel,
            ..local_limits(&options, n_parallel)
        };
        load.place(&mut opened, &options)?;
        let mut served = start_engine(opened, options, limits, false)?;
        served.vectors = Arc::new(vectors);
        Ok(Self {
            served: Arc::new(served),
            request,
            n_parallel,
        })
    }

    /// The tokens of a text, by the rules of `/v1/lab/run`.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, Failure> {
        Ok(self.served.handle.tokenizer().encode(text, true, true)?)
    }

    /// The prompt of a text. With media it is a message of a conversation, in which they stand before it.
    pub(super) fn prompt(
        &self,
        text: Prompt,
        media: &MediaFiles,
    ) -> Result<RenderedPrompt, Failure> {
        if media.is_empty() {
            let tokens = text.tokens(|text| self.encode(text))?;
            return Ok(RenderedPrompt {
                tokens,
                media: None,
            });
        }
        let Prompt::Written(text) = text else {
            anyhow::bail!("--image and --audio need a text, not token ids");
        };
        let messages = json!([user_message(media.parts()?, &text)]);
        let fields = Map::from_iter([("messages".to_owned(), messages)]);
        lab_server::prompt(&self.served, fields).map_err(Failure::msg)
    }

    /// The result of a single prompt, with `n_more` tokens of a completion.
    pub(super) fn one(&self, prompt: RenderedPrompt, n_more: usize) -> Result<LabResult, Failure> {
        let asked = self.request.asked(&self.served).map_err(Failure::msg)?;
        result(self.submit(&asked, prompt, n_more)?)
    }

    fn submit(
        &self,
        asked: &Arc<LabPlan>,
        prompt: RenderedPrompt,
        n_more: usize,
    ) -> Result<UnboundedReceiver<Event>, Failure> {
        let mut request = Request {
            max_tokens: Some(n_more),
            lab: Some(Arc::clone(asked)),
            media: prompt.media,
            ..Request::reading(prompt.tokens)
        };
        request.sampling.temperature = 0.0;
        let events = self.served.handle.submit(request);
        events.map_err(|rejected| too_long(rejected, &self.served))
    }

    /// Runs prompts, numbered from `first`, with `n_more` tokens of a completion each. Passes each result to `take`, in
    /// their order.
    pub(super) fn each(
        &self,
        first: usize,
        prompts: impl IntoIterator<Item = Result<Vec<u32>, Failure>>,
        n_more: usize,
        mut take: impl FnMut(LabResult) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let asked = self.request.asked(&self.served).map_err(Failure::msg)?;
        let mut under_way: VecDeque<(usize, UnboundedReceiver<Event>)> = VecDeque::new();
        let mut prompts = (first..).zip(prompts);
        loop {
            while under_way.len() < 2 * self.n_parallel {
                let Some((at, prompt)) = prompts.next() else {
                    break;
                };
                let prompt = RenderedPrompt {
                    tokens: prompt?,
                    media: None,
                };
                let events = self.submit(&asked, prompt, n_more);
                let events = events.map_err(|error| anyhow::anyhow!("prompt {at}: {error}"))?;
                under_way.push_back((at, events));
            }
            let Some((at, events)) = under_way.pop_front() else {
                return Ok(());
            };
            take(result(events).map_err(|error| anyhow::anyhow!("prompt {at}: {error}"))?)?;
        }
    }
}

/// Waits for the result of a request.
fn result(mut events: UnboundedReceiver<Event>) -> Result<LabResult, Failure> {
    let mut found = None;
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Lab(result) => found = Some(*result),
            Event::Failed(failure) => anyhow::bail!("{failure}"),
            _ => {}
        }
    }
    found.ok_or_else(|| anyhow::anyhow!("the engine stopped before the end of the prompt"))
}
