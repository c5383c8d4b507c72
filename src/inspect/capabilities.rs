//! What a model can do here, and what not and why.
//!
//! What depends on settings or on a vocabulary is asked of the code that decides it: the engine whether it
//! would start and whether it takes tokens back, the loader whether it would take a setting, the template
//! what it shows, the API what it refuses. Their own words are the reasons. The rest is read off the plan.
//! Called by `inspect`.

use serde_json::json;

use crate::api;
use crate::engine;
use crate::inspect::describe::pooled;
use crate::inspect::template_probe::{Probe, Probed};
use crate::model::{Estimator, Options};
use crate::plan::Plan;
use crate::text::tokenizer::Tokenizer;
use crate::weights::TensorType;

/// Something that a model can do, or cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// What.
    pub what: &'static str,
    /// Whether it can.
    pub can: bool,
    /// How, or why not.
    pub why: String,
}

impl Capability {
    fn yes(what: &'static str, how: impl Into<String>) -> Self {
        Self {
            what,
            can: true,
            why: how.into(),
        }
    }

    fn no(what: &'static str, why: impl Into<String>) -> Self {
        Self {
            can: false,
            ..Self::yes(what, why)
        }
    }

    fn of<E: ToString>(what: &'static str, asked: Result<String, E>) -> Self {
        match asked {
            Ok(how) => Self::yes(what, how),
            Err(error) => Self::no(what, error.to_string()),
        }
    }
}

/// What is known of a model that is not loaded.
pub struct Subject<'a> {
    /// Its plan.
    pub plan: &'a Plan,
    /// Its vocabulary, or why it has none.
    pub tokenizer: Result<&'a Tokenizer, String>,
    /// What its chat template can do, or why it can do nothing.
    pub template: Result<&'a Probe, String>,
    /// How it would be run.
    pub options: &'a Options,
}

/// What the model can do here, in the order in which people ask.
pub fn capabilities(subject: &Subject<'_>, estimator: &mut Estimator<'_>) -> Vec<Capability> {
    let text = text(subject);
    let can_write = text.can;
    let chat = chat(subject, &text);
    let tools = tools(subject, &chat);
    vec![
        text,
        chat,
        tools,
        constraints(subject, can_write),
        diffusion(subject, can_write),
        embeddings(subject.plan),
        sharing(subject),
        guesses(subject, can_write),
        quantised_cache(subject, estimator),
        deterministic(subject, estimator),
        memory(subject, estimator),
    ]
}

fn text(subject: &Subject<'_>) -> Capability {
    let asked = || {
        let tokenizer = subject.tokenizer.clone()?;
        engine::can_answer(subject.plan, tokenizer).map_err(|unfit| unfit.to_string())?;
        let encoded = tokenizer.encode("a", true, true);
        encoded.map_err(|error| error.to_string())?;
        Ok::<_, String>(match subject.plan.diffusion {
            Some(_) => "by text diffusion, in any order".to_owned(),
            None => "token by token".to_owned(),
        })
    };
    Capability::of("text", asked())
}

fn chat(subject: &Subject<'_>, text: &Capability) -> Capability {
    let asked = || {
        if !text.can {
            return Err("it does not write text".to_owned());
        }
        let probe = subject.template.clone()?;
        shown(&probe.user, "what a user says")?;
        Ok(match &probe.system {
            Probed::Yes => "with system messages",
            _ => "without system messages",
        }
        .to_owned())
    };
    Capability::of("chat", asked())
}

fn shown(probed: &Probed, what: &str) -> Result<(), String> {
    match probed {
        Probed::Yes => Ok(()),
        Probed::Ignored => Err(format!("the chat template does not show {what}")),
        Probed::Refused(error) => Err(error.to_string()),
    }
}

