//! A conversation to be answered, independent of the shapes of request and response.
//!
//! Joins `request::messages` (the prompt), `request::generation` (the parameters) and `response::output_parsing` (constraint,
//! reasoning, calls).

use std::sync::Arc;

use serde_json::json;

use crate::served::ServedModel;
use lab_core::engine::Request;

use crate::Pool;
use crate::http::error::{Error, refuse};
use crate::http::json::Json;
use crate::request::fields::{FieldDoc, RequestPart, fields, joined};
use crate::request::generation::{GenerationParams, PromptTruncation, choice_requests};
use crate::request::lab;
use crate::request::media::{self, HeldMemory, MediaPrompt, PreparedMedia};
use crate::request::messages::Messages;
use crate::request::tools::Tools;
use crate::response::completion_parser::CompletionParser;
use crate::response::output_parsing::OutputParsing;
use crate::response::running_completions::RunningCompletions;

fields! {
    /// A conversation and the parameters of its answers.
    pub(crate) struct ChatRequest {
        ..pub(crate) generation: GenerationParams,
        ..truncation: PromptTruncation,
        ..messages: Messages,
    }
}

pub(crate) struct ChatPrompt {
    served: Arc<ServedModel>,
    tools: Tools,
    text: String,
    pub(crate) prompt: MediaPrompt,
}

/// A checked conversation, ready to be submitted to the engine.
pub(crate) struct PreparedChat {
    served: Arc<ServedModel>,
    first: Request,
    reader: Option<CompletionParser>,
    hides_special: bool,
    lab: Option<Arc<lab::LabRequest>>,
    held: HeldMemory,
}

/// A conversation whose completions are running.
pub(crate) struct RunningChat {
    pub(crate) served: Arc<ServedModel>,
    pub(crate) answers: RunningCompletions,
    pub(crate) first: Request,
}

/// The documented fields for a shape with fields `T` of its own, which replace others of the same name.
pub(crate) fn fields_with<T: RequestPart>() -> Vec<FieldDoc> {
    joined(T::documented(), vec![ChatRequest::documented()])
}

impl ChatRequest {
    /// Checks that do not depend on the model.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_for(1)
    }

    /// As [`Self::check`], of an answer of at least so many tokens.
    pub(crate) fn check_for(&self, n_least: u64) -> Result<(), Error> {
        self.generation.check(n_least)?;
        self.messages.check()
    }

    /// Refuses what an answer of one completion, without reports, cannot have. `what` is the answer.
    pub(crate) fn check_single(&self, what: &str) -> Result<(), Error> {
        if self.generation.n_choices() != 1 {
            return refuse("n", format!(" is not 1: a {what} is one completion"));
        }
        self.generation.refuse_reports()
    }

    pub(crate) async fn prompt(&self, pool: &Arc<Pool>) -> Result<ChatPrompt, Error> {
        self.prompt_for(pool.get(self.generation.model()).await?)
            .await
    }

    /// The number of tokens of the prompt, in OpenAI's shape.
    pub(crate) async fn input_tokens(&self, pool: &Arc<Pool>) -> Result<Json, Error> {
        let n = self.prompt(pool).await?.prompt.tokens.len();
        Ok(Json(
            json!({ "object": "response.input_tokens", "input_tokens": n }),
        ))
    }

    pub(crate) async fn prompt_for(&self, served: Arc<ServedModel>) -> Result<ChatPrompt, Error> {
        let media = media::prepared(&served, self.messages.media()?).await?;
        self.prompt_with(served, media)
    }

    /// As [`Self::prompt_for`], with media prepared in the calling thread.
    pub(crate) fn prompt_here(&self, served: Arc<ServedModel>) -> Result<ChatPrompt, Error> {
        let media = media::prepared_here(&served, self.messages.media()?)?;
        self.prompt_with(served, media)
    }

    fn prompt_with(
        &self,
        served: Arc<ServedModel>,
        media: PreparedMedia,
    ) -> Result<ChatPrompt, Error> {
        let tools = self.messages.tools()?;
        let (text, prompt) = self.messages.prompt(&tools, &served, media)?;
        let mut prompt = prompt;
        let bos = served.handle.tokenizer().bos();
        let n_first = usize::from(bos.is_some() && prompt.tokens.first() == bos.as_ref());
        let is_cut =
            self.truncation
                .apply(&mut prompt.tokens, n_first, &served, &self.generation)?;
        if is_cut && prompt.media.is_some() {
            return refuse("messages", ": a prompt with pictures or sounds is not cut");
        }
        Ok(ChatPrompt {
            served,
            tools,
            text,
            prompt,
        })
    }

    pub(crate) async fn submit(
        &self,
        pool: &Arc<Pool>,
        top_logprobs: Option<usize>,
    ) -> Result<RunningChat, Error> {
        let served = pool.get(self.generation.model()).await?;
        let ready = self.prepare(served, top_logprobs).await?;
        ready.submit(self.generation.n_choices())
    }

    /// The request for a model. Building it checks the whole conversation.
    pub(crate) async fn prepare(
        &self,
        served: Arc<ServedModel>,
        top_logprobs: Option<usize>,
    ) -> Result<PreparedChat, Error> {
        let generation = &self.generation;
        let spec = generation.constraint()?;
        let ChatPrompt {
            served,
            tools,
            text,
            prompt:
                MediaPrompt {
                    tokens,
                    media,
                    held,
                },
        } = self.prompt_for(served).await?;
        let parsing = OutputParsing::new(&self.messages, &tools, &served.dialect, &text);
        let spec = parsing.constraint(spec);
        let constraint = generation.compile(spec, &served).await?;
        let first = generation.request(&served, &tokens, top_logprobs, constraint.as_ref());
        let mut first = first?;
        first.media = media;
        first.thinking = parsing.thinking(&served);
        Ok(PreparedChat {
            reader: parsing.reader(),
            served,
            first,
            hides_special: generation.skips_special_tokens(),
            lab: generation.lab.clone(),
            held,
        })
    }
}

impl PreparedChat {
    /// For a prompt that is read for its values: nothing is generated unless asked for, and text is not parsed.
    pub(crate) fn for_values(mut self) -> Self {
        self.first.max_tokens.get_or_insert(0);
        self.reader = None;
        self
    }

    pub(crate) fn submit(self, n: u32) -> Result<RunningChat, Error> {
        let requests = choice_requests(&self.first, n).collect();
        let answers = RunningCompletions::submit(&self.served, requests, n)?;
        let answers = answers
            .with_parser(self.reader)
            .holding(self.held)
            .with_lab(self.lab, &self.served);
        Ok(RunningChat {
            first: self.first,
            answers: answers.without_special_tokens(self.hides_special, &self.served),
            served: self.served,
        })
    }
}
