//! The settings of `bench serve`: a TOML file, overridden by environment variables, overridden by command-line options.
//!
//! Every option `--some-name` is the key `some_name` of the file and the variable `BENCH_SOME_NAME`. A layer is
//! converted to command-line options, so that clap checks its values; a value that a higher layer sets is left out. The
//! file may have two tables: `[aliases]`, further names of models, and `[per_model.NAME]`, options for one model, which
//! apply unless the environment or the command line sets them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches};

use lab_base::util::limited_read::{self, MAX_DEFINITION};
use lab_core::arch::nearest;

use super::command_line::{Cli, Command};
use super::serve::{Args, ConfigLayers, PER_MODEL};
use super::{Failure, output};

/// The values of options, by option id.
type Values = BTreeMap<String, Vec<String>>;

/// Options of the server, not of a model, separated by spaces.
const OF_SERVER: &str = "model models host port listen tls_cert tls_key api_key api_key_file admin_key keys no_api_key cors_origin page_connect allow_host \
    strict_fields strict_model lora_dir lab_upload response_store files file_bytes read_time write_time in_process log log_level log_format";
/// Options among these that engine processes also have.
const OF_BOTH: &[&str] = &["strict_fields", "log", "log_level", "log_format"];
/// Options that neither a file nor a variable can set.
const OF_LINE: &[&str] = &["config", "print_config", "help", "version"];
/// Pairs of exclusive options. An option that a higher layer sets disables the other one in lower layers.
const EXCLUSIVE: &[[&str; 2]] = &[["model", "models"], ["models", "lora"]];
const PREFIX: &str = "BENCH_";
/// Variables that are no options of `bench serve`: of other commands, of clients and of the project's tests.
const OTHERS: [&str; 6] = [
    "BENCH_CONFIG",
    "BENCH_BACKEND_DIR",
    "BENCH_MARCH",
    "BENCH_SHARED",
    "BENCH_TOKENIZERS",
    "BENCH_URL",
];
const ALIASES: &str = "aliases";

/// Builds the command line of `bench serve` from its arguments and the layers below them.
pub(super) fn layered(line: &[OsString], matches: &ArgMatches) -> Result<Cli, Failure> {
    let options = ServeOptions::new();
    let mut layered = LayeredLine {
        options: &options,
        origins: BTreeMap::new(),
        added: Vec::new(),
    };
    let set = options.args.iter().filter(|arg| {
        let id = arg.get_id().as_str();
        let is_model = id == "model" && matches.contains_id("model_path");
        is_model || matches.value_source(id) == Some(ValueSource::CommandLine)
    });
    let flag = |arg: &Arg| format!("--{}", arg.get_long().unwrap_or_default());
    let set = set.map(|arg| (arg.get_id().to_string(), flag(arg)));
    layered.origins.extend(set);
    for (id, values) in options.environment()? {
        layered.add(&id, &values, &variable(&id));
    }
    let above = layered.clone();
    let path = matches.get_one::<PathBuf>("config").cloned();
    let path = path.or_else(|| std::env::var_os("BENCH_CONFIG").map(PathBuf::from));
    let file = path.map(|path| options.file(&path)).transpose()?;
    let file = file.unwrap_or_default();
    let origin = file.path.display().to_string();
    for (id, values) in &file.values {
        layered.add(id, values, &origin);
    }
    let parsed = |added: &[String]| {
        let line = line.iter().cloned().chain(added.iter().map(OsString::from));
        Cli::command().get_matches_from(line)
    };
    let whole = parsed(&layered.added);
    if matches.get_flag("print_config") {
        options.print(&whole, &layered.origins, &file)?;
    }
    let mut per_model = BTreeMap::new();
    for (name, own) in &file.per_model {
        let mut layered = above.clone();
        for (id, values) in own.iter().chain(&file.values) {
            layered.add(id, values, &origin);
        }
        per_model.insert(name.clone(), args(&options, &parsed(&layered.added))?.1);
    }
    let (mut cli, mut own) = args(&options, &whole)?;
    own.layers = ConfigLayers {
        aliases: file.aliases,
        per_model,
        path: file.path,
        warnings: options.unknown_variables(std::env::vars_os().map(|(name, _)| name)),
    };
    cli.command = Command::Serve(Box::new(own));
    Ok(cli)
}

