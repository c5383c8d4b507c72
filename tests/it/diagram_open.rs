//! What a file decides is not told as known: definitions are drawn without a file, and every choice that
//! some model of the definition makes otherwise is open, or told layer by layer.

use std::collections::BTreeSet;

use lab_bench::arch::expr::{Expr, Value};
use lab_bench::arch::{ArchDef, ParamSource, Resolved};
use lab_bench::diagram::{Drawing, Part, Sample, variants};
use lab_bench::plan::{Plan, Unit};
use lab_bench::synth::{Request, design};

use crate::goldens::library;

/// Values that a parameter of a file is tried with.
fn values(param: &ParamSource) -> &'static [&'static str] {
    let ParamSource::Key { default, synth, .. } = param else {
        return &[];
    };
    let literals = [default, synth].into_iter().flatten();
    let mut literals = literals.filter_map(Expr::as_literal);
    match literals.any(|value| matches!(value, Value::Str(_))) {
        true => &["silu", "gelu", "relu"],
        false => &["0", "1", "2", "3", "true", "false"],
    }
}

/// Models of a definition that differ from that of `first` in one parameter or one optional tensor.
fn others(def: &ArchDef, first: &Request) -> Vec<Plan> {
    let mut requests = Vec::new();
    // Of another number the layers would be other ones.
    for (name, param) in def.params.iter().filter(|(name, _)| *name != "block_count") {
        for value in values(&param.source) {
            let mut other = first.clone();
            other.set.retain(|(known, _)| known != name);
            other.set.push((name.clone(), (*value).to_owned()));
            requests.push(other);
        }
    }
    let slots = def.stacks.iter().flat_map(|stack| &stack.slots);
    let blocks = slots.flat_map(|slot| &slot.branches).map(|b| &b.block);
    let weights = blocks.flat_map(|block| &block.weights);
    let names: BTreeSet<&str> = weights.map(|weight| weight.tensor.as_str()).collect();
    for name in names {
        let mut other = first.clone();
        other.with.push(name.trim_end_matches(".weight").to_owned());
        requests.push(other);
    }
    let made = requests.iter().map(|request| design(def, request));
    made.filter_map(|made| Some(made.ok()?.1)).collect()
}

/// Choices of a unit by their names.
fn choices(unit: &Unit) -> impl Iterator<Item = (&'static str, &Resolved)> {
    let specs = unit.contract.0.options.iter().map(|spec| spec.name);
    let all = specs.zip(&unit.options);
    all.filter(|(_, value)| matches!(value, Resolved::Choice(_) | Resolved::Bool(_)))
}

/// The part that stands for a unit.
fn part_of<'d>(drawing: &'d Drawing, unit: &Unit) -> Option<&'d Part> {
    let mut parts = drawing.parts();
    parts.find(|part| part.kind == unit.contract.0.name && part.paths.contains(&unit.path))
}

#[test]
fn no_choice_of_a_file_is_told_as_known() {
    let library = library();
    let (mut n_open, mut n_tried) = (0, 0);
    for (name, source) in library.sources() {
        let def = library.get(name).expect("sound");
        let first = variants(&def).expect("there is a model").remove(0).1;
        let sample = Sample::of_definition(name, &def, &first).expect("a graph");
        let drawing = Drawing::new(&def, &source.text, &sample);
        let of_unit = |unit: &Unit, option: &str| {
            let part = part_of(&drawing, unit)?;
            part.options
                .iter()
                .find(|told| told.name == option)
                .cloned()
        };
        for plan in others(&def, &first) {
            n_tried += 1;
            for unit in plan.units() {
                let mut own = sample.plan().units();
                let same = own.find(|own| {
                    own.path == unit.path && own.contract.0.name == unit.contract.0.name
                });
                let Some(same) = same else { continue };
                for ((option, value), (_, drawn)) in choices(unit).zip(choices(same)) {
                    if value == drawn {
                        continue;
                    }
                    // What the contract computes is not told as a choice.
                    let Some(told) = of_unit(same, option) else {
                        continue;
                    };
                    // Where layers differ each kind has its own.
                    let likes = sample.plan().units();
                    let mut likes =
                        likes.filter(|like| like.contract.0.name == same.contract.0.name);
                    let is_mixed = likes.any(|like| {
                        let mut all = choices(like);
                        all.any(|(name, value)| name == option && value != drawn)
                    });
                    assert!(
                        told.is_open || is_mixed,
                        "{name}: {}.{option} is told as {}, and another model has {value:?}",
                        same.path,
                        told.value
                    );
                    n_open += 1;
                }
            }
        }
    }
    assert!(n_tried > 1000, "{n_tried} models were tried");
    assert!(n_open > 20, "{n_open} choices were found that a file makes");
}

#[test]
fn an_open_choice_is_told_as_the_definition_has_it() {
    let library = library();
    let drawn = |name: &str| {
        let def = library.get(name).expect("sound");
        let first = variants(&def).expect("there is a model").remove(0).1;
        let sample = Sample::of_definition(name, &def, &first).expect("a graph");
        Drawing::new(&def, &library.source(name).expect("built in").text, &sample)
    };
    let drawing = drawn("deepseek2");
    let experts = drawing.parts().find(|part| part.kind == "moe");
    let experts = experts.expect("experts");
    let fact = "score = expert_score (drawn: softmax)".to_owned();
    assert!(experts.facts.contains(&fact), "{:?}", experts.facts);
    assert!(
        experts.formula.contains("score(router"),
        "{}",
        experts.formula
    );
    assert_eq!(drawing.order_from, ["n_lead"]);
    assert!(drawn("llama").order_from.is_empty());
    // With a file nothing is open.
    let def = library.get("deepseek2").expect("sound");
    let (_, plan) = design(&def, &Request::default()).expect("a model");
    let sample = Sample::of_model("one", &plan).expect("a graph");
    let text = &library.source("deepseek2").expect("built in").text;
    let drawing = Drawing::new(&def, text, &sample);
    let mut options = drawing.parts().flat_map(|part| &part.options);
    assert!(options.all(|option| !option.is_open));
    assert!(drawing.order_from.is_empty());
}

#[test]
fn shared_experts_are_called_so() {
    let library = library();
    let def = library.get("deepseek2").expect("sound");
    let (_, plan) = design(&def, &Request::default()).expect("a model");
    let sample = Sample::of_model("one", &plan).expect("a graph");
    let text = &library.source("deepseek2").expect("built in").text;
    let drawing = Drawing::new(&def, text, &sample);
    let shared = drawing
        .parts()
        .find(|part| part.purpose == "shared network");
    assert_eq!(
        shared.map(|part| part.title.as_str()),
        Some("Feed-forward network (shared)")
    );
}
