//! The completions of one request: submitted together, then collected or streamed.
//!
//! Not here: how an endpoint writes completions, which is a [`StreamWriter`].

use std::sync::Arc;

use axum::response::Response;
use futures_util::stream::{self, SelectAll, StreamExt};
use serde_json::{Value, json};

use crate::http::transport::{self, SseEvents, StreamFraming};
use crate::served::ServedModel;
use lab_base::tokenizer::Tokenizer;
use lab_core::engine::{
    AnswerToken, Event, FinishReason, FixedToken, LabResult, PromptProgress, Request, StopMatch,
    Usage,
};
use lab_core::model::CacheMiss;

use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::http::json::JsonText;
use crate::request::lab;
use crate::request::media::HeldMemory;
use crate::response::completion_parser::{CompletionDelta, CompletionParser};

/// The events of all completions of a request, each with its completion's index.
pub(crate) struct RunningCompletions {
    pub(crate) events: SelectAll<stream::BoxStream<'static, (u32, Event)>>,
    usage: Vec<Usage>,
    /// Number of completions per prompt. The completions of a prompt have consecutive indices.
    n_choices: u32,
    n_open: u32,
    record: Arc<RequestContext>,
    /// The reader of each completion; empty if completions are plain text.
    parsers: Vec<CompletionParser>,
    /// The tokenizer that identifies special tokens, if these are left out of the text.
    special_tokens_of: Option<Arc<Tokenizer>>,
    lab: Option<LabOutput>,
    /// The memory of their media.
    held: HeldMemory,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    /// Tool calls: id, name and arguments.
    pub(crate) calls: Vec<(String, String, String)>,
    /// The tokens of the prompt, if their log-probabilities are requested.
    pub(crate) prompt: Vec<AnswerToken>,
    pub(crate) tokens: Vec<AnswerToken>,
    /// The token that ended the completion, if a token did.
    pub(crate) ended: Option<AnswerToken>,
    /// The result of the lab plan, if it is not written.
    pub(crate) lab: Option<Box<LabResult>>,
    pub(crate) report: Option<JsonText>,
    pub(crate) reason: Option<FinishReason>,
    pub(crate) stopped: Option<StopMatch>,
    /// The usage of this completion alone.
    pub(crate) usage: Usage,
}

impl Completion {
    pub(crate) fn finish_reason(&self) -> Option<&'static str> {
        self.reason.map(|reason| match reason {
            FinishReason::Stop if !self.calls.is_empty() => TOOL_CALLS,
            reason => reason.as_str(),
        })
    }

    pub(crate) fn add(&mut self, piece: CompletionDelta) {
        match piece {
            CompletionDelta::Content(text, tokens) => {
                self.text.push_str(&text);
                self.tokens.extend(tokens);
            }
            CompletionDelta::Reasoning(text) => self.reasoning.push_str(&text),
            CompletionDelta::Call(_, id, name) => self.calls.push((id, name, String::new())),
            CompletionDelta::Arguments(_, text) => {
                if let Some((_, _, arguments)) = self.calls.last_mut() {
                    arguments.push_str(&text);
                }
            }
        }
    }
}

/// OpenAI's finish reason of a completion that calls a tool.
pub(crate) const TOOL_CALLS: &str = "tool_calls";

/// Adds to a choice the stop sequence or token that ended it, if any, under vLLM's name.
pub(crate) fn set_stop_reason(choice: &mut Value, stopped: Option<&StopMatch>) {
    match stopped {
        None => {}
        Some(StopMatch::Text(text)) => choice["stop_reason"] = text.as_str().into(),
        Some(StopMatch::Token(id)) => choice["stop_reason"] = (*id).into(),
    }
}

/// An event of a completion, or of all at the end.
pub(crate) enum StreamEvent<'a> {
    Start,
    /// The tokens of the prompt with their log-probabilities, if requested.
    Prompt(Vec<AnswerToken>),
    /// Number of tokens of the completion that the next text has.
    Count(usize),
    /// Text; reasoning or a piece of a call, if answers are parsed.
    Piece(CompletionDelta),
    Progress(PromptProgress),
    /// The token that ended the completion, if a token did.
    Ended(AnswerToken),
    Step(&'a DenoisingStep<'a>),
    /// The result of the lab plan, before the end of the completion.
    Lab(JsonText),
    /// The same, if it is not written.
    Values(Box<LabResult>),
    /// The usage of the completion, before its end.
    Usage(Usage),
    End(FinishReason, Option<StopMatch>),
    /// All completions have ended; their usage.
    Done(&'a Usage),
    Failed(&'a Error),
}

/// The format in which an endpoint writes the events of a stream.
pub(crate) trait StreamWriter: Send + 'static {
    /// Whether `[DONE]` follows the last event.
    const HAS_DONE: bool = true;
    const FRAMING: StreamFraming = StreamFraming::Sse;

    fn write(&mut self, choice: u32, event: StreamEvent<'_>, out: &mut SseEvents);
}

pub(crate) struct DenoisingStep<'a> {
    /// Number of the step, from 0.
    pub(crate) number: usize,
    pub(crate) fixed: &'a [FixedToken],
    pub(crate) n_masked: usize,
}

