//! The sampling fields of a request. Numbers and lists come from the table of the stages, with their ranges and
//! defaults.

use serde::Deserialize;
use serde_json::Value;

use lab_sampling::{
    LISTS, ListKind, ListParameter, NumberKind, PARAMETERS, ParamError, Parameter, Params,
    StageName,
};

use super::fields::{BodyFields, FieldDoc, RequestPart, fields, integral};
use super::input::check_strings;
use super::logit_bias::{BiasList, BiasTarget, token_biases};
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, quoted};
use crate::http::random::random;
use crate::served::ServedModel;

const REPEAT_PENALTY: &str = "repeat_penalty";
/// vLLM's name of `repeat_penalty`.
const REPETITION_PENALTY: &str = "repetition_penalty";

fields! {
    struct OtherFields {
        seed: Option<i64>,
        /// Whether end-of-generation tokens are excluded.
        ignore_eos: Option<bool>,
        /// Names of the stages in the order they run, or llama.cpp's letters of them. The parameters of a stage that is
        /// left out have no effect.
        samplers: Option<Stages>,
    }
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected an array of names, or a string of letters"
)]
enum Stages {
    Names(Vec<String>),
    Letters(String),
}

/// Stages of llama.cpp that do not exist here: `infill` prefers tokens that end a line, `adaptive_p` is off by default.
const ABSENT: &[&str] = &["infill", "i", "adaptive_p", "adaptive-p", "a"];

impl Stages {
    /// The stages in their order. What is left out has to be off where the server is strict. Names that are not known,
    /// and stages of llama.cpp that do not exist here, are left out and named in the response.
    fn order(&self) -> Result<Vec<StageName>, Error> {
        let names = match self {
            Self::Names(names) => names.clone(),
            Self::Letters(text) => text.chars().map(String::from).collect(),
        };
        check_strings("samplers", &names)?;
        let is_letters = matches!(self, Self::Letters(_));
        let mut order: Vec<(StageName, &str)> = Vec::new();
        for (i, name) in names.iter().enumerate() {
            if ABSENT.contains(&name.as_str()) {
                RequestContext::current().ignore(&format!("samplers[{i}]"));
                continue;
            }
            let stage: Result<StageName, ParamError> = match is_letters {
                true => StageName::of_letter(name),
                false => name.parse(),
            };
            let stage = match stage {
                Ok(stage) => stage,
                Err(error) if RequestContext::current().is_strict() => {
                    return invalid("samplers", error.to_string());
                }
                Err(_) => {
                    RequestContext::current().ignore(&format!("samplers[{i}]"));
                    continue;
                }
            };
            // Some clients write both names of a stage.
            if !order.iter().any(|(own, by)| *own == stage && by != name) {
                order.push((stage, name));
            }
        }
        let mut order: Vec<StageName> = order.into_iter().map(|(stage, _)| stage).collect();
        // Biases and mirostat are not stages in llama.cpp, whose clients leave them out and set them.
        if !RequestContext::current().is_strict() {
            if !order.contains(&StageName::LogitBias) {
                order.insert(0, StageName::LogitBias);
            }
            if !order.contains(&StageName::Mirostat) {
                order.push(StageName::Mirostat);
            }
        }
        Ok(order)
    }
}

#[derive(Debug)]
enum ListValue {
    Biases(Vec<(BiasTarget, f64)>),
    Texts(Vec<String>),
}

/// The sampling parameters of a request, before the vocabulary is known.
#[derive(Debug)]
pub(crate) struct SamplingFields {
    numbers: Params,
    /// The names of the parameters that the request sets.
    given: Vec<&'static str>,
    /// The value of each of [`LISTS`].
    lists: Vec<Option<ListValue>>,
    others: OtherFields,
}

impl RequestPart for SamplingFields {
    fn documented() -> Vec<FieldDoc> {
        let numbers = PARAMETERS.iter().map(|parameter| FieldDoc {
            name: parameter.name,
            ty: match parameter.kind {
                NumberKind::Real => "Option<f64>".into(),
                NumberKind::Count => "Option<u32>".into(),
                NumberKind::Integer => "Option<i32>".into(),
            },
            doc: parameter.help(),
        });
        let lists = LISTS.iter().map(|list| FieldDoc {
            name: list.name,
            ty: match list.kind {
                ListKind::Biases(_) => "Option<Biases>".into(),
                ListKind::Breakers(_) => "Option<Vec<String>>".into(),
            },
            doc: list.doc.trim().to_owned(),
        });
        let alias = FieldDoc {
            name: REPETITION_PENALTY,
            ty: "Option<f64>".into(),
            doc: "`repeat_penalty` over all tokens, unless `repeat_last_n` is set (vLLM).".into(),
        };
        let others = OtherFields::documented();
        numbers.chain(lists).chain([alias]).chain(others).collect()
    }

