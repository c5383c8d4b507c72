//! `bench run`: completes one prompt and streams the completion.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args as ClapArgs;
use serde_json::{Map, Value, json};

use lab_base::grammar::{CompiledConstraint, Matcher};
use lab_base::util::limited_read::{self, MAX_TEXT};
use lab_core::engine::{
    self, AnswerToken, DraftOptions, Event, FinishReason, Limits, Rejected, Request, Unsupported,
    Usage,
};
use lab_server::RenderedPrompt;
use lab_server::served::ServedModel;

use super::Failure;
use super::constraint::ConstraintOptions;
use super::diffusion::{DiffusionOptions, DiffusionProgress};
use super::hub::{is_cached, model_source};
use super::input_file::read_json;
use super::media_files::{MediaFiles, user_message};
use super::options::{LoadDefaults, LoadOptions, local_limits, start_engine};
use super::output::{self, IncompleteOutput, at};
use super::sampling::SamplingOptions;
use super::values::MaxTokens;

#[derive(Debug, ClapArgs)]
#[command(override_usage = "bench run [OPTIONS] [MODEL] PROMPT")]
pub(super) struct Args {
    /// The prompt, after the model if `-m` does not name it; `-` reads it from stdin
    #[arg(value_name = "PROMPT", num_args = 1..=2, required_unless_present = "file")]
    words: Vec<String>,
    /// Read the prompt from this file; a line feed at its end, as at that of stdin, is not part of the prompt
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Continue the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["system", "tools", "reasoning_effort", "image", "audio"])]
    raw: bool,
    /// Print the completion and errors only: neither the line of statistics nor progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    media: MediaFiles,
    #[command(flatten)]
    with: CompletionArgs,
}

/// Options of a completion.
#[derive(Debug, ClapArgs)]
pub(super) struct CompletionArgs {
    /// The model: a file, a folder, a name OWNER/REPO[:QUANT][@REVISION] of the Hugging Face Hub, tiny-chat or
    /// tiny-diffusion; default: tiny-chat, which is built in
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Text of the system message
    #[arg(long, value_name = "TEXT")]
    pub(super) system: Option<String>,
    /// File with the tools that the model may call, as JSON: the array `tools` of a chat request
    #[arg(long, value_name = "FILE.json")]
    tools: Option<PathBuf>,
    /// How much the model reasons, if its chat template can say so: none, minimal, low, medium, high, xhigh or max
    #[arg(long, value_name = "EFFORT")]
    reasoning_effort: Option<String>,
    /// Use no KV cache: compute the whole sequence again for each token
    #[arg(long, hide_short_help = true)]
    stateless: bool,
    /// Maximum number of completion tokens; 0 = none; -1 or default: the rest of the context, for text diffusion at most
    /// 128
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        allow_negative_numbers = true,
        aliases = ["n-predict", "predict"]
    )]
    max_tokens: Option<MaxTokens>,
    /// Stop sequence: text that ends the completion; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Speculative decoding: `auto`, `off`, a maximum number of draft tokens per step, and drafters: `lookup` (in the text),
    /// `model` (a drafter with weights)
    #[arg(
        long,
        default_value = "model",
        value_name = "auto|off|N|DRAFTER,...",
        hide_short_help = true
    )]
    draft: DraftOptions,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    constraint: ConstraintOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    diffusion: DiffusionOptions,
}

impl CompletionArgs {
    /// The options for the chat template, without the system message, as fields of a request.
    fn template_fields(&self) -> Result<Map<String, Value>, Failure> {
        let mut fields = Map::new();
        if let Some(path) = &self.tools {
            fields.insert("tools".into(), read_json(path)?);
        }
        if let Some(effort) = &self.reasoning_effort {
            fields.insert("reasoning_effort".into(), effort.as_str().into());
        }
        Ok(fields)
    }

    fn max_tokens(&self) -> Option<usize> {
        self.max_tokens.and_then(|most| most.0)
    }

    /// The options as fields of a request, without the system message.
    pub(super) fn fields(&self, served: &ServedModel) -> Result<Map<String, Value>, Failure> {
        let mut fields = self.sampling.fields(&served.sampling);
        fields.extend(self.template_fields()?);
        if let Some(most) = self.max_tokens() {
            fields.insert("max_tokens".into(), most.into());
        }
        if !self.stop.is_empty() {
            fields.insert("stop".into(), self.stop.clone().into());
        }
        fields.extend(self.constraint.field()?);
        fields.extend(self.diffusion.field());
        Ok(fields)
    }
}

