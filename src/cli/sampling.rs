//! Sampling options of the command line. Numbers and lists come from the table of the sampling stages.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};

use serde_json::{Map, Value, json};

use lab_core::models::sampling_defaults::SamplingDefaults;
use lab_sampling::{
    LISTS, ListKind, ListParameter, NumberKind, PARAMETERS, Parameter, Params, StageName,
};

use lab_server::served::ServedModel;

use super::values::seed;

/// How tokens are sampled.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingOptions {
    #[command(flatten)]
    stages: StageParams,
    /// Sampling stages in the order in which they run, separated by commas; a stage whose parameter is set must be
    /// listed; default: all, in the order of docs/sampling.md
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        hide_short_help = true
    )]
    samplers: Vec<StageName>,
    /// Seed of the sampler's random numbers, 0 to 2^64 - 1, or -1 for a random one; without effect at temperature 0
    #[arg(
        long,
        default_value = "0",
        value_name = "N",
        value_parser = seed,
        allow_negative_numbers = true
    )]
    seed: u64,
}

/// Parameters that `-h` shows; `--help` shows all.
const COMMON: [&str; 5] = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty"];

/// Further names of parameters, those of other programs.
const ALIASES: [(&str, &str); 6] = [
    ("temperature", "temp"),
    ("repeat_penalty", "repetition-penalty"),
    ("typical_p", "typical"),
    ("top_n_sigma", "top-nsigma"),
    ("mirostat_eta", "mirostat-lr"),
    ("mirostat_tau", "mirostat-ent"),
];

fn bias(text: &str) -> Result<(u32, f32), String> {
    let fault = || format!("expected ID=BIAS, found `{text}`");
    let (id, bias) = text.split_once('=').ok_or_else(fault)?;
    Ok((
        id.trim().parse().map_err(|_| fault())?,
        bias.trim().parse().map_err(|_| fault())?,
    ))
}

impl SamplingOptions {
    /// The parameters for a model: those of the command line, else its own, else greedy ones.
    pub(super) fn params(&self, served: &ServedModel) -> Params {
        let tokenizer = served.handle.tokenizer();
        let mut params = Params {
            seed: self.seed,
            order: match self.samplers.as_slice() {
                [] => StageName::ALL.to_vec(),
                names => names.to_vec(),
            },
            ..self.stages.params.clone()
        };
        let given = &self.stages.given;
        let defaults = &served.sampling;
        defaults.apply(&mut params, |name| given.contains(&name));
        for (list, texts) in LISTS.iter().zip(&self.stages.texts) {
            match (&list.kind, texts.as_slice()) {
                (ListKind::Biases(_), _) => {}
                (ListKind::Breakers(_), _) if list.is_off(PARAMETERS, &params) => {}
                (ListKind::Breakers(of), []) => {
                    *of(&mut params) = tokenizer.ids_holding(list.default);
                }
                (ListKind::Breakers(of), texts) => *of(&mut params) = tokenizer.ids_holding(texts),
            }
        }
        params
    }

    /// The parameters that are set, as fields of a request. Without a temperature the completion is greedy, unless the model
    /// has one of its own.
    pub(super) fn fields(&self, defaults: &SamplingDefaults) -> Map<String, Value> {
        let mut params = self.stages.params.clone();
        let mut fields = Map::new();
        for parameter in PARAMETERS {
            let is_greedy = parameter.name == "temperature" && !defaults.has("temperature");
            if self.stages.given.contains(&parameter.name) || is_greedy {
                let value = number(parameter, parameter.get(&params));
                fields.insert(parameter.name.into(), value);
            }
        }
        for (list, texts) in LISTS.iter().zip(&self.stages.texts) {
            let value: Value = match list.kind {
                ListKind::Biases(of) => {
                    let biases = of(&mut params).iter();
                    let bias = |bias: &f32| match *bias {
                        f32::NEG_INFINITY => -100.0,
                        bias => bias,
                    };
                    biases.map(|(id, of)| (id.to_string(), bias(of))).collect()
                }
                ListKind::Breakers(_) => texts.clone().into(),
            };
            if value != json!({}) && value != json!([]) {
                fields.insert(list.name.into(), value);
            }
        }
        if !self.samplers.is_empty() {
            let names = self.samplers.iter().map(|name| name.as_str());
            fields.insert("samplers".into(), names.collect());
        }
        fields.insert("seed".into(), (self.seed as i64).into());
        fields
    }
}

pub(super) fn number<P>(parameter: &Parameter<P>, value: f64) -> Value {
    match parameter.kind {
        NumberKind::Real => value.into(),
        NumberKind::Count | NumberKind::Integer => (value as i64).into(),
    }
}

#[derive(Clone, Debug)]
struct StageParams {
    params: Params,
    /// The names of the parameters that are set.
    given: Vec<&'static str>,
    /// The texts on the command line, for each of [`LISTS`].
    texts: Vec<Vec<String>>,
}

impl Default for StageParams {
    /// The defaults of the table, but with temperature 0 (greedy), so that a command always gives the same completion.
    fn default() -> Self {
        Self {
            params: Params {
                temperature: 0.0,
                ..Params::default()
            },
            given: Vec::new(),
            texts: vec![Vec::new(); LISTS.len()],
        }
    }
}

