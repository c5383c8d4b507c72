//! A conversation to be answered, independent of the shapes of request and response.
//!
//! Joins `request::messages` (the prompt), `request::generation` (the parameters) and `response::output_parsing` (constraint,
//! reasoning, calls).

use std::sync::Arc;

use serde_json::json;

use crate::served::ServedModel;
use lab_core::engine::Request;
use lab_core::models::media::{MediaError, PreparedMedium, PromptMedia};
use lab_core::plan::Media;

use crate::Pool;
use crate::http::error::{Error, refuse};
use crate::http::json::Json;
use crate::request::fields::{FieldDoc, RequestPart, fields, joined};
use crate::request::generation::{GenerationParams, PromptTruncation, choice_requests};
use crate::request::lab;
use crate::request::media::MessageMedium;
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
    pub(crate) tokens: Vec<u32>,
    pub(crate) media: Option<Arc<PromptMedia>>,
}

/// A checked conversation, ready to be submitted to the engine.
pub(crate) struct PreparedChat {
    served: Arc<ServedModel>,
    first: Request,
    reader: Option<CompletionParser>,
    hides_special: bool,
    lab: Option<Arc<lab::LabRequest>>,
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
        self.generation.check(1)?;
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
    }

    /// The number of tokens of the prompt, in OpenAI's shape.
    pub(crate) async fn input_tokens(&self, pool: &Arc<Pool>) -> Result<Json, Error> {
        let n = self.prompt(pool).await?.tokens.len();
        Ok(Json(
            json!({ "object": "response.input_tokens", "input_tokens": n }),
        ))
    }

    /// The media of the conversation, prepared for the model's towers.
    fn media(&self, served: &ServedModel) -> Result<Vec<PreparedMedium>, Error> {
        let mut n_of = [0; 2];
        let prepare = |medium: MessageMedium| {
            let param = &medium.param;
            let (name, n) = match medium.media {
                Media::Image => ("pictures", &mut n_of[0]),
                Media::Audio => ("sounds", &mut n_of[1]),
            };
            let taken = served.media.as_ref();
            let Some(taken) = taken.filter(|taken| taken.processors.takes(medium.media)) else {
                let message = format!("`{param}`: the model takes no {name}");
                return Err(Error::unsupported(param, message));
            };
            let prepared = taken.processors.prepare(medium.media, &medium.bytes, *n);
            *n += 1;
            prepared.or_else(|error| refuse(param, format!(": {error}")))
        };
        self.messages.media()?.into_iter().map(prepare).collect()
    }

    /// The tokens of a prompt with these media, and their places.
    fn with_media(
        served: &ServedModel,
        text: &str,
        media: Vec<PreparedMedium>,
    ) -> Result<(Vec<u32>, Option<Arc<PromptMedia>>), Error> {
        let Some(of) = served.media.as_ref().filter(|_| !media.is_empty()) else {
            return Ok((served.prompt_of(text)?, None));
        };
        let wrong = |error: MediaError| refuse::<()>("messages", format!(": {error}"));
        let text = match of.processors.expanded(text, &media) {
            Ok(text) => text,
            Err(error) => return Err(wrong(error).expect_err("it refuses")),
        };
        let tokens = served.prompt_of(&text)?;
        let id_of = |text: &str| served.handle.tokenizer().id_of(text);
        let places = match of.processors.places(&tokens, &media, id_of) {
            Ok(places) => places,
            Err(error) => return Err(wrong(error).expect_err("it refuses")),
        };
        let media = PromptMedia {
            media: media.into_iter().map(Arc::new).collect(),
            places,
        };
        if media.attends_ahead() && tokens.len() > of.n_batch {
            let (found, most) = (tokens.len(), of.n_batch);
            return refuse(
                "messages",
                format!(
                    ": the prompt has {found} tokens; with pictures this model reads at most {most} in one pass (--batch N sets more)"
                ),
            );
        }
        Ok((tokens, Some(Arc::new(media))))
    }

    pub(crate) fn prompt_for(&self, served: Arc<ServedModel>) -> Result<ChatPrompt, Error> {
        let tools = self.messages.tools()?;
        let media = self.media(&served)?;
        let text = served.chat_text(&self.messages.conversation(&tools, &served)?)?;
        let (mut tokens, media) = Self::with_media(&served, &text, media)?;
        let has_media = media.is_some();
        let bos = served.handle.tokenizer().bos();
        let n_first = usize::from(bos.is_some() && tokens.first() == bos.as_ref());
        let n_before = tokens.len();
        self.truncation
            .apply(&mut tokens, n_first, &served, &self.generation)?;
        if has_media && tokens.len() != n_before {
            return refuse("messages", ": a prompt with media is not cut");
        }
        Ok(ChatPrompt {
            served,
            tools,
            text,
            tokens,
            media,
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
            tokens,
            media,
        } = self.prompt_for(served)?;
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
        })
    }
}

impl PreparedChat {
    pub(crate) fn submit(self, n: u32) -> Result<RunningChat, Error> {
        let requests = choice_requests(&self.first, n).collect();
        let answers = RunningCompletions::submit(&self.served, requests, n)?;
        let answers = answers
            .with_parser(self.reader)
            .with_lab(self.lab, &self.served);
        Ok(RunningChat {
            first: self.first,
            answers: answers.without_special_tokens(self.hides_special, &self.served),
            served: self.served,
        })
    }
}