/// The completions as they are without a stream.
struct Collected(Vec<Completion>);

impl StreamWriter for Collected {
    fn write(&mut self, choice: u32, event: StreamEvent<'_>, _: &mut SseEvents) {
        let one = &mut self.0[choice as usize];
        match event {
            StreamEvent::Prompt(tokens) => one.prompt.extend(tokens),
            StreamEvent::Piece(piece) => one.add(piece),
            StreamEvent::Ended(token) => one.ended = Some(token),
            StreamEvent::Lab(report) => one.report = Some(report),
            StreamEvent::Values(result) => one.lab = Some(result),
            StreamEvent::Usage(usage) => one.usage = usage,
            StreamEvent::End(reason, stopped) => {
                (one.reason, one.stopped) = (Some(reason), stopped);
            }
            // Steps and progress are reported in streams only.
            StreamEvent::Start
            | StreamEvent::Count(_)
            | StreamEvent::Progress(_)
            | StreamEvent::Step(_)
            | StreamEvent::Done(_)
            | StreamEvent::Failed(_) => {}
        }
    }
}

fn incomplete() -> Error {
    Error::engine("the engine ended before the completion was complete")
}

/// A lab plan, and the model for which it is.
type LabOutput = (Arc<lab::LabRequest>, Arc<ServedModel>);

impl RunningCompletions {
    /// Submits a request for each completion, `n_choices` for each prompt.
    pub(crate) fn submit(
        served: &ServedModel,
        mut requests: Vec<Request>,
        n_choices: u32,
    ) -> Result<Self, Error> {
        let n_open = requests.len() as u32;
        let record = RequestContext::current();
        let client = record.client();
        let most = client.limits.max_tokens.map(|most| most.get() as usize);
        for request in &mut requests {
            if let Some(most) = most {
                let wanted = request.max_tokens.unwrap_or(most);
                request.max_tokens = Some(wanted.min(most));
            }
            request.adapters = request.adapters.take().or_else(|| record.adapter());
        }
        record.model(&served.name);
        let mut events = SelectAll::new();
        // The completions of a prompt share it.
        let own = requests.iter().filter(|request| request.choice == 0);
        let n_tokens = own.map(|request| request.prompt.len()).sum();
        record.take_tokens(&served.rates, n_tokens)?;
        let handle = served.handle.of_client(record.client_of_engine());
        let submitted = handle.submit_all(requests);
        let submitted =
            submitted.map_err(|rejected| Error::from(rejected).with_trained_length(served))?;
        for (choice, mut own) in (0..).zip(submitted) {
            let own = stream::poll_fn(move |cx| own.poll_recv(cx));
            events.push(own.map(move |event| (choice, event)).boxed());
        }
        Ok(Self {
            events,
            usage: vec![Usage::default(); n_open.div_ceil(n_choices) as usize],
            n_choices,
            n_open,
            record,
            parsers: Vec::new(),
            special_tokens_of: None,
            lab: None,
            held: HeldMemory::default(),
        })
    }

    /// The same answers, which hold the memory of their media until they end.
    pub(crate) fn holding(mut self, held: HeldMemory) -> Self {
        self.held = held;
        self
    }

    /// The same answers; if `leaves_out`, special tokens are left out of their text.
    pub(crate) fn without_special_tokens(mut self, leaves_out: bool, served: &ServedModel) -> Self {
        self.special_tokens_of = leaves_out.then(|| Arc::clone(served.handle.tokenizer()));
        self
    }

    /// The same answers, whose lab results are written as the request asks.
    pub(crate) fn with_lab(
        mut self,
        lab: Option<Arc<lab::LabRequest>>,
        served: &Arc<ServedModel>,
    ) -> Self {
        self.lab = lab.map(|request| (request, Arc::clone(served)));
        self
    }

    /// The same answers, with reasoning and calls separated from content.
    pub(crate) fn with_parser(mut self, reader: Option<CompletionParser>) -> Self {
        let n = self.n_open as usize;
        self.parsers = reader.map_or_else(Vec::new, |reader| vec![reader; n]);
        self
    }