    fn take_from(body: &mut BodyFields) -> Result<Self, Error> {
        let mut numbers = Params::default();
        let given = given(body);
        take_numbers(body, PARAMETERS, &mut numbers)?;
        take_alias(body, given.contains(&"repeat_last_n"), &mut numbers)?;
        let mut lists = take_lists(body, LISTS)?;
        let others: OtherFields = body.take()?;
        if let Some(stages) = &others.samplers {
            numbers.order = stages.order()?;
            if !RequestContext::current().is_strict() {
                // In llama.cpp, mirostat comes with the temperature.
                let order = &mut numbers.order;
                if numbers.mirostat != 0 && !order.contains(&StageName::Temperature) {
                    order.insert(order.len() - 1, StageName::Temperature);
                }
                leave_out(&given, &mut numbers, &mut lists);
            }
        }
        Ok(Self {
            numbers,
            given,
            lists,
            others,
        })
    }
}

impl SamplingFields {
    pub(crate) fn ignores_eos(&self) -> bool {
        self.others.ignore_eos == Some(true)
    }

    /// The parameters for a model: those of the request, else its own, else neutral ones; a random seed if the request has
    /// none.
    pub(crate) fn params(&self, served: &ServedModel) -> Result<Params, Error> {
        let tokenizer = served.handle.tokenizer();
        let mut params = self.numbers.clone();
        let repeats = self.given.contains(&REPETITION_PENALTY);
        served.sampling.apply(&mut params, |name| {
            self.given.contains(&name) || (repeats && name.starts_with("repeat_"))
        });
        for (list, elements) in LISTS.iter().zip(&self.lists) {
            match (&list.kind, elements) {
                (ListKind::Biases(of), Some(ListValue::Biases(all))) => {
                    let tokens = |text: &str| tokenizer.encode(text, false, true);
                    *of(&mut params) = token_biases(list.name, all, tokenizer.vocab_len(), tokens)?;
                }
                (ListKind::Breakers(_), _) if list.is_off(PARAMETERS, &params) => {}
                (ListKind::Breakers(of), Some(ListValue::Texts(texts))) => {
                    *of(&mut params) = tokenizer.ids_holding(texts);
                }
                (ListKind::Breakers(of), _) => {
                    *of(&mut params) = tokenizer.ids_holding(list.default);
                }
                _ => {}
            }
        }
        if self.others.ignore_eos == Some(true) {
            let ends: Vec<u32> = tokenizer.ends_of_generation().collect();
            params.logit_bias.retain(|(id, _)| !ends.contains(id));
            let bans = ends.into_iter().map(|id| (id, f32::NEG_INFINITY));
            params.logit_bias.extend(bans);
        }
        params.seed = self.others.seed.map_or_else(random, |seed| seed as u64);
        Ok(params)
    }
}

/// The names of the parameters that a body sets.
fn given(body: &BodyFields) -> Vec<&'static str> {
    let names = PARAMETERS.iter().map(|parameter| parameter.name);
    let names = names
        .chain(LISTS.iter().map(|list| list.name))
        .chain([REPETITION_PENALTY]);
    names.filter(|name| body.has(name)).collect()
}

/// Turns the stages off that the order leaves out. The response names their parameters that the request sets.
fn leave_out(given: &[&str], params: &mut Params, lists: &mut [Option<ListValue>]) {
    let order = params.order.clone();
    let is_out = |technique: &str| {
        let mut stages = StageName::ALL.iter();
        let stage = stages.find(|stage| stage.technique() == technique);
        stage.is_some_and(|stage| !order.contains(stage))
    };
    let record = RequestContext::current();
    let name = |name: &str| {
        if given.contains(&name) {
            record.ignore(name);
        }
    };
    for parameter in PARAMETERS.iter().filter(|own| is_out(own.technique)) {
        parameter.set(params, parameter.off.unwrap_or(parameter.default));
        name(parameter.name);
        if parameter.name == REPEAT_PENALTY {
            name(REPETITION_PENALTY);
        }
    }
    for (list, own) in LISTS
        .iter()
        .zip(lists)
        .filter(|(list, _)| is_out(list.technique))
    {
        *own = None;
        name(list.name);
    }
}

fn take_lists<P>(
    body: &mut BodyFields,
    table: &[ListParameter<P>],
) -> Result<Vec<Option<ListValue>>, Error> {
    let take = |list: &ListParameter<P>| {
        Ok(match list.kind {
            ListKind::Biases(_) => {
                let all: Option<BiasList> = body.field(list.name)?;
                let all = all.map(|all| all.list(list.name));
                all.transpose()?.map(ListValue::Biases)
            }
            ListKind::Breakers(_) => {
                let texts: Option<Vec<String>> = body.field(list.name)?;
                let texts = texts.map(|texts| check_strings(list.name, &texts).map(|()| texts));
                texts.transpose()?.map(ListValue::Texts)
            }
        })
    };
    table.iter().map(take).collect()
}