impl Args for StageParams {
    fn augment_args(command: Command) -> Command {
        let command = augment(command, PARAMETERS, &Self::default().params);
        augment_lists(command, LISTS)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for StageParams {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut stages = Self::default();
        stages.update_from_arg_matches(matches)?;
        Ok(stages)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given = read(matches, PARAMETERS, &mut self.params);
        self.texts = read_lists(matches, LISTS, &mut self.params);
        Ok(())
    }
}

/// Adds an option for each list. An option adds one element.
fn augment_lists<P>(command: Command, table: &[ListParameter<P>]) -> Command {
    table.iter().fold(command, |command, list| {
        let arg = Arg::new(list.name).long(list.option);
        let arg = match list.kind {
            ListKind::Biases(_) => arg.value_parser(bias),
            ListKind::Breakers(_) => arg.value_parser(value_parser!(String)),
        };
        let default = match list.default_text() {
            text if text.is_empty() => text,
            text => format!("; default: {text}"),
        };
        let help = format!("{}; may be repeated{default}", list.doc.trim());
        let arg = arg.value_name(list.value()).action(ArgAction::Append);
        command.arg(arg.help(help).hide_short_help(true))
    })
}

/// Sets the biases on the command line, and returns the texts of each list.
fn read_lists<P>(
    matches: &ArgMatches,
    table: &[ListParameter<P>],
    params: &mut P,
) -> Vec<Vec<String>> {
    let texts = table.iter().map(|list| match list.kind {
        ListKind::Biases(of) => {
            let given = matches.get_many::<(u32, f32)>(list.name);
            of(params).extend(given.into_iter().flatten().copied());
            Vec::new()
        }
        ListKind::Breakers(_) => {
            let given = matches.get_many::<String>(list.name);
            given.into_iter().flatten().cloned().collect()
        }
    });
    texts.collect()
}

/// Adds an option for each parameter.
fn augment<P>(mut command: Command, table: &[Parameter<P>], defaults: &P) -> Command {
    for parameter in table {
        let kind = match parameter.kind {
            NumberKind::Real => Arg::new(parameter.name).value_parser(value_parser!(f64)),
            NumberKind::Count => {
                // vLLM turns counts off with -1.
                let off = parameter.off;
                Arg::new(parameter.name).value_parser(move |text: &str| match (text, off) {
                    ("-1", Some(off)) => Ok(off as u32),
                    _ => text
                        .parse::<u32>()
                        .map_err(|_| "expected a whole number, 0 or more"),
                })
            }
            NumberKind::Integer => Arg::new(parameter.name).value_parser(value_parser!(i32)),
        };
        // This leaks two strings for each parameter, once per process.
        let (flag, default) = (parameter.name.replace('_', "-"), parameter.get(defaults));
        let alias = ALIASES.iter().find(|(name, _)| *name == parameter.name);
        let is_real = parameter.kind == NumberKind::Real;
        let arg = kind.aliases(alias.map(|(_, alias)| *alias));
        let arg = arg.hide_short_help(!COMMON.contains(&parameter.name));
        let arg = arg.value_name(if is_real { "X" } else { "N" });
        let arg = arg.default_value(&*default.to_string().leak());
        let arg = arg.long(&*flag.leak()).allow_negative_numbers(true);
        command = command.arg(arg.help(parameter.help()));
    }
    command
}

/// Sets the parameters on the command line. Returns their names.
fn read<P>(matches: &ArgMatches, table: &[Parameter<P>], params: &mut P) -> Vec<&'static str> {
    let mut given = Vec::new();
    let is_set = |p: &&Parameter<P>| matches.value_source(p.name) == Some(ValueSource::CommandLine);
    for parameter in table.iter().filter(is_set) {
        let name = parameter.name;
        let value = match parameter.kind {
            NumberKind::Real => matches.get_one::<f64>(name).copied(),
            NumberKind::Count => matches.get_one(name).map(|n: &u32| f64::from(*n)),
            NumberKind::Integer => matches.get_one(name).map(|n: &i32| f64::from(*n)),
        };
        if let Some(value) = value {
            parameter.set(params, value);
            given.push(parameter.name);
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_sampling::toy;

    #[test]
    fn a_stage_has_its_options_by_its_row() {
        let defaults = toy::Params::default();
        let command = augment(Command::new("toy"), toy::PARAMETERS, &defaults);
        let command = augment_lists(command, toy::LISTS);
        let mut params = defaults.clone();
        let matches = command.clone().get_matches_from(["toy"]);
        read(&matches, toy::PARAMETERS, &mut params);
        assert_eq!(params, defaults);
        let matches = command
            .clone()
            .get_matches_from(["toy", "--toy-bonus", "-1.5"]);
        read(&matches, toy::PARAMETERS, &mut params);
        assert_eq!(params.toy_bonus, -1.5);
        let biased = ["toy", "--toy-bias", "3=1.5", "--toy-bias", "4=-2"];
        let matches = command.clone().get_matches_from(biased);
        read_lists(&matches, toy::LISTS, &mut params);
        assert_eq!(params.toy_biases, [(3, 1.5), (4, -2.0)]);
        let help = command.clone().render_long_help().to_string();
        assert!(
            help.contains("Toy: added to the logit of token 0"),
            "{help}"
        );
    }
}
