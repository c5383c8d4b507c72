//! The fields that all text generation requests share, whatever the form of the prompt: length, number and end of the
//! completions, how they are decoded and whether they are streamed.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::served::ServedModel;
use lab_base::grammar::CompiledConstraint;
use lab_core::engine::{DiffusionOptions, Request, StopConditions};

use super::adapter_scales::{self, AdapterScale};
use super::diffusion;
use super::drafts::DraftFields;
use super::fields::{BodyFields, FieldDoc, RequestPart, fields};
use super::input::check_ids;
use super::object_fields::ObjectFields;
use super::response_format::{ConstraintFields, ConstraintSpec};
use super::sampling::SamplingFields;
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, quoted, refuse};
use crate::request::lab::{LabField, LabRequest};
use crate::served::DEFAULT_MODEL;

/// Maximum number of completions of one request, over all its prompts.
pub(crate) const MAX_CHOICES: u32 = 128;
pub(crate) const MAX_TOP_LOGPROBS: u32 = 20;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 4096;
const MAX_STOP_TOKENS: usize = 128;

fields! {
    struct Common prunes SHAPES {
        /// The model; default: the only one.
        model: Option<String>,
        stream: Option<bool>,
        stream_options: Option<StreamOptions>,
        /// Maximum number of tokens of the completion; -1 = as many as fit.
        max_tokens: Option<i64>,
        /// The same under OpenAI's newer name.
        max_completion_tokens: Option<i64>,
        /// `max_tokens` of llama-server; below 0 = no limit.
        n_predict: Option<i64>,
        /// Number of tokens before a token or a stop sequence may end the completion (vLLM).
        min_tokens: Option<u64>,
        /// Time in milliseconds after the prompt is read from which a completion that has a line end ends; 0 or below =
        /// no limit (llama-server).
        t_max_predict_ms: Option<i64>,
        /// Minimum number of spaces and tabs at the start of each line but the first: a line with less ends the
        /// completion (llama-server).
        n_indent: Option<i64>,
        n: Option<u32>,
        /// `n` of llama-server.
        n_cmpl: Option<u32>,
        stop: Option<OneOrMany>,
        /// Tokens that end the completion (vLLM).
        stop_token_ids: Option<Vec<u32>>,
        /// Whether the stop sequence is part of the completion (vLLM).
        include_stop_str_in_output: Option<bool>,
        /// Whether special tokens that the model writes are left out of the completion (vLLM); default: false.
        skip_special_tokens: Option<bool>,
        /// Whether the prefix cache is read (llama-server).
        cache_prompt: Option<bool>,
        /// The slot whose prefix may be saved afterwards (`/slots/{id}`), from 0 on; -1 = any (llama-server).
        id_slot: Option<i64>,
        /// Whether the usage says where cached tokens come from, and why no more are cached (SGLang).
        return_cached_tokens_details: Option<bool>,
        /// Length of the list of most probable tokens of each prompt position (vLLM).
        prompt_logprobs: Option<u32>,
        /// Log-probabilities of the model (`raw_logprobs`) or those after all stages of sampling
        /// (`processed_logprobs`) (vLLM).
        logprobs_mode: Option<String>,
        /// Waiting requests of a lower number start first; from 0, the default (vLLM).
        priority: Option<u64>,
        /// Whether the response has times and rates (llama-server).
        timings_per_token: Option<bool>,
        /// Whether a stream reports how much of the prompt is processed (llama-server).
        return_progress: Option<bool>,
        /// Adapters and their scales, the others being off.
        lora: Option<Vec<AdapterScale>>,
        /// Options of text diffusion.
        diffusion: Option<Map<String, Value>>,
        /// Whether the stream reports every denoising step.
        diffusion_trace: Option<bool>,
        ..drafts: DraftFields,
        ..sampling: SamplingFields,
        ..format: ConstraintFields,
        ..lab: LabField,
    }
}

fields! {
    pub(crate) struct PromptTruncation {
        /// Number of tokens of the prompt that are kept, the last ones; -1 = as many as leave room for the completion
        /// (vLLM).
        truncate_prompt_tokens: Option<i64>,
    }
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    /// Whether each chunk has the usage so far (vLLM).
    continuous_usage_stats: Option<bool>,
}

