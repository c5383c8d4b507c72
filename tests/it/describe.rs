//! The description of a model, compared with every layer of its plan.
//!
//! Each layer is in one group, and the text of the group has the numbers of its blocks. Then the whole text is
//! searched for what holds for the model.

use std::collections::BTreeSet;

use lab_base::weights::TensorType;
use lab_core::arch::{Mode, ResolvedOption};
use lab_core::models::synth::design;
use lab_core::plan::{KeyTokens, Plan, StatePlan, Unit};
use lab_inspect::describe::{describe, layer_groups, weight_shares};

use crate::diagrams::{cases, is_seen, window};
use crate::goldens::{library, request};

/// The words of a text, numbers included.
fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_alphanumeric()).collect()
}

/// The first number that the phrase of a unit promises is told, by itself or within bounds: phrases leave
/// out only what repeats another one.
fn check_number(name: &str, unit: &Unit, text: &str) {
    let contract = unit.contract.0;
    let promised = contract.options.iter().filter_map(|option| {
        let is_told = contract.phrase.contains(&format!("{{={}}}", option.name));
        unit.option_int(option.name).filter(|_| is_told)
    });
    let words = words(text);
    for n in promised.take(1) {
        let is_within = words.windows(3).any(|three| {
            let bounds = [three[0], three[2]].map(str::parse::<u64>);
            three[1] == "to" && matches!(bounds, [Ok(least), Ok(most)] if least <= n && n <= most)
        });
        let is_told = is_within || words.contains(&&*n.to_string());
        assert!(is_told, "{name}: {n} of {} is not in {text}", unit.path);
    }
}

fn check(name: &str, plan: &Plan) {
    let text = describe(plan);
    let mut told = vec![0; plan.layers.len()];
    for group in layer_groups(plan) {
        let is_told = text.to_lowercase().contains(&group.text.to_lowercase());
        assert!(is_told, "{name}: {}\n{text}", group.text);
        for at in &group.layers {
            told[*at] += 1;
            let slots = plan.layers[*at].slots.iter();
            for branch in slots.flat_map(|slot| &slot.branches) {
                check_number(name, &branch.block, &group.text);
            }
        }
    }
    assert!(told.iter().all(|times| *times == 1), "{name}: {told:?}");
    let all = words(&text);
    let sizes = [plan.n_embd, plan.n_vocab, plan.layers.len() as u64];
    let windows = plan.caches.iter().filter_map(|cache| cache.window());
    for n in sizes.into_iter().chain(windows) {
        let is_told = all.contains(&&*n.to_string());
        assert!(is_told, "{name}: {n} is not in\n{text}");
    }
    for rope in &plan.ropes {
        let dims = rope.option_int("dims").expect("a number");
        let part = format!("ope: {dims} elements");
        assert!(text.contains(&part), "{name}: {text}");
    }
    let modes = [text.contains("An encoder"), text.contains("text diffusion")];
    let planned = [Mode::Encoder, Mode::Diffusion].map(|mode| plan.mode == mode);
    assert_eq!(modes, planned, "{name}");
    let states = Vec::from_iter(plan.units().filter_map(|unit| unit.state.as_ref()));
    let has_keys = states.iter().any(|s| matches!(s, StatePlan::KeyValue(_)));
    let has_states = states.iter().any(|s| matches!(s, StatePlan::Recurrent(_)));
    let kept = [has_keys, has_states].map(|has| has && plan.mode == Mode::Causal);
    let told = ["KV cache (f16)", "ecurrent state"].map(|part| text.contains(part));
    assert_eq!(told, kept, "{name}");
    assert!(text.len() < 4000, "{name} is told at length:\n{text}");
}

/// The plan of a random model with these settings, each as `key=value`.
fn plan_of(arch: &str, set: &str) -> Plan {
    let library = library();
    let (_, mut request) = request(arch, &serde_json::json!({ "synth": [arch] }));
    let set = set
        .split(' ')
        .map(|one| one.split_once('=').expect("a value"));
    request
        .set
        .extend(set.map(|(k, v)| (k.to_owned(), v.to_owned())));
    let def = library.get(arch).expect("built in");
    design(&def, &request).expect("the settings go together").1
}

#[test]
fn what_is_told_of_every_golden_is_so() {
    for case in cases() {
        check(&case.golden.name, case.plan());
    }
}

