//! `bench launch`: starts a coding agent with the settings by which it asks a running server, or prints these.

use std::io::{self, IsTerminal, Read};
use std::process::Command;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Value, json};

use lab_core::arch::nearest;

use super::{Failure, output};

/// The largest list of models that is read, in bytes.
const MAX_LIST: u64 = 16 << 20;

/// The shortest context in which agents do useful work, in tokens.
const LEAST_CONTEXT: u64 = 32_000;
/// Number of models that are listed where none has the name that was given.
const LISTED: usize = 10;

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
    /// Further arguments for the program, as they are; `--` before those that are options of this command
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
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

/// What an agent needs to ask the server at `url` for `model`. `n_ctx`: the context length, if it is known.
fn start_of(agent: Agent, url: &str, key: &str, model: &str, n_ctx: Option<u64>) -> Start {
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
            .chain(n_ctx.map(|n_ctx| ("model_context_window", json!(n_ctx))))
            .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")])
            .collect(),
        },
        Agent::Opencode => {
            let mut of_model = json!({ "name": model });
            if let Some(n_ctx) = n_ctx {
                // The agent shortens a conversation that leaves less room than the output may take.
                of_model["limit"] = json!({ "context": n_ctx, "output": n_ctx / 4 });
            }
            let config = json!({
                "$schema": "https://opencode.ai/config.json",
                "model": format!("bench/{model}"),
                "provider": { "bench": {
                    "npm": "@ai-sdk/openai-compatible", "name": "bench",
                    "options": { "baseURL": v1, "apiKey": key },
                    "models": { model: of_model },
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

/// The address of the server: with a scheme, and without what agents append.
fn address(url: &str) -> String {
    let url = url.trim_end_matches('/').trim_end_matches("/v1");
    match url.contains("://") {
        true => url.to_owned(),
        false => format!("http://{url}"),
    }
}

/// The entry of the server's list for a model, by default of the first one that writes text.
fn chosen<'l>(list: &'l Value, name: Option<&str>) -> Result<&'l Value, String> {
    let models = list["data"].as_array().map_or(&[][..], Vec::as_slice);
    let writes = |model: &&Value| model["capabilities"]["completion"] != Value::Bool(false);
    let Some(name) = name else {
        let first = models.iter().find(writes);
        return first.ok_or_else(|| "the server has no model that writes text".to_owned());
    };
    let of = |name: &str| models.iter().find(|model| model["id"] == name);
    let found = of(name).or_else(|| of(name.strip_suffix(":latest")?));
    found.ok_or_else(|| {
        let ids = models.iter().filter_map(|model| model["id"].as_str());
        let ids: Vec<&str> = ids.collect();
        let near = nearest(name, ids.iter().copied());
        let hint = match (near, ids.len()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, 0) => "it has none".to_owned(),
            (None, n) => {
                let more = if n > LISTED { ", ..." } else { "" };
                let shown = ids[..n.min(LISTED)].join("`, `");
                format!("it has `{shown}`{more}")
            }
        };
        format!("the server has no model `{name}`; {hint}")
    })
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
    let url = &address(&args.url);
    let name = args.model.as_deref();
    let (model, n_ctx) = match (models(url, args.api_key.as_deref()), name) {
        // Settings can be printed for a server that does not run.
        (Err(failure), Some(name)) if args.print => {
            tracing::warn!("{failure}");
            (name.to_owned(), None)
        }
        (list, name) => {
            let list = list?;
            let entry = chosen(&list, name).map_err(|fault| anyhow::anyhow!("{url}: {fault}"))?;
            let model = name.or(entry["id"].as_str()).unwrap_or_default();
            (model.to_owned(), entry["max_model_len"].as_u64())
        }
    };
    if let Some(n_ctx) = n_ctx.filter(|n_ctx| *n_ctx < LEAST_CONTEXT) {
        tracing::warn!(
            "the context of {model} is {n_ctx} tokens, and agents need 32k or more: `bench serve -c 64k`"
        );
    }
    // Some of the programs refuse to start without a key.
    let key = args.api_key.as_deref().unwrap_or("unused");
    let start = start_of(args.agent, url, key, &model, n_ctx);
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
    let error = replace_process(&mut command);
    anyhow::bail!(
        "{}: {error}; `{}` installs it",
        start.program,
        start.install
    )
}

/// Goes on as another program, to which signals and the exit status then belong. Returns only if it cannot be started.
#[cfg(unix)]
fn replace_process(command: &mut Command) -> io::Error {
    std::os::unix::process::CommandExt::exec(command)
}

/// Runs another program and ends with its exit status. Returns only if it cannot be started.
#[cfg(not(unix))]
fn replace_process(command: &mut Command) -> io::Error {
    match command.status() {
        Ok(status) => lab_base::ggml::end_process(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_told_the_address_the_key_and_the_model() {
        for agent in Agent::value_variants() {
            let start = start_of(
                *agent,
                "http://h:1",
                "the-key",
                "owner/repo:Q8_0",
                Some(65_536),
            );
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
    fn programs_that_can_be_told_the_context_are_told_it() {
        let told = |agent, n_ctx| {
            let start = start_of(agent, "http://h:1", "key", "m", n_ctx);
            let environment = start.environment.into_iter().map(|(_, value)| value);
            let words: Vec<String> = environment.chain(start.arguments).collect();
            words.join(" ")
        };
        let codex = told(Agent::Codex, Some(65_536));
        assert!(codex.contains("-c model_context_window=65536"), "{codex}");
        let opencode = told(Agent::Opencode, Some(65_536));
        let limit = r#""limit":{"context":65536,"output":16384}"#;
        assert!(opencode.contains(limit), "{opencode}");
        for agent in [Agent::Codex, Agent::Opencode] {
            let told = told(agent, None);
            assert!(!told.contains("window") && !told.contains("limit"));
        }
    }

    #[test]
    fn addresses_get_a_scheme() {
        for (url, expected) in [
            ("localhost:11300", "http://localhost:11300"),
            ("https://h/v1/", "https://h"),
            ("http://h:1", "http://h:1"),
        ] {
            assert_eq!(address(url), expected);
        }
    }

    #[test]
    fn a_model_is_one_of_the_servers_list() {
        let list = json!({ "data": [
            { "id": "vectors", "capabilities": { "completion": false } },
            { "id": "tiny-chat", "max_model_len": 512 },
        ] });
        for name in [None, Some("tiny-chat"), Some("tiny-chat:latest")] {
            let found = chosen(&list, name).expect("it is served");
            assert_eq!(found["max_model_len"], 512);
        }
        let refused = |list: &Value, name| chosen(list, name).expect_err("it is not served");
        let near = refused(&list, Some("tiny-chap"));
        assert!(near.ends_with("did you mean `tiny-chat`?"), "{near}");
        let far = refused(&list, Some("something else"));
        assert!(far.ends_with("it has `vectors`, `tiny-chat`"), "{far}");
        let none = refused(&json!({ "data": [] }), None);
        assert!(none.contains("no model that writes text"), "{none}");
    }

    #[test]
    fn what_follows_the_program_goes_to_it() {
        use clap::Parser as _;

        use crate::cli::command_line::{Cli, Command};
        use crate::cli::other_programs::translated;

        for (line, expected) in [
            ("bench launch codex exec hi", vec!["exec", "hi"]),
            (
                "bench launch --print claude -p hi -np",
                vec!["-p", "hi", "-np"],
            ),
            (
                "bench launch codex --print --full-auto",
                vec!["--full-auto"],
            ),
            ("bench launch codex -m M -- --print", vec!["--print"]),
        ] {
            let words = line.split(' ').map(Into::into).collect();
            let words = translated(words).expect("nothing is refused");
            let parsed = Cli::try_parse_from(words).expect(line);
            let Command::Launch(args) = parsed.command else {
                panic!("{line}: another command");
            };
            assert_eq!(args.arguments, expected, "{line}");
        }
    }

    #[test]
    fn printed_words_are_words_of_a_shell() {
        assert_eq!(shell_word("http://h:1/v1"), "http://h:1/v1");
        assert_eq!(shell_word("a='b c'"), r"'a='\''b c'\'''");
        assert_eq!(shell_word(""), "''");
    }
}