fn tools(subject: &Subject<'_>, chat: &Capability) -> Capability {
    let asked = || {
        if !chat.can {
            return Err("it does not chat".to_owned());
        }
        let probe = subject.template.clone()?;
        shown(&probe.tools, "tools on offer")?;
        let request = json!({
            "messages": [{ "role": "user", "content": "x" }],
            "tools": [{ "type": "function", "function": { "name": "x" } }],
        });
        match api::refusal(&request) {
            Some(why) => Err(format!("the template shows them, but {why}")),
            None => Ok("the template shows them".to_owned()),
        }
    };
    Capability::of("tools", asked())
}

fn constraints(subject: &Subject<'_>, can_write: bool) -> Capability {
    let what = "JSON and grammars";
    match (can_write, &subject.plan.diffusion, &subject.tokenizer) {
        (true, None, Ok(tokenizer)) if tokenizer.keeps_bytes() => {
            Capability::yes(what, "forced tokens are read together")
        }
        (true, None, _) => Capability::yes(what, "token by token"),
        (true, Some(_), _) => Capability::no(what, "answers are not written in order"),
        _ => Capability::no(what, "it does not write text"),
    }
}

fn diffusion(subject: &Subject<'_>, can_write: bool) -> Capability {
    let what = "text diffusion";
    match (&subject.plan.diffusion, can_write) {
        (None, _) => Capability::no(what, "the definition has another `mode`"),
        (Some(_), false) => Capability::no(what, "it does not write text"),
        (Some(_), true) => Capability::yes(what, "each denoising step reads the whole text"),
    }
}

fn embeddings(plan: &Plan) -> Capability {
    let pooled = pooled(plan.pooling());
    let how = format!(
        "`bench logits --embedding`: {} elements; a text's is {pooled}",
        plan.n_embd
    );
    Capability::yes("embeddings", how)
}

fn sharing(subject: &Subject<'_>) -> Capability {
    let what = "prefix cache";
    if subject.options.n_ctx == 0 {
        return Capability::no(what, "nothing is kept of a text without a context");
    }
    if !subject.options.shares(subject.plan) {
        return Capability::no(what, "what is kept of a token depends on later ones");
    }
    match subject.plan.recurrent().next() {
        Some(_) => Capability::yes(
            what,
            "where a block of 16 tokens ends, since states are kept",
        ),
        None => Capability::yes(what, "a prefix is read once for all that begin with it"),
    }
}

fn guesses(subject: &Subject<'_>, can_write: bool) -> Capability {
    let what = "speculative decoding";
    if !can_write || subject.plan.diffusion.is_some() {
        return Capability::no(what, "it does not write token by token");
    }
    let asked = engine::can_take_back(subject.plan, subject.options);
    let how = "and contrastive search: tokens can be taken back";
    Capability::of(what, asked.map(|()| how.to_owned()))
}

fn quantised_cache(subject: &Subject<'_>, estimator: &mut Estimator<'_>) -> Capability {
    let what = "8-bit cache";
    if subject.plan.key_values().next().is_none() {
        return Capability::no(what, "it keeps no keys and values");
    }
    let small = Options {
        k_type: TensorType::Q8_0,
        v_type: TensorType::Q8_0,
        deterministic: false,
        ..subject.options.clone()
    };
    let own = estimator.memory(subject.options);
    let how = estimator.memory(&small).map(|small| match own {
        Ok(own) if own.cache > 0 => {
            let share = 100.0 * small.cache as f64 / own.cache as f64;
            format!("`--kv-type q8_0`: {share:.0} % of the memory")
        }
        _ => "`--kv-type q8_0`".to_owned(),
    });
    Capability::of(what, how)
}

fn deterministic(subject: &Subject<'_>, estimator: &mut Estimator<'_>) -> Capability {
    let asked = estimator.memory(&Options {
        deterministic: true,
        ..subject.options.clone()
    });
    let how = "`--deterministic`: the same bits whatever runs beside it";
    Capability::of("deterministic", asked.map(|_| how.to_owned()))
}

fn memory(subject: &Subject<'_>, estimator: &mut Estimator<'_>) -> Capability {
    let how = format!("a context of {} tokens fits", subject.options.n_ctx);
    Capability::of("memory", estimator.check(subject.options).map(|()| how))
}
