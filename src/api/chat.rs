//! `POST /v1/chat/completions`: whole or streamed answers, with log-probabilities.
//!
//! Shapes: OpenAI's API reference, chat completions. Probabilities are the model's own, before
//! temperature, biases and every other stage; natural logarithms, at least -9999.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, SelectAll, Stream, StreamExt};
use serde_json::{Value, json};
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::constraint::Compiled;
use crate::engine::{AnswerToken, Event, FinishReason, TokenLogprob, Usage};
use crate::serving::{self, Served};
use crate::text::tokenizer::Tokenizer;

use super::chat_request::ChatRequest;
use super::diffusion::step_json;
use super::error::Error;
use super::response_format::Wanted;
use super::{MAX_BODY_BYTES, Pool};

/// Events of all answers, each with the answer's index.
type Answers = SelectAll<stream::BoxStream<'static, (u32, Event)>>;

pub(super) async fn completions(
    State(pool): State<Arc<Pool>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Error> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Error::TooLarge {
            limit: MAX_BODY_BYTES,
        },
        _ => Error::Body(rejection.to_string()),
    })?;
    let request = ChatRequest::parse(&headers, &body)?;
    let wanted = request.constraint()?;
    let served = pool.get(&request.model).await?;
    let prompt = served.chat_prompt(&request.conversation())?;
    let n_vocab = served.handle.tokenizer().vocab_len();
    let constraint = match wanted {
        Some(wanted) => Some(compile(&served, wanted).await?),
        None => None,
    };
    let mut answers = Answers::new();
    for choice in 0..request.choices() {
        let events = served.handle.submit(request.engine_request(
            prompt.clone(),
            n_vocab,
            served.handle.tokenizer(),
            choice,
            constraint.clone(),
        )?)?;
        answers.push(
            UnboundedReceiverStream::new(events)
                .map(move |event| (choice, event))
                .boxed(),
        );
    }
    let head = Head::new(&served);
    if request.stream == Some(true) {
        return Ok(streamed(&request, served, head, answers).into_response());
    }
    whole(&request, &served, &head, answers)
        .await
        .map(IntoResponse::into_response)
}

/// A constraint made ready, beside the threads that serve connections.
async fn compile(served: &Arc<Served>, wanted: Wanted) -> Result<Compiled, Error> {
    let Wanted { param, constraint } = wanted;
    let handle = served.handle.clone();
    tokio::task::spawn_blocking(move || handle.compile(constraint))
        .await
        .map_err(|error| Error::Engine {
            detail: error.to_string(),
        })?
        .map_err(|error| Wanted::refused(&param, &error))
}

/// What all chunks of an answer share.
#[derive(Clone)]
struct Head {
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
}

impl Head {
    fn new(served: &Served) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (now, count) = (serving::now(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self {
            id: format!("chatcmpl-{now:x}{count:08x}"),
            created: now,
            model: served.name.clone(),
            fingerprint: format!(
                "bench-{}-ggml-{}",
                env!("CARGO_PKG_VERSION"),
                crate::ggml::version()
            ),
        }
    }

    fn object(&self, object: &str, choices: impl Into<Value>) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": self.fingerprint, "choices": choices.into(),
        })
    }
}

async fn whole(
    request: &ChatRequest,
    served: &Served,
    head: &Head,
    mut answers: Answers,
) -> Result<Json<Value>, Error> {
    let n = request.choices() as usize;
    let mut texts = vec![String::new(); n];
    let mut entries: Vec<Vec<Value>> = vec![Vec::new(); n];
    let mut reasons: Vec<Option<FinishReason>> = vec![None; n];
    let mut total = Usage::default();
    while let Some((choice, event)) = answers.next().await {
        let i = choice as usize;
        match event {
            Event::Text { text, tokens } => {
                texts[i].push_str(&text);
                entries[i].extend(logprob_entries(&tokens, served.handle.tokenizer()));
            }
            Event::Done { reason, usage } => {
                reasons[i] = Some(reason);
                add(&mut total, &usage);
            }
            // Told in streams only.
            Event::Step { .. } => {}
            Event::Failed(failure) => return Err(failure.into()),
        }
    }
    let mut choices = Vec::with_capacity(n);
    for (i, text) in texts.into_iter().enumerate() {
        let Some(reason) = reasons[i] else {
            return Err(Error::Engine {
                detail: "the engine ended before the answer was complete".into(),
            });
        };
        let logprobs = request.wants_logprobs().then(|| logprobs(&entries[i]));
        choices.push(json!({
            "index": i,
            "message": { "role": "assistant", "content": text, "refusal": null },
            "logprobs": logprobs,
            "finish_reason": finish_name(reason),
        }));
    }
    let mut answer = head.object("chat.completion", Value::Array(choices));
    answer["usage"] = usage_json(&total);
    Ok(Json(answer))
}

