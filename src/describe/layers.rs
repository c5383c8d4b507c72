//! Sentences about layers: what is alike told once, with which layers have it.

use crate::plan::{BranchPlan, LayerPlan, NormUse, Plan, SlotPlan};
use crate::wording::capital;

use super::blocks;
use super::phrase::Phrase;
use super::which::Which;

/// Kinds that are told one by one; more become one where they differ in numbers only.
const MAX_KINDS: usize = 6;

/// Parts of a sentence; what is more is counted only.
const MAX_CLAUSES: usize = 12;

/// A phrase and the layers it is true of.
struct Told {
    phrase: Phrase,
    layers: Vec<usize>,
}

/// What mixes the tokens of a text.
pub(super) fn mixing(plan: &Plan) -> String {
    sentence(plan, ["has", "have"], |layer| blocks_of(plan, layer, true))
}

/// What each token goes through by itself.
pub(super) fn networks(plan: &Plan) -> String {
    sentence(plan, ["has", "have"], |layer| blocks_of(plan, layer, false))
}

/// In which order, and where the norms are.
pub(super) fn wiring(plan: &Plan) -> String {
    sentence(plan, ["runs", "run"], |layer| {
        vec![Phrase::new(&run_of(layer))]
    })
}

/// The blocks of a layer that mix tokens, or the others; equal ones once.
fn blocks_of(plan: &Plan, layer: &LayerPlan, mixes: bool) -> Vec<Phrase> {
    let branches = layer.slots.iter().flat_map(|slot| &slot.branches);
    let mut found: Vec<(Phrase, usize)> = Vec::new();
    for branch in branches.filter(|branch| blocks::mixes(&branch.block) == mixes) {
        let phrase = blocks::phrase(plan, branch);
        match found.iter_mut().find(|(other, _)| *other == phrase) {
            Some((_, times)) => *times += 1,
            None => found.push((phrase, 1)),
        }
    }
    let times = |(phrase, times): (Phrase, usize)| match times {
        1 => phrase,
        n => phrase.text(&format!(" ({n} times)")),
    };
    found.into_iter().map(times).collect()
}

/// The blocks of a layer in their order.
fn run_of(layer: &LayerPlan) -> String {
    let decors: Vec<String> = layer.slots.iter().map(decor).collect();
    let alike = decors.windows(2).all(|pair| pair[0] == pair[1]);
    let slots: Vec<String> = layer
        .slots
        .iter()
        .zip(&decors)
        .map(|(slot, decor)| match decor.as_str() {
            "" => nouns(slot),
            _ if alike => nouns(slot),
            decor => format!("{} ({decor})", nouns(slot)),
        })
        .collect();
    let all = slots.join(", then ");
    match decors.first() {
        Some(decor) if alike && !decor.is_empty() && slots.len() > 1 => {
            format!("{all}, each with a {decor}")
        }
        Some(decor) if alike && !decor.is_empty() => format!("{all} with a {decor}"),
        _ => all,
    }
}

fn nouns(slot: &SlotPlan) -> String {
    let one = |branch: &BranchPlan| match branch.role() {
        Some(role) => blocks::with_role(branch.block.contract.0, role),
        None => branch.block.contract.0.noun.to_owned(),
    };
    let nouns: Vec<String> = slot.branches.iter().map(one).collect();
    nouns.join(" beside ")
}

/// Where a slot has norms.
fn decor(slot: &SlotPlan) -> String {
    let of_branch = |norm: fn(&BranchPlan) -> &Option<NormUse>| {
        slot.branches.iter().any(|branch| norm(branch).is_some())
    };
    let before = slot.pre.is_some() || of_branch(|branch| &branch.pre);
    let behind = slot.post.is_some() || of_branch(|branch| &branch.post);
    match (before, behind, slot.after.is_some()) {
        (false, false, false) => "",
        (true, false, false) => "norm before",
        (false, true, false) => "norm behind",
        (true, true, false) => "norm before and behind",
        (false, false, true) => "norm of the sum",
        (true, false, true) => "norm before and of the sum",
        (false, true, true) => "norm behind and of the sum",
        (true, true, true) => "norm before, behind and of the sum",
    }
    .to_owned()
}