/// Loads the model, with a progress bar on a terminal unless it is to be quiet. It is at `path` if `-m` does not name it.
/// `media` are the files that it is to read.
pub(super) fn start(
    args: &CompletionArgs,
    path: Option<&Path>,
    media: &MediaFiles,
    is_quiet: bool,
) -> Result<ServedModel, Failure> {
    let source = model_source(args.model.as_deref().or(path))?;
    let mut opened = args.load.open(&source)?;
    media.check(&opened)?;
    let mut options = args.load.resolve(&opened, LoadDefaults::LOCAL)?;
    let limits = Limits {
        drafts: args.draft,
        ..local_limits(&options, 1)
    };
    if args.stateless {
        options.n_batch = options.n_ctx;
        options.n_ctx = 0;
    }
    if engine::ends_in_vectors(&opened.plan) {
        let n_embd = opened.plan.n_embd;
        return Err(Unsupported::Vectors { n_embd }.into());
    }
    args.load.place(&mut opened, &options)?;
    start_engine(opened, options, limits, is_quiet)
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let constraint = args.with.constraint.read()?;
    let (model, prompt_text) = model_and_prompt(args)?;
    let text = text(prompt_text, args.file.as_deref())?;
    let parts = args.media.parts()?;
    let served = Arc::new(start(&args.with, model, &args.media, args.quiet)?);
    let RenderedPrompt { tokens, media } = prompt(args, parts, &text, &served)?;
    let is_quiet = args.quiet;
    let args = &args.with;
    let sampling = args.sampling.params(&served);
    let constraint = constraint.map(|constraint| served.handle.compile(constraint, &sampling));
    let constraint = constraint.transpose()?;
    let mut constraint_progress = ConstraintProgress::new(constraint.as_ref());
    let mut progress = DiffusionProgress::new(is_quiet);
    let is_live = served.handle.is_diffusion() && progress.is_shown();
    let stops = args.stop.iter().map(|stop| stop.clone().into_bytes());
    let events = served.handle.submit(Request {
        max_tokens: args.max_tokens(),
        sampling,
        stops: stops.collect(),
        constraint,
        diffusion: args.diffusion.request(),
        trace: is_live,
        media,
        ..Request::reading(tokens)
    });
    let mut events = events.map_err(|rejected| too_long(rejected, &served))?;
    let mut held = String::new();
    while let Some(event) = events.blocking_recv() {
        match event {
            // Not sent for this request, except `Ended`, whose token has no text.
            Event::Prompt(_)
            | Event::Progress(_)
            | Event::Ended(_)
            | Event::Pooled(_)
            | Event::Lab(_) => {}
            Event::Text { text, tokens } => {
                constraint_progress.add(&tokens);
                match is_live {
                    true => held.push_str(&text),
                    false => output::bytes(text.as_bytes())?,
                }
            }
            Event::DenoisingStep {
                fixed, n_masked, ..
            } => progress.step(&fixed, n_masked, served.handle.tokenizer()),
            Event::Done { reason, usage, .. } => {
                progress.clear();
                output::bytes(held.as_bytes())?;
                output::bytes(b"\n")?;
                if !is_quiet {
                    let line = format!("[{}{}]", speed(&usage), cut(reason));
                    writeln!(io::stderr().lock(), "{line}")?;
                }
                return match reason == FinishReason::Length && !constraint_progress.is_complete() {
                    true => Err(incomplete(args.max_tokens(), &usage).into()),
                    false => Ok(()),
                };
            }
            Event::Failed(failure) => anyhow::bail!("{failure}"),
        }
    }
    anyhow::bail!("the engine stopped before the end of the completion")
}

/// The model and the prompt among the arguments. One argument is the prompt, or with `--file` the model.
fn model_and_prompt(args: &Args) -> Result<(Option<&Path>, Option<&str>), Failure> {
    let (model, prompt) = match (&args.words[..], &args.file) {
        ([prompt], None) => (None, Some(prompt.as_str())),
        ([model], Some(_)) => (Some(model), None),
        ([model, prompt], None) => (Some(model), Some(prompt.as_str())),
        (words, _) => match words.is_empty() {
            true => (None, None),
            false => anyhow::bail!("the prompt is given twice: as an argument, and by --file"),
        },
    };
    if let (Some(argument), Some(option)) = (model, &args.with.model) {
        anyhow::bail!(
            "the model is given twice: `{argument}`, and `{}` by -m",
            option.display()
        );
    }
    if let (None, Some(prompt)) = (&args.with.model, prompt)
        && model.is_none()
        && is_model(prompt)
    {
        anyhow::bail!(
            "`{prompt}` is a model, and the prompt is missing: `bench run {prompt} PROMPT`; `bench chat {prompt}` is a conversation"
        );
    }
    Ok((model.map(Path::new), prompt))
}

/// Whether a word is a model rather than the text of a prompt: a file, a folder, or a name in the cache.
fn is_model(word: &str) -> bool {
    let path = Path::new(word);
    let is_gguf = path.extension().is_some_and(|ending| ending == "gguf");
    is_gguf || path.join("config.json").is_file() || is_cached(word)
}