    /// Parses new text of a completion into pieces.
    pub(crate) fn parse(
        &mut self,
        choice: u32,
        text: String,
        tokens: Vec<AnswerToken>,
    ) -> Vec<CompletionDelta> {
        let pieces = match self.parsers.get_mut(choice as usize) {
            Some(reader) => reader.push(&text, tokens),
            None => vec![CompletionDelta::Content(text, tokens)],
        };
        self.shown(pieces)
    }

    pub(crate) fn finish(&mut self, choice: u32, reason: FinishReason) -> Vec<CompletionDelta> {
        let Some(reader) = self.parsers.get_mut(choice as usize) else {
            return Vec::new();
        };
        let pieces = reader.finish(reason);
        self.record.log_reasoning(&reader.thought);
        self.shown(pieces)
    }

    /// Pieces whose content has no special tokens, if these are left out.
    fn shown(&self, pieces: Vec<CompletionDelta>) -> Vec<CompletionDelta> {
        let Some(tokenizer) = &self.special_tokens_of else {
            return pieces;
        };
        let of_text = |piece| match piece {
            CompletionDelta::Content(_, tokens)
                if tokens.iter().any(|t| !tokenizer.is_text(t.id)) =>
            {
                let shown = tokens.into_iter().filter(|t| tokenizer.is_text(t.id));
                let shown: Vec<AnswerToken> = shown.collect();
                let bytes: Vec<u8> = shown.iter().flat_map(|t| t.bytes.clone()).collect();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                (!shown.is_empty()).then_some(CompletionDelta::Content(text, shown))
            }
            other => Some(other),
        };
        pieces.into_iter().filter_map(of_text).collect()
    }

    /// All completions by their index, and their total usage.
    pub(crate) async fn collect(mut self) -> Result<(Vec<Completion>, Usage), Error> {
        let mut all = Collected(vec![Completion::default(); self.n_open as usize]);
        while self.n_open > 0 {
            self.next(&mut all, &mut SseEvents::default()).await?;
        }
        Ok((all.0, self.total()))
    }

    pub(crate) fn total(&self) -> Usage {
        let mut total = Usage::default();
        self.usage.iter().for_each(|one| total += *one);
        total.reasoning_tokens = self.parsers.iter().map(|reader| reader.n_reasoning).sum();
        total
    }

    fn add(&mut self, choice: u32, usage: &Usage) {
        let total = &mut self.usage[(choice / self.n_choices) as usize];
        // The completions share one prompt, which the first of them reads.
        let cached_tokens = match total.prompt_tokens {
            0 => usage.cached_tokens,
            _ => usage.cached_tokens.min(total.cached_tokens),
        };
        *total += *usage;
        *total = Usage {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens,
            image_tokens: usage.image_tokens,
            audio_tokens: usage.audio_tokens,
            ..*total
        };
        self.record.usage(self.total());
    }

    /// Events: the start of each completion, its text, its end, and what the format adds after all of them.
    /// A completion that fails ends the stream with its error.
    pub(crate) fn stream<F: StreamWriter>(self, mut format: F) -> Response {
        let mut first = SseEvents::default();
        (0..self.n_open).for_each(|choice| format.write(choice, StreamEvent::Start, &mut first));
        let rest = stream::unfold(Some(Box::new((self, format))), |state| async {
            let mut state = state?;
            let (answers, format) = &mut *state;
            let mut out = SseEvents::default();
            let is_over = match answers.next(format, &mut out).await {
                Ok(is_last) => is_last,
                Err(error) => {
                    error.log();
                    let failed = StreamEvent::Failed(&error);
                    answers.record.enter(|| format.write(0, failed, &mut out));
                    return Some((out, None));
                }
            };
            if is_over && F::HAS_DONE {
                out.finish();
            }
            Some((out, (!is_over).then_some(state)))
        });
        let first = stream::once(std::future::ready(first));
        transport::event_stream(F::FRAMING, first.chain(rest).boxed())
    }

