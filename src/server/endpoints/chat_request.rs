//! A conversation to be answered, independent of the shapes of request and response.
//!
//! Joins `messages` (the prompt), `generation` (the parameters) and `reading` (constraint, reasoning, calls).

use std::sync::Arc;

use serde_json::json;

use lab_core::engine::Request;
use lab_core::engine::serving::Served;

use super::lab;
use crate::Pool;
use crate::http::error::Error;
use crate::http::json::Json;
use crate::request::fields;
use crate::request::fields::{Body, Field, Fields};
use crate::request::generation;
use crate::request::generation::{Fitting, Generation, choices};
use crate::request::messages::Messages;
use crate::request::tools::Tools;
use crate::response::answers::Answers;
use crate::response::completion_parser::Reader;
use crate::response::output_parsing::Reading;

/// A conversation and the parameters of its answers.
pub(crate) struct Dialogue {
    messages: Messages,
    pub(crate) generation: Generation,
    fitting: Fitting,
}

/// The prompt of a conversation.
pub(crate) struct Prompt {
    served: Arc<Served>,
    tools: Tools,
    text: String,
    pub(crate) tokens: Vec<u32>,
}

/// A checked conversation, ready to be submitted to the engine.
pub(crate) struct Ready {
    served: Arc<Served>,
    first: Request,
    reader: Option<Reader>,
    hides_special: bool,
    lab: Option<Arc<lab::LabRequest>>,
}

/// A conversation whose completions are running.
pub(crate) struct Begun {
    pub(crate) served: Arc<Served>,
    pub(crate) answers: Answers,
    /// The request of the first completion.
    pub(crate) first: Request,
}

/// The documented fields of a conversation.
pub(crate) fn fields() -> Vec<Field> {
    let own = [fields::of::<Fitting>(), fields::of::<Messages>()].concat();
    [generation::fields(), own].concat()
}

/// The documented fields for a shape with fields `T` of its own, which replace others of the same name.
pub(crate) fn fields_with<T: Fields>() -> Vec<Field> {
    let own = fields::of::<T>();
    let is_other = |field: &Field| T::NAMES.iter().all(|name| *name != field.name);
    own.into_iter()
        .chain(fields().into_iter().filter(is_other))
        .collect()
}

impl Dialogue {
    /// Takes the fields of a conversation out of a body.
    ///
    /// # Errors
    /// A field is missing, of another type or out of range.
    pub(crate) fn take(body: &mut Body) -> Result<Self, Error> {
        let generation = Generation::take(body, 1)?;
        Ok(Self {
            messages: Messages::take(body)?,
            generation,
            fitting: body.take()?,
        })
    }

    /// Checks of the messages that do not depend on the model.
    ///
    /// # Errors
    /// A field has an unaccepted value; the error names it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.messages.check()
    }

    /// The prompt of the conversation.
    ///
    /// # Errors
    /// The conversation does not fit the model, or the model is not available.
    pub(crate) async fn prompt(&self, pool: &Arc<Pool>) -> Result<Prompt, Error> {
        self.prompt_for(pool.get(self.generation.model()).await?)
    }

    /// The number of tokens of the prompt, in OpenAI's shape.
    ///
    /// # Errors
    /// The conversation does not fit the model, or the model is not available.
    pub(crate) async fn input_tokens(&self, pool: &Arc<Pool>) -> Result<Json, Error> {
        let n = self.prompt(pool).await?.tokens.len();
        Ok(Json(
            json!({ "object": "response.input_tokens", "input_tokens": n }),
        ))
    }

    /// The prompt of the conversation for a model.
    ///
    /// # Errors
    /// The conversation does not fit the model.
    pub(crate) fn prompt_for(&self, served: Arc<Served>) -> Result<Prompt, Error> {
        let tools = self.messages.tools()?;
        let text = served.chat_text(&self.messages.conversation(&tools, &served)?)?;
        let mut tokens = served.prompt_of(&text)?;
        let bos = served.handle.tokenizer().bos();
        let n_first = usize::from(bos.is_some() && tokens.first() == bos.as_ref());
        self.fitting
            .cut(&mut tokens, n_first, &served, &self.generation)?;
        Ok(Prompt {
            served,
            tools,
            text,
            tokens,
        })
    }

    /// Submits the completions of the conversation.
    ///
    /// # Errors
    /// The conversation does not fit the model, or the model is not available.
    pub(crate) async fn begin(
        &self,
        pool: &Arc<Pool>,
        top_logprobs: Option<usize>,
    ) -> Result<Begun, Error> {
        let served = pool.get(self.generation.model()).await?;
        let ready = self.ready(served, top_logprobs).await?;
        ready.submit(self.generation.n_choices())
    }

    /// The request for a model. Building it checks the whole conversation.
    ///
    /// # Errors
    /// The conversation does not fit the model.
    pub(crate) async fn ready(
        &self,
        served: Arc<Served>,
        top_logprobs: Option<usize>,
    ) -> Result<Ready, Error> {
        let generation = &self.generation;
        let wanted = generation.constraint()?;
        let Prompt {
            served,
            tools,
            text,
            tokens,
        } = self.prompt_for(served)?;
        let reading = Reading::new(&self.messages, &tools, &served.dialect, &text);
        let wanted = reading.constraint(wanted);
        let constraint = generation.compile(wanted, &served).await?;
        let first = generation.request(&served, &tokens, top_logprobs, constraint.as_ref());
        let mut first = first?;
        first.thinking = reading.thinking(&served);
        Ok(Ready {
            reader: reading.reader(),
            served,
            first,
            hides_special: generation.hides_special(),
            lab: generation.lab.clone(),
        })
    }
}

impl Ready {
    /// Submits `n` completions.
    ///
    /// # Errors
    /// The engine refuses a completion.
    pub(crate) fn submit(self, n: u32) -> Result<Begun, Error> {
        let requests = choices(&self.first, n).collect();
        let answers = Answers::submit(&self.served, requests, n)?;
        let answers = answers
            .read_by(self.reader)
            .with_lab(self.lab, &self.served);
        Ok(Begun {
            first: self.first,
            answers: answers.hiding(self.hides_special, &self.served),
            served: self.served,
        })
    }
}
