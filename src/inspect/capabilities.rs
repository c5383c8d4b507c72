//! What a model can do on this machine, what it cannot, and why.
//!
//! Properties that depend on settings or on a vocabulary are determined by the code that decides them: the engine
//! (whether it would start, whether it can roll tokens back), the loader (whether it accepts a setting), the template
//! (what it shows), the API (what it refuses). Their messages are the reasons. All other properties follow from the
//! plan. Called by `inspect`.

use serde::Serialize;

use crate::describe::pooling_phrase;
use crate::template_probe::{ProbeResult, TemplateProbe};
use lab_base::tokenizer::Tokenizer;
use lab_base::weights::TensorType;
use lab_core::engine::{self, PooledOutput};
use lab_core::model::{Estimator, Options};
use lab_core::plan::Plan;

/// A capability that a model has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capability {
    pub what: &'static str,
    pub can: bool,
    /// How it works, or why it is missing.
    pub why: String,
}

/// How a capability works, or why it is missing.
type Support = Result<String, String>;

/// The known properties of a model that is not loaded.
pub struct CapabilityInput<'a> {
    pub plan: &'a Plan,
    /// Its tokenizer, or why it has none.
    pub tokenizer: Result<&'a Tokenizer, String>,
    /// The features of its chat template, or why there are none.
    pub template: Result<&'a TemplateProbe, String>,
    /// The pooled result for a text, or why there is none.
    pub pooled: Result<PooledOutput, String>,
    pub options: &'a Options,
}