/// Extracts the options of `bench serve` from a parsed command line.
fn args(options: &ServeOptions, matches: &ArgMatches) -> Result<(Cli, Args), Failure> {
    let cli = Cli::from_arg_matches(matches)?;
    let of_serve = matches.subcommand_matches("serve");
    let of_serve = of_serve.ok_or_else(|| anyhow::anyhow!("not `bench serve`"))?;
    let mut own = Args::from_arg_matches(of_serve)?;
    own.line = options.line(of_serve);
    Ok((cli, own))
}

/// A command line with the values of layers below it.
#[derive(Clone)]
struct LayeredLine<'o> {
    options: &'o ServeOptions,
    /// Where each value comes from: an option, a variable, or the path of the file.
    origins: BTreeMap<String, String>,
    added: Vec<String>,
}

impl LayeredLine<'_> {
    /// Adds a value of a layer, unless a higher layer sets or excludes the option.
    fn add(&mut self, id: &str, values: &[String], origin: &str) {
        let is_above = |other: &str| self.origins.get(other).is_some_and(|own| own != origin);
        let excludes = |[a, b]: &[&str; 2]| (*a == id && is_above(b)) || (*b == id && is_above(a));
        if self.origins.contains_key(id) || EXCLUSIVE.iter().any(excludes) {
            return;
        }
        self.origins.insert(id.to_owned(), origin.to_owned());
        self.added.extend(self.options.flags(id, values));
    }
}

fn is_of_server(id: &str) -> bool {
    OF_SERVER.split(' ').any(|own| own == id)
}

/// The name of an option's environment variable.
fn variable(id: &str) -> String {
    format!("{PREFIX}{}", id.to_ascii_uppercase())
}

#[derive(Debug, Default)]
struct ConfigFile {
    path: PathBuf,
    values: Values,
    aliases: BTreeMap<String, String>,
    per_model: BTreeMap<String, Values>,
}

/// The options of `bench serve` that the layers can set.
struct ServeOptions {
    args: Vec<Arg>,
}

impl ServeOptions {
    fn new() -> Self {
        let mut command = Cli::command();
        command.build();
        let of_serve = command.find_subcommand("serve");
        let args = of_serve.into_iter().flat_map(clap::Command::get_arguments);
        let is_setting =
            |arg: &&Arg| arg.get_long().is_some() && !OF_LINE.contains(&arg.get_id().as_str());
        Self {
            args: args.filter(is_setting).cloned().collect(),
        }
    }

    /// A warning for each variable that looks like an option and is none.
    fn unknown_variables(&self, names: impl Iterator<Item = OsString>) -> Vec<String> {
        let keys = self.args.iter().map(|arg| variable(&Self::key(arg)));
        let known: Vec<String> = keys.chain(OTHERS.map(str::to_owned)).collect();
        let names = names.filter_map(|name| name.into_string().ok());
        let unknown = names.filter(|name| name.starts_with(PREFIX) && !known.contains(name));
        let mut unknown: Vec<String> = unknown.collect();
        unknown.sort();
        let warning = |name: String| {
            let near = nearest(&name, known.iter().map(String::as_str));
            let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            let name: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
            format!("{name}: no option of `bench serve` has this variable{hint}")
        };
        unknown.into_iter().map(warning).collect()
    }

    fn key(arg: &Arg) -> String {
        arg.get_long().unwrap_or_default().replace('-', "_")
    }

