//! `POST /v1/completions`: prompts without a chat template, their log-probabilities, and text for a gap.
//!
//! Shapes: OpenAI's API reference, legacy completions; `prompt_logprobs` and `add_special_tokens` are vLLM's.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::http::transport::SseEvents;
use crate::served::ServedModel;
use lab_base::tokenizer;
use lab_core::engine::{AnswerToken, Request};

use crate::Pool;
use crate::http::error::{Error, invalid, refuse};
use crate::http::json::{self, Json, JsonObject, JsonText};
use crate::request::fields::{BodyFields, fields};
use crate::request::generation::{
    GenerationParams, MAX_CHOICES, PromptTruncation, check_top_logprobs, choice_requests,
};
use crate::request::input::{TextOrTokens, check_ids, texts_or_tokens};
use crate::response::completion_parser::CompletionDelta;
use crate::response::envelope::{Envelope, ResponseObject};
use crate::response::logprobs::{self, LegacyLogprobs, TokenNames};
use crate::response::running_completions::{
    Completion, RunningCompletions, StreamEvent, StreamWriter, progress_json, set_stop_reason,
};

/// Maximum number of tokens of a completion if the request does not set it.
const DEFAULT_TOKENS: usize = 16;
const OBJECT: &str = "text_completion";
const PROMPT: &str = "prompt";

fields! {
    pub(crate) struct CompletionFields {
        prompt: Value,
        /// Length of the list of most probable tokens.
        logprobs: Option<u32>,
        /// Whether the text starts with the prompt.
        echo: Option<bool>,
        /// The text after the gap that the completion fills.
        suffix: Option<String>,
        /// Number of completions of which the `n` most probable are returned.
        best_of: Option<u32>,
        /// Whether a text gets the BOS and EOS tokens that the vocabulary asks for.
        add_special_tokens: Option<bool>,
        /// Whether log-probabilities name tokens as `token_id:ID` (vLLM).
        return_tokens_as_token_ids: Option<bool>,
        ..generation: GenerationParams,
        ..truncation: PromptTruncation,
    }
}

struct EncodedPrompt {
    text: String,
    tokens: Vec<u32>,
    /// Number of special tokens at the start, which the vocabulary adds.
    n_first: usize,
}

impl EncodedPrompt {
    /// The prompt without the tokens that the request drops.
    fn fitted(mut self, request: &CompletionFields, served: &ServedModel) -> Result<Self, Error> {
        let truncation = &request.truncation;
        if truncation.apply(&mut self.tokens, self.n_first, served, &request.generation)? {
            let tokens = &self.tokens[self.n_first..];
            let text = served.handle.tokenizer().decode(tokens);
            self.text = String::from_utf8_lossy(&text).into_owned();
        }
        Ok(self)
    }
}