/// Chunks are not padded.
const STREAM_OPTIONS: ObjectFields = ObjectFields {
    idle: "include_obfuscation",
    ..ObjectFields::of("include_usage continuous_usage_stats")
};
const SHAPES: &[(&str, &ObjectFields)] = &[
    ("stream_options", &STREAM_OPTIONS),
    ("lora", &adapter_scales::ADAPTER_SCALE),
];

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Clone, Copy, Debug)]
enum TokenLimit {
    Tokens(u64),
    /// As many tokens as the context holds.
    AsFit,
    Wrong(i64),
}

/// llama-server's name of `max_tokens`.
const N_PREDICT: &str = "n_predict";

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReportOptions {
    /// Usage at the end of a stream; whole responses always have it.
    pub(crate) usage: bool,
    /// The usage so far in each chunk of a stream that reports usage.
    pub(crate) continuous: bool,
    pub(crate) timings: bool,
    /// Where cached tokens come from, and why no more are cached.
    pub(crate) cache: bool,
}

#[derive(Debug)]
pub(crate) struct GenerationParams {
    common: Common,
    diffusion: Option<DiffusionOptions>,
    /// The captures and edits of values of its passes.
    pub(crate) lab: Option<Arc<LabRequest>>,
}

impl RequestPart for GenerationParams {
    fn documented() -> Vec<FieldDoc> {
        Common::documented()
    }

    fn take_from(body: &mut BodyFields) -> Result<Self, Error> {
        let mut common: Common = body.take()?;
        let diffusion = common.diffusion.take().map(diffusion::parse);
        let lab = common.lab.lab.take().map(LabRequest::read);
        Ok(Self {
            diffusion: diffusion.transpose()?,
            lab: lab.transpose()?.map(Arc::new),
            common,
        })
    }
}

impl GenerationParams {
    /// Checks what does not depend on the model. The completions have at least `n_least` tokens.
    pub(crate) fn check(&self, n_least: u64) -> Result<(), Error> {
        let common = &self.common;
        if !(1..=MAX_CHOICES).contains(&self.n_choices()) {
            let message = format!("`n` is {}, expected 1 to {MAX_CHOICES}", self.n_choices());
            return invalid("n", message);
        }
        let (param, most) = self.token_limit();
        // llama-server's name has its meaning: 0 reads the prompt only.
        let n_least = if param == N_PREDICT { 0 } else { n_least };
        match most {
            Some(TokenLimit::Wrong(most)) => {
                let message = format!(
                    "`{param}` is {most}, expected at least {n_least}, or -1 for as many as fit"
                );
                return invalid(param, message);
            }
            Some(TokenLimit::Tokens(most)) if most < n_least => {
                return refuse(param, format!(" is {most}, expected at least {n_least}"));
            }
            _ => {}
        }
        if let (Some(least), Some(TokenLimit::Tokens(most))) = (common.min_tokens, most)
            && most < least
        {
            let message = format!("`min_tokens` is {least}, which is more than `{param}`");
            return invalid("min_tokens", message);
        }
        if let Some(top) = common.prompt_logprobs {
            check_top_logprobs("prompt_logprobs", top)?;
            if self.is_streamed() {
                return refuse("prompt_logprobs", " is not possible where `stream` is true");
            }
        }
        if self.stop_sequences().len() > MAX_STOPS {
            return refuse("stop", format!(": more than {MAX_STOPS} stop sequences"));
        }
        if self
            .stop_sequences()
            .iter()
            .any(|t| t.len() > MAX_STOP_BYTES)
        {
            let message = format!("`stop`: a sequence of more than {MAX_STOP_BYTES} bytes");
            return invalid("stop", message);
        }
        let stop_tokens = common.stop_token_ids.as_ref().map_or(0, Vec::len);
        if stop_tokens > MAX_STOP_TOKENS {
            let message = format!("`stop_token_ids`: more than {MAX_STOP_TOKENS} tokens");
            return invalid("stop_token_ids", message);
        }
        for (param, is_set) in [
            ("stream_options", common.stream_options.is_some()),
            ("diffusion_trace", common.diffusion_trace == Some(true)),
        ] {
            if is_set && !self.is_streamed() {
                return refuse(param, " needs `stream` to be true");
            }
        }
        Ok(())
    }

