//! What a block is, as a phrase with its numbers.

use crate::arch::{Contract, Mode, Resolved, StateSpec};
use crate::plan::{BranchPlan, KeyValuePlan, Plan, StatePlan, Unit};
use crate::wording::tidy;

use super::phrase::Phrase;

/// Whether a block looks beyond its own token.
pub(super) fn mixes(unit: &Unit) -> bool {
    !matches!(unit.contract.0.state, StateSpec::None)
}

/// A short name with its article and the word that the definition has for the purpose.
pub(super) fn with_role(contract: &Contract, role: &str) -> String {
    let short = contract.short();
    let article = contract.noun.strip_suffix(short).unwrap_or_default();
    format!("{article}{} {short}", quoted(role))
}

/// A block with its numbers.
pub(super) fn phrase(plan: &Plan, branch: &BranchPlan) -> Phrase {
    let unit = &branch.block;
    match unit.contract.0.name {
        "attention" => attention(plan, unit),
        "mla" => latent(plan, unit),
        "delta_net" => delta_net(unit),
        "mamba" => mamba(unit),
        "mamba2" => mamba2(unit),
        "short_conv" => Phrase::new("a gated convolution over ")
            .counted(int(unit, "kernel"), "token")
            .text(&kept(unit)),
        "ffn" => network(branch),
        "moe" => experts(unit),
        _ => Phrase::new(unit.contract.0.noun),
    }
}

fn int(unit: &Unit, option: &str) -> u64 {
    unit.option_int(option).unwrap_or(0)
}

fn float(unit: &Unit, option: &str) -> f64 {
    match unit.option(option) {
        Some(Resolved::Float(value)) => *value,
        _ => 0.0,
    }
}

pub(super) fn number(unit: &Unit, option: &str) -> String {
    match unit.option(option) {
        Some(Resolved::Float(value)) => tidy(*value),
        Some(Resolved::Int(value)) => value.to_string(),
        _ => String::new(),
    }
}

pub(super) fn choice<'u>(unit: &'u Unit, option: &str) -> &'u str {
    match unit.option(option) {
        Some(Resolved::Choice(name)) => name,
        _ => "none",
    }
}

fn has(unit: &Unit, weight: &str) -> bool {
    unit.weight(weight).is_some()
}

/// What is kept of a sequence.
fn kept(unit: &Unit) -> String {
    let Some(StatePlan::Recurrent(parts)) = &unit.state else {
        return String::new();
    };
    let n: u64 = parts
        .iter()
        .map(|part| part.size)
        .fold(0, u64::saturating_add);
    format!(" and a state of {n} numbers")
}

/// Which tokens are looked at: what stands before and behind the noun.
fn sight(plan: &Plan, rows: &KeyValuePlan, noun: &str) -> Phrase {
    let cache = &plan.caches[rows.cache].unit;
    let is_causal =
        cache.option("causal") == Some(&Resolved::Bool(true)) && plan.mode == Mode::Causal;
    let size = int(cache, "size");
    if size == 0 {
        let kind = if is_causal { "full" } else { "two-way" };
        return Phrase::new(&format!("{kind} {noun}"));
    }
    let kind = if is_causal { "" } else { "two-way " };
    let over = match choice(cache, "window") {
        "chunked" => "chunks",
        "symmetric" => "a band",
        _ => "a window",
    };
    Phrase::new(&format!("{kind}{noun} over {over} of ")).counted(size, "token")
}

fn attention(plan: &Plan, unit: &Unit) -> Phrase {
    let Some(StatePlan::KeyValue(rows)) = &unit.state else {
        return Phrase::new("attention");
    };
    let (heads, groups) = (int(unit, "heads"), int(unit, "kv_heads"));
    let (dk, dv) = (int(unit, "dk"), int(unit, "dv"));
    let mut phrase = sight(plan, rows, "attention")
        .text(" with ")
        .counted(heads, "head");
    if groups != heads {
        phrase = phrase.text(" in ").counted(groups, "group");
    }
    phrase = phrase.text(" of ").counted(dk, "element");
    if dv != dk {
        phrase = phrase.text(", values of ").number(dv);
    }
    with_features(phrase, plan, unit, rows)
}

/// What is unusual about an attention block.
fn with_features(mut phrase: Phrase, plan: &Plan, unit: &Unit, rows: &KeyValuePlan) -> Phrase {
    let mut add = |holds: bool, text: &str| {
        if holds {
            phrase = std::mem::take(&mut phrase).text(", ").text(text);
        }
    };
    match unit.option("rope") {
        Some(Resolved::Resource(Some(at))) if plan.ropes.len() > 1 => {
            add(true, &format!("turned by {}", rope(plan, &plan.ropes[*at])));
        }
        Some(Resolved::Resource(None)) if !plan.ropes.is_empty() => add(true, "not turned"),
        _ => {}
    }
    add(choice(unit, "qk_norm") != "none", "queries and keys normed");
    let cap = float(unit, "softcap");
    add(cap != 0.0, &format!("scores capped at {}", tidy(cap)));
    add(
        float(unit, "temp_scale") != 0.0,
        "queries growing with the position",
    );
    add(has(unit, "sinks"), "a sink for each head");
    add(
        choice(unit, "gate") != "none" || has(unit, "gate"),
        "a gate on the result",
    );
    add(choice(unit, "values") == "key", "keys for values");
    let alibi = float(&plan.caches[rows.cache].unit, "alibi");
    add(alibi != 0.0, "scores falling with the distance");
    add(rows.owner.is_some(), "keys of an earlier layer");
    phrase
}

