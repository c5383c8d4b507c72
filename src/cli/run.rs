//! `bench run`: one answer, streamed.

use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::json;

use crate::engine::{Diffusion, Event, FinishReason, Limits, Request, Usage};
use crate::model::Options;
use crate::models::Source;
use crate::sampling::{DRY_BREAKERS, Params, StageName};
use crate::serving::{Conversation, Served};
use crate::text::tokenizer::Tokenizer;
use crate::weights::TensorType;

use super::constraint::ConstraintOptions;
use super::diffusion::{DiffusionOptions, Forming};
use super::options::{Defaults, LoadOptions, progress_bar};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The prompt
    prompt: String,
    /// The model: a file, a folder, tiny-chat or tiny-diffusion; default: tiny-chat, which is built in
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Continue the prompt as it is, without the chat template
    #[arg(long)]
    raw: bool,
    /// What the system message says
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Keep nothing between passes and compute everything anew for each token
    #[arg(long)]
    stateless: bool,
    /// Most tokens of the answer
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Text that ends the answer; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Most tokens guessed ahead in a step, from what the text repeats; 0: none
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

/// How tokens are chosen.
#[derive(Debug, ClapArgs)]
struct SamplingOptions {
    /// Divides the logits; 0 takes the likeliest token
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    temperature: f64,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, default_value_t = 0, value_name = "N")]
    top_k: u32,
    /// Keep the likeliest tokens that reach this probability together
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    top_p: f64,
    /// Keep tokens at least this likely relative to the likeliest
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    min_p: f64,
    /// Keep tokens whose logits are at most this many standard deviations below the best; 0 keeps all
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    top_n_sigma: f64,
    /// Keep the tokens of the most expected surprise that reach this probability together
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    typical_p: f64,
    /// How often the most probable tokens are excluded where there is a choice
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    xtc_probability: f64,
    /// From which probability a token counts as one of them
    #[arg(long, default_value_t = 0.1, value_name = "P")]
    xtc_threshold: f64,
    /// Share of the bends in the curve of the sorted probabilities that stays
    #[arg(long, default_value_t = 1.0, value_name = "Z")]
    tfs_z: f64,
    /// Version of mirostat, 1 or 2, in place of other cuts; 0: none
    #[arg(long, default_value_t = 0, value_name = "N")]
    mirostat: u32,
    /// Surprise in bits that mirostat aims at
    #[arg(long, default_value_t = 5.0, value_name = "X")]
    mirostat_tau: f64,
    /// How fast mirostat learns
    #[arg(long, default_value_t = 0.1, value_name = "X")]
    mirostat_eta: f64,
    /// Weight against repetition in contrastive search among the top-k tokens; 0: none
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    penalty_alpha: f64,
    /// Taken from tokens that would prolong a repetition; 0 does nothing
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    dry_multiplier: f64,
    /// What that is multiplied by for each token beyond the allowed length
    #[arg(long, default_value_t = 1.75, value_name = "X")]
    dry_base: f64,
    /// Length from which a repetition counts
    #[arg(long, default_value_t = 2, value_name = "N")]
    dry_allowed_length: u32,
    /// How many of the last tokens are looked at; -1: all
    #[arg(
        long,
        default_value_t = -1,
        value_name = "N",
        allow_negative_numbers = true
    )]
    dry_penalty_last_n: i32,
    /// Text behind which a repetition begins anew; may be repeated; default: line feed : " *
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// The stages in the order they run, separated by commas; default: all
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    samplers: Vec<StageName>,
    /// Make tokens that occurred before less likely; 1 does nothing
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    repeat_penalty: f64,
    /// How many of the last tokens that looks at
    #[arg(
        long,
        default_value_t = 64,
        value_name = "N",
        allow_negative_numbers = true
    )]
    repeat_last_n: i32,
    /// Taken once from the logit of each token of the answer
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        allow_negative_numbers = true
    )]
    presence_penalty: f64,
    /// Taken from a token's logit for each time it is in the answer
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        allow_negative_numbers = true
    )]
    frequency_penalty: f64,
    /// Added to a token's logit, as ID=BIAS; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers
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
    fn params(&self, tokenizer: &Tokenizer) -> Params {
        Params {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            top_n_sigma: self.top_n_sigma,
            typical_p: self.typical_p,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            tfs_z: self.tfs_z,
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            penalty_alpha: self.penalty_alpha,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_last_n: self.dry_penalty_last_n,
            dry_breakers: match self.dry_sequence_breaker.as_slice() {
                _ if self.dry_multiplier == 0.0 => Vec::new(),
                [] => tokenizer.ids_holding(&DRY_BREAKERS),
                texts => tokenizer.ids_holding(texts),
            },
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            order: match self.samplers.as_slice() {
                [] => StageName::ALL.to_vec(),
                names => names.to_vec(),
            },
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let constraint = args.constraint.read()?;
    let opened = args.load.open(&Source::of(args.model.as_deref()))?;
    if args.load.check_tensors {
        super::inspect::check_tensors(&opened)?;
    }
    let defaults = Defaults {
        kv_type: TensorType::F16,
        flash_attn: true,
        max_ctx: super::serve::MAX_CTX,
        n_batch: Options::N_BATCH,
    };
    let mut options = args.load.resolve(&opened, defaults);
    let limits = Limits {
        n_ctx: options.n_ctx,
        n_parallel: 1,
        n_queue: 1,
        n_prompt: options.n_batch,
        n_drafted: args.draft,
        diffusion: Diffusion::default(),
        queue_time: None,
        answer_time: None,
    };
    if args.stateless {
        options.n_batch = options.n_ctx;
        options.n_ctx = 0;
    }
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
    let served = served?;

    let prompt = if args.raw || !served.has_template() {
        served.text_prompt(&args.prompt)?
    } else {
        let mut messages = Vec::new();
        if let Some(system) = &args.system {
            messages.push(json!({ "role": "system", "content": system }));
        }
        messages.push(json!({ "role": "user", "content": args.prompt }));
        served.chat_prompt(&Conversation {
            messages: messages.into(),
            ..Conversation::default()
        })?
    };
    let mut forming = Forming::new();
    let is_live = served.handle.fills_in() && forming.is_shown();
    let mut events = served.handle.submit(Request {
        prompt,
        max_tokens: args.max_tokens,
        sampling: args.sampling.params(served.handle.tokenizer()),
        choice: 0,
        stops: args
            .stop
            .iter()
            .map(|stop| stop.clone().into_bytes())
            .collect(),
        top_logprobs: None,
        n_drafted: None,
        constraint: constraint
            .map(|constraint| served.handle.compile(constraint))
            .transpose()?,
        adapters: None,
        diffusion: args.diffusion.request(),
        trace: is_live,
    })?;
    let mut held = String::new();
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Text { text, .. } if is_live => held.push_str(&text),
            Event::Text { text, .. } => output::bytes(text.as_bytes())?,
            Event::Step {
                fixed, n_masked, ..
            } => forming.step(&fixed, n_masked, served.handle.tokenizer()),
            Event::Done { reason, usage } => {
                forming.clear();
                output::bytes(held.as_bytes())?;
                output::bytes(b"\n")?;
                return speed(&usage, reason);
            }
            Event::Failed(failure) => anyhow::bail!("{failure}"),
        }
    }
    anyhow::bail!("the engine ended before the answer was complete")
}