    /// The limit of the completion's length, with the name of its field.
    fn token_limit(&self) -> (&'static str, Option<TokenLimit>) {
        let common = &self.common;
        let most = |n: i64| match u64::try_from(n) {
            Ok(n) => TokenLimit::Tokens(n),
            Err(_) if n == -1 => TokenLimit::AsFit,
            Err(_) => TokenLimit::Wrong(n),
        };
        match (common.max_completion_tokens, common.max_tokens) {
            // Any number below 0 is no limit there.
            (None, None) => (N_PREDICT, common.n_predict.map(|n| most(n.max(-1)))),
            (None, Some(n)) => ("max_tokens", Some(most(n))),
            (Some(n), _) => ("max_completion_tokens", Some(most(n))),
        }
    }

    /// Whether the request asks for as many tokens as fit, where an endpoint has another default.
    pub(crate) fn is_unlimited(&self) -> bool {
        matches!(self.token_limit().1, Some(TokenLimit::AsFit))
    }

    pub(crate) fn model(&self) -> &str {
        self.common.model.as_deref().unwrap_or(DEFAULT_MODEL)
    }

    pub(crate) fn is_streamed(&self) -> bool {
        self.common.stream == Some(true)
    }

    pub(crate) fn reports(&self) -> ReportOptions {
        let options = self.common.stream_options.as_ref();
        ReportOptions {
            usage: options.is_some_and(|options| options.include_usage == Some(true)),
            continuous: options.is_some_and(|own| own.continuous_usage_stats == Some(true)),
            timings: self.common.timings_per_token == Some(true),
            cache: self.common.return_cached_tokens_details == Some(true),
        }
    }

