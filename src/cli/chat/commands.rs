//! The commands of a chat: input lines that start with a slash.

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::Failure;
use crate::cli::input_file::{read_json, read_text};
use crate::cli::media_files::MediaFile;
use crate::cli::output::{self, escape_controls};
use crate::cli::sampling::number;
use lab_base::util::atomic_file::{self, OutputPath};
use lab_base::util::wording;
use lab_core::arch::nearest;
use lab_core::plan::Media;
use lab_sampling::{LISTS, PARAMETERS, Params, StageName};

use super::session::{Session, role};
use super::terminal::n_columns;

/// The commands: name, argument, and what it does.
const COMMANDS: &str = "\
help: this list
reset: start anew; the system message stays
undo: remove the last message of the user and what followed
retry: answer the last message again, with the next seed
continue: continue the last answer
image [FILE]: a picture that goes with the next message; without FILE: no pictures and sounds go with it
audio [FILE]: a sound that goes with the next message
system [TEXT]: set the system message; without TEXT remove it
set [NAME [VALUE]]: set a field of the requests, such as temperature 0.5; VALUE `default`: as at the start; without VALUE show it, without NAME all
schema [FILE]: answers fit the JSON Schema in FILE; without FILE: no constraint
grammar [FILE]: answers fit the grammar in FILE, GBNF or Lark; without FILE: no constraint
tools [FILE]: the model may call the tools in FILE, an array as in requests; without FILE: no tools
logprobs: show the log-probabilities of tokens, or no longer: as colours, without colours as a list
save [--force] FILE: write the messages to FILE, as JSON; with --force replace FILE
load FILE: go on with the messages in FILE
info: the model, the context in use, the speed of the last answer
quit: end, as /bye, /exit and Ctrl-D do";

/// Further names of `/quit`.
const QUIT: [&str; 2] = ["bye", "exit"];

/// The option of `/save` that replaces a file.
pub(super) const FORCE: &str = "--force";

/// The name and the argument of each command, and what it does.
pub(super) fn commands() -> impl Iterator<Item = [&'static str; 3]> {
    COMMANDS.lines().filter_map(|line| {
        let (usage, help) = line.split_once(": ")?;
        let (name, argument) = usage.split_once(' ').unwrap_or((usage, ""));
        Some([name, argument, help])
    })
}

/// Fields of a request that are not settings, or that have commands of their own.
const NOT_SET: &str = "messages model n stream stream_options prompt_logprobs logprobs top_logprobs tools json_schema \
    grammar add_generation_prompt continue_final_message diffusion_trace";

/// Runs a command, given without its slash. The result says whether the chat ends.
pub(super) fn run(session: &mut Session, line: &str) -> Result<ControlFlow<()>, Failure> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let name = if QUIT.contains(&name) { "quit" } else { name };
    let Some([_, argument, _]) = commands().find(|[own, ..]| *own == name) else {
        let near = nearest(name, commands().map(|[name, ..]| name));
        let hint = near.map_or("/help lists them".to_owned(), |near| {
            format!("did you mean /{near}?")
        });
        let name: String = name.chars().take(64).collect();
        anyhow::bail!(
            "there is no command /{name}; {hint}; a text that starts with / is typed with //"
        );
    };
    let rest = rest.trim();
    match argument {
        "" if !rest.is_empty() => anyhow::bail!("/{name} takes nothing after it"),
        "FILE" | "[--force] FILE" if rest.is_empty() || rest == FORCE => {
            anyhow::bail!("/{name} needs the name of a file")
        }
        _ => {}
    }
    match name {
        "help" => help(),
        "reset" => {
            session.messages.truncate(session.n_system());
            session.attach(None)
        }
        "undo" => undo(session),
        "retry" => session.retry(),
        "continue" => session.go_on(),
        "image" | "audio" => {
            let media = Media::ALL.into_iter().find(|media| media.name() == name);
            let path = file(rest).map(Path::to_owned);
            let file = media
                .zip(path)
                .map(|(media, path)| MediaFile { media, path });
            session.attach(file.as_ref())?;
            session.screen.note(&session.attached())
        }
        "system" => {
            session.set_system(Some(rest).filter(|text| !text.is_empty()))?;
            noted(session, "system message", "set", rest)
        }
        "set" => set(session, rest),
        "schema" => {
            let schema = file(rest).map(read_json).transpose()?;
            constrain(session, "json_schema", schema)?;
            noted(session, "schema", rest, rest)
        }
        "grammar" => {
            let grammar = file(rest).map(read_text).transpose()?;
            constrain(session, "grammar", grammar.map(Value::from))?;
            noted(session, "grammar", rest, rest)
        }
        "tools" => {
            session.set("tools", file(rest).map(read_json).transpose()?)?;
            noted(session, "tools", rest, rest)
        }
        "logprobs" => {
            let is_on = session.fields.contains_key("logprobs");
            session.set("logprobs", (!is_on).then_some(Value::Bool(true)))?;
            let state = if is_on { "off" } else { "on" };
            session.screen.note(&format!("log-probabilities {state}"))
        }
        "save" => save(session, rest),
        "load" => load(session, rest),
        "info" => info(session),
        _ => return Ok(ControlFlow::Break(())),
    }?;
    Ok(ControlFlow::Continue(()))
}

