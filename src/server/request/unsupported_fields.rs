//! Fields of OpenAI's API, Anthropic's, vLLM and llama-server that no part of a request takes: some have no effect
//! here, others would change the result and are refused. docs/compatibility.md lists them.

use serde_json::Value;

use crate::http::error::{Error, invalid, quoted, refuse};

#[derive(Debug)]
pub(crate) struct UnsupportedField {
    pub(crate) name: &'static str,
    effect: Effect,
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    /// Accepted without effect; its value has this type.
    Nothing(Type),
    /// Refused, unless its value is one of these (as JSON, separated by spaces), which change nothing.
    Refused(&'static str),
    /// Refused, unless its value is below 0, which changes nothing.
    BelowZero,
}

#[derive(Clone, Copy, Debug)]
enum Type {
    Any,
    Flag,
    Number,
    Text,
    /// An object whose values are texts.
    Texts,
}

/// The fields by their treatment, separated by spaces.
const UNSUPPORTED: &[(Effect, &str)] = &[
    // OpenAI.
    (
        Effect::Nothing(Type::Text),
        "user service_tier safety_identifier prompt_cache_key prompt_cache_retention verbosity",
    ),
    (Effect::Nothing(Type::Texts), "metadata"),
    (Effect::Nothing(Type::Flag), "store"),
    (
        Effect::Nothing(Type::Any),
        "prompt_cache_options client_metadata prediction",
    ),
    (Effect::Refused("[\"text\"]"), "modalities"),
    (Effect::Refused(""), "audio web_search_options moderation"),
    (Effect::Refused("[]"), "functions"),
    (Effect::Refused("\"none\" \"auto\""), "function_call"),
    // Anthropic.
    (
        Effect::Nothing(Type::Any),
        "context_management cache_control",
    ),
    (Effect::Nothing(Type::Text), "inference_geo"),
    // vLLM.
    (Effect::Nothing(Type::Number), "priority"),
    (
        Effect::Nothing(Type::Text),
        "request_id guided_decoding_backend",
    ),
    (Effect::Nothing(Type::Flag), "spaces_between_special_tokens"),
    (Effect::Nothing(Type::Any), "mm_processor_kwargs"),
    (
        Effect::Refused(""),
        "guided_whitespace_pattern structural_tag allowed_token_ids cache_salt chat_template \
         kv_transfer_params",
    ),
    (
        Effect::Refused("false"),
        "use_beam_search early_stopping return_token_ids return_tokens_as_token_ids echo \
         add_special_tokens",
    ),
    (Effect::Refused("1"), "length_penalty best_of"),
    (Effect::Refused("-1"), "truncate_prompt_tokens"),
    (
        Effect::Refused("[]"),
        "bad_words logits_processors documents",
    ),
    (Effect::Refused("{}"), "vllm_xargs"),
    (Effect::Refused("\"\""), "suffix"),
    // llama-server.
    (
        Effect::Nothing(Type::Number),
        "n_keep n_discard n_cache_reuse dynatemp_exponent adaptive_decay t_max_prompt_ms",
    ),
    (Effect::Nothing(Type::Flag), "backend_sampling"),
    (Effect::Nothing(Type::Any), "response_fields"),
    (Effect::Refused("0"), "dynatemp_range min_keep n_probs"),
    (
        Effect::Refused("false"),
        "post_sampling_probs return_tokens grammar_lazy",
    ),
    (Effect::BelowZero, "adaptive_target"),
];

/// The fields, each with its treatment.
fn all() -> impl Iterator<Item = UnsupportedField> {
    let of_group = |(effect, names): &'static (Effect, &'static str)| {
        let field = |name| UnsupportedField {
            name,
            effect: *effect,
        };
        names.split(' ').map(field)
    };
    UNSUPPORTED.iter().flat_map(of_group)
}

pub(crate) fn find(name: &str) -> Option<UnsupportedField> {
    all().find(|known| known.name == name)
}

/// The names of the fields that are accepted without effect.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let accepted = |known: &UnsupportedField| matches!(known.effect, Effect::Nothing(_));
    all().filter(accepted).map(|known| known.name)
}

impl UnsupportedField {
    /// Whether the response must report that the field with this value has no effect.
    pub(crate) fn is_ignored(&self, value: &Value) -> Result<bool, Error> {
        match self.effect {
            Effect::Nothing(of) => of.check(self.name, value).map(|()| true),
            Effect::BelowZero if value.as_f64().is_some_and(|value| value < 0.0) => Ok(false),
            Effect::BelowZero => Err(self.refusal()),
            Effect::Refused(unless) => {
                let is_same = |text: &str| {
                    let same = serde_json::from_str::<Value>(text).ok();
                    same.is_some_and(|same| is_equal(&same, value))
                };
                match unless.split(' ').any(is_same) {
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
        return refuse(name, format!(": more than {} keys", MAX.0));
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
            return invalid(param, message);
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
        for known in all() {
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
        for known in all() {
            if let Effect::Refused(unless) = known.effect {
                for value in unless.split(' ').filter(|value| !value.is_empty()) {
                    let value = serde_json::from_str(value).expect("JSON");
                    assert!(matches!(known.is_ignored(&value), Ok(false)));
                }
            }
        }
    }
}