    /// Refuses the fields whose results the responses of an endpoint cannot carry.
    pub(crate) fn refuse_reports(&self) -> Result<(), Error> {
        let common = &self.common;
        let fields = [
            ("prompt_logprobs", common.prompt_logprobs.is_some()),
            ("timings_per_token", common.timings_per_token == Some(true)),
            (
                "return_cached_tokens_details",
                common.return_cached_tokens_details == Some(true),
            ),
            ("return_progress", common.return_progress == Some(true)),
        ];
        match fields.iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => {
                let message = format!("`{name}`: not supported by this endpoint");
                Err(Error::unsupported(*name, message))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn wants_prompt_logprobs(&self) -> bool {
        self.common.prompt_logprobs.is_some()
    }

    pub(crate) fn max_tokens(&self) -> Option<u64> {
        match self.token_limit().1 {
            Some(TokenLimit::Tokens(n)) => Some(n),
            _ => None,
        }
    }

    pub(crate) fn ignores_eos(&self) -> bool {
        self.common.sampling.ignores_eos()
    }

    pub(crate) fn skips_special_tokens(&self) -> bool {
        self.common.skip_special_tokens == Some(true)
    }

    pub(crate) fn n_choices(&self) -> u32 {
        self.common.n.or(self.common.n_cmpl).unwrap_or(1)
    }

    pub(crate) fn constraint(&self) -> Result<Option<ConstraintSpec>, Error> {
        self.common.format.constraint()
    }

    pub(crate) async fn compile(
        &self,
        spec: Option<ConstraintSpec>,
        served: &Arc<ServedModel>,
    ) -> Result<Option<CompiledConstraint>, Error> {
        let Some(spec) = spec else {
            return Ok(None);
        };
        let sampling = self.common.sampling.params(served)?;
        spec.compile(served, sampling).await.map(Some)
    }

    fn stop_sequences(&self) -> Vec<&str> {
        let all = match &self.common.stop {
            None => &[],
            Some(OneOrMany::One(text)) => std::slice::from_ref(text),
            Some(OneOrMany::Many(texts)) => texts.as_slice(),
        };
        let all = all.iter().map(String::as_str);
        all.filter(|text| !text.is_empty()).collect()
    }

    fn are_logprobs_processed(&self) -> Result<bool, Error> {
        match self.common.logprobs_mode.as_deref() {
            None | Some("raw_logprobs") => Ok(false),
            Some("processed_logprobs") => Ok(true),
            Some(other) => {
                let other = quoted(other);
                let expected = "expected raw_logprobs or processed_logprobs";
                refuse("logprobs_mode", format!(" is {other}, {expected}"))
            }
        }
    }

    /// The engine request for the first completion of a prompt.
    pub(crate) fn request(
        &self,
        served: &ServedModel,
        prompt: &[u32],
        top_logprobs: Option<usize>,
        constraint: Option<&CompiledConstraint>,
    ) -> Result<Request, Error> {
        let common = &self.common;
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let stops = self.stop_sequences().into_iter();
        let stop_tokens = common.stop_token_ids.clone().unwrap_or_default();
        check_ids("stop_token_ids", &stop_tokens, served)?;
        let fits = served.handle.check_prompt(prompt.len());
        fits.map_err(|rejected| Error::from(rejected).with_trained_length(served))?;
        let client = RequestContext::current().client();
        let most = client.limits.max_tokens.map(|most| u64::from(most.get()));
        if let (Some(most), Some(found)) = (most, self.max_tokens())
            && found > most
        {
            let (field, client) = (self.token_limit().0, client.in_words());
            return refuse(field, format!(" is {found}, {client} may ask for {most}"));
        }
        Ok(Request {
            prompt: prompt.to_vec(),
            media: None,
            max_tokens: self.max_tokens().map(count),
            sampling: self.common.sampling.params(served)?,
            choice: 0,
            stops: stops.map(|text| text.as_bytes().to_vec()).collect(),
            stop: StopConditions {
                min_tokens: common.min_tokens.map_or(0, count),
                stop_tokens,
                keeps_stop: common.include_stop_str_in_output == Some(true),
                n_indent: common
                    .n_indent
                    .and_then(|n| usize::try_from(n).ok())
                    .unwrap_or(0),
                time: common.t_max_predict_ms.filter(|time| *time > 0).map(|ms| {
                    let ms = u64::try_from(ms).unwrap_or(0);
                    Duration::from_millis(ms)
                }),
            },
            cache_prompt: common.cache_prompt != Some(false),
            top_logprobs,
            post_sampling: self.are_logprobs_processed()?,
            progress: common.return_progress == Some(true) && self.is_streamed(),
            prompt_logprobs: common.prompt_logprobs.map(|top| top as usize),
            drafts: common.drafts.0,
            constraint: constraint.cloned(),
            rules: None,
            thinking: None,
            priority: common
                .priority
                .map_or(0, |n| i64::try_from(n).unwrap_or(i64::MAX)),
            adapters: common
                .lora
                .as_deref()
                .map(adapter_scales::distinct_scales)
                .transpose()?,
            lab: self
                .lab
                .as_ref()
                .map(|lab| lab.resolve(served))
                .transpose()?,
            slot: common.id_slot.and_then(|slot| usize::try_from(slot).ok()),
            diffusion: self.diffusion,
            trace: common.diffusion_trace == Some(true),
        })
    }
}

impl PromptTruncation {
    /// Drops tokens of a prompt, but not its first `n_first`. Returns whether it dropped any.
    pub(crate) fn apply(
        &self,
        tokens: &mut Vec<u32>,
        n_first: usize,
        served: &ServedModel,
        generation: &GenerationParams,
    ) -> Result<bool, Error> {
        let param = "truncate_prompt_tokens";
        let Some(kept) = self.truncate_prompt_tokens else {
            return Ok(false);
        };
        let n_ctx = served.handle.limits().n_ctx;
        let kept = match usize::try_from(kept) {
            Ok(kept) if (n_first.max(1)..=n_ctx).contains(&kept) => kept,
            Err(_) if kept == -1 => {
                let most = generation.max_tokens().unwrap_or(1).max(1);
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                n_ctx.saturating_sub(most).max(n_first + 1)
            }
            _ => {
                let least = n_first.max(1);
                let message = format!("`{param}` is {kept}, expected -1 or {least} to {n_ctx}");
                return invalid(param, message);
            }
        };
        let n_over = tokens.len().saturating_sub(kept);
        tokens.drain(n_first..n_first + n_over);
        Ok(n_over > 0)
    }
}

pub(crate) fn choice_requests(first: &Request, n: u32) -> impl Iterator<Item = Request> {
    (0..n).map(|choice| Request {
        choice,
        // The first completion reports them.
        prompt_logprobs: first.prompt_logprobs.filter(|_| choice == 0),
        ..first.clone()
    })
}

pub(crate) fn check_top_logprobs(param: &str, top: u32) -> Result<(), Error> {
    if top <= MAX_TOP_LOGPROBS {
        return Ok(());
    }
    let message = format!("`{param}` is {top}, expected 0 to {MAX_TOP_LOGPROBS}");
    invalid(param, message)
}