pub(crate) async fn completions(
    State(pool): State<Arc<Pool>>,
    mut body: BodyFields,
) -> Result<Response, Error> {
    // Chat has true and false there.
    if body.get("logprobs") == Some(&Value::Bool(false)) {
        body.take_one("logprobs");
    }
    let mut legacy: CompletionFields = body.whole()?;
    legacy.suffix.take_if(|suffix| suffix.is_empty());
    let generation = &legacy.generation;
    generation.check(0)?;
    let prompts = texts_or_tokens(PROMPT, &legacy.prompt)?;
    legacy.check(prompts.len())?;
    let constraint = generation.constraint()?;
    let served = pool.get(generation.model()).await?;
    let encoded = prompts.into_iter().map(|prompt| {
        let encoded = legacy.encode(&served, prompt)?;
        encoded.fitted(&legacy, &served)
    });
    let encoded: Vec<EncodedPrompt> = encoded.collect::<Result<_, _>>()?;
    let constraint = generation.compile(constraint, &served).await?;
    let n = legacy.n_generated();
    let mut requests = Vec::new();
    for prompt in &encoded {
        let top = legacy.top_logprobs();
        let first = generation.request(&served, &prompt.tokens, top, constraint.as_ref());
        let mut first = first.map_err(|error| error.with_prompt_field(PROMPT))?;
        legacy.add_defaults(&mut first);
        let scores = first.prompt_logprobs;
        requests.extend(
            choice_requests(&first, n).map(|request| match generation.is_streamed() {
                // In a stream, each completion starts with the prompt.
                true => Request {
                    prompt_logprobs: scores,
                    ..request
                },
                false => request,
            }),
        );
    }
    let answers = RunningCompletions::submit(&served, requests, n);
    let answers = answers.map_err(|error| error.with_prompt_field(PROMPT))?;
    let answers = answers.without_special_tokens(generation.skips_special_tokens(), &served);
    let answers = answers.with_lab(generation.lab.clone(), &served);
    let n_tokens = encoded.iter().map(|prompt| prompt.tokens.len());
    let n_tokens = n_tokens.flat_map(|n_tokens| (0..n).map(move |_| n_tokens));
    let envelope =
        Envelope::new(Arc::clone(&served), "cmpl-", generation.reports()).with_prompts(n_tokens);
    let encoded_choices = encoded.len() as u32 * n;
    let mut shape = CompletionWriter {
        prompts: encoded,
        n_choices: n,
        wants_logprobs: legacy.logprobs.is_some(),
        names: TokenNames::of(legacy.return_tokens_as_token_ids),
        is_echoed: legacy.is_echoed(),
        offsets: Vec::new(),
        envelope,
    };
    if generation.is_streamed() {
        let start = |choice| match shape.is_echoed {
            true => shape.start_of(shape.prompt_of(choice)),
            false => 0,
        };
        shape.offsets = (0..encoded_choices).map(start).collect();
        return Ok(answers.stream(shape));
    }
    let (all, usage) = answers.collect().await?;
    let wants_scored = generation.wants_prompt_logprobs();
    Ok(json::block_in_place(|| {
        let mut out = Vec::new();
        for (prompt, of_prompt) in shape.prompts.iter().zip(all.chunks(n as usize)) {
            // The prompt is scored once, with its first completion.
            let scored = of_prompt.first().map_or(&[][..], |one| &one.prompt);
            for one in best(of_prompt, generation.n_choices()) {
                let mut choice = shape.choice(prompt, scored, one);
                choice.put("index", out.len());
                if wants_scored {
                    let scored = logprobs::of_prompt(scored, served.handle.tokenizer());
                    choice.put("prompt_logprobs", scored);
                }
                out.push(choice);
            }
        }
        Json(shape.envelope.whole(OBJECT, out, &usage)).into_response()
    }))
}

/// The `n` completions with the highest mean log-probability; in the order of generation if all are returned.
fn best(all: &[Completion], n: u32) -> Vec<&Completion> {
    let mut all: Vec<&Completion> = all.iter().collect();
    if all.len() > n as usize {
        let mean = |one: &Completion| {
            let tokens = one.tokens.iter().chain(&one.ended);
            let logprobs = tokens.filter_map(|token| token.chosen.as_ref());
            let (sum, count) = logprobs.fold((0.0, 0), |(sum, n), l| (sum + l.logprob, n + 1));
            sum / f64::from(count.max(1))
        };
        all.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        all.truncate(n as usize);
    }
    all
}

impl CompletionFields {
    fn check(&self, n_prompts: usize) -> Result<(), Error> {
        if let Some(top) = self.logprobs {
            check_top_logprobs("logprobs", top)?;
        }
        let n = self.generation.n_choices();
        if let Some(best_of) = self.best_of {
            let message = if best_of < n {
                format!("`best_of` is {best_of}, expected at least `n`, which is {n}")
            } else if best_of > n && self.generation.is_streamed() {
                "`best_of` greater than `n` is not possible where `stream` is true".into()
            } else {
                String::new()
            };
            if !message.is_empty() {
                return invalid("best_of", message);
            }
        }
        let n_all = n_prompts.saturating_mul(self.n_generated() as usize);
        if n_all > MAX_CHOICES as usize {
            let message = format!("{n_all} completions in all, expected at most {MAX_CHOICES}");
            return invalid(PROMPT, message);
        }
        if self.suffix.is_some() && self.is_echoed() {
            return refuse("suffix", " and `echo` are mutually exclusive");
        }
        Ok(())
    }