#[test]
fn repeating_patterns_of_layers_are_described() {
    let plan = plan_of("gemma3", "block_count=26 n_swa=512");
    check("26 layers", &plan);
    let text = describe(&plan);
    assert!(text.contains("Every 6th layer from 5: attention"), "{text}");
    assert!(text.contains("over the last 512 tokens"), "{text}");
}

#[test]
fn layers_that_differ_in_numbers_are_described_with_ranges() {
    // Numbers of heads that follow no pattern: more kinds than anybody reads.
    let mut state = 1u32;
    let mut next = |n: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (state >> 24) % n
    };
    for n in [2, 5, 9, 40] {
        let groups: Vec<u32> = (0..n).map(|_| 2 * next(6)).collect();
        let list = |values: Vec<u32>| Vec::from_iter(values.iter().map(u32::to_string)).join(",");
        let heads = list(groups.iter().map(|g| 2 * g).collect());
        let widths = list((0..n).map(|_| 32 * next(8)).collect());
        let groups = list(groups);
        let set = format!("block_count={n} n_head={heads} n_head_kv={groups} n_ff={widths}");
        let plan = plan_of("openelm", &(set + " d_head=16 d_head_v=16"));
        check(&format!("{n} layers"), &plan);
    }
}

#[test]
fn every_tensor_has_one_share() {
    for case in cases() {
        let (name, plan) = (&case.golden.name, case.plan());
        let shares = weight_shares(plan);
        let bytes: u64 = shares.iter().map(|share| share.bytes).sum();
        let n: usize = shares.iter().map(|share| share.n_tensors).sum();
        let weights: u64 = shares.iter().map(|share| share.n_weights).sum();
        let all = (plan.tensors.len(), plan.weight_bytes(), plan.n_weights());
        assert_eq!((n, bytes, weights), all, "{name}");
        let names: BTreeSet<&str> = shares.iter().map(|share| share.what.as_str()).collect();
        assert_eq!(names.len(), shares.len(), "{name}: each use once");
    }
}

#[test]
fn a_token_reads_the_keys_that_it_sees() {
    let goldens = cases().iter().map(|case| case.plan().clone());
    let mut plans: Vec<Plan> = goldens.collect();
    plans.push(plan_of("llama4", "chunk=8"));
    let chunks = plans.iter().flat_map(|plan| &plan.caches).filter(|cache| {
        let options = &cache.unit.options;
        options.contains(&ResolvedOption::Choice("chunked")) && cache.window() == Some(8)
    });
    assert!(chunks.count() > 0, "a model has small chunks");
    let of_keys = |plan: &&Plan| plan.caches.iter().all(|cache| cache.span().is_none());
    let plans = plans.iter().filter(of_keys);
    for (plan, position) in plans.flat_map(|plan| (0..40).map(move |at| (plan, at))) {
        let rows = plan.units().filter_map(|unit| match unit.state.as_ref()? {
            // Keys of the layers that read the source are gone.
            StatePlan::KeyValue(rows) if plan.caches[rows.cache].keys == KeyTokens::Pass => None,
            StatePlan::KeyValue(rows) => Some((unit, rows)),
            StatePlan::Recurrent(_) => None,
        });
        let bytes = rows.map(|(unit, rows)| {
            let values = if rows.v_in_k { 0 } else { rows.v };
            let rule = window(&plan.caches[rows.cache]);
            let seen = (0..=position).filter(|key| is_seen(rule, position, *key));
            let seen = seen.count() as u64;
            let selected = plan.selection(unit).and_then(|of| {
                let [top, span, d] = ["top", "span", "d"].map(|name| of.option_int(name));
                let (top, span) = (top?, span?);
                // A block that is not whole is read as well, where whole blocks have one key.
                let tail = match of.option("pooled") {
                    Some(ResolvedOption::Bool(true)) => seen % span,
                    _ => 0,
                };
                let few = (seen - tail > top * span).then_some(top * span + tail);
                Some((few?, d?.min(rows.index)))
            });
            let (n, index) = selected.map_or((seen, 0), |(few, width)| (few, width * seen));
            2 * ((rows.k + values) * n + index)
        });
        let read = plan.cache_bytes_read(position, TensorType::F16, TensorType::F16);
        assert_eq!(read, Some(bytes.sum()), "{} at {position}", plan.arch);
    }
}
