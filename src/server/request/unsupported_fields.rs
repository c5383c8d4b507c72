//! Fields of OpenAI's API, Anthropic's, vLLM and llama-server that no part of a request takes: some have no effect
//! here, others would change the result and are refused. docs/compatibility.md lists them.

use serde_json::Value;

use crate::http::error::{Error, quoted};

/// A field that is known but not supported.
#[derive(Debug)]
pub(crate) struct UnsupportedField {
    pub(crate) name: &'static str,
    effect: Effect,
}

/// The treatment of a field.
#[derive(Clone, Copy, Debug)]
enum Effect {
    /// Accepted without effect; its value has this type.
    Nothing(Type),
    /// Refused, unless its value is one of these (as JSON), which change nothing.
    Refused(&'static [&'static str]),
    /// Refused, unless its value is below 0, which changes nothing.
    BelowZero,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
enum Type {
    Any,
    Flag,
    Number,
    Text,
    /// An object whose values are texts.
    Texts,
}

const fn nothing(name: &'static str, of: Type) -> UnsupportedField {
    let effect = Effect::Nothing(of);
    UnsupportedField { name, effect }
}

const fn refused(name: &'static str, unless: &'static [&'static str]) -> UnsupportedField {
    let effect = Effect::Refused(unless);
    UnsupportedField { name, effect }
}

const UNSUPPORTED: &[UnsupportedField] = &[
    // OpenAI.
    nothing("user", Type::Text),
    nothing("metadata", Type::Texts),
    nothing("store", Type::Flag),
    nothing("service_tier", Type::Text),
    nothing("safety_identifier", Type::Text),
    nothing("prompt_cache_key", Type::Text),
    nothing("prompt_cache_retention", Type::Text),
    nothing("prompt_cache_options", Type::Any),
    nothing("client_metadata", Type::Any),
    nothing("verbosity", Type::Text),
    nothing("prediction", Type::Any),
    refused("modalities", &["[\"text\"]"]),
    refused("audio", &[]),
    refused("web_search_options", &[]),
    refused("moderation", &[]),
    refused("functions", &["[]"]),
    refused("function_call", &["\"none\"", "\"auto\""]),
    // Anthropic.
    nothing("context_management", Type::Any),
    nothing("inference_geo", Type::Text),
    nothing("cache_control", Type::Any),
    // vLLM.
    nothing("priority", Type::Number),
    nothing("request_id", Type::Text),
    nothing("spaces_between_special_tokens", Type::Flag),
    nothing("guided_decoding_backend", Type::Text),
    nothing("mm_processor_kwargs", Type::Any),
    refused("guided_whitespace_pattern", &[]),
    refused("structural_tag", &[]),
    refused("use_beam_search", &["false"]),
    refused("length_penalty", &["1"]),
    refused("early_stopping", &["false"]),
    refused("truncate_prompt_tokens", &["-1"]),
    refused("allowed_token_ids", &[]),
    refused("bad_words", &["[]"]),
    refused("logits_processors", &["[]"]),
    refused("cache_salt", &[]),
    refused("documents", &["[]"]),
    refused("chat_template", &[]),
    refused("return_token_ids", &["false"]),
    refused("return_tokens_as_token_ids", &["false"]),
    refused("kv_transfer_params", &[]),
    refused("vllm_xargs", &["{}"]),
    refused("echo", &["false"]),
    refused("best_of", &["1"]),
    refused("suffix", &["\"\""]),
    refused("add_special_tokens", &["false"]),
    // llama-server.
    nothing("id_slot", Type::Number),
    nothing("n_keep", Type::Number),
    nothing("n_discard", Type::Number),
    nothing("n_cache_reuse", Type::Number),
    nothing("dynatemp_exponent", Type::Number),
    nothing("speculative.n_max", Type::Number),
    nothing("speculative.n_min", Type::Number),
    nothing("speculative.p_min", Type::Number),
    nothing("backend_sampling", Type::Flag),
    nothing("adaptive_decay", Type::Number),
    refused("dynatemp_range", &["0"]),
    refused("min_keep", &["0"]),
    refused("n_probs", &["0"]),
    refused("post_sampling_probs", &["false"]),
    refused("return_tokens", &["false"]),
    refused("grammar_lazy", &["false"]),
    nothing("response_fields", Type::Any),
    nothing("t_max_prompt_ms", Type::Number),
    UnsupportedField {
        name: "adaptive_target",
        effect: Effect::BelowZero,
    },
];

/// The field of this name, if it is known but not supported.
pub(crate) fn find(name: &str) -> Option<&'static UnsupportedField> {
    UNSUPPORTED.iter().find(|known| known.name == name)
}

