//! Chat requests that are answered in this process: fields, checks and parsing are those of
//! `POST /v1/chat/completions`, without HTTP.
//!
//! For `bench chat`, which thus has the features of the server, and for the prompts of `bench run`. One completion at a time. The futures need a tokio
//! runtime.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt as _;
use serde_json::{Map, Value};

use crate::served::ServedModel;
use lab_core::engine::{Event, FinishReason, FixedToken, Usage};
use lab_core::models::media::PromptMedia;

use crate::endpoints::chat::{ChatFields, message, parse};
use crate::endpoints::chat_request::ChatRequest;
use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::request::fields::BodyFields;
use crate::response::completion_parser::CompletionDelta;
use crate::response::running_completions::{Completion, RunningCompletions};

/// An event of an answer.
#[derive(Clone, Debug)]
pub enum ReplyEvent {
    /// Content, reasoning or a call.
    Piece(CompletionDelta),
    /// A denoising step, if these are requested.
    DenoisingStep {
        /// The positions that the step fixed.
        fixed: Vec<FixedToken>,
        /// Number of positions that are still masked.
        n_masked: usize,
    },
    /// The end of the answer.
    Done {
        /// The reason of the end.
        reason: FinishReason,
        /// The usage of the answer.
        usage: Usage,
    },
}

/// A running answer. Dropping it cancels the request.
pub struct Reply {
    n_tokens: usize,
    answers: RunningCompletions,
    completion: Completion,
    ready: VecDeque<ReplyEvent>,
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The conversation exceeds the context.
    #[error("the conversation has {found} tokens, and the context holds {limit}")]
    TooLong {
        /// Tokens of the conversation.
        found: usize,
        /// Tokens of the context.
        limit: usize,
    },
    /// Another reason.
    #[error("{0}")]
    Other(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::ContextLength { found, limit, .. } => Self::TooLong { found, limit },
            other => Self::Other(other.to_string()),
        }
    }
}

/// Submits the answer to a request with these fields.
pub async fn reply(
    served: &Arc<ServedModel>,
    fields: Map<String, Value>,
) -> Result<Reply, Refusal> {
    let begun = async {
        let (dialogue, chat) = parsed(served, fields)?;
        let ready = dialogue.prepare(Arc::clone(served), chat.n_top_logprobs());
        ready.await?.submit(1)
    };
    let begun = RequestContext::detached().scope(begun).await?;
    Ok(Reply {
        n_tokens: 0,
        answers: begun.answers,
        completion: Completion::default(),
        ready: VecDeque::new(),
    })
}

/// Checks a request with these fields as far as is possible without running the model.
pub async fn check(served: &Arc<ServedModel>, fields: Map<String, Value>) -> Result<(), String> {
    let checked = async {
        let (dialogue, chat) = parsed(served, fields)?;
        let ready = dialogue.prepare(Arc::clone(served), chat.n_top_logprobs());
        ready.await.map(drop)
    };
    let checked = RequestContext::detached().scope(checked).await;
    checked.map_err(|error: Error| error.to_string())
}

/// A prompt: its tokens, and the media among them.
#[derive(Clone, Debug)]
pub struct RenderedPrompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The media; none if it has tokens of texts alone.
    pub media: Option<Arc<PromptMedia>>,
}

/// The prompt of a request with these fields.
///
/// # Errors
/// The request is refused, in words.
pub fn prompt(
    served: &Arc<ServedModel>,
    fields: Map<String, Value>,
) -> Result<RenderedPrompt, String> {
    let prompt = || {
        let (dialogue, _) = parsed(served, fields)?;
        let prompt = dialogue.prompt_here(Arc::clone(served))?.prompt;
        Ok(RenderedPrompt {
            tokens: prompt.tokens,
            media: prompt.media,
        })
    };
    let prompt = RequestContext::detached().enter(prompt);
    prompt.map_err(|error: Error| error.to_string())
}

/// Why a request with these fields is refused by every model; `None` if it is not.
pub fn refusal(fields: Map<String, Value>) -> Option<String> {
    let parsed = RequestContext::detached().enter(|| parse(BodyFields::new(fields)));
    parsed.err().map(|error| error.to_string())
}

fn parsed(
    served: &ServedModel,
    mut fields: Map<String, Value>,
) -> Result<(ChatRequest, ChatFields), Error> {
    fields.insert("model".into(), served.name.as_str().into());
    let (dialogue, chat, _) = parse(BodyFields::new(fields))?;
    Ok((dialogue, chat))
}

impl Reply {
    /// The next event; `None` after the end.
    pub async fn next(&mut self) -> Result<Option<ReplyEvent>, String> {
        while self.ready.is_empty() {
            let Some((choice, event)) = self.answers.events.next().await else {
                return Ok(None);
            };
            match event {
                Event::Text { text, tokens } => {
                    self.n_tokens += tokens.len();
                    let pieces = self.answers.parse(choice, text, tokens);
                    self.say(pieces);
                }
                Event::DenoisingStep {
                    fixed, n_masked, ..
                } => self
                    .ready
                    .push_back(ReplyEvent::DenoisingStep { fixed, n_masked }),
                Event::Done { reason, usage, .. } => {
                    let pieces = self.answers.finish(choice, reason);
                    self.say(pieces);
                    let usage = Usage {
                        reasoning_tokens: self.answers.total().reasoning_tokens,
                        ..usage
                    };
                    self.ready.push_back(ReplyEvent::Done { reason, usage });
                }
                Event::Failed(failure) => return Err(failure.to_string()),
                // This request asks for none of them.
                Event::Prompt(_)
                | Event::Progress(_)
                | Event::Ended(_)
                | Event::Pooled(_)
                | Event::Lab(_) => {}
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Number of tokens whose text has arrived.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// The text that was held back because it could still be part of something else, for an answer that is stopped.
    pub fn stop(&mut self) -> Vec<CompletionDelta> {
        let pieces = self.answers.finish(0, FinishReason::Length);
        self.say(pieces.clone());
        pieces
    }

    fn say(&mut self, pieces: Vec<CompletionDelta>) {
        for piece in pieces {
            self.completion.add(piece.clone());
            self.ready.push_back(ReplyEvent::Piece(piece));
        }
    }

    /// The answer so far as a message of the conversation, without broken calls.
    pub fn message(&self) -> Value {
        let mut said = self.completion.clone();
        said.calls.retain(|(_, _, arguments)| is_whole(arguments));
        let mut message = message(&said);
        if let Some(fields) = message.as_object_mut() {
            // These fields are empty, or have the same text under another name.
            fields.shift_remove("refusal");
            fields.shift_remove("reasoning");
        }
        message
    }

    /// Number of calls whose arguments were cut off or are not a JSON object.
    pub fn n_broken_calls(&self) -> usize {
        let calls = self.completion.calls.iter();
        calls
            .filter(|(_, _, arguments)| !is_whole(arguments))
            .count()
    }
}

fn is_whole(arguments: &str) -> bool {
    serde_json::from_str(arguments).is_ok_and(|value: Value| value.is_object())
}