    fn find(&self, key: &str) -> Option<&Arg> {
        let is_name = |arg: &&Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            let mut aliases = aliases.iter().map(|alias| alias.replace('-', "_"));
            Self::key(arg) == key || aliases.any(|alias| alias == key)
        };
        self.args.iter().find(is_name)
    }

    /// The command-line options that set these values.
    fn flags(&self, id: &str, values: &[String]) -> Vec<String> {
        let Some(arg) = self.args.iter().find(|arg| arg.get_id() == id) else {
            return Vec::new();
        };
        let long = arg.get_long().unwrap_or_default();
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        let flag = |value: &String| match is_flag {
            true => (value == "true").then(|| format!("--{long}")),
            false => Some(format!("--{long}={value}")),
        };
        values.iter().filter_map(flag).collect()
    }

    /// The command-line options for an engine process: all that are set, except those of the server alone.
    fn line(&self, matches: &ArgMatches) -> Vec<OsString> {
        let is_needed = |arg: &&Arg| {
            let id = arg.get_id().as_str();
            let is_set = matches.value_source(id) == Some(ValueSource::CommandLine);
            is_set && (!is_of_server(id) || OF_BOTH.contains(&id))
        };
        let needed = self.args.iter().filter(is_needed);
        let options = needed.flat_map(|arg| {
            let option = OsString::from(format!("--{}", arg.get_long().unwrap_or_default()));
            if matches!(arg.get_action(), ArgAction::SetTrue) {
                return vec![option];
            }
            let values = matches.get_raw(arg.get_id().as_str());
            let with = |value: &OsStr| {
                let mut option = option.clone();
                option.push("=");
                option.push(value);
                option
            };
            values.into_iter().flatten().map(with).collect()
        });
        options.collect()
    }

    fn check(&self, id: &str, values: &[String]) -> Result<(), String> {
        let flags = self.flags(id, values);
        let line = ["bench".to_owned(), "serve".to_owned()]
            .into_iter()
            .chain(flags);
        let error = match Cli::command().try_get_matches_from(line) {
            // What another option needs is checked where all are together.
            Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => error,
            _ => return Ok(()),
        };
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Err(first.trim_start_matches("error: ").to_owned())
    }

    fn environment(&self) -> Result<Values, Failure> {
        let (mut found, mut faults) = (Values::new(), Vec::new());
        for arg in &self.args {
            let (id, key) = (arg.get_id().as_str(), Self::key(arg));
            let name = variable(&key);
            let Some(text) = std::env::var(&name).ok().filter(|text| !text.is_empty()) else {
                continue;
            };
            let values = match arg.get_action() {
                ArgAction::SetTrue => match text.as_str() {
                    "1" | "true" | "on" | "yes" => vec!["true".to_owned()],
                    "0" | "false" | "off" | "no" => vec!["false".to_owned()],
                    _ => {
                        faults.push(format!("{name}: found `{text}`, expected true or false"));
                        continue;
                    }
                },
                ArgAction::Append => text.split(',').map(str::to_owned).collect(),
                _ => vec![text],
            };
            if let Err(fault) = self.check(id, &values) {
                faults.push(format!("{name}: {fault}"));
            }
            found.insert(id.to_owned(), values);
        }
        whole(found, &faults)
    }

    fn file(&self, path: &Path) -> Result<ConfigFile, Failure> {
        let text = limited_read::text(path, MAX_DEFINITION).map_err(|e| output::at(path, e))?;
        let mut table: toml::Table = text.parse().map_err(|e| output::at(path, e))?;
        let mut faults = Vec::new();
        let mut file = ConfigFile {
            path: path.to_owned(),
            ..ConfigFile::default()
        };
        let [aliases, per_model] = [ALIASES, PER_MODEL].map(|key| match table.remove(key) {
            None => toml::Table::new(),
            Some(toml::Value::Table(own)) => own,
            Some(_) => {
                faults.push(format!("`{key}`: expected a table"));
                toml::Table::new()
            }
        });
        for (alias, name) in aliases {
            // A dot in a key without quotes begins a table.
            let hint = match name.is_table() {
                true => "; a name with dots needs quotes, such as \"gpt-3.5\"",
                false => "",
            };
            match name {
                toml::Value::String(name) => _ = file.aliases.insert(alias, name),
                _ => faults.push(format!("`{ALIASES}.{alias}`: expected a string{hint}")),
            }
        }
        for (name, own) in per_model {
            let Some(own) = own.as_table() else {
                faults.push(format!("`{PER_MODEL}.{name}`: expected a table"));
                continue;
            };
            let prefix = format!("{PER_MODEL}.{name}.");
            let values = self.values(&prefix, own, |key| !is_of_server(key), &mut faults);
            file.per_model.insert(name, values);
        }
        file.values = self.values("", &table, |_| true, &mut faults);
        let faults: Vec<String> = faults
            .iter()
            .map(|f| format!("{}: {f}", path.display()))
            .collect();
        whole(file, &faults)
    }

    fn values(
        &self,
        prefix: &str,
        table: &toml::Table,
        is_known: impl Fn(&str) -> bool,
        faults: &mut Vec<String>,
    ) -> Values {
        let mut found = Values::new();
        for (key, value) in table {
            let Some(arg) = self.find(key).filter(|_| is_known(key)) else {
                let keys: Vec<String> = self.args.iter().map(Self::key).collect();
                let tables = [ALIASES, PER_MODEL]
                    .into_iter()
                    .filter(|_| prefix.is_empty());
                let known = keys.iter().map(String::as_str).filter(|key| is_known(key));
                let near = nearest(key, known.chain(tables));
                let hint = near.map(|near| format!("; did you mean `{prefix}{near}`?"));
                faults.push(format!(
                    "unknown key `{prefix}{key}`{}",
                    hint.unwrap_or_default()
                ));
                continue;
            };
            let id = arg.get_id().as_str();
            match texts(arg, value) {
                Ok(values) => {
                    let checked = self.check(id, &values);
                    faults.extend(
                        checked
                            .err()
                            .map(|fault| format!("`{prefix}{key}`: {fault}")),
                    );
                    found.insert(id.to_owned(), values);
                }
                Err(expected) => faults.push(format!("`{prefix}{key}`: expected {expected}")),
            }
        }
        found
    }

    /// Prints each setting with its origin, in the form of a file with the same settings.
    fn print(
        &self,
        matches: &ArgMatches,
        origins: &BTreeMap<String, String>,
        file: &ConfigFile,
    ) -> Result<(), Failure> {
        let of_serve = matches.subcommand_matches("serve").unwrap_or(matches);
        let path = file.path.display();
        for arg in &self.args {
            let (id, key) = (arg.get_id().as_str(), Self::key(arg));
            let origin = origins.get(id).map_or("default", String::as_str);
            match shown(arg, of_serve) {
                Some(value) => output::line(format!("{key} = {value}  # {origin}"))?,
                None => output::line(format!("# {key} is not set"))?,
            }
        }
        let table = |heading: &str| output::line(format!("\n[{heading}]  # {path}"));
        if !file.aliases.is_empty() {
            table(ALIASES)?;
        }
        for (alias, name) in &file.aliases {
            output::line(format!("{} = {}", quoted(alias), quoted(name)))?;
        }
        for (name, values) in &file.per_model {
            table(&format!("{PER_MODEL}.{}", quoted(name)))?;
            for (id, values) in values {
                let key = self.args.iter().find(|arg| arg.get_id() == id.as_str());
                let key = key.map(Self::key).unwrap_or_default();
                output::line(format!("{key} = {}", values_shown(values)))?;
            }
        }
        Ok(())
    }
}