/// Says what a command set: `value`, or that there is none any more if nothing was `given`.
fn noted(session: &mut Session, what: &str, value: &str, given: &str) -> Result<(), Failure> {
    let value = if given.is_empty() { "none" } else { value };
    session.screen.note(&format!("{what}: {value}"))
}

fn file(path: &str) -> Option<&Path> {
    (!path.is_empty()).then(|| Path::new(path))
}

fn help() -> Result<(), Failure> {
    for [name, argument, help] in commands() {
        let usage = format!("/{name} {argument}");
        wrapped(&format!("{usage:22} {help}"), 23)?;
    }
    wrapped(
        "A line that ends in \\ goes on in the next; \"\"\" starts and ends a text of several lines.",
        0,
    )?;
    wrapped(
        "Ctrl-C stops an answer and keeps its text, Ctrl-D ends. What is typed during an answer is kept for the next inputs.",
        0,
    )
}

/// Prints a line. On a terminal it is wrapped at spaces; what follows its first row is indented.
fn wrapped(line: &str, indent: usize) -> Result<(), Failure> {
    output::line(match n_columns() {
        Some(width) => wording::wrapped(line, width, indent),
        None => line.to_owned(),
    })
}

fn undo(session: &mut Session) -> Result<(), Failure> {
    let last = session.messages.iter().rposition(|m| role(m) == "user");
    let Some(at) = last else {
        anyhow::bail!("there is no message to undo");
    };
    session.messages.truncate(at);
    Ok(())
}

/// Sets a constraint and removes any other.
fn constrain(session: &mut Session, name: &str, value: Option<Value>) -> Result<(), Failure> {
    let before = session.fields.clone();
    for other in ["json_schema", "grammar", "guided_regex"] {
        session.fields.shift_remove(other);
    }
    let done = session.set(name, value);
    if done.is_err() {
        session.fields = before;
    }
    done
}

fn set(session: &mut Session, rest: &str) -> Result<(), Failure> {
    if rest.is_empty() {
        return list(session);
    }
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if NOT_SET.split(' ').any(|own| own == name) {
        anyhow::bail!("`{name}` is not a setting; /help lists the commands");
    }
    match value.trim() {
        "" => show(session, name),
        "default" => session.set(name, session.initial.get(name).cloned()),
        text => {
            let value = serde_json::from_str(text).unwrap_or_else(|_| text.into());
            session.set(name, Some(value))
        }
    }
}

/// The parameters of a request that sets none: those that the model's authors recommend, else neutral ones.
fn usual(session: &Session) -> Params {
    let mut params = Params::default();
    session.served.sampling.apply(&mut params, |_| false);
    params
}