/// The chunks of a stream: a first one with the role for each answer, text, one that ends each
/// answer, the usage if it was asked for, and the mark of the end.
fn streamed(
    request: &ChatRequest,
    served: Arc<Served>,
    head: Head,
    answers: Answers,
) -> Sse<impl Stream<Item = Result<SseEvent, Infallible>> + use<>> {
    let (n, wants_usage, wants_logprobs) = (
        request.choices(),
        request.wants_usage(),
        request.wants_logprobs(),
    );
    let chunk = move |head: &Head, choices: Value| {
        let mut chunk = head.object("chat.completion.chunk", choices);
        if wants_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    };
    let choice = |i: u32, delta: Value, logprobs: Option<Value>, reason: Option<&str>| json!([{ "index": i, "delta": delta, "logprobs": logprobs, "finish_reason": reason }]);
    let first: Vec<Value> = (0..n)
        .map(|i| {
            chunk(
                &head,
                choice(i, json!({ "role": "assistant", "content": "" }), None, None),
            )
        })
        .collect();

    let state = (answers, Usage::default(), n, false);
    let rest = stream::unfold(state, move |(mut answers, mut total, mut open, ended)| {
        let (head, served) = (head.clone(), Arc::clone(&served));
        async move {
            if ended {
                return None;
            }
            let Some((i, event)) = answers.next().await else {
                let error = Error::Engine {
                    detail: "the engine ended before the answer was complete".into(),
                };
                return Some((vec![error.body().to_string()], (answers, total, open, true)));
            };
            let mut out = Vec::new();
            let mut ended = false;
            match event {
                Event::Text { text, tokens } => {
                    let entries = wants_logprobs
                        .then(|| logprobs(&logprob_entries(&tokens, served.handle.tokenizer())));
                    out.push(
                        chunk(&head, choice(i, json!({ "content": text }), entries, None))
                            .to_string(),
                    );
                }
                Event::Step {
                    step,
                    fixed,
                    n_masked,
                } => {
                    let mut told = chunk(&head, json!([]));
                    let tokenizer = served.handle.tokenizer();
                    told["diffusion"] = step_json(i, step, n_masked, &fixed, tokenizer);
                    out.push(told.to_string());
                }
                Event::Done { reason, usage } => {
                    add(&mut total, &usage);
                    out.push(
                        chunk(&head, choice(i, json!({}), None, Some(finish_name(reason))))
                            .to_string(),
                    );
                    open -= 1;
                    if open == 0 {
                        if wants_usage {
                            let mut last = head.object("chat.completion.chunk", json!([]));
                            last["usage"] = usage_json(&total);
                            out.push(last.to_string());
                        }
                        out.push("[DONE]".into());
                        ended = true;
                    }
                }
                Event::Failed(failure) => {
                    tracing::error!(%failure, "a stream failed");
                    out.push(Error::from(failure).body().to_string());
                    ended = true;
                }
            }
            Some((out, (answers, total, open, ended)))
        }
    });
    let first = stream::iter(first.into_iter().map(|chunk| chunk.to_string()));
    let all = first
        .chain(rest.flat_map(stream::iter))
        .map(|data| Ok(SseEvent::default().data(data)));
    Sse::new(all).keep_alive(KeepAlive::default())
}

fn add(total: &mut Usage, usage: &Usage) {
    // The answers share one prompt, which the first of them reads.
    let is_first = total.prompt_tokens == 0;
    if is_first || usage.cached_tokens < total.cached_tokens {
        total.cached_tokens = usage.cached_tokens;
    }
    total.prompt_tokens = usage.prompt_tokens;
    total.completion_tokens += usage.completion_tokens;
    total.passes += usage.passes;
    total.positions += usage.positions;
}

fn usage_json(usage: &Usage) -> Value {
    let mut out = json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": 0 },
    });
    if usage.passes > 0 {
        out["diffusion"] = json!({ "passes": usage.passes, "positions": usage.positions });
    }
    out
}

fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn logprobs(entries: &[Value]) -> Value {
    json!({ "content": entries, "refusal": null })
}

/// One entry for each token whose bytes are in the text.
fn logprob_entries(tokens: &[AnswerToken], tokenizer: &Tokenizer) -> Vec<Value> {
    let entry = |bytes: &[u8], token: &TokenLogprob| json!({ "token": String::from_utf8_lossy(bytes), "logprob": token.logprob, "bytes": bytes, "id": token.id });
    tokens
        .iter()
        .filter_map(|token| {
            let mut value = entry(&token.bytes, token.chosen.as_ref()?);
            value["top_logprobs"] = token
                .top
                .iter()
                .map(|top| entry(tokenizer.piece(top.id), top))
                .collect();
            Some(value)
        })
        .collect()
}
