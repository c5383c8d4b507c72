//! Sampling options of the command line. Numeric options come from the table of the sampling stages.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};

use crate::sampling::{DRY_BREAKERS, Kind, PARAMETERS, Parameter, Params, StageName};
use crate::text::tokenizer::Tokenizer;

/// How tokens are sampled.
#[derive(Debug, Args)]
pub(super) struct SamplingOptions {
    #[command(flatten)]
    numbers: Numbers,
    /// DRY sequence breaker: text at which a repetition ends; may be repeated; default: line feed, `:`, `"`, `*`
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Sampling stages in the order in which they run, separated by commas; default: all
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    samplers: Vec<StageName>,
    /// Logit bias: number added to the logit of a token, as ID=BIAS; -inf excludes the token; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the sampler's random numbers; without effect at temperature 0
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let fault = || format!("expected ID=BIAS, found `{text}`");
    let (id, bias) = text.split_once('=').ok_or_else(fault)?;
    Ok((
        id.trim().parse().map_err(|_| fault())?,
        bias.trim().parse().map_err(|_| fault())?,
    ))
}

impl SamplingOptions {
    pub(super) fn params(&self, tokenizer: &Tokenizer) -> Params {
        let numbers = &self.numbers.0;
        Params {
            dry_sequence_breakers: match self.dry_sequence_breaker.as_slice() {
                _ if numbers.dry_multiplier == 0.0 => Vec::new(),
                [] => tokenizer.ids_holding(&DRY_BREAKERS),
                texts => tokenizer.ids_holding(texts),
            },
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            order: match self.samplers.as_slice() {
                [] => StageName::ALL.to_vec(),
                names => names.to_vec(),
            },
            ..numbers.clone()
        }
    }
}

/// The numbers among the parameters.
#[derive(Clone, Debug)]
struct Numbers(Params);

impl Default for Numbers {
    /// The defaults of the table, but temperature 0 (greedy): a command gives the same completion twice.
    fn default() -> Self {
        Self(Params {
            temperature: 0.0,
            ..Params::default()
        })
    }
}

impl Args for Numbers {
    fn augment_args(command: Command) -> Command {
        augment(command, PARAMETERS, &Self::default().0)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Numbers {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut numbers = Self::default();
        numbers.update_from_arg_matches(matches)?;
        Ok(numbers)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        read(matches, PARAMETERS, &mut self.0);
        Ok(())
    }
}

/// Adds an option for each parameter.
fn augment<P>(mut command: Command, table: &[Parameter<P>], defaults: &P) -> Command {
    for parameter in table {
        let kind = match parameter.kind {
            Kind::Real => Arg::new(parameter.name).value_parser(value_parser!(f64)),
            Kind::Count => Arg::new(parameter.name).value_parser(value_parser!(u32)),
            Kind::Integer => Arg::new(parameter.name).value_parser(value_parser!(i32)),
        };
        // Two strings for each parameter, once in a process.
        let (flag, default) = (parameter.name.replace('_', "-"), parameter.get(defaults));
        command = command.arg(
            kind.long(&*flag.leak())
                .value_name(if parameter.kind == Kind::Real {
                    "X"
                } else {
                    "N"
                })
                .default_value(&*default.to_string().leak())
                .allow_negative_numbers(parameter.range.low < 0.0)
                .help(parameter.help()),
        );
    }
    command
}

/// Sets the parameters that the command line names.
fn read<P>(matches: &ArgMatches, table: &[Parameter<P>], params: &mut P) {
    let is_set = |p: &&Parameter<P>| matches.value_source(p.name) == Some(ValueSource::CommandLine);
    for parameter in table.iter().filter(is_set) {
        let value = match parameter.kind {
            Kind::Real => matches.get_one::<f64>(parameter.name).copied(),
            Kind::Count => matches
                .get_one::<u32>(parameter.name)
                .map(|n| f64::from(*n)),
            Kind::Integer => matches
                .get_one::<i32>(parameter.name)
                .map(|n| f64::from(*n)),
        };
        if let Some(value) = value {
            parameter.set(params, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::toy;

    #[test]
    fn a_stage_has_its_options_by_its_row() {
        let defaults = toy::Params::default();
        let command = augment(Command::new("toy"), toy::PARAMETERS, &defaults);
        let mut params = defaults.clone();
        let matches = command.clone().get_matches_from(["toy"]);
        read(&matches, toy::PARAMETERS, &mut params);
        assert_eq!(params, defaults);
        let matches = command
            .clone()
            .get_matches_from(["toy", "--toy-bonus", "-1.5"]);
        read(&matches, toy::PARAMETERS, &mut params);
        assert_eq!(params.toy_bonus, -1.5);
        let help = command.clone().render_help().to_string();
        assert!(
            help.contains("Toy: added to the logit of token 0"),
            "{help}"
        );
    }
}
