//! `POST /completion`: prompts without a chat template, in llama-server's own shape.
//!
//! Shapes: llama-server's README, `POST /completion`. The parameters are those of all text generation routes; fields
//! that only this shape has are in [`Native`]. Not here: the prompts of `/infill`.

mod response;
mod settings;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::served::ServedModel;
use lab_core::engine::Request;

use crate::Pool;
use crate::http::error::{Error, invalid, refuse};
use crate::http::json::{self, Json, JsonObject};
use crate::request::fields::{Fields, fields};
use crate::request::generation::{GenerationParams, MAX_CHOICES, choice_requests};
use crate::request::input::{MixedPrompt, TextOrTokens, check_ids, mixed_prompts, with_markers};
use crate::request::media::{self, HeldMemory, MediaPrompt};
use crate::request::object_fields::ObjectFields;
use crate::response::running_completions::{Completion, RunningCompletions};

use response::{NativeWriter, ResponseData};

pub(crate) use settings::defaults;

const PROMPT: &str = "prompt";
const SHAPES: &[(&str, &ObjectFields)] =
    &[(PROMPT, &ObjectFields::of("prompt_string multimodal_data"))];
const MAX_PROBS: u32 = 100;
const MAX_FIELDS: usize = 64;

fields! {
    /// What belongs to this shape, whatever the form of the prompt.
    #[derive(Default)]
    pub(crate) struct NativeFields {
        /// Length of the list of most probable tokens; 0 = no probabilities.
        n_probs: Option<u32>,
        /// Whether probabilities are those after all stages of sampling, from which tokens are drawn; the
        /// logarithms of the model's own otherwise.
        post_sampling_probs: Option<bool>,
        /// Whether a whole response has the ids of its tokens; a stream always does.
        return_tokens: Option<bool>,
        /// The fields that the response has, inner ones as `generation_settings/n_predict`; default: all.
        response_fields: Option<Vec<String>>,
    }
}

fields! {
    pub(crate) struct CompletionFields prunes SHAPES {
        /// A text, token ids, texts and token ids in turns, or several of these.
        prompt: Value,
        ..parameters: NativeParams,
    }
}

pub(crate) async fn completion(
    State(pool): State<Arc<Pool>>,
    Fields(CompletionFields { prompt, parameters }): Fields<CompletionFields>,
) -> Result<Response, Error> {
    parameters.check()?;
    let prompts = mixed_prompts(PROMPT, &prompt)?;
    parameters.check_number(prompts.len())?;
    let served = pool.get(parameters.model()).await?;
    if let [_, second, ..] = prompts
        .iter()
        .filter(|prompt| !prompt.media.is_empty())
        .collect::<Vec<_>>()[..]
    {
        let param = second.media[0].param();
        return refuse(
            param,
            " is in a second prompt: one prompt of a request may have media",
        );
    }
    let mut encoded = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        encoded.push(encode(&served, prompt).await?);
    }
    parameters.answer(&served, encoded, PROMPT).await
}

/// A completion of another endpoint in this shape, with its tokens.
pub(crate) fn verbose(
    served: &Arc<ServedModel>,
    request: Request,
    generation: &GenerationParams,
    one: &Completion,
) -> JsonObject {
    let shape = NativeWriter::new(ResponseData {
        served: Arc::clone(served),
        settings: settings::of(&request, generation, &NativeFields::default()),
        prompts: vec![request.prompt],
        n_choices: 1,
        post_sampling: false,
        has_probs: false,
        has_tokens: true,
        has_prompt_logprobs: false,
        fields: Vec::new(),
    });
    shape.whole(0, one)
}

/// The tokens of a prompt. A text at its start gets the special tokens that the vocabulary adds.
async fn encode(served: &Arc<ServedModel>, prompt: MixedPrompt<'_>) -> Result<MediaPrompt, Error> {
    let tokenizer = served.handle.tokenizer();
    if let ([TextOrTokens::Text(text)], false) = (&prompt.parts[..], prompt.media.is_empty()) {
        let media = media::prepared(served, prompt.media).await?;
        let text = with_markers(PROMPT, text, &media, served)?;
        let text = media.expanded(served, &text);
        let text = text.or_else(|error| refuse(PROMPT, format!(": {error}")))?;
        let tokens = tokenizer.encode(&text, true, true);
        let tokens = tokens.map_err(|error| Error::invalid_value(PROMPT, error.to_string()))?;
        return media.prompt(served, PROMPT, tokens);
    }
    let mut tokens = Vec::new();
    for (i, part) in prompt.parts.iter().enumerate() {
        match part {
            TextOrTokens::Text(text) => {
                let own = tokenizer.encode(text, i == 0, true);
                tokens
                    .extend(own.map_err(|error| Error::invalid_value(PROMPT, error.to_string()))?);
            }
            TextOrTokens::Tokens(ids) => {
                check_ids(PROMPT, ids, served)?;
                tokens.extend(ids);
            }
        }
    }
    Ok(tokens.into())
}

