//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: the text of a sound, in OpenAI's shapes.
//!
//! A model whose vocabulary has the tokens of transcripts reads a sound window by window (`windows`). Any other model that takes sounds is
//! asked in a conversation. Shapes: OpenAI's API reference, audio.

mod languages;
mod request;
mod response;
mod segments;
mod windows;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::stream::{self, StreamExt as _};
use serde_json::{Map, Value, json};

use lab_core::engine::Usage;
use lab_core::plan::Media;

use crate::Pool;
use crate::endpoints::chat_request::ChatRequest;
use crate::http::context::RequestContext;
use crate::http::error::{Error, refuse};
use crate::http::transport::{self, SseEvents, StreamFraming};
use crate::request::fields::{BodyFields, read_body};
use crate::served::ServedModel;

pub(crate) use request::fields;
use request::{Task, TranscriptRequest};
use response::{Timed, TranscriptEvents, of_text};
use windows::{Transcript, TranscriptUsage};

pub(crate) const ROUTES: [&str; 2] = ["/v1/audio/transcriptions", "/v1/audio/translations"];
/// Maximum size of the body in bytes: an hour of uncompressed sound at 16 kHz, and more of others.
pub(crate) const MAX_UPLOAD: usize = 128 << 20;

pub(crate) async fn transcriptions(
    State(pool): State<Arc<Pool>>,
    request: Request,
) -> Result<Response, Error> {
    answer(&pool, request, Task::Transcribe).await
}

pub(crate) async fn translations(
    State(pool): State<Arc<Pool>>,
    request: Request,
) -> Result<Response, Error> {
    answer(&pool, request, Task::Translate).await
}

async fn answer(pool: &Arc<Pool>, request: Request, task: Task) -> Result<Response, Error> {
    let (head, body) = request.into_parts();
    let body = read_body(body).await?;
    let request = TranscriptRequest::read(&head.headers, body, task).await?;
    let served = pool.get(&request.model).await?;
    if let Some(tokens) = &served.transcripts {
        let tokens = Arc::clone(tokens);
        let transcript = Transcript::new(served, tokens, &request)?;
        return match request.is_streamed {
            true => Ok(streamed(transcript)),
            false => whole(transcript, &request).await,
        };
    }
    let takes = |media: &crate::served::ServedMedia| media.processors.takes(Media::Audio);
    if !served.media.as_ref().is_some_and(takes) {
        let message = format!("`model`: the model `{}` takes no sounds", served.name);
        return Err(Error::unsupported("model", message));
    }
    in_conversation(served, &request).await
}

async fn whole(mut transcript: Transcript, request: &TranscriptRequest) -> Result<Response, Error> {
    let mut segments = Vec::new();
    while let Some(more) = transcript.next().await? {
        segments.extend(more);
    }
    record(&transcript);
    let timed = Timed {
        task: request.task,
        language: transcript.language(),
        seconds: transcript.seconds(),
        segments: &segments,
    };
    Ok(timed.response(request.format, &transcript.usage))
}

/// Records the usage of a whole transcript, in place of that of its last window.
fn record(transcript: &Transcript) {
    let usage = transcript.usage;
    RequestContext::current().usage(Usage {
        prompt_tokens: usage.audio + usage.text,
        completion_tokens: usage.output,
        ..Usage::default()
    });
}

/// A transcript as events: the text of a window when it is known.
fn streamed(transcript: Transcript) -> Response {
    let context = RequestContext::current();
    let state = Some(Box::new((transcript, TranscriptEvents::default())));
    let events = stream::unfold(state, move |state| {
        let context = Arc::clone(&context);
        context.scope(async move {
            let mut state = state?;
            let (transcript, events) = &mut *state;
            let mut out = SseEvents::default();
            let is_over = match transcript.next().await {
                Ok(Some(segments)) => {
                    let texts = segments.iter().map(|segment| segment.text.as_str());
                    events.delta(&texts.collect::<String>(), &mut out);
                    false
                }
                Ok(None) => {
                    record(transcript);
                    events.done(&transcript.usage, &mut out);
                    true
                }
                Err(error) => {
                    error.log();
                    out.push(&error.body());
                    true
                }
            };
            Some((out, (!is_over).then_some(state)))
        })
    });
    transport::event_stream(StreamFraming::Sse, events.boxed())
}

/// The answer of a model that takes sounds in conversations.
async fn in_conversation(
    served: Arc<ServedModel>,
    request: &TranscriptRequest,
) -> Result<Response, Error> {
    let format = request.format;
    if format.has_times() {
        let message = format!(
            " is `{}`: the model `{}` gives no times, expected `json` or `text`",
            format.name(),
            served.name
        );
        return refuse("response_format", message);
    }
    let language = request.language.as_deref().map(languages::code_of);
    let language = language.as_deref().map(languages::name_of);
    let spoken = language.map_or_else(String::new, |name| format!(" The language is {name}."));
    let instruction = match (&request.prompt, request.task) {
        (Some(prompt), _) => prompt.clone(),
        (None, Task::Transcribe) => format!("Transcribe the speech.{spoken}"),
        (None, Task::Translate) => format!("Translate the speech into English.{spoken}"),
    };
    let data = BASE64_STANDARD.encode(&request.file);
    let fields = json!({
        "temperature": request.temperature, "seed": request.seed, "stream": request.is_streamed,
        "skip_special_tokens": true,
        "messages": [{ "role": "user", "content": [
            { "type": "input_audio", "input_audio": { "data": data, "format": "wav" } },
            { "type": "text", "text": instruction },
        ] }],
    });
    let fields: Map<String, Value> = match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    // The conversation is made of the file.
    RequestContext::current().rename_whole("messages", "file");
    let dialogue: ChatRequest = BodyFields::new(fields).whole()?;
    dialogue.check()?;
    let running = dialogue.prepare(served, None).await?.submit(1)?;
    let media = running.first.media.as_ref();
    let n_audio = media.map_or(0, |media| media.places.iter().map(|place| place.n).sum());
    if request.is_streamed {
        return Ok(running.answers.stream(TranscriptEvents::of(n_audio)));
    }
    let (all, usage) = running.answers.collect().await?;
    let text = all.first().map_or("", |one| one.text.trim());
    let usage = TranscriptUsage {
        audio: n_audio,
        text: usage.prompt_tokens.saturating_sub(n_audio),
        output: usage.completion_tokens,
    };
    Ok(of_text(text.to_owned(), format, &usage))
}
