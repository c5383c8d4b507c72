//! Ollama's API, for programs that know no other: `/api/chat`, `/api/generate`, `/api/embed` and what they ask before.
//!
//! A request is rewritten into the fields of a chat completion, so that there is one path to a model. A stream is lines
//! of JSON. Shapes: Ollama's docs/api.md and the types of its packages for Python and JavaScript. Not here: prompts,
//! sampling, parsing of calls.

mod embed;
pub(crate) mod keep_alive;
mod models;
mod request;
mod response;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::Pool;
use crate::endpoints::chat_request::RunningChat;
use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::request::fields::BodyFields;
use crate::response::running_completions::RunningCompletions;
use crate::served::ServedModel;

use request::{Asked, Prompt};
use response::{AnswerShape, AnswerWriter, state_answer};

pub(crate) use embed::{embed, embed_fields, embeddings, old_embed_fields};
pub(crate) use models::{PullFields, ShowFields, delete, ps, pull, show, tags, version};
pub(crate) use request::{chat_fields, generate_fields};

pub(crate) async fn chat(
    State(pool): State<Arc<Pool>>,
    body: BodyFields,
) -> Result<Response, Error> {
    answer(&pool, request::chat(body)?, AnswerShape::Chat).await
}

pub(crate) async fn generate(
    State(pool): State<Arc<Pool>>,
    body: BodyFields,
) -> Result<Response, Error> {
    let answered = answer(&pool, request::generate(body)?, AnswerShape::Generate).await;
    answered.map_err(|error| error.with_prompt_field("prompt"))
}

async fn answer(pool: &Arc<Pool>, asked: Asked, shape: AnswerShape) -> Result<Response, Error> {
    let started = Instant::now();
    let unloads = asked.keep_alive == Some(Duration::ZERO);
    let is_empty = asked.prompt == Prompt::Empty;
    let name = asked.dialogue.generation.model();
    if is_empty && unloads && !pool.is_loaded(&pool.serving_name(name)?) {
        return Ok(Json(state_answer(shape, &asked.model, "unload")).into_response());
    }
    let served = pool.get(name).await?;
    let response = if is_empty {
        RequestContext::current().model(&served.name);
        let reason = if unloads { "unload" } else { "load" };
        Json(state_answer(shape, &asked.model, reason)).into_response()
    } else {
        let load = started.elapsed();
        let running = asked.submit(Arc::clone(&served)).await?;
        let writer = AnswerWriter::new(shape, &asked, running.served, started, load);
        if asked.dialogue.generation.is_streamed() {
            running.answers.stream(writer)
        } else {
            let (all, usage) = running.answers.collect().await?;
            let whole = all.first().map(|one| writer.whole(one, &usage));
            Json(whole).into_response()
        }
    };
    Ok(keep_alive::apply(
        pool,
        &served.name,
        asked.keep_alive,
        response,
    ))
}

impl Asked {
    async fn submit(&self, served: Arc<ServedModel>) -> Result<RunningChat, Error> {
        let generation = &self.dialogue.generation;
        let has_template = served.has_template();
        let text = match &self.prompt {
            Prompt::Raw(text) => text,
            Prompt::Text {
                text,
                has_system,
                has_images,
            } if !has_template => {
                if *has_images {
                    let message = "`images`: the model has no template that places pictures";
                    return Err(Error::unsupported("images", message));
                }
                if *has_system {
                    RequestContext::current().ignore("system");
                }
                text
            }
            Prompt::Gap(before, after) => {
                let gap = served.handle.tokenizer().encode_gap(before, after);
                let gap = gap.map_err(|error| Error::invalid_value("prompt", error.to_string()))?;
                let tokens = gap.ok_or_else(|| {
                    let message = "`suffix`: the vocabulary has no tokens for fill-in-the-middle";
                    Error::unsupported("suffix", message)
                })?;
                return self.submit_tokens(served, &tokens).await;
            }
            Prompt::Empty | Prompt::Messages | Prompt::Text { .. } => {
                let ready = self.dialogue.prepare(served, self.top_logprobs).await?;
                return ready.submit(generation.n_choices());
            }
        };
        let tokens = served.handle.tokenizer().encode(text, true, true);
        let tokens = tokens.map_err(|error| Error::invalid_value("prompt", error.to_string()))?;
        self.submit_tokens(served, &tokens).await
    }

    /// Submits a prompt that no chat template is applied to.
    async fn submit_tokens(
        &self,
        served: Arc<ServedModel>,
        tokens: &[u32],
    ) -> Result<RunningChat, Error> {
        let generation = &self.dialogue.generation;
        let constraint = generation
            .compile(generation.constraint()?, &served)
            .await?;
        let first = generation.request(&served, tokens, self.top_logprobs, constraint.as_ref())?;
        let answers = RunningCompletions::submit(&served, vec![first.clone()], 1)?;
        let answers = answers.with_lab(generation.lab.clone(), &served);
        Ok(RunningChat {
            answers: answers.without_special_tokens(generation.skips_special_tokens(), &served),
            first,
            served,
        })
    }
}
