//! A plan in words: one paragraph that tells a person what a model is.
//!
//! Everything said follows from the [`Plan`] that runs: there is no list of models here, and what is
//! said of layers, heads, windows, experts and states can be read back and is (`tests/it/describe.rs`).
//! Layers that are alike are told once. Called by `inspect`.

mod blocks;
mod layers;
mod phrase;
mod shares;
mod which;

use crate::arch::{Mode, Resolved};
use crate::plan::{Plan, Pooling, StatePlan, Unit};
use crate::weights::TensorType;
use crate::wording::{bytes, count, listed, tidy};

use blocks::{choice, name, number, quoted};
use layers::as_sentence;

pub use shares::{Share, shares};

/// What a model is, in one paragraph.
pub fn describe(plan: &Plan) -> String {
    let sentences = [
        whole(plan),
        layers::mixing(plan),
        layers::networks(plan),
        layers::wiring(plan),
        norms(plan),
        positions(plan),
        begin(plan),
        end(plan),
        kept(plan),
    ];
    let said: Vec<String> = sentences.into_iter().filter(|s| !s.is_empty()).collect();
    said.join(" ")
}

fn whole(plan: &Plan) -> String {
    let kind = match (plan.mode, has_logits(plan)) {
        (Mode::Diffusion, _) => "A model that fills in masked tokens",
        (Mode::Causal, true) => "A model that writes token by token",
        (Mode::Encoder, _) => "An encoder, which reads a text as a whole",
        (_, false) => "A model that reads token by token",
    };
    let trained = match plan.n_ctx_train {
        0 => String::new(),
        n => format!(", trained on texts of {n} tokens"),
    };
    let n_layers = plan.layers.len();
    format!(
        "{kind}: {} weights in {n_layers} layer{}{}, a stream of {} elements, {} tokens in the \
         vocabulary{trained}.",
        count(plan.n_weights()),
        if n_layers == 1 { "" } else { "s" },
        stacks(plan),
        plan.n_embd,
        plan.n_vocab,
    )
}

/// The stacks and their layers, where there are several.
fn stacks(plan: &Plan) -> String {
    let mut stacks: Vec<(&str, usize)> = Vec::new();
    for layer in &plan.layers {
        let stack = layer.path.rsplit_once('.').map_or("", |(stack, _)| stack);
        match stacks.last_mut() {
            Some((last, n)) if *last == stack => *n += 1,
            _ => stacks.push((stack, 1)),
        }
    }
    if stacks.len() < 2 {
        return String::new();
    }
    let parts = stacks
        .iter()
        .map(|(stack, n)| format!("{n} in {}", quoted(stack)));
    format!(" ({})", listed(&parts.collect::<Vec<String>>()))
}

fn has_logits(plan: &Plan) -> bool {
    plan.head.as_ref().is_some_and(|head| head.unit.is_some())
}

/// The kinds of norms, each once.
fn norms(plan: &Plan) -> String {
    let mut kinds: Vec<String> = Vec::new();
    for unit in &plan.norms {
        let kind = match choice(unit, "kind") {
            "layer" => "layer norms",
            _ => "RMS norms",
        };
        let eps = match unit.option("eps") {
            Some(Resolved::Float(eps)) => *eps,
            _ => 0.0,
        };
        let text = format!("{kind} (eps {eps:e})");
        if !kinds.contains(&text) {
            kinds.push(text);
        }
    }
    match kinds.is_empty() {
        true => String::new(),
        false => format!("Norms are {}.", listed(&kinds)),
    }
}

/// How tokens know where they are.
fn positions(plan: &Plan) -> String {
    let mut said: Vec<String> = plan
        .ropes
        .iter()
        .map(|rope| self::rope(plan, rope))
        .collect();
    if plan.embed.weight("positions").is_some() {
        said.push("a table of positions is added to the embeddings".into());
    }
    let alibi = |unit: &Unit| match unit.option("alibi") {
        Some(Resolved::Float(slope)) if *slope != 0.0 => Some(tidy(*slope)),
        _ => None,
    };
    if let Some(slope) = plan.caches.iter().find_map(|cache| alibi(&cache.unit)) {
        said.push(format!("scores fall with the distance, by {slope} at most"));
    }
    if said.is_empty() {
        said.push("no number tells a token its position".into());
    }
    as_sentence(&said.join("; "))
}

