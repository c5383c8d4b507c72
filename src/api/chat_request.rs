//! The request of a chat completion: fields, ranges, and what is refused.
//!
//! A field that changes the answer and is not served is refused, never ignored; so is a field that
//! nobody knows. Null means the default everywhere.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::arch::nearest;
use crate::constraint::Compiled;
use crate::engine::Request;
use crate::sampling::{DRY_BREAKERS, ParamError, Params, StageName};
use crate::serving::Conversation;
use crate::text::tokenizer::Tokenizer;

use super::adapters::{self, Scaled};
use super::diffusion;
use super::error::Error;
use super::response_format::{self, Wanted};

/// Most answers to one request.
const MAX_CHOICES: u32 = 128;
/// Longest list of likeliest tokens.
const MAX_TOP_LOGPROBS: u32 = 20;
/// Most stop texts.
const MAX_STOPS: usize = 16;

#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    pub(super) model: String,
    messages: Vec<Value>,
    pub(super) stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    n: Option<u32>,
    stop: Option<OneOrMany>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    logit_bias: Option<BTreeMap<String, f64>>,
    seed: Option<i64>,
    draft: Option<u64>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    tools: Option<Value>,
    tool_choice: Option<Value>,
    #[serde(flatten)]
    format: response_format::Fields,
    // Beyond OpenAI's fields:
    top_k: Option<u32>,
    min_p: Option<f64>,
    top_n_sigma: Option<f64>,
    typical_p: Option<f64>,
    xtc_probability: Option<f64>,
    xtc_threshold: Option<f64>,
    tfs_z: Option<f64>,
    mirostat: Option<u32>,
    mirostat_tau: Option<f64>,
    mirostat_eta: Option<f64>,
    /// Contrastive search.
    penalty_alpha: Option<f64>,
    dry_multiplier: Option<f64>,
    dry_base: Option<f64>,
    dry_allowed_length: Option<u32>,
    dry_penalty_last_n: Option<i32>,
    dry_sequence_breakers: Option<Vec<String>>,
    /// Names of the stages in the order they run.
    samplers: Option<Vec<String>>,
    repeat_penalty: Option<f64>,
    repeat_last_n: Option<i32>,
    /// Whether the answer goes on where the model would end it.
    ignore_eos: Option<bool>,
    /// Adapters and their scales, the others being off.
    lora: Option<Vec<Scaled>>,
    /// How the answer is filled in, by models that do so.
    diffusion: Option<Map<String, Value>>,
    /// Whether the stream tells every step of that.
    diffusion_trace: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    /// Fields with no effect on the answer, and those that nobody knows.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Fields that clients send and that have no effect here.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
];

/// Names of the fields above, for the nearest one.
const FIELDS: &[&str] = &[
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "draft",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "top_k",
    "min_p",
    "top_n_sigma",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "tfs_z",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "penalty_alpha",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "samplers",
    "repeat_penalty",
    "repeat_last_n",
    "ignore_eos",
    "lora",
    "diffusion",
    "diffusion_trace",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
];