/// `WHICH has PHRASE, plus PHRASE; WHICH have PHRASE.`; empty if no layer has any.
fn sentence(plan: &Plan, verbs: [&str; 2], of_layer: impl Fn(&LayerPlan) -> Vec<Phrase>) -> String {
    let all = plan.layers.iter().map(of_layer).enumerate();
    let clauses = together(widened(gathered(all)));
    let n_all = plan.layers.len();
    let mut clauses: Vec<(Which, Vec<Phrase>)> = clauses
        .into_iter()
        .map(|(layers, phrases)| (Which::new(layers, n_all), phrases))
        .collect();
    clauses.sort_by_key(|(which, _)| which.n_pieces());
    let mut told = vec![false; n_all];
    let mut out = Vec::with_capacity(MAX_CLAUSES + 1);
    for (which, phrases) in clauses.iter().take(MAX_CLAUSES) {
        let n_told = told.iter().filter(|told| **told).count();
        let is_new = which.layers().iter().all(|layer| !told[*layer]);
        let is_rest = n_told > 0 && is_new && n_told + which.layers().len() == n_all;
        let words = if is_rest { which.rest() } else { which.words() };
        let is_single = match is_rest {
            true => which.layers().len() == 1,
            false => which.is_single(),
        };
        let verb = if is_single { verbs[0] } else { verbs[1] };
        let phrases: Vec<String> = phrases.iter().map(Phrase::to_string).collect();
        out.push(format!("{words} {verb} {}", phrases.join(", plus ")));
        which.layers().iter().for_each(|layer| told[*layer] = true);
    }
    if clauses.len() > MAX_CLAUSES {
        out.push(format!(
            "{} more kinds of layers",
            clauses.len() - MAX_CLAUSES
        ));
    }
    as_sentence(&out.join("; "))
}

/// Equal phrases with all their layers, in the order of their first.
fn gathered(all: impl Iterator<Item = (usize, Vec<Phrase>)>) -> Vec<Told> {
    let mut told: Vec<Told> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (layer, phrases) in all {
        for phrase in phrases {
            let at = *places.entry(phrase.to_string()).or_insert(told.len());
            match told.get_mut(at) {
                Some(told) => told.layers.push(layer),
                None => told.push(Told {
                    phrase,
                    layers: vec![layer],
                }),
            }
        }
    }
    told
}

/// Where there are too many kinds, those that differ in numbers only as one.
fn widened(told: Vec<Told>) -> Vec<Told> {
    if told.len() <= MAX_KINDS {
        return told;
    }
    let mut out: Vec<Told> = Vec::new();
    for kind in told {
        match out
            .iter_mut()
            .find(|other| other.phrase.is_like(&kind.phrase))
        {
            Some(other) => {
                other.phrase.widen(&kind.phrase);
                other.layers.extend(kind.layers);
            }
            None => out.push(kind),
        }
    }
    for kind in &mut out {
        kind.layers.sort_unstable();
        kind.layers.dedup();
    }
    out
}

/// Phrases of the same layers, together.
fn together(told: Vec<Told>) -> Vec<(Vec<usize>, Vec<Phrase>)> {
    let mut out: Vec<(Vec<usize>, Vec<Phrase>)> = Vec::new();
    for Told { phrase, layers } in told {
        match out.iter_mut().find(|(other, _)| *other == layers) {
            Some((_, phrases)) => phrases.push(phrase),
            None => out.push((layers, vec![phrase])),
        }
    }
    out
}

/// A sentence of its own: a capital at its begin and a full stop.
pub(super) fn as_sentence(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("{}.", capital(text)),
    }
}