fn take_numbers<P>(
    body: &mut BodyFields,
    table: &[Parameter<P>],
    params: &mut P,
) -> Result<(), Error> {
    for parameter in table {
        let Some(value) = body.take_one(parameter.name) else {
            continue;
        };
        parameter.set(params, number(parameter.name, parameter, &value)?);
    }
    Ok(())
}

/// Takes vLLM's `repetition_penalty` as `repeat_penalty`. Its window is the whole context unless the request sets one.
fn take_alias(body: &mut BodyFields, has_window: bool, params: &mut Params) -> Result<(), Error> {
    let repeats = PARAMETERS.iter().find(|p| p.name == REPEAT_PENALTY);
    if let Some(value) = body.take_one(REPETITION_PENALTY)
        && let Some(repeats) = repeats
    {
        repeats.set(params, number(REPETITION_PENALTY, repeats, &value)?);
        if !has_window {
            params.repeat_last_n = -1;
        }
    }
    Ok(())
}

fn number<P>(name: &'static str, parameter: &Parameter<P>, value: &Value) -> Result<f64, Error> {
    let value = &integral(value.clone());
    // vLLM turns counts off with -1.
    if let (NumberKind::Count, Some(off), Some(-1)) =
        (parameter.kind, parameter.off, value.as_i64())
    {
        return Ok(off);
    }
    let (number, expected) = match parameter.kind {
        NumberKind::Real => (value.as_f64(), "a number"),
        NumberKind::Count if parameter.off.is_some() => (
            of::<u32>(value),
            "a whole number, 0 or more, or -1 for none",
        ),
        NumberKind::Count => (of::<u32>(value), "a whole number, 0 or more"),
        NumberKind::Integer => (of::<i32>(value), "a whole number"),
    };
    let number = number.ok_or_else(|| {
        let found = quoted(&value.to_string());
        Error::wrong_type(name, &format!("found `{found}`, expected {expected}"))
    })?;
    let checked = parameter.check(number, &parameter.api);
    checked.map_err(|error| {
        let error = ParamError {
            field: name,
            ..error
        };
        Error::invalid_value(name, error.to_string())
    })?;
    Ok(number)
}

fn of<N: TryFrom<i64> + Into<f64>>(value: &Value) -> Option<f64> {
    let number = N::try_from(value.as_i64()?).ok()?;
    Some(number.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use lab_sampling::toy;

    fn taken(value: &Value) -> Result<toy::Params, String> {
        let mut body = BodyFields::new(value.as_object().expect("an object").clone());
        let mut params = toy::Params::default();
        take_numbers(&mut body, toy::PARAMETERS, &mut params).map_err(|e| e.to_string())?;
        let lists = take_lists(&mut body, toy::LISTS).map_err(|e| e.to_string())?;
        if let Some(ListValue::Biases(by_id)) = &lists[0] {
            let tokens = |text: &str| Ok(text.bytes().map(|byte| u32::from(byte - b'a')).collect());
            params.toy_biases =
                token_biases("toy_biases", by_id, 5, tokens).map_err(|e| e.to_string())?;
        }
        let finished = RequestContext::detached().enter(|| body.finish());
        finished.map_err(|e| e.to_string())?;
        Ok(params)
    }

    #[test]
    fn a_stage_has_its_fields_by_its_row() {
        let params = taken(&json!({ "toy_bonus": 1.5, "toy_alpha": null })).expect("good");
        assert_eq!((params.toy_bonus, params.toy_alpha), (1.5, 0.0));
        let params = taken(&json!({ "toy_biases": { "3": 2, "4": -100 } })).expect("good");
        assert_eq!(params.toy_biases, [(3, 2.0), (4, f32::NEG_INFINITY)]);
        let pairs = json!({ "toy_biases": [[3, 2], ["ae", false], [0, 1.5]] });
        let params = taken(&pairs).expect("good");
        let expected = [(0, 1.5), (3, 2.0), (4, f32::NEG_INFINITY)];
        assert_eq!(params.toy_biases, expected, "the last one of a token holds");
        let cases = json!([
            [{ "toy_biases": [[3, true]] }, "`toy_biases`: found `true`, expected a number or false"],
            [{ "toy_bonus": 3 }, "`toy_bonus`: found `3`, expected a number from -2 to 2 (toy bonus; 0 = off)"],
            [{ "toy_bonus": "x" }, "`toy_bonus`: found `\"x\"`, expected a number"],
            [{ "toy_bonos": 1 }, "unknown parameter: `toy_bonos`; did you mean `toy_bonus`?"],
            [{ "toy_biases": { "5": 1 } }, "`toy_biases`: `5` is not a token id below 5"],
        ]);
        for case in cases.as_array().expect("an array") {
            assert_eq!(taken(&case[0]).expect_err("a fault"), case[1], "{case}");
        }
    }
}