/// The name of a rope, with its base where layers have different ones of this name.
fn rope(plan: &Plan, unit: &Unit) -> String {
    let told = quoted(name(unit));
    let namesakes = plan.ropes.iter().filter(|other| name(other) == name(unit));
    match namesakes.count() {
        1 => told,
        _ => format!("{told} from the base {}", number(unit, "base")),
    }
}

fn latent(plan: &Plan, unit: &Unit) -> Phrase {
    let Some(StatePlan::KeyValue(rows)) = &unit.state else {
        return Phrase::new("latent attention");
    };
    let phrase = sight(plan, rows, "latent attention")
        .text(" with ")
        .counted(int(unit, "heads"), "head")
        .text(" of ")
        .counted(int(unit, "dq"), "element")
        .text(" through a row of ")
        .number(int(unit, "kv_rank"))
        .text(" + ")
        .number(int(unit, "n_rope"));
    with_features(phrase, plan, unit, rows)
}

fn delta_net(unit: &Unit) -> Phrase {
    let (heads, groups) = (int(unit, "heads"), int(unit, "k_heads"));
    let mut phrase = Phrase::new("a gated delta net with ").counted(heads, "head");
    if groups != heads {
        phrase = phrase.text(" in ").counted(groups, "group");
    }
    phrase
        .text(" of ")
        .counted(int(unit, "d"), "element")
        .text(&kept(unit))
}

fn mamba(unit: &Unit) -> Phrase {
    Phrase::new("a selective scan over ")
        .counted(int(unit, "n_inner"), "channel")
        .text(&kept(unit))
}

fn mamba2(unit: &Unit) -> Phrase {
    let (heads, groups) = (int(unit, "heads"), int(unit, "groups"));
    let mut phrase = Phrase::new("a state-space scan with ").counted(heads, "head");
    if groups != heads {
        phrase = phrase.text(" in ").counted(groups, "group");
    }
    phrase
        .text(" over ")
        .counted(int(unit, "n_inner"), "channel")
        .text(&kept(unit))
}

fn activation(unit: &Unit) -> &'static str {
    match choice(unit, "act") {
        "silu" => "SiLU",
        "gelu" | "gelu_erf" => "GELU",
        "relu" => "ReLU",
        "relu2" => "squared ReLU",
        "swiglu_oai" => "clipped SwiGLU",
        "xielu" => "xIELU",
        _ => "no activation",
    }
}

fn network(branch: &BranchPlan) -> Phrase {
    let unit = &branch.block;
    let is_gated = has(unit, "gate") || unit.option("fused") == Some(&Resolved::Bool(true));
    let phrase = match branch.role() {
        Some(role) => Phrase::new(&with_role(unit.contract.0, role)),
        None => Phrase::new(unit.contract.0.noun),
    };
    let phrase = phrase.text(" ").number(int(unit, "width")).text(" wide");
    let act = activation(unit);
    let phrase = match &branch.side {
        Some(tap) => phrase.text(&format!(", {act} times {}", quoted(tap))),
        None if is_gated => phrase.text(&format!(", gated by {act}")),
        None => phrase.text(&format!(" with {act}")),
    };
    match has(unit, "out_gate") {
        true => phrase.text(", a sigmoid of each token on the result"),
        false => phrase,
    }
}

fn experts(unit: &Unit) -> Phrase {
    let score = match choice(unit, "score") {
        "softmax" | "softmax_after" => "softmax",
        "sigmoid" => "sigmoid",
        "sqrt_softplus" => "root of softplus",
        _ => "sparse mixing",
    };
    let is_gated = has(unit, "gate") || has(unit, "gate_up");
    let how = if is_gated { ", gated by " } else { " with " };
    let mut phrase = Phrase::new("")
        .number(int(unit, "used"))
        .text(" of ")
        .counted(int(unit, "experts"), "expert")
        .text(" by ")
        .text(score);
    if int(unit, "groups") > 1 {
        phrase = phrase
            .text(", out of ")
            .number(int(unit, "groups_used"))
            .text(" of ")
            .counted(int(unit, "groups"), "group");
    }
    phrase
        .text(", each ")
        .number(int(unit, "width"))
        .text(" wide")
        .text(how)
        .text(activation(unit))
}

/// The name of a declared resource.
pub(super) fn name(unit: &Unit) -> &str {
    unit.path
        .rsplit_once('.')
        .map_or(&unit.path, |(_, name)| name)
}

/// A name that a definition chose.
pub(super) fn quoted(name: &str) -> String {
    format!("`{name}`")
}
