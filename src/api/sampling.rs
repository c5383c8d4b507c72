//! The fields of a request that say how tokens are sampled. Those that are numbers come from the table
//! of the stages, with their ranges and defaults.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};

use serde_json::Value;

use crate::sampling::{DRY_BREAKERS, Kind, PARAMETERS, ParamError, Parameter, Params, StageName};
use crate::text::tokenizer::Tokenizer;

use super::error::Error;
use super::fields::{Body, fields};

fields! {
    /// The fields that are not numbers.
    struct Lists {
        logit_bias: Option<BTreeMap<String, f64>>,
        seed: Option<i64>,
        /// Whether end-of-generation tokens are excluded.
        ignore_eos: Option<bool>,
        /// Names of the stages in the order they run.
        samplers: Option<Vec<String>>,
        /// Texts at which a repetition ends.
        dry_sequence_breakers: Option<Vec<String>>,
    }
}

/// How tokens are sampled, before the vocabulary is known.
#[derive(Debug)]
pub(super) struct Sampling {
    numbers: Params,
    lists: Lists,
}

impl Sampling {
    /// Takes its fields out of a body.
    ///
    /// # Errors
    /// A number of another type or out of its range.
    pub(super) fn take(body: &mut Body) -> Result<Self, Error> {
        let mut numbers = Params::default();
        take_numbers(body, PARAMETERS, &mut numbers)?;
        let lists: Lists = body.take()?;
        if let Some(names) = &lists.samplers {
            let order = names.iter().map(|name| name.parse());
            let order: Result<Vec<StageName>, ParamError> = order.collect();
            numbers.order = order.map_err(|error| Error::value("samplers", error.to_string()))?;
        }
        Ok(Self { numbers, lists })
    }

    /// The parameters for a model with this vocabulary; a fresh seed where the request has none.
    ///
    /// # Errors
    /// A bias for a token that the vocabulary does not have, or out of range.
    pub(super) fn params(&self, tokenizer: &Tokenizer) -> Result<Params, Error> {
        // The standard library's hasher is keyed from the system's randomness.
        let fresh = || std::hash::RandomState::new().build_hasher().finish() as i64;
        Ok(Params {
            dry_sequence_breakers: match &self.lists.dry_sequence_breakers {
                _ if self.numbers.dry_multiplier == 0.0 => Vec::new(),
                Some(texts) => tokenizer.ids_holding(texts),
                None => tokenizer.ids_holding(&DRY_BREAKERS),
            },
            logit_bias: self.biases(tokenizer)?,
            seed: self.lists.seed.unwrap_or_else(fresh) as u64,
            ..self.numbers.clone()
        })
    }

    fn biases(&self, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>, Error> {
        let mut out: Vec<(u32, f32)> = Vec::new();
        if self.lists.ignore_eos == Some(true) {
            let ends = tokenizer.ends_of_generation();
            out.extend(ends.map(|id| (id, f32::NEG_INFINITY)));
        }
        let (n_ends, n_vocab) = (out.len(), tokenizer.vocab_len());
        for (key, bias) in self.lists.logit_bias.iter().flatten() {
            let id = key.parse::<u32>().ok();
            let Some(id) = id.filter(|id| (*id as usize) < n_vocab) else {
                let message = format!("`logit_bias`: `{key}` is not a token id below {n_vocab}");
                return Err(Error::value("logit_bias", message));
            };
            if !(-100.0..=100.0).contains(bias) {
                let message = format!("`logit_bias`: {bias} is not in -100 to 100");
                return Err(Error::value("logit_bias", message));
            }
            if out[..n_ends].iter().any(|(end, _)| *end == id) {
                continue;
            }
            // -100 bans a token, whatever its logit.
            let is_ban = *bias == -100.0;
            out.push((
                id,
                if is_ban {
                    f32::NEG_INFINITY
                } else {
                    *bias as f32
                },
            ));
        }
        Ok(out)
    }
}

/// Takes the parameters of a table out of a body.
fn take_numbers<P>(body: &mut Body, table: &[Parameter<P>], params: &mut P) -> Result<(), Error> {
    for parameter in table {
        let Some(value) = body.take_one(parameter.name) else {
            continue;
        };
        let (number, expected) = match parameter.kind {
            Kind::Real => (value.as_f64(), "a number"),
            Kind::Count => (of::<u32>(&value), "a whole number, 0 or more"),
            Kind::Integer => (of::<i32>(&value), "a whole number"),
        };
        let number = number.ok_or_else(|| {
            Error::kind(
                parameter.name,
                &format!("found `{value}`, expected {expected}"),
            )
        })?;
        let checked = parameter.check(number, &parameter.api);
        checked.map_err(|error| Error::value(parameter.name, error.to_string()))?;
        parameter.set(params, number);
    }
    Ok(())
}

fn of<N: TryFrom<i64> + Into<f64>>(value: &Value) -> Option<f64> {
    let number = N::try_from(value.as_i64()?).ok()?;
    Some(number.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sampling::toy;

    fn taken(value: &Value) -> Result<toy::Params, String> {
        let mut body = Body::of(value.as_object().expect("an object").clone());
        let mut params = toy::Params::default();
        take_numbers(&mut body, toy::PARAMETERS, &mut params).map_err(|e| e.to_string())?;
        body.finish().map_err(|e| e.to_string())?;
        Ok(params)
    }

    #[test]
    fn a_stage_has_its_fields_by_its_row() {
        let params = taken(&json!({ "toy_bonus": 1.5, "toy_alpha": null })).expect("good");
        assert_eq!((params.toy_bonus, params.toy_alpha), (1.5, 0.0));
        for (body, expected) in [
            (
                json!({ "toy_bonus": 3 }),
                "`toy_bonus`: found `3`, expected a number from -2 to 2 (toy bonus; 0 = off)",
            ),
            (
                json!({ "toy_bonus": "x" }),
                "`toy_bonus`: found `\"x\"`, expected a number",
            ),
            (
                json!({ "toy_bonos": 1 }),
                "unknown parameter: `toy_bonos`; did you mean `toy_bonus`?",
            ),
        ] {
            assert_eq!(taken(&body).expect_err(expected), expected);
        }
    }
}