fields! {
    /// The parameters of a request, without its prompt.
    pub(crate) struct NativeParams {
        ..generation: GenerationParams,
        ..native: NativeFields,
    }
}

impl NativeParams {
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.generation.check(0)?;
        if let Some(n) = self.native.n_probs.filter(|n| *n > MAX_PROBS) {
            return refuse("n_probs", format!(" is {n}, expected 0 to {MAX_PROBS}"));
        }
        let n_fields = self.native.response_fields.as_ref().map_or(0, Vec::len);
        if n_fields > MAX_FIELDS {
            let message = format!("`response_fields`: more than {MAX_FIELDS} fields");
            return invalid("response_fields", message);
        }
        Ok(())
    }

    pub(crate) fn model(&self) -> &str {
        self.generation.model()
    }

    pub(crate) fn most_tokens(&self) -> Option<u64> {
        self.generation.max_tokens()
    }

    fn check_number(&self, n_prompts: usize) -> Result<(), Error> {
        let n = n_prompts.saturating_mul(self.generation.n_choices() as usize);
        if n <= MAX_CHOICES as usize {
            return Ok(());
        }
        let message = format!("{n} completions in all, expected at most {MAX_CHOICES}");
        invalid(PROMPT, message)
    }

    /// The response to these prompts, which come from the field `field`.
    pub(crate) async fn answer(
        &self,
        served: &Arc<ServedModel>,
        prompts: Vec<MediaPrompt>,
        field: &'static str,
    ) -> Result<Response, Error> {
        let (generation, native) = (&self.generation, &self.native);
        let constraint = generation.compile(generation.constraint()?, served).await?;
        let top = native.n_probs.filter(|n| *n > 0).map(|n| n as usize);
        let mut firsts: Vec<Request> = Vec::new();
        let mut held = HeldMemory::default();
        for prompt in &prompts {
            let first = generation.request(served, &prompt.tokens, top, constraint.as_ref());
            let mut first = first.map_err(|error| error.with_prompt_field(field))?;
            first.media.clone_from(&prompt.media);
            first.post_sampling |= native.post_sampling_probs == Some(true);
            firsts.push(first);
        }
        let n = generation.n_choices();
        let settings = firsts
            .first()
            .map(|first| settings::of(first, generation, native));
        let requests = firsts.iter().flat_map(|first| choice_requests(first, n));
        let answers = RunningCompletions::submit(served, requests.collect(), n);
        let answers = answers.map_err(|error| error.with_prompt_field(field))?;
        let answers = answers.without_special_tokens(generation.skips_special_tokens(), served);
        let prompts = prompts.into_iter().map(|prompt| {
            if prompt.media.is_some() {
                held = prompt.held;
            }
            prompt.tokens
        });
        let prompts = prompts.collect();
        let answers = answers
            .with_lab(generation.lab.clone(), served)
            .holding(held);
        let shape = NativeWriter::new(ResponseData {
            served: Arc::clone(served),
            prompts,
            n_choices: n,
            settings: settings.unwrap_or_default(),
            post_sampling: firsts.iter().any(|first| first.post_sampling),
            has_probs: top.is_some(),
            has_tokens: native.return_tokens == Some(true),
            has_prompt_logprobs: generation.wants_prompt_logprobs(),
            fields: native.response_fields.clone().unwrap_or_default(),
        });
        if generation.is_streamed() {
            return Ok(answers.stream(shape));
        }
        let (all, _) = answers.collect().await?;
        Ok(json::block_in_place(|| {
            let whole = (0..).zip(&all).map(|(i, one)| shape.whole(i, one));
            let whole: Vec<JsonObject> = whole.collect();
            match whole.as_slice() {
                [one] => Json(one).into_response(),
                all => Json(all).into_response(),
            }
        }))
    }
}