fn whole<T>(value: T, faults: &[String]) -> Result<T, Failure> {
    match faults {
        [] => Ok(value),
        _ => Err(anyhow::anyhow!("{}", faults.join("\n"))),
    }
}

/// A value of a file as texts of the command line.
fn texts(arg: &Arg, value: &toml::Value) -> Result<Vec<String>, &'static str> {
    let is_list = matches!(arg.get_action(), ArgAction::Append);
    let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
    let one = |value: &toml::Value| match value {
        toml::Value::Boolean(on) if is_flag => Some(on.to_string()),
        _ if is_flag => None,
        toml::Value::Boolean(on) => Some(if *on { "on" } else { "off" }.to_owned()),
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        _ => None,
    };
    let expected = match (is_flag, is_list) {
        (true, _) => "true or false",
        (_, true) => "an array of strings",
        _ => "a string or a number",
    };
    let all = match value {
        toml::Value::Array(all) if is_list => all.iter().map(one).collect(),
        value => one(value).map(|one| vec![one]),
    };
    all.ok_or(expected)
}

/// The value of an option in the form of a file; `None` if it is not set.
fn shown(arg: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = arg.get_id().as_str();
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Some(matches.get_flag(id).to_string());
    }
    let raw = matches.try_get_raw(id).ok().flatten()?;
    let values: Vec<String> = raw
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    if ["api_key", "admin_key"].contains(&id) {
        return Some(values_shown(&vec!["***".to_owned(); values.len()]));
    }
    Some(match arg.get_action() {
        ArgAction::Append => list(values.iter().map(|value| quoted(value))),
        _ => values_shown(&values),
    })
}

fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(", "))
}

fn values_shown(values: &[String]) -> String {
    let one = |value: &String| match value.parse::<f64>().is_ok_and(f64::is_finite) {
        true => value.clone(),
        false if value == "true" || value == "false" => value.clone(),
        false => quoted(value),
    };
    match values {
        [value] => one(value),
        all => list(all.iter().map(one)),
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