    fn is_echoed(&self) -> bool {
        self.echo == Some(true)
    }

    /// Number of completions that are generated for a prompt.
    fn n_generated(&self) -> u32 {
        self.best_of.unwrap_or(1).max(self.generation.n_choices())
    }

    /// The length of the list of most probable tokens, if log-probabilities are requested or needed to choose the best
    /// completions.
    fn top_logprobs(&self) -> Option<usize> {
        let needed = self.best_of.map(|_| 0);
        self.logprobs.map(|top| top as usize).or(needed)
    }

    fn encode(&self, served: &ServedModel, prompt: TextOrTokens) -> Result<EncodedPrompt, Error> {
        let tokenizer = served.handle.tokenizer();
        let fault = |error: tokenizer::Error| Error::invalid_value(PROMPT, error.to_string());
        let (text, tokens, has_bos) = match (prompt, &self.suffix) {
            (TextOrTokens::Text(text), None) => {
                let adds = self.add_special_tokens != Some(false);
                let tokens = tokenizer.encode(&text, adds, true).map_err(fault)?;
                let is_bos = tokens.first() == tokenizer.bos().as_ref();
                (text, tokens, adds && tokenizer.adds_bos() && is_bos)
            }
            (TextOrTokens::Text(text), Some(suffix)) => {
                let tokens = tokenizer.encode_gap(&text, suffix).map_err(fault)?;
                let tokens = tokens.ok_or_else(|| {
                    let message = "`suffix`: the vocabulary has no tokens for fill-in-the-middle";
                    Error::unsupported("suffix", message)
                })?;
                (text, tokens, false)
            }
            (TextOrTokens::Tokens(_), Some(_)) => {
                return refuse("suffix", " needs a prompt that is text");
            }
            (TextOrTokens::Tokens(tokens), None) => {
                check_ids(PROMPT, &tokens, served)?;
                let text = String::from_utf8_lossy(&tokenizer.decode(&tokens)).into_owned();
                (text, tokens, false)
            }
        };
        Ok(EncodedPrompt {
            text,
            tokens,
            n_first: usize::from(has_bos),
        })
    }

    /// Adds this endpoint's own parameters to the request for a prompt.
    fn add_defaults(&self, request: &mut Request) {
        if !self.generation.is_unlimited() {
            request.max_tokens.get_or_insert(DEFAULT_TOKENS);
        }
        if self.is_echoed()
            && let Some(top) = self.logprobs
        {
            let asked = request.prompt_logprobs.unwrap_or(0);
            request.prompt_logprobs = Some(asked.max(top as usize));
        }
    }
}

struct CompletionWriter {
    envelope: Envelope,
    prompts: Vec<EncodedPrompt>,
    n_choices: u32,
    wants_logprobs: bool,
    names: TokenNames,
    is_echoed: bool,
    /// For each completion, the offset of the next text in characters.
    offsets: Vec<isize>,
}

impl CompletionWriter {
    fn prompt_of(&self, choice: u32) -> &EncodedPrompt {
        &self.prompts[(choice / self.n_choices) as usize]
    }

    /// The character offset of a prompt's first token, such that its last token ends where its text ends.
    fn start_of(&self, prompt: &EncodedPrompt) -> isize {
        let tokenizer = self.envelope.served.handle.tokenizer();
        let pieces = prompt.tokens.iter().map(|id| tokenizer.piece(*id));
        let n_tokens: usize = pieces.map(logprobs::n_characters).sum();
        prompt.text.chars().count() as isize - n_tokens as isize
    }