    /// Waits for the next event and writes it. Returns whether it is the last one.
    async fn next(
        &mut self,
        format: &mut impl StreamWriter,
        out: &mut SseEvents,
    ) -> Result<bool, Error> {
        let (i, event) = self.events.next().await.ok_or_else(incomplete)?;
        self.record.event(&event);
        let event = match event {
            Event::Prompt(tokens) => StreamEvent::Prompt(tokens),
            Event::Progress(progress) => StreamEvent::Progress(progress),
            Event::Ended(token) => StreamEvent::Ended(token),
            Event::Lab(result) => match &self.lab {
                Some((request, served)) => {
                    let owner = self.record.owner();
                    StreamEvent::Lab(request.text(*result, owner, served).await?)
                }
                None => StreamEvent::Values(result),
            },
            Event::Text { text, tokens } => {
                format.write(i, StreamEvent::Count(tokens.len()), out);
                for piece in self.parse(i, text, tokens) {
                    format.write(i, StreamEvent::Piece(piece), out);
                }
                return Ok(false);
            }
            Event::DenoisingStep {
                step: number,
                fixed,
                n_masked,
            } => {
                let step = DenoisingStep {
                    number,
                    fixed: &fixed,
                    n_masked,
                };
                format.write(i, StreamEvent::Step(&step), out);
                return Ok(false);
            }
            Event::Done {
                reason,
                stopped,
                usage,
            } => {
                self.add(i, &usage);
                format.write(i, StreamEvent::Usage(usage), out);
                self.n_open -= 1;
                for piece in self.finish(i, reason) {
                    format.write(i, StreamEvent::Piece(piece), out);
                }
                format.write(i, StreamEvent::End(reason, stopped), out);
                let is_last = self.n_open == 0;
                if is_last {
                    format.write(i, StreamEvent::Done(&self.total()), out);
                }
                return Ok(is_last);
            }
            // Only pooled texts have them.
            Event::Pooled(_) => return Ok(false),
            Event::Failed(failure) => return Err(failure.into()),
        };
        format.write(i, event, out);
        Ok(false)
    }
}

/// The progress of a prefill, in llama-server's shape.
pub(crate) fn progress_json(progress: &PromptProgress) -> Value {
    json!({
        "total": progress.total, "cache": progress.cached, "processed": progress.processed,
        "time_ms": (progress.time.as_secs_f64() * 1e3).round() as u64,
    })
}

/// Times and rates of a request in llama-server's shape; of several completions, the longest times.
pub(crate) fn timings_json(usage: &Usage) -> Value {
    let n_read = usage.prompt_tokens - usage.cached_tokens;
    let mut out = json!({
        "cache_n": usage.cached_tokens, "prompt_n": n_read, "predicted_n": usage.completion_tokens,
    });
    for (name, n, time) in [
        ("prompt", n_read, usage.prefill),
        ("predicted", usage.completion_tokens, usage.decode),
    ] {
        let ms = time.as_secs_f64() * 1e3;
        out[format!("{name}_ms")] = ms.into();
        out[format!("{name}_per_token_ms")] = (ms / n.max(1) as f64).into();
        out[format!("{name}_per_second")] = (n as f64 / time.as_secs_f64().max(1e-6)).into();
    }
    let (drafted, accepted) = usage.drafts.totals();
    if drafted > 0 {
        out["draft_n"] = drafted.into();
        out["draft_n_accepted"] = accepted.into();
        let by_drafter = usage.drafts.by_drafter();
        let by_drafter = by_drafter.map(|(name, drafted, accepted)| {
            let counts = json!({ "draft_n": drafted, "draft_n_accepted": accepted });
            (name.to_owned(), counts)
        });
        out["drafters"] = Value::Object(by_drafter.collect());
    }
    out
}

/// What is known of the tokens of a prompt.
pub(crate) fn input_details(usage: &Usage) -> Value {
    let mut details = json!({ "cached_tokens": usage.cached_tokens });
    for (name, n) in [
        ("image_tokens", usage.image_tokens),
        ("audio_tokens", usage.audio_tokens),
    ] {
        if n > 0 {
            details[name] = n.into();
        }
    }
    details
}

/// Where the cached tokens of a prompt come from, and why no more are cached: in the KV cache, and in the store of prefixes.
pub(crate) fn cache_json(usage: &Usage) -> Value {
    let miss = |miss: CacheMiss| match miss {
        CacheMiss::None => Value::Null,
        miss => json!({ "reason": miss.name(), "at": miss.at(), "message": miss.to_string() }),
    };
    let [host, disk] = usage.restored;
    json!({
        "memory": usage.cached_tokens.saturating_sub(host + disk), "host": host, "disk": disk,
        "miss": miss(usage.cache_miss), "store_miss": miss(usage.store_miss),
    })
}

/// The usage of a request in OpenAI's shape.
pub(crate) fn usage_json(usage: &Usage) -> Value {
    let (drafted, accepted) = usage.drafts.totals();
    let mut out = json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": input_details(usage),
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    });
    if usage.passes > 0 {
        out["diffusion"] = json!({ "passes": usage.passes, "positions": usage.positions });
    }
    out
}

pub(crate) fn step_json(index: u32, step: &DenoisingStep<'_>, tokenizer: &Tokenizer) -> Value {
    let fixed = step.fixed.iter().map(|f| {
        let bytes = tokenizer.piece(f.token);
        json!({
            "position": f.position, "token": String::from_utf8_lossy(bytes), "bytes": bytes,
            "id": f.token, "logprob": f.logprob, "confidence": f.logprob.exp(),
        })
    });
    let fixed: Value = fixed.collect();
    json!({ "index": index, "step": step.number, "masked": step.n_masked, "fixed": fixed })
}
