//! `bench launch`: starts a coding agent with the settings by which it asks a running server, or prints these.

use std::io::{IsTerminal, Read};
use std::process::Command;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Value, json};

use super::{Failure, output};

/// The largest list of models that is read, in bytes.
const MAX_LIST: u64 = 16 << 20;

/// Programs whose settings are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Agent {
    /// Claude Code.
    Claude,
    /// OpenAI's Codex.
    Codex,
    /// opencode.
    Opencode,
    /// aider.
    Aider,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The program
    agent: Agent,
    /// Address of the server
    #[arg(long, default_value = "http://127.0.0.1:11116", value_name = "URL")]
    url: String,
    /// Model of the server; default: the first one of its list that writes text; agents need a context of 32k tokens or more
    #[arg(short, long, value_name = "NAME")]
    model: Option<String>,
    /// API key of the server
    #[arg(
        long,
        env = "BENCH_API_KEY",
        hide_env_values = true,
        value_name = "KEY"
    )]
    api_key: Option<String>,
    /// Print the command and its environment, and start nothing
    #[arg(long)]
    print: bool,
    /// Further arguments for the program
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// How a program is started.
struct Start {
    program: &'static str,
    /// How it is installed, for who does not have it.
    install: &'static str,
    environment: Vec<(&'static str, String)>,
    arguments: Vec<String>,
}

/// What an agent needs to ask the server at `url` for `model`.
fn start_of(agent: Agent, url: &str, key: &str, model: &str) -> Start {
    let v1 = format!("{url}/v1");
    match agent {
        Agent::Claude => Start {
            program: "claude",
            install: "npm install -g @anthropic-ai/claude-code",
            environment: vec![
                ("ANTHROPIC_BASE_URL", url.to_owned()),
                ("ANTHROPIC_AUTH_TOKEN", key.to_owned()),
                ("ANTHROPIC_MODEL", model.to_owned()),
                // The model for small tasks of its own.
                ("ANTHROPIC_SMALL_FAST_MODEL", model.to_owned()),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ],
            arguments: Vec::new(),
        },
        Agent::Codex => Start {
            program: "codex",
            install: "npm install -g @openai/codex",
            environment: vec![("BENCH_KEY", key.to_owned())],
            arguments: [
                ("model_provider", json!("bench")),
                ("model_providers.bench.name", json!("bench")),
                ("model_providers.bench.base_url", json!(v1)),
                ("model_providers.bench.wire_api", json!("responses")),
                ("model_providers.bench.env_key", json!("BENCH_KEY")),
                ("model", json!(model)),
            ]
            .into_iter()
            .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")])
            .collect(),
        },
        Agent::Opencode => {
            let config = json!({
                "$schema": "https://opencode.ai/config.json",
                "model": format!("bench/{model}"),
                "provider": { "bench": {
                    "npm": "@ai-sdk/openai-compatible", "name": "bench",
                    "options": { "baseURL": v1, "apiKey": key },
                    "models": { model: { "name": model } },
                } },
            });
            Start {
                program: "opencode",
                install: "npm install -g opencode-ai",
                environment: vec![("OPENCODE_CONFIG_CONTENT", config.to_string())],
                arguments: Vec::new(),
            }
        }
        Agent::Aider => Start {
            program: "aider",
            install: "pip install aider-chat",
            environment: vec![("OPENAI_API_BASE", v1), ("OPENAI_API_KEY", key.to_owned())],
            arguments: vec!["--model".to_owned(), format!("openai/{model}")],
        },
    }
}

/// The first model of the server's list that writes text.
fn first_model(list: &Value) -> Option<String> {
    let models = list["data"].as_array()?;
    let writes = |model: &&Value| model["capabilities"]["completion"] != Value::Bool(false);
    Some(models.iter().find(writes)?["id"].as_str()?.to_owned())
}

/// Asks the server for its models.
fn models(url: &str, key: Option<&str>) -> Result<Value, Failure> {
    let address = format!("{url}/v1/models");
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(10)))
        .build()
        .into();
    let mut request = agent.get(&address);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let answer = request.call().map_err(|error| {
        anyhow::anyhow!("{address}: {error}; start the server with `bench serve -m MODEL`, or name another address with --url")
    })?;
    let mut text = String::new();
    let body = answer.into_body().into_reader().take(MAX_LIST);
    std::io::BufReader::new(body).read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(|error| anyhow::anyhow!("{address}: {error}"))
}

/// A text as a word of a POSIX shell.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let url = args.url.trim_end_matches('/').trim_end_matches("/v1");
    let model = match &args.model {
        Some(model) => model.clone(),
        None => first_model(&models(url, args.api_key.as_deref())?)
            .ok_or_else(|| anyhow::anyhow!("{url}: the server has no model that writes text"))?,
    };
    // Some of the programs refuse to start without a key.
    let key = args.api_key.as_deref().unwrap_or("unused");
    let start = start_of(args.agent, url, key, &model);
    if args.print {
        let environment = start.environment.iter();
        let words = environment.map(|(name, value)| format!("{name}={}", shell_word(value)));
        let rest = start.arguments.iter().chain(&args.arguments);
        let words = words
            .chain([start.program.to_owned()])
            .chain(rest.map(|word| shell_word(word)));
        return output::line(words.collect::<Vec<_>>().join(" "));
    }
    if std::io::stderr().is_terminal() {
        tracing::info!("{} asks {url} for {model}", start.program);
    }
    let mut command = Command::new(start.program);
    command
        .envs(start.environment.iter().map(|(name, value)| (name, value)))
        .args(&start.arguments)
        .args(&args.arguments);
    let status = command.status().map_err(|error| {
        anyhow::anyhow!(
            "{}: {error}; `{}` installs it",
            start.program,
            start.install
        )
    })?;
    match status.success() {
        true => Ok(()),
        false => anyhow::bail!("{} ended with {status}", start.program),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_told_the_address_the_key_and_the_model() {
        for agent in Agent::value_variants() {
            let start = start_of(*agent, "http://h:1", "the-key", "owner/repo:Q8_0");
            let environment = start.environment.iter().map(|(_, value)| value.clone());
            let all: Vec<String> = environment.chain(start.arguments).collect();
            for part in ["http://h:1", "the-key", "owner/repo:Q8_0"] {
                assert!(
                    all.iter().any(|text| text.contains(part)),
                    "{agent:?}: {part}"
                );
            }
        }
    }

    #[test]
    fn printed_words_are_words_of_a_shell() {
        assert_eq!(shell_word("http://h:1/v1"), "http://h:1/v1");
        assert_eq!(shell_word("a='b c'"), r"'a='\''b c'\'''");
        assert_eq!(shell_word(""), "''");
    }
}