fn rope(plan: &Plan, unit: &Unit) -> String {
    let which = match plan.ropes.len() {
        1 => String::new(),
        _ => format!(" {}", quoted(name(unit))),
    };
    let pairs = match choice(unit, "kind") {
        "norm" => "neighbours as pairs",
        "mrope" => "halves as pairs, in sections",
        "imrope" => "halves as pairs, in mixed sections",
        _ => "halves as pairs",
    };
    let is_plain = unit.option("factor") == Some(&Resolved::Float(1.0));
    let stretched = match choice(unit, "scaling") {
        "none" => String::new(),
        "linear" if is_plain => String::new(),
        scaling => format!(", stretched {} times ({scaling})", number(unit, "factor")),
    };
    let table = match unit.weight("factors") {
        Some(_) => ", with a divisor for each frequency",
        None => "",
    };
    format!(
        "rope{which} turns {} elements of a head, {pairs}, from the base {}{stretched}{table}",
        number(unit, "dims"),
        number(unit, "base"),
    )
}

/// What is done to the rows of the token table.
fn begin(plan: &Plan) -> String {
    let mut said = Vec::new();
    if let Some(Resolved::Float(scale)) = plan.embed.option("scale")
        && *scale != 1.0
    {
        said.push(format!("embeddings are multiplied by {}", tidy(*scale)));
    }
    if plan.embed.weight("norm").is_some() {
        said.push("embeddings are normed".into());
    }
    let width = plan
        .per_layer
        .as_ref()
        .and_then(|unit| unit.option_int("width"));
    if let Some(width) = width.filter(|width| *width > 0) {
        said.push(format!(
            "each layer gets {width} elements of each token beside the stream"
        ));
    }
    as_sentence(&said.join("; "))
}

/// What comes out.
fn end(plan: &Plan) -> String {
    let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
    let Some(head) = head else {
        let pooled = match plan.pooling() {
            Pooling::Mean => "their mean",
            Pooling::First => "the first one",
            Pooling::Last => "the last one",
            Pooling::Max => "the largest of each element",
            Pooling::MeanSqrt => "their sum over the square root of their number",
            Pooling::Weighted => "their mean, weighted by position",
        };
        return format!("It ends in a vector for each token; a text's is {pooled}.");
    };
    let tied = plan.embed.weight("tokens").is_some()
        && head.weight("output") == plan.embed.weight("tokens");
    let mut said = vec![match tied {
        true => "the head is the token table".to_owned(),
        false => "the head is a matrix of its own".to_owned(),
    }];
    for (option, default, text) in [
        ("scale", 1.0, "logits are multiplied by"),
        ("softcap", 0.0, "logits are capped at"),
    ] {
        if let Some(Resolved::Float(value)) = head.option(option)
            && *value != default
        {
            said.push(format!("{text} {}", tidy(*value)));
        }
    }
    if let Some(unit) = &plan.diffusion {
        let rule = choice(unit, "remasking").replace('_', " ");
        said.push(format!("answers are filled in by {rule}"));
    }
    as_sentence(&said.join("; "))
}

/// Bytes, where their number is known.
fn amount(known: Option<u64>) -> String {
    known.map_or_else(|| "more bytes than can be counted".to_owned(), bytes)
}

/// What is kept of a text; nothing where it is read as a whole.
fn kept(plan: &Plan) -> String {
    if plan.mode != Mode::Causal {
        return String::new();
    }
    let row = |window: bool| {
        let rows = plan.key_values();
        let own = rows.filter(|(_, rows)| plan.caches[rows.cache].window().is_some() == window);
        own.map(|(_, rows)| {
            let values = if rows.v_in_k { 0 } else { rows.v };
            TensorType::F16.row_bytes(rows.k.checked_add(values)?)
        })
        .try_fold(0u64, |sum, row| sum.checked_add(row?))
    };
    let mut said = Vec::new();
    match (row(false), row(true)) {
        (Some(0), Some(0)) => {}
        (all, Some(0)) => said.push(format!("{} of keys and values of each token", amount(all))),
        (Some(0), some) => said.push(format!(
            "{} of keys and values of each token while a window reaches it",
            amount(some)
        )),
        (all, some) => said.push(format!(
            "{} of keys and values of each token, {} more while a window reaches it",
            amount(all),
            amount(some)
        )),
    }
    let states = plan.recurrent_bytes(1);
    if states != Some(0) {
        said.push(format!("{} of states of each text", amount(states)));
    }
    let readers = plan.units().filter(|unit| match &unit.state {
        Some(StatePlan::KeyValue(rows)) => rows.owner.is_some(),
        _ => false,
    });
    if said.is_empty() {
        return String::new();
    }
    let readers = match readers.count() {
        0 => String::new(),
        n => format!("; {n} blocks keep none of their own"),
    };
    format!("A cache of f16 keeps {}{readers}.", listed(&said))
}