fn show(session: &Session, name: &str) -> Result<(), Failure> {
    let parameter = PARAMETERS.iter().find(|parameter| parameter.name == name);
    let usual = parameter.map(|own| number(own, own.get(&usual(session))));
    let value = session.fields.get(name).cloned().or(usual);
    match value {
        Some(value) => output::line(escape_controls(&format!("{name} = {value}"))),
        None => {
            // A request with the field as an object shows whether the field exists; null would leave it unset.
            let mut fields = session.fields.clone();
            fields.insert(name.into(), json!({}));
            match session.check(fields, Vec::new()) {
                Err(failure) if failure.to_string().starts_with("unknown parameter") => {
                    Err(failure)
                }
                _ => output::line(escape_controls(&format!("{name} is not set"))),
            }
        }
    }
}

/// Lists all settings: the sampling parameters, and the other fields that are set.
fn list(session: &Session) -> Result<(), Failure> {
    let unset = usual(session);
    for parameter in PARAMETERS {
        let usual = || number(parameter, parameter.get(&unset));
        let value = session.fields.get(parameter.name).cloned();
        let value = value.unwrap_or_else(usual);
        let line = format!("{} = {value}    {}", parameter.name, parameter.help());
        wrapped(&line, 4)?;
    }
    let names = StageName::ALL.iter().map(|name| name.as_str());
    let lists = LISTS.iter();
    let lists = lists.map(|list| (list.name, list.default.to_vec().into(), list.doc.trim()));
    let mut lists: Vec<(&str, Value, &str)> = lists.collect();
    let of_order = "Sampling stages in the order in which they run";
    lists.push(("samplers", names.collect(), of_order));
    for (name, usual, doc) in &lists {
        let value = session.fields.get(*name).unwrap_or(usual);
        wrapped(&escape_controls(&format!("{name} = {value}    {doc}")), 4)?;
    }
    let is_listed = |name: &str| {
        PARAMETERS.iter().any(|parameter| parameter.name == name)
            || lists.iter().any(|(own, ..)| *own == name)
    };
    for (name, value) in session.fields.iter().filter(|(name, _)| !is_listed(name)) {
        output::line(escape_controls(&format!("{name} = {value}")))?;
    }
    Ok(())
}

fn save(session: &mut Session, rest: &str) -> Result<(), Failure> {
    let forced = rest
        .strip_prefix(FORCE)
        .filter(|path| path.starts_with(' '));
    let target = OutputPath {
        path: Path::new(forced.map_or(rest, str::trim)),
        replaces: forced.is_some(),
    };
    let text = serde_json::to_string_pretty(&session.messages)?;
    let written = atomic_file::write(target, (text + "\n").as_bytes());
    written.map_err(|error| output::at(target.path, error))?;
    let path = target.path.display();
    let n = session.messages.len();
    session.screen.note(&format!("{n} messages in {path}"))
}

fn load(session: &mut Session, path: &str) -> Result<(), Failure> {
    let found: Value = read_json(Path::new(path))?;
    let array = found.get("messages").unwrap_or(&found).as_array().cloned();
    let Some(messages) = array.filter(|messages| !messages.is_empty()) else {
        anyhow::bail!("{path}: expected an array of messages");
    };
    let checked = session.check(session.fields.clone(), messages.clone());
    checked.map_err(|failure| anyhow::anyhow!("{path}: {failure}"))?;
    let n = messages.len();
    session.messages = messages;
    session.screen.note(&format!("{n} messages"))
}

fn info(session: &Session) -> Result<(), Failure> {
    let served = &session.served;
    let used = match session.messages.as_slice() {
        [] => 0,
        messages => {
            let mut fields = session.fields.clone();
            fields.insert("messages".into(), messages.to_vec().into());
            fields.insert("add_generation_prompt".into(), false.into());
            let prompt = lab_server::prompt(served, fields);
            prompt.map_err(Failure::msg)?.tokens.len()
        }
    };
    output::line(format!("model: {}", served.name))?;
    let (n, n_ctx) = (session.messages.len(), served.handle.limits().n_ctx);
    output::line(match used < n_ctx {
        true => format!("context: {used} of {n_ctx} tokens, {n} messages"),
        false => format!(
            "context: full, as it holds {n_ctx} tokens, and the {n} messages have {used}; /undo or /reset shortens them"
        ),
    })?;
    let speed = session.speed.as_deref().unwrap_or("no answer yet");
    output::line(format!("last answer: {speed}"))
}