    fn choice(
        &self,
        prompt: &EncodedPrompt,
        scored: &[AnswerToken],
        one: &Completion,
    ) -> JsonObject {
        let tokenizer = self.envelope.served.handle.tokenizer();
        let mut arrays = LegacyLogprobs::new(self.names);
        let (mut text, mut offset) = (String::new(), 0);
        if self.is_echoed {
            text.push_str(&prompt.text);
            offset = arrays.push(scored, self.start_of(prompt), tokenizer);
        }
        text.push_str(&one.text);
        let offset = arrays.push(&one.tokens, offset, tokenizer);
        arrays.push(one.ended.as_slice(), offset, tokenizer);
        let mut choice = json!({
            "text": text, "logprobs": null, "finish_reason": one.finish_reason(),
        });
        set_stop_reason(&mut choice, one.stopped.as_ref());
        let mut choice = JsonObject::from(choice);
        if self.wants_logprobs {
            choice.put("logprobs", arrays.json());
        }
        if let Some(report) = &one.report {
            choice.put("lab", report);
        }
        choice
    }

    fn chunk<'a>(
        &'a self,
        index: u32,
        text: &'a str,
        logprobs: Option<&'a RawValue>,
        finish_reason: Option<&'a str>,
    ) -> ResponseObject<'a, [Choice<'a>; 1]> {
        let choice = Choice {
            index,
            text,
            logprobs,
            finish_reason,
        };
        self.envelope.chunk(OBJECT, index, [choice])
    }

    fn arrays(&self, tokens: &[AnswerToken], offset: isize) -> (Option<JsonText>, isize) {
        let mut arrays = LegacyLogprobs::new(self.names);
        let tokenizer = self.envelope.served.handle.tokenizer();
        let end = arrays.push(tokens, offset, tokenizer);
        (self.wants_logprobs.then(|| arrays.json()), end)
    }

    fn text(&mut self, choice: u32, text: &str, tokens: &[AnswerToken], out: &mut SseEvents) {
        let (arrays, end) = self.arrays(tokens, self.offsets[choice as usize]);
        self.offsets[choice as usize] = end;
        out.push(&self.chunk(choice, text, arrays.as_deref(), None));
    }
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    text: &'a str,
    logprobs: Option<&'a RawValue>,
    finish_reason: Option<&'a str>,
}

impl StreamWriter for CompletionWriter {
    fn write(&mut self, choice: u32, event: StreamEvent<'_>, out: &mut SseEvents) {
        match event {
            StreamEvent::Start if self.is_echoed => {
                let text = &self.prompt_of(choice).text;
                out.push(&self.chunk(choice, text, None, None));
            }
            // The text is in the first chunk.
            StreamEvent::Prompt(tokens) if self.is_echoed => self.text(choice, "", &tokens, out),
            StreamEvent::Piece(CompletionDelta::Content(text, tokens)) => {
                self.text(choice, &text, &tokens, out);
            }
            StreamEvent::Start
            | StreamEvent::Prompt(_)
            | StreamEvent::Piece(_)
            | StreamEvent::Values(_) => {}
            StreamEvent::Count(n) => self.envelope.count(choice, n),
            StreamEvent::Usage(usage) => self.envelope.record_usage(choice, &usage),
            StreamEvent::Ended(token) => {
                let offset = self.offsets[choice as usize];
                if let (Some(arrays), _) = self.arrays(&[token], offset) {
                    out.push(&self.chunk(choice, "", Some(&arrays), None));
                }
            }
            StreamEvent::Progress(progress) => {
                let mut chunk = self.chunk(choice, "", None, None).json();
                chunk["prompt_progress"] = progress_json(&progress);
                out.push(&chunk);
            }
            StreamEvent::Step(step) => self.envelope.step(OBJECT, choice, step, out),
            StreamEvent::Lab(result) => {
                let empty = self.chunk(choice, "", None, None).json();
                self.envelope.lab(OBJECT, choice, empty, result, out);
            }
            StreamEvent::End(reason, stopped) => {
                let reason = reason.as_str();
                let mut chunk = self.chunk(choice, "", None, Some(reason)).json();
                set_stop_reason(&mut chunk["choices"][0], stopped.as_ref());
                out.push(&chunk);
            }
            StreamEvent::Done(usage) => self.envelope.done(OBJECT, usage, out),
            StreamEvent::Failed(error) => out.push(&error.body()),
        }
    }
}
