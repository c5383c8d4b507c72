//! A chat request that is answered in this process: fields, checks and reading are those of
//! `POST /v1/chat/completions`, without HTTP.
//!
//! For `bench chat`, which therefore has what the server has. One completion at a time. Futures are to be
//! run by tokio.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt as _;
use serde_json::{Map, Value};

use crate::engine::serving::Served;
use crate::engine::{Event, FinishReason, Fixed, Usage};

use super::answers::{Answers, Completion};
use super::chat::{Chat, message, parse};
use super::dialogue::Dialogue;
use super::error::Error;
use super::fields::Body;
use super::parts::Piece;

/// What comes of an answer.
#[derive(Clone, Debug)]
pub enum Said {
    /// Content, reasoning or a call.
    Piece(Piece),
    /// A denoising step, where these are asked for.
    Step {
        /// The positions that it fixed.
        fixed: Vec<Fixed>,
        /// Positions that are still masked.
        n_masked: usize,
    },
    /// The end.
    Done {
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
}

/// An answer under way; dropping it stops it.
pub struct Reply {
    answers: Answers,
    completion: Completion,
    ready: VecDeque<Said>,
}

/// Submits the answer to a request with these fields.
///
/// # Errors
/// What is refused and why.
pub async fn reply(served: &Arc<Served>, fields: Map<String, Value>) -> Result<Reply, String> {
    let begun = async {
        let (dialogue, chat) = parsed(served, fields)?;
        let ready = dialogue.ready(Arc::clone(served), chat.n_top_logprobs());
        ready.await?.submit(1)
    };
    let begun = begun.await.map_err(|error| error.to_string())?;
    Ok(Reply {
        answers: begun.answers,
        completion: Completion::default(),
        ready: VecDeque::new(),
    })
}

/// Checks a request with these fields as far as can be without computing anything.
///
/// # Errors
/// What is refused and why.
pub async fn check(served: &Arc<Served>, fields: Map<String, Value>) -> Result<(), String> {
    let checked = async {
        let (dialogue, chat) = parsed(served, fields)?;
        let ready = dialogue.ready(Arc::clone(served), chat.n_top_logprobs());
        ready.await.map(drop)
    };
    checked.await.map_err(|error: Error| error.to_string())
}

/// Number of tokens of the prompt of a request with these fields.
///
/// # Errors
/// What is refused and why.
pub fn n_tokens(served: &Arc<Served>, fields: Map<String, Value>) -> Result<usize, String> {
    let prompt = parsed(served, fields).and_then(|(dialogue, _)| {
        let prompt = dialogue.prompt_for(Arc::clone(served))?;
        Ok(prompt.tokens.len())
    });
    prompt.map_err(|error| error.to_string())
}

fn parsed(served: &Served, mut fields: Map<String, Value>) -> Result<(Dialogue, Chat), Error> {
    fields.insert("model".into(), served.name.as_str().into());
    parse(Body::of(fields))
}

impl Reply {
    /// What comes next; none after the end.
    ///
    /// # Errors
    /// The answer cannot be completed.
    pub async fn next(&mut self) -> Result<Option<Said>, String> {
        while self.ready.is_empty() {
            let Some((choice, event)) = self.answers.events.next().await else {
                return Ok(None);
            };
            match event {
                Event::Text { text, tokens } => {
                    let pieces = self.answers.read(choice, text, tokens);
                    self.say(pieces);
                }
                Event::Step {
                    fixed, n_masked, ..
                } => self.ready.push_back(Said::Step { fixed, n_masked }),
                Event::Done { reason, usage, .. } => {
                    let pieces = self.answers.rest(choice, reason);
                    self.say(pieces);
                    let usage = Usage {
                        reasoning_tokens: self.answers.total().reasoning_tokens,
                        ..usage
                    };
                    self.ready.push_back(Said::Done { reason, usage });
                }
                Event::Failed(failure) => return Err(failure.to_string()),
                // Nothing asks for them.
                Event::Prompt(_)
                | Event::Progress(_)
                | Event::Ended(_)
                | Event::Pooled(_)
                | Event::Lab(_) => {}
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Text that has come and could still have become something else: for an answer that is stopped.
    pub fn stop(&mut self) -> Vec<Piece> {
        let pieces = self.answers.rest(0, FinishReason::Length);
        self.say(pieces.clone());
        pieces
    }

    fn say(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            self.completion.add(piece.clone());
            self.ready.push_back(Said::Piece(piece));
        }
    }

    /// What has been said, as a message of the conversation, without broken calls.
    pub fn message(&self) -> Value {
        let mut said = self.completion.clone();
        said.calls.retain(|(_, _, arguments)| is_whole(arguments));
        let mut message = message(&said);
        if let Some(fields) = message.as_object_mut() {
            // Empty, or the same under another name.
            fields.shift_remove("refusal");
            fields.shift_remove("reasoning");
        }
        message
    }

    /// Number of calls whose arguments are not those of a call: cut off, or not JSON.
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