/// The capabilities of the model on this machine, in the order in which users ask about them.
pub fn capabilities(
    subject: &CapabilityInput<'_>,
    estimator: &mut Estimator<'_>,
) -> Vec<Capability> {
    let text = text(subject);
    let if_written = |asked: fn(&CapabilityInput<'_>) -> Support| match text {
        Ok(_) => asked(subject),
        Err(_) => no("it does not generate text"),
    };
    let chat = if_written(chat);
    let tools = match chat {
        Ok(_) => tools(subject),
        Err(_) => no("it has no chat"),
    };
    let constraints = if_written(constraints);
    let diffusion = match subject.plan.diffusion {
        None => no("the definition has another `mode`"),
        Some(_) => if_written(|_| yes("each denoising step reads the whole sequence")),
    };
    let drafts = match (&text, &subject.plan.diffusion) {
        (Ok(_), None) => {
            let has_states = subject.plan.recurrent().next().is_some();
            match engine::can_roll_back(subject.plan, subject.options) {
                Ok(()) => yes("and contrastive search: tokens can be rolled back"),
                Err(_) if has_states && subject.options.n_ctx > 0 => {
                    yes("the states before a draft are kept; no contrastive search")
                }
                Err(why) => no(why),
            }
        }
        _ => no("it does not generate token by token"),
    };
    let pooled = pooling_phrase(subject.plan.pooling());
    let no_head = no("it has no classification head");
    let see = "; see `bench logits --embedding`";
    let [embeddings, scores] = match &subject.pooled {
        Ok(PooledOutput::Vector(n)) => {
            let how = format!("`/v1/embeddings`: {n} elements; pooling of a text: {pooled}");
            [Ok(how), no_head]
        }
        Ok(PooledOutput::Scores { n_classes: n, .. }) => {
            let how = format!("`/v1/rerank`, `/v1/score` and `/classify`: {n} for each text");
            [no("its classification head gives scores"), Ok(how)]
        }
        Ok(PooledOutput::TokenScores(n)) => {
            let how = format!("`/pooling`: {n} for each token of a text");
            [no("its classification head gives scores"), Ok(how)]
        }
        Err(why) => [Err(why.clone() + see), no_head],
    };
    let deterministic = Options {
        deterministic: true,
        ..subject.options.clone()
    };
    let same = "`--deterministic`: the same bits whatever runs alongside it";
    let deterministic = estimator.memory(&deterministic).map(|_| same);
    let fits = estimator.check(subject.options);
    let fits = fits.map(|()| match subject.options.n_seqs {
        0 | 1 => format!("a context of {} tokens fits", subject.options.n_ctx),
        n => {
            let each = subject.options.n_ctx / n;
            format!("a context of {each} tokens for each of {n} sequences fits")
        }
    });
    let all: [(&'static str, Support); 12] = [
        ("text", text),
        ("chat", chat),
        ("tools", tools),
        ("JSON and grammars", constraints),
        ("text diffusion", diffusion),
        ("embeddings", embeddings),
        ("scores", scores),
        ("prefix cache", sharing(subject)),
        ("speculative decoding", drafts),
        ("8-bit cache", quantised_cache(subject, estimator)),
        ("deterministic", answer(deterministic)),
        ("memory", answer(fits)),
    ];
    let capability = |(what, asked): (&'static str, Support)| Capability {
        what,
        can: asked.is_ok(),
        why: asked.unwrap_or_else(|why| why),
    };
    all.into_iter().map(capability).collect()
}

fn yes(how: &str) -> Support {
    Ok(how.to_owned())
}

fn no(why: &str) -> Support {
    Err(why.to_owned())
}

fn answer<T: Into<String>, E: ToString>(asked: Result<T, E>) -> Support {
    asked.map(Into::into).map_err(|error| error.to_string())
}

fn text(subject: &CapabilityInput<'_>) -> Support {
    let tokenizer = subject.tokenizer.clone()?;
    answer(engine::can_answer(subject.plan, tokenizer).map(|_| ""))?;
    answer(tokenizer.encode("a", true, true).map(|_| ""))?;
    yes(match subject.plan.diffusion {
        Some(_) => "by text diffusion, in any order",
        None => "token by token",
    })
}

fn chat(subject: &CapabilityInput<'_>) -> Support {
    let probe = subject.template.clone()?;
    shown(&probe.user, "the messages of the user")?;
    yes(match &probe.system {
        ProbeResult::Yes => "with system messages",
        _ => "without system messages",
    })
}

fn shown(probed: &ProbeResult, what: &str) -> Result<(), String> {
    match probed {
        ProbeResult::Yes => Ok(()),
        ProbeResult::Ignored => Err(format!("the chat template does not show {what}")),
        ProbeResult::Refused(error) => Err(error.to_string()),
    }
}

fn tools(subject: &CapabilityInput<'_>) -> Support {
    let probe = subject.template.clone()?;
    shown(&probe.tools, "tools on offer")?;
    yes("the template shows them")
}

fn constraints(subject: &CapabilityInput<'_>) -> Support {
    match (&subject.plan.diffusion, &subject.tokenizer) {
        (Some(_), _) => no("tokens are not generated in order"),
        (None, Ok(tokenizer)) if tokenizer.keeps_bytes() => yes("forced tokens take one pass"),
        (None, _) => yes("token by token"),
    }
}

fn sharing(subject: &CapabilityInput<'_>) -> Support {
    if subject.options.n_ctx == 0 {
        return no("without a context there is no KV cache, so there is no prefix cache");
    }
    if !subject.options.shares(subject.plan) {
        return no("attention is not causal, so keys and values depend on later tokens");
    }
    yes(match subject.plan.recurrent().next() {
        Some(_) => "to the end of a block of 16 tokens that has a checkpoint of the state",
        None => "a cached prefix is computed once",
    })
}

fn quantised_cache(subject: &CapabilityInput<'_>, estimator: &mut Estimator<'_>) -> Support {
    if subject.plan.key_values().next().is_none() {
        return no("it has no KV cache");
    }
    let small = Options {
        k_type: TensorType::Q8_0,
        v_type: TensorType::Q8_0,
        deterministic: false,
        ..subject.options.clone()
    };
    let (own, small) = (estimator.memory(subject.options), estimator.memory(&small));
    answer(small.map(|small| match own {
        Ok(own) if own.cache > 0 => {
            let share = 100.0 * small.cache as f64 / own.cache as f64;
            format!("`--kv-type q8_0`: {share:.0} % of the memory")
        }
        _ => "`--kv-type q8_0`".to_owned(),
    }))
}