/// The names of the fields that are accepted without effect.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let accepted = |known: &&UnsupportedField| matches!(known.effect, Effect::Nothing(_));
    UNSUPPORTED.iter().filter(accepted).map(|known| known.name)
}

impl UnsupportedField {
    /// Whether the response must report that the field with this value has no effect.
    pub(crate) fn is_ignored(&self, value: &Value) -> Result<bool, Error> {
        match self.effect {
            Effect::Nothing(of) => of.check(self.name, value).map(|()| true),
            Effect::BelowZero if value.as_f64().is_some_and(|value| value < 0.0) => Ok(false),
            Effect::BelowZero => Err(self.refusal()),
            Effect::Refused(unless) => {
                let is_same = |text: &&str| {
                    let same = serde_json::from_str::<Value>(text).ok();
                    same.is_some_and(|same| is_equal(&same, value))
                };
                match unless.iter().any(is_same) {
                    true => Ok(false),
                    false => Err(self.refusal()),
                }
            }
        }
    }

    fn refusal(&self) -> Error {
        let message = format!("`{}` is not supported", self.name);
        Error::unsupported(self.name, message)
    }
}

/// Whether two values are equal, with 1 equal to 1.0.
fn is_equal(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| Some(a) == b.as_f64())
}

impl Type {
    fn check(self, name: &str, value: &Value) -> Result<(), Error> {
        let (is_sound, expected) = match self {
            Self::Any => (true, ""),
            Self::Flag => (value.is_boolean(), "true or false"),
            Self::Number => (value.is_number(), "a number"),
            Self::Text => (value.is_string(), "a string"),
            Self::Texts => return check_metadata(name, value),
        };
        match is_sound {
            true => Ok(()),
            false => {
                let found = quoted(&value.to_string());
                let message = format!("found `{found}`, expected {expected}");
                Err(Error::wrong_type(name, &message))
            }
        }
    }
}

/// Checks an object of strings against the limits of OpenAI's `metadata`.
fn check_metadata(name: &str, value: &Value) -> Result<(), Error> {
    const MAX: (usize, usize, usize) = (16, 64, 512);
    let Some(fields) = value.as_object() else {
        return Err(Error::wrong_type(name, "expected an object of strings"));
    };
    if fields.len() > MAX.0 {
        let message = format!("`{name}`: more than {} keys", MAX.0);
        return Err(Error::invalid_value(name, message));
    }
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let param = format!("{name}.{}", quoted(key));
        let Some(text) = value.as_str() else {
            return Err(Error::wrong_type(param, "expected a string"));
        };
        if key.chars().count() > MAX.1 || text.chars().count() > MAX.2 {
            let message = format!(
                "`{param}`: expected a key of at most {} characters and a value of at most {}",
                MAX.1, MAX.2
            );
            return Err(Error::invalid_value(param, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_every_field() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compatibility.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let section = |heading: &str| {
            let start = page.find(heading).expect("the section") + heading.len();
            page[start..].split("\n## ").next().expect("its text")
        };
        let nothing = section("\n## Accepted without effect");
        let refused = section("\n## Refused");
        for known in UNSUPPORTED {
            let section = match known.effect {
                Effect::Nothing(_) => nothing,
                Effect::Refused(_) | Effect::BelowZero => refused,
            };
            let name = format!("`{}`", known.name);
            assert!(section.contains(&name), "{name} is not in its section");
        }
    }

    #[test]
    fn values_that_are_defaults_parse() {
        for known in UNSUPPORTED {
            if let Effect::Refused(unless) = known.effect {
                for value in unless {
                    let value = serde_json::from_str(value).expect("JSON");
                    assert!(matches!(known.is_ignored(&value), Ok(false)));
                }
            }
        }
    }
}