/// The text of the prompt: that of the command line, of a file, or of stdin.
fn text(prompt: Option<&str>, file: Option<&Path>) -> Result<String, Failure> {
    let path = match (prompt, file) {
        (Some(prompt), _) if prompt != "-" => return Ok(prompt.to_owned()),
        (_, Some(path)) => path,
        _ => Path::new("-"),
    };
    let (place, read) = match path == Path::new("-") {
        true => {
            let bytes = limited_read::all(io::stdin().lock(), MAX_TEXT);
            (Path::new("stdin"), bytes.and_then(limited_read::utf8))
        }
        false => (path, limited_read::text(path, MAX_TEXT)),
    };
    let mut text = read.map_err(|error| at(place, error))?;
    // As editors and `echo` end a file.
    if text.ends_with('\n') {
        text.truncate(text.len() - if text.ends_with("\r\n") { 2 } else { 1 });
    }
    Ok(text)
}

/// The prompt: with the model's chat template, or as plain text. `parts` are the media before its text.
fn prompt(
    args: &Args,
    parts: Vec<Value>,
    text: &str,
    served: &Arc<ServedModel>,
) -> Result<RenderedPrompt, Failure> {
    let mut fields = args.with.template_fields()?;
    if args.raw || !served.has_template() {
        if args.with.system.is_some() || !fields.is_empty() || !parts.is_empty() {
            anyhow::bail!(
                "{}: the model has no chat template, which --system, --tools, --reasoning-effort, --image and --audio need",
                served.name
            );
        }
        let (tokens, media) = (served.text_prompt(text)?, None);
        return Ok(RenderedPrompt { tokens, media });
    }
    let system = args.with.system.iter();
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    let user = user_message(parts, text);
    fields.insert("messages".into(), system.chain([user]).collect());
    lab_server::prompt(served, fields).map_err(Failure::msg)
}

/// The failure of a request that the engine refuses, with what helps if its prompt does not fit.
pub(super) fn too_long(rejected: Rejected, served: &ServedModel) -> Failure {
    match rejected {
        Rejected::TooLong { .. } => anyhow::anyhow!("{rejected}; {}", longer(served)),
        other => other.into(),
    }
}

/// A hint for a prompt that does not fit into the context.
pub(super) fn longer(served: &ServedModel) -> String {
    let (trained, n_ctx) = (served.info.n_ctx_train, served.handle.limits().n_ctx as u64);
    let hint = "--ctx N sets a longer context";
    match trained {
        0 => hint.to_owned(),
        n if n > n_ctx => format!("{hint}, for this model up to {n}"),
        n => format!("{hint} than the {n} tokens of the model's training"),
    }
}

/// Whether a completion fits its constraint, if there is one.
struct ConstraintProgress(Option<Matcher>);

impl ConstraintProgress {
    fn new(constraint: Option<&CompiledConstraint>) -> Self {
        Self(constraint.map(CompiledConstraint::matcher))
    }

    fn add(&mut self, tokens: &[AnswerToken]) {
        if let Some(matcher) = &mut self.0 {
            // A matcher that failed is not complete.
            let _ = tokens.iter().try_for_each(|token| matcher.accept(token.id));
        }
    }

    fn is_complete(&mut self) -> bool {
        let matcher = self.0.as_mut();
        matcher.is_none_or(|matcher| matcher.may_stop().unwrap_or(false))
    }
}

/// The failure of a completion that was cut before it fitted its constraint.
fn incomplete(max_tokens: Option<usize>, usage: &Usage) -> IncompleteOutput {
    let is_wanted = max_tokens.is_some_and(|most| usage.completion_tokens >= most);
    let longer = if is_wanted { "--max-tokens" } else { "--ctx" };
    IncompleteOutput(format!(
        "the completion is incomplete: it was cut after {} tokens, before it fitted its constraint; {longer} N allows more",
        usage.completion_tokens
    ))
}

/// Token counts and speeds of a completion, as text.
pub(super) fn speed(usage: &Usage) -> String {
    let rate = |tokens: usize, seconds: f64| match seconds > 0.0 {
        true => tokens as f64 / seconds,
        false => 0.0,
    };
    let (prefill, decode) = (usage.prefill.as_secs_f64(), usage.decode.as_secs_f64());
    if usage.passes > 0 {
        return format!(
            "{} prompt tokens, {} completion tokens at {:.1}/s: {} passes over {} positions",
            usage.prompt_tokens,
            usage.completion_tokens,
            rate(usage.completion_tokens, prefill + decode),
            usage.passes,
            usage.positions,
        );
    }
    // The first token is sampled from the logits of the prefill.
    let decoded = usage.completion_tokens.saturating_sub(1);
    let (drafted, accepted) = usage.drafts.totals();
    let drafted = match drafted {
        0 => String::new(),
        n => format!(", {} of {n} draft tokens accepted", accepted),
    };
    format!(
        "{} prompt tokens at {:.1}/s, {} completion tokens at {:.1}/s{drafted}",
        usage.prompt_tokens,
        rate(usage.prompt_tokens, prefill),
        usage.completion_tokens,
        rate(decoded, decode),
    )
}

/// The note after a completion on how it ended.
fn cut(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "",
        FinishReason::Length => ", cut at the limit",
    }
}
