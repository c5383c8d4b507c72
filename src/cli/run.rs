//! `bench run`: completes one prompt and streams the completion.

use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::{Map, Value, json};

use crate::engine::serving::{Conversation, Served};
use crate::engine::{self, Diffusion, Ends, Event, FinishReason, Limits, Request, Unfit, Usage};
use crate::files::models::Source;
use crate::model::Options;
use crate::weights::TensorType;

use super::constraint::ConstraintOptions;
use super::diffusion::{DiffusionOptions, Forming};
use super::options::{Defaults, LoadOptions, progress_bar};
use super::sampling::SamplingOptions;
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The prompt
    prompt: String,
    /// Continue the prompt as it is, without the chat template
    #[arg(long, conflicts_with = "system")]
    raw: bool,
    #[command(flatten)]
    with: Completing,
}

/// With what a prompt is completed, and how.
#[derive(Debug, ClapArgs)]
pub(super) struct Completing {
    /// The model: a file, a folder, tiny-chat or tiny-diffusion; default: tiny-chat, which is built in
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Text of the system message
    #[arg(long, value_name = "TEXT")]
    pub(super) system: Option<String>,
    /// Use no KV cache: compute the whole sequence again for each token
    #[arg(long)]
    stateless: bool,
    /// Maximum number of completion tokens; 0 = none; default: the rest of the context, for text diffusion at most 128
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Stop sequence: text that ends the completion; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Speculative decoding by prompt lookup: maximum number of draft tokens per step; 0 = off
    #[arg(long, default_value_t = 0, value_name = "N")]
    draft: usize,
    #[command(flatten)]
    constraint: ConstraintOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    diffusion: DiffusionOptions,
    #[command(flatten)]
    load: LoadOptions,
}

impl Completing {
    /// The options as fields of a request, without the system message.
    pub(super) fn fields(&self) -> Result<Map<String, Value>, Failure> {
        let mut fields = self.sampling.fields();
        if let Some(most) = self.max_tokens {
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

/// Default options for one local user.
pub(super) const DEFAULTS: Defaults = Defaults {
    kv_type: TensorType::F16,
    flash_attn: true,
    max_ctx: super::serve::MAX_CTX,
    n_batch: Options::N_BATCH,
};

/// Loads the model, with a progress bar on a terminal.
pub(super) fn start(args: &Completing) -> Result<Served, Failure> {
    let mut opened = args.load.open(&Source::of(args.model.as_deref()))?;
    let mut options = args.load.resolve(&opened, DEFAULTS);
    let limits = Limits {
        lab_bytes: 1 << 20,
        n_ctx: options.n_ctx,
        n_parallel: 1,
        n_queue: 1,
        n_prefill: options.n_batch,
        n_drafted: args.draft,
        diffusion: Diffusion::default(),
        queue_time: None,
        answer_time: None,
        step_time: None,
    };
    if args.stateless {
        options.n_batch = options.n_ctx;
        options.n_ctx = 0;
    }
    if engine::ends_in_vectors(&opened.plan) {
        let n_embd = opened.plan.n_embd;
        return Err(Unfit::Vectors { n_embd }.into());
    }
    args.load.place(&mut opened, &options)?;
    let bar = progress_bar("loading", &opened.name);
    let of_thread = bar.clone();
    let served = Served::start(
        opened,
        options,
        limits,
        Box::new(move |done, total| {
            of_thread.set_length(total);
            of_thread.set_position(done);
        }),
    );
    bar.finish_and_clear();
    Ok(served?)
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let constraint = args.with.constraint.read()?;
    let served = start(&args.with)?;
    let prompt = prompt(args, &served)?;
    let args = &args.with;
    let mut forming = Forming::new();
    let is_live = served.handle.is_diffusion() && forming.is_shown();
    let sampling = args.sampling.params(served.handle.tokenizer());
    let constraint = constraint.map(|constraint| served.handle.compile(constraint, &sampling));
    let stops = args.stop.iter().map(|stop| stop.clone().into_bytes());
    let mut events = served.handle.submit(Request {
        prompt,
        max_tokens: args.max_tokens,
        sampling,
        choice: 0,
        stops: stops.collect(),
        ends: Ends::default(),
        cache_prompt: true,
        top_logprobs: None,
        post_sampling: false,
        progress: false,
        prompt_logprobs: None,
        n_drafted: None,
        constraint: constraint.transpose()?,
        thinking: None,
        adapters: None,
        lab: None,
        diffusion: args.diffusion.request(),
        trace: is_live,
    })?;
    let mut held = String::new();
    while let Some(event) = events.blocking_recv() {
        match event {
            // Not sent for this request, except `Ended`, whose token has no text.
            Event::Prompt(_)
            | Event::Progress(_)
            | Event::Ended(_)
            | Event::Pooled(_)
            | Event::Lab(_) => {}
            Event::Text { text, .. } if is_live => held.push_str(&text),
            Event::Text { text, .. } => output::bytes(text.as_bytes())?,
            Event::DenoisingStep {
                fixed, n_masked, ..
            } => forming.step(&fixed, n_masked, served.handle.tokenizer()),
            Event::Done { reason, usage, .. } => {
                forming.clear();
                output::bytes(held.as_bytes())?;
                output::bytes(b"\n")?;
                let line = format!("[{}{}]", speed(&usage), cut(reason));
                writeln!(std::io::stderr().lock(), "{line}")?;
                return Ok(());
            }
            Event::Failed(failure) => anyhow::bail!("{failure}"),
        }
    }
    anyhow::bail!("the engine stopped before the end of the completion")
}

/// The tokens of the prompt: with the model's chat template, or as plain text.
fn prompt(args: &Args, served: &Served) -> Result<Vec<u32>, Failure> {
    if args.raw || !served.has_template() {
        return Ok(served.text_prompt(&args.prompt)?);
    }
    let system = args.with.system.iter();
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    let user = json!({ "role": "user", "content": args.prompt });
    Ok(served.chat_prompt(&Conversation {
        messages: system.chain([user]).collect(),
        ..Conversation::default()
    })?)
}

/// Token counts and speeds of a completion, as text.
pub(super) fn speed(usage: &Usage) -> String {
    let rate = |tokens: usize, seconds: f64| {
        if seconds > 0.0 {
            tokens as f64 / seconds
        } else {
            0.0
        }
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
    let drafted = match usage.drafted_tokens {
        0 => String::new(),
        n => format!(", {} of {n} draft tokens accepted", usage.accepted_tokens),
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