/// One line on stderr: what the answer took.
fn speed(usage: &Usage, reason: FinishReason) -> Result<(), Failure> {
    let rate = |tokens: usize, seconds: f64| {
        if seconds > 0.0 {
            tokens as f64 / seconds
        } else {
            0.0
        }
    };
    let (prefill, decode) = (usage.prefill.as_secs_f64(), usage.decode.as_secs_f64());
    if usage.passes > 0 {
        writeln!(
            std::io::stderr().lock(),
            "[{} prompt tokens, {} answer tokens at {:.1}/s: {} passes over {} positions{}]",
            usage.prompt_tokens,
            usage.completion_tokens,
            rate(usage.completion_tokens, prefill + decode),
            usage.passes,
            usage.positions,
            cut(reason),
        )?;
        return Ok(());
    }
    // The first token is chosen from the prompt's own pass.
    let decoded = usage.completion_tokens.saturating_sub(1);
    let end = cut(reason);
    let guesses = match usage.drafted_tokens {
        0 => String::new(),
        n => format!(", {} of {n} guesses right", usage.accepted_tokens),
    };
    writeln!(
        std::io::stderr().lock(),
        "[{} prompt tokens at {:.1}/s, {} answer tokens at {:.1}/s{guesses}{end}]",
        usage.prompt_tokens,
        rate(usage.prompt_tokens, prefill),
        usage.completion_tokens,
        rate(decoded, decode),
    )?;
    Ok(())
}

/// What the line says of the end.
fn cut(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "",
        FinishReason::Length => ", cut at the limit",
    }
}