impl ChatRequest {
    /// The request in a body.
    pub(super) fn parse(headers: &HeaderMap, body: &Bytes) -> Result<Self, Error> {
        if let Some(kind) = headers.get(header::CONTENT_TYPE) {
            let kind = kind.to_str().unwrap_or("?");
            if !kind.to_ascii_lowercase().starts_with("application/json") {
                return Err(Error::ContentType(kind.to_owned()));
            }
        }
        let value: Value = serde_json::from_slice(body)
            .map_err(|e| Error::Body(format!("the body is not JSON: {e}")))?;
        let request: Self = serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            let inner = error.into_inner().to_string();
            match inner
                .strip_prefix("missing field `")
                .and_then(|rest| rest.split_once('`'))
            {
                Some((field, _)) => Error::Field {
                    param: field.to_owned(),
                    message: format!("missing required parameter: `{field}`"),
                    code: "missing_required_parameter",
                },
                None if path == "." => Error::Body(inner),
                None => Error::Field {
                    message: format!("`{path}`: {inner}"),
                    param: path,
                    code: "invalid_type",
                },
            }
        })?;
        request.check()?;
        Ok(request)
    }

    fn check(&self) -> Result<(), Error> {
        for (name, value) in &self.rest {
            if !HARMLESS.contains(&name.as_str()) && !value.is_null() {
                let fields = FIELDS.iter().chain(response_format::NAMES);
                let near = nearest(name, fields.copied());
                let hint = near
                    .map(|near| format!("; did you mean `{near}`?"))
                    .unwrap_or_default();
                return Err(Error::Field {
                    param: name.clone(),
                    message: format!("unknown parameter: `{name}`{hint}"),
                    code: "unknown_parameter",
                });
            }
        }
        self.check_messages()?;
        self.check_unserved()?;
        self.check_trace()?;
        let range = |param: &str, value: Option<f64>, low: f64, high: f64| match value {
            Some(v) if !(low..=high).contains(&v) => Err(Error::value(
                param,
                format!("`{param}` is {v}, expected {low} to {high}"),
            )),
            _ => Ok(()),
        };
        range("temperature", self.temperature, 0.0, 2.0)?;
        range("top_p", self.top_p, 0.0, 1.0)?;
        range("min_p", self.min_p, 0.0, 1.0)?;
        range("top_n_sigma", self.top_n_sigma, 0.0, f64::MAX)?;
        range("typical_p", self.typical_p, 0.0, 1.0)?;
        range("xtc_probability", self.xtc_probability, 0.0, 1.0)?;
        range("xtc_threshold", self.xtc_threshold, 0.0, 1.0)?;
        range("tfs_z", self.tfs_z, 0.0, 1.0)?;
        range("penalty_alpha", self.penalty_alpha, 0.0, 1.0)?;
        range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        if !(1..=MAX_CHOICES).contains(&self.choices()) {
            return Err(Error::value(
                "n",
                format!("`n` is {}, expected 1 to {MAX_CHOICES}", self.choices()),
            ));
        }
        if self.max_completion_tokens.or(self.max_tokens) == Some(0) {
            let param = if self.max_completion_tokens.is_some() {
                "max_completion_tokens"
            } else {
                "max_tokens"
            };
            return Err(Error::value(
                param,
                format!("`{param}` is 0, expected at least 1"),
            ));
        }
        if let Some(top) = self.top_logprobs {
            if top > MAX_TOP_LOGPROBS {
                let message = format!("`top_logprobs` is {top}, expected 0 to {MAX_TOP_LOGPROBS}");
                return Err(Error::value("top_logprobs", message));
            }
            if self.logprobs != Some(true) {
                return Err(Error::value(
                    "top_logprobs",
                    "`top_logprobs` needs `logprobs` to be true",
                ));
            }
        }
        if self.stream_options.is_some() && self.stream != Some(true) {
            return Err(Error::value(
                "stream_options",
                "`stream_options` needs `stream` to be true",
            ));
        }
        if self.continue_final_message == Some(true) && self.add_generation_prompt == Some(true) {
            let message =
                "`continue_final_message` and `add_generation_prompt` cannot both be true";
            return Err(Error::value("continue_final_message", message));
        }
        if self.stop_texts().len() > MAX_STOPS {
            return Err(Error::value(
                "stop",
                format!("more than {MAX_STOPS} stop texts"),
            ));
        }
        Ok(())
    }

    fn check_messages(&self) -> Result<(), Error> {
        if self.messages.is_empty() {
            return Err(Error::value(
                "messages",
                "`messages` is empty, expected at least one message",
            ));
        }
        for (i, message) in self.messages.iter().enumerate() {
            let Some(fields) = message.as_object() else {
                return Err(Error::value(
                    format!("messages[{i}]"),
                    format!("`messages[{i}]` is no object"),
                ));
            };
            if !fields.get("role").is_some_and(Value::is_string) {
                let param = format!("messages[{i}].role");
                return Err(Error::value(
                    &param,
                    format!("`{param}` is missing or no text"),
                ));
            }
            match fields.get("content") {
                None | Some(Value::Null | Value::String(_)) => {}
                Some(Value::Array(parts)) => check_parts(i, parts)?,
                Some(_) => {
                    let param = format!("messages[{i}].content");
                    return Err(Error::value(
                        &param,
                        format!("`{param}` is neither text nor an array of parts"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_unserved(&self) -> Result<(), Error> {
        let is_set = |value: &Option<Value>| {
            value
                .as_ref()
                .is_some_and(|v| !v.is_null() && v.as_array().is_none_or(|a| !a.is_empty()))
        };
        if is_set(&self.tools) {
            return Err(Error::unsupported("tools", "`tools` are not served yet"));
        }
        if self
            .tool_choice
            .as_ref()
            .is_some_and(|c| !c.is_null() && c != "none" && c != "auto")
        {
            return Err(Error::unsupported(
                "tool_choice",
                "`tool_choice` is not served yet",
            ));
        }
        Ok(())
    }

    fn check_trace(&self) -> Result<(), Error> {
        if self.diffusion_trace == Some(true) && self.stream != Some(true) {
            let message = "`diffusion_trace` needs `stream`: steps are told as they happen";
            return Err(Error::value("diffusion_trace", message));
        }
        Ok(())
    }

    /// What the answer must look like.
    pub(super) fn constraint(&self) -> Result<Option<Wanted>, Error> {
        self.format.constraint()
    }

    /// How many answers.
    pub(super) fn choices(&self) -> u32 {
        self.n.unwrap_or(1)
    }

    /// Whether the stream ends with the usage.
    pub(super) fn wants_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .is_some_and(|o| o.include_usage == Some(true))
    }

    /// Whether each token carries its log-probability.
    pub(super) fn wants_logprobs(&self) -> bool {
        self.logprobs == Some(true)
    }

    fn stop_texts(&self) -> Vec<&str> {
        let all = match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text.as_str()],
            Some(OneOrMany::Many(texts)) => texts.iter().map(String::as_str).collect(),
        };
        all.into_iter().filter(|text| !text.is_empty()).collect()
    }

    /// What the template renders.
    pub(super) fn conversation(&self) -> Conversation {
        let messages = self.messages.iter().map(with_plain_content).collect();
        Conversation {
            messages: Value::Array(messages),
            tools: Value::Null,
            continue_final_message: self.continue_final_message == Some(true),
            kwargs: self.chat_template_kwargs.clone().unwrap_or_default(),
        }
    }

    /// The tokens behind which a repetition begins anew.
    fn breakers(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        match &self.dry_sequence_breakers {
            _ if self.dry_multiplier.unwrap_or(0.0) == 0.0 => Vec::new(),
            Some(texts) => tokenizer.ids_holding(texts),
            None => tokenizer.ids_holding(&DRY_BREAKERS),
        }
    }

    /// The stages of sampling in their order.
    fn order(&self) -> Result<Vec<StageName>, Error> {
        let Some(names) = &self.samplers else {
            return Ok(StageName::ALL.to_vec());
        };
        names
            .iter()
            .map(|name| name.parse())
            .collect::<Result<_, ParamError>>()
            .map_err(|error| Error::value("samplers", error.to_string()))
    }

    /// What the engine runs for one of the answers.
    pub(super) fn engine_request(
        &self,
        prompt: Vec<u32>,
        n_vocab: usize,
        tokenizer: &Tokenizer,
        choice: u32,
        constraint: Option<Compiled>,
    ) -> Result<Request, Error> {
        let sampling = Params {
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            top_n_sigma: self.top_n_sigma.unwrap_or(0.0),
            typical_p: self.typical_p.unwrap_or(1.0),
            xtc_probability: self.xtc_probability.unwrap_or(0.0),
            xtc_threshold: self.xtc_threshold.unwrap_or(0.1),
            tfs_z: self.tfs_z.unwrap_or(1.0),
            mirostat: self.mirostat.unwrap_or(0),
            mirostat_tau: self.mirostat_tau.unwrap_or(5.0),
            mirostat_eta: self.mirostat_eta.unwrap_or(0.1),
            penalty_alpha: self.penalty_alpha.unwrap_or(0.0),
            dry_multiplier: self.dry_multiplier.unwrap_or(0.0),
            dry_base: self.dry_base.unwrap_or(1.75),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(2),
            dry_last_n: self.dry_penalty_last_n.unwrap_or(-1),
            dry_breakers: self.breakers(tokenizer),
            repeat_penalty: self.repeat_penalty.unwrap_or(1.0),
            repeat_last_n: self.repeat_last_n.unwrap_or(64),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.biases(n_vocab, tokenizer)?,
            seed: self.seed.unwrap_or_else(fresh_seed) as u64,
            order: self.order()?,
        };
        let limit = self.max_completion_tokens.or(self.max_tokens);
        Ok(Request {
            prompt,
            max_tokens: limit.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            sampling,
            choice,
            stops: self
                .stop_texts()
                .into_iter()
                .map(|text| text.as_bytes().to_vec())
                .collect(),
            top_logprobs: self
                .wants_logprobs()
                .then(|| self.top_logprobs.unwrap_or(0) as usize),
            n_drafted: self.draft.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            constraint,
            adapters: self.lora.as_deref().map(adapters::named).transpose()?,
            diffusion: self.diffusion.as_ref().map(diffusion::parse).transpose()?,
            trace: self.diffusion_trace == Some(true),
        })
    }

    fn biases(&self, n_vocab: usize, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>, Error> {
        let mut out: Vec<(u32, f32)> = if self.ignore_eos == Some(true) {
            let ends = tokenizer.ends_of_generation();
            ends.map(|id| (id, f32::NEG_INFINITY)).collect()
        } else {
            Vec::new()
        };
        let n_ends = out.len();
        for (key, bias) in self.logit_bias.iter().flatten() {
            let id = key
                .parse::<u32>()
                .ok()
                .filter(|id| (*id as usize) < n_vocab);
            let Some(id) = id else {
                let message = format!("`logit_bias`: `{key}` is no token id below {n_vocab}");
                return Err(Error::value("logit_bias", message));
            };
            if !(-100.0..=100.0).contains(bias) {
                return Err(Error::value(
                    "logit_bias",
                    format!("`logit_bias`: {bias} is not in -100 to 100"),
                ));
            }
            if out[..n_ends].iter().any(|(end, _)| *end == id) {
                continue;
            }
            // -100 bans a token, whatever its logit.
            out.push((
                id,
                if *bias == -100.0 {
                    f32::NEG_INFINITY
                } else {
                    *bias as f32
                },
            ));
        }
        Ok(out)
    }
}

fn check_parts(i: usize, parts: &[Value]) -> Result<(), Error> {
    for (k, part) in parts.iter().enumerate() {
        let is_text = part.get("type").and_then(Value::as_str) == Some("text");
        if !is_text || !part.get("text").is_some_and(Value::is_string) {
            let param = format!("messages[{i}].content[{k}]");
            return Err(Error::unsupported(
                &param,
                format!("`{param}`: only parts of type `text` are served"),
            ));
        }
    }
    Ok(())
}

/// A message whose text parts are joined: templates expect one text.
fn with_plain_content(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(parts) = message.get("content").and_then(Value::as_array) {
        let text: String = parts
            .iter()
            .filter_map(|p| p.get("text"))
            .filter_map(Value::as_str)
            .collect();
        message["content"] = Value::String(text);
    }
    message
}

/// A seed for a request that names none.
fn fresh_seed() -> i64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hasher is keyed from the system's randomness.
    std::hash::RandomState::new().build_hasher().finish() as i64
}
