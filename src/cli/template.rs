//! `bench template`: the chat prompt that a conversation renders to.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use lab_base::chat::template::{self, ChatTemplate, Moment, RenderInput};
use lab_base::util::clock::unix_seconds;
use lab_core::models::{self, Definitions};

use super::hub::model_source;
use super::input_file::{answer_lines, read_text};
use super::output::at;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("source").args(["model", "template"]))]
pub(super) struct Args {
    /// The model whose template is used; default: tiny-chat, which is built in
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Template file to use instead of the model's template
    #[arg(long, value_name = "FILE.jinja")]
    template: Option<PathBuf>,
    /// Name of the model's template; default: `tool_use` for requests with tools, else `default`
    #[arg(long, value_name = "NAME", conflicts_with = "template")]
    name: Option<String>,
    /// JSON file with the tools that the model may call
    #[arg(long, value_name = "TOOLS.json", conflicts_with = "jsonl")]
    tools: Option<PathBuf>,
    /// Read one JSON request per line from stdin and write one result per line to stdout
    #[arg(long, conflicts_with = "messages")]
    jsonl: bool,
    /// JSON file with an array of messages
    #[arg(required_unless_present = "jsonl", value_name = "MESSAGES.json")]
    messages: Option<PathBuf>,
}

/// A request on one line of `--jsonl`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RenderRequest {
    messages: Value,
    #[serde(default)]
    tools: Value,
    #[serde(default)]
    documents: Value,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    kwargs: Map<String, Value>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    now: Option<String>,
}

/// The templates for requests without and with tools, and the BOS and EOS tokens that they may write.
struct ModelTemplates {
    templates: [ChatTemplate; 2],
    bos: String,
    eos: String,
}

fn source(args: &Args) -> Result<ModelTemplates, Failure> {
    if let Some(path) = &args.template {
        let text = read_text(path)?;
        let compiled = || ChatTemplate::new(&text).map_err(|error| at(path, error));
        return Ok(ModelTemplates {
            templates: [compiled()?, compiled()?],
            bos: String::new(),
            eos: String::new(),
        });
    }
    let definitions = Definitions::open(&[])?;
    let contents = models::read(&model_source(args.model.as_deref())?, &definitions)?;
    let weights = &contents.weights;
    let compiled = |has_tools: bool| {
        let found = template::choose_template(weights.metadata(), args.name.as_deref(), has_tools)
            .map_err(|error| anyhow::anyhow!("{}: {error}", weights.label()))?;
        let none = || anyhow::anyhow!("{}: the model has no chat template", weights.label());
        Ok::<_, Failure>(ChatTemplate::new(found.ok_or_else(none)?)?)
    };
    let templates = [compiled(false)?, compiled(true)?];
    let tokenizer = contents.tokenizer()?;
    let name = |id: Option<u32>| {
        id.and_then(|id| tokenizer.token_text(id))
            .unwrap_or_default()
            .into_owned()
    };
    Ok(ModelTemplates {
        templates,
        bos: name(tokenizer.bos()),
        eos: name(tokenizer.eos()),
    })
}

impl ModelTemplates {
    fn render(&self, line: &RenderRequest) -> Result<String, Failure> {
        let now = match &line.now {
            Some(text) => text.parse()?,
            None => Moment::from_unix_seconds(unix_seconds() as i64),
        };
        let has_tools = line.tools.as_array().is_some_and(|tools| !tools.is_empty());
        Ok(self.templates[usize::from(has_tools)].render(&RenderInput {
            messages: &line.messages,
            tools: Some(&line.tools).filter(|v| !v.is_null()),
            documents: Some(&line.documents).filter(|v| !v.is_null()),
            add_generation_prompt: line.add_generation_prompt,
            continue_final_message: line.continue_final_message,
            kwargs: &line.kwargs,
            bos_token: line.bos_token.as_deref().unwrap_or(&self.bos),
            eos_token: line.eos_token.as_deref().unwrap_or(&self.eos),
            now,
        })?)
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let source = source(args)?;
    if let Some(path) = &args.messages {
        let read = |path: &PathBuf| {
            let text = read_text(path)?;
            let json = serde_json::from_str::<Value>(&template::keep_long_integers(&text));
            json.map_err(|error| at(path, error))
        };
        let tools = args.tools.as_ref().map(read).transpose()?;
        let line: RenderRequest = serde_json::from_value(json!({
            "messages": read(path)?, "tools": tools, "add_generation_prompt": true,
        }))?;
        return output::bytes(source.render(&line)?.as_bytes());
    }
    answer_lines(|line| {
        let request: RenderRequest = serde_json::from_str(&template::keep_long_integers(line))?;
        Ok(json!({ "text": source.render(&request)? }))
    })
}
