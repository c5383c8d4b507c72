//! The paragraph about a model, read back word by word and compared with every layer of its plan.
//!
//! The reader here knows English and nothing of the code that wrote it: a sentence says which layers have
//! what, and what it says must be what the plan's options are, layer by layer, with nothing left over.

use std::collections::{BTreeMap, BTreeSet};

use lab_bench::arch::{Mode, Resolved};
use lab_bench::describe::{describe, shares};
use lab_bench::plan::{Plan, StatePlan, Unit};
use lab_bench::synth::design;
use lab_bench::weights::TensorType;

use crate::goldens::{index, library, request};

/// A number, or the bounds of several.
type Bounds = (u64, u64);

/// What is said of, or true of, one block: words and numbers by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Facts {
    kind: String,
    numbers: BTreeMap<&'static str, Bounds>,
}

impl Facts {
    fn new(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            numbers: BTreeMap::new(),
        }
    }

    fn with(mut self, name: &'static str, value: u64) -> Self {
        self.numbers.insert(name, (value, value));
        self
    }

    /// Whether what is said holds of `true_one`.
    fn holds(&self, true_one: &Self) -> bool {
        self.kind == true_one.kind
            && self.numbers.keys().eq(true_one.numbers.keys())
            && self
                .numbers
                .iter()
                .all(|(name, (least, most))| (*least..=*most).contains(&true_one.numbers[name].0))
    }
}

// ------------------------------------------------------------------ what is true

fn int(unit: &Unit, name: &str) -> u64 {
    let at = unit.contract.0.options.iter().position(|o| o.name == name);
    match unit.options[at.unwrap_or_else(|| panic!("{} has no {name}", unit.path))] {
        Resolved::Int(value) => value,
        ref other => panic!("{}: {name} is {other:?}", unit.path),
    }
}

/// The base of the rope that turns a block's queries and keys, as bits, if one does.
fn base(plan: &Plan, unit: &Unit) -> Option<u64> {
    let at = unit
        .contract
        .0
        .options
        .iter()
        .position(|o| o.name == "rope");
    let Resolved::Resource(Some(rope)) = unit.options[at?] else {
        return None;
    };
    let rope = &plan.ropes[rope];
    let at = rope
        .contract
        .0
        .options
        .iter()
        .position(|o| o.name == "base");
    match rope.options[at.expect("a rope has a base")] {
        Resolved::Float(base) => Some(base.to_bits()),
        ref other => panic!("{}: the base is {other:?}", rope.path),
    }
}

fn truth(plan: &Plan, unit: &Unit) -> Option<Facts> {
    let kind = unit.contract.0.name;
    let mut facts = Facts::new(kind);
    match kind {
        "attention" => {
            facts = facts
                .with("heads", int(unit, "heads"))
                .with("groups", int(unit, "kv_heads"))
                .with("width", int(unit, "dk"))
                .with("values", int(unit, "dv"));
        }
        "mla" => {
            facts = facts
                .with("heads", int(unit, "heads"))
                .with("width", int(unit, "dq"))
                .with("row", int(unit, "kv_rank"))
                .with("turned", int(unit, "n_rope"));
        }
        "delta_net" => {
            facts = facts
                .with("heads", int(unit, "heads"))
                .with("groups", int(unit, "k_heads"))
                .with("width", int(unit, "d"));
        }
        "mamba" => facts = facts.with("channels", int(unit, "n_inner")),
        "mamba2" => {
            facts = facts
                .with("channels", int(unit, "n_inner"))
                .with("heads", int(unit, "heads"))
                .with("groups", int(unit, "groups"));
        }
        "short_conv" => facts = facts.with("tokens", int(unit, "kernel")),
        "ffn" => facts = facts.with("width", int(unit, "width")),
        "moe" => {
            facts = facts
                .with("used", int(unit, "used"))
                .with("experts", int(unit, "experts"))
                .with("width", int(unit, "width"));
        }
        "linear" | "identity" => {}
        other => panic!("a block that this test does not know: {other}"),
    }
    match &unit.state {
        Some(StatePlan::KeyValue(rows)) => {
            let cache = &plan.caches[rows.cache].unit;
            facts = facts.with("sight", int(cache, "size"));
            if let Some(base) = base(plan, unit) {
                facts = facts.with("base", base);
            }
        }
        Some(StatePlan::Recurrent(parts)) => {
            facts = facts.with("state", parts.iter().map(|part| part.size).sum());
        }
        None => {}
    }
    Some(facts)
}

fn true_of_layers(plan: &Plan) -> Vec<Vec<Facts>> {
    let of_layer = |layer: &lab_bench::plan::LayerPlan| {
        let slots = layer.slots.iter().flat_map(|slot| &slot.branches);
        slots
            .filter_map(|branch| truth(plan, &branch.block))
            .collect()
    };
    plan.layers.iter().map(of_layer).collect()
}

// ------------------------------------------------------------------ what is said

/// Words without their commas; numbers stay.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace()
        .map(|word| word.trim_matches([',', ';', '(', ')']))
        .collect()
}

/// The number, or the bounds, before a word; `4 to 9 heads` has `(4, 9)` before `heads`.
fn before(text: &str, names: &[&str]) -> Option<Bounds> {
    let words = words(text);
    let at = words.iter().position(|word| names.contains(word))?;
    let last = words[at.checked_sub(1)?].parse().ok()?;
    let first = match at {
        3.. if words[at - 2] == "to" => words[at - 3].parse().ok()?,
        _ => last,
    };
    Some((first, last))
}

/// The number, or the bounds, behind words.
fn after(text: &str, start: &str) -> Option<Bounds> {
    let rest = &text[text.find(start)? + start.len()..];
    let words = words(rest);
    let first = words.first()?.parse().ok()?;
    let last = match words.get(1) {
        Some(&"to") => words.get(2)?.parse().ok()?,
        _ => first,
    };
    Some((first, last))
}

/// Names and bases of the ropes that a paragraph tells of; a single one has no name.
fn ropes(text: &str) -> Vec<(Option<&str>, u64)> {
    let marks = text.match_indices(" elements of a head, ");
    let rope = |(at, _): (usize, &str)| {
        let (before, _) = text[..at].rsplit_once(" turns ").expect("a rope");
        let name = before.strip_suffix('`');
        let name = name.and_then(|before| before.rsplit('`').next());
        (name, base_in(&text[at..]).expect("a base"))
    };
    marks.map(rope).collect()
}

/// The base that words tell first, as bits.
fn base_in(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("from the base ")?;
    let number = words(rest).first()?.trim_end_matches('.').parse::<f64>();
    Some(number.expect("a base is a number").to_bits())
}

/// The base that a phrase about attention tells, by itself or by the name of a rope.
fn turned(phrase: &str, ropes: &[(Option<&str>, u64)]) -> Option<u64> {
    let Some((_, rest)) = phrase.split_once("turned by `") else {
        let is_turned = !phrase.contains("not turned");
        return ropes.first().filter(|_| is_turned).map(|(name, base)| {
            assert_eq!(*name, None, "`{phrase}` does not tell by which rope");
            *base
        });
    };
    let (name, rest) = rest.split_once('`').expect("a name");
    let named = ropes.iter().filter(|(other, _)| *other == Some(name));
    let bases: BTreeSet<u64> = named.map(|(_, base)| *base).collect();
    let told = match rest.starts_with(" from the base ") {
        true => base_in(rest),
        false if bases.len() == 1 => bases.first().copied(),
        false => panic!("`{phrase}` may mean {} ropes", bases.len()),
    };
    assert!(told.is_some_and(|base| bases.contains(&base)), "{phrase}");
    told
}

fn said(phrase: &str, ropes: &[(Option<&str>, u64)]) -> (Facts, usize) {
    let (phrase, times) = match phrase.strip_suffix(" times)") {
        Some(rest) => {
            let (phrase, n) = rest.rsplit_once(" (").expect("a number of times");
            (phrase, n.parse().expect("a number"))
        }
        None => (phrase, 1),
    };
    let need = |found: Option<Bounds>| found.unwrap_or_else(|| panic!("`{phrase}` lacks a number"));
    let heads = || need(before(phrase, &["head", "heads"]));
    let groups = || before(phrase, &["group", "groups"]).unwrap_or_else(heads);
    let width = || need(before(phrase, &["element", "elements"]));
    let sight = || match phrase.starts_with("full ") || phrase.starts_with("two-way ") {
        true if !phrase.contains(" over ") => (0, 0),
        _ => need(before(phrase, &["token", "tokens"])),
    };
    let state = || need(before(phrase, &["numbers"]));
    let (kind, numbers): (&str, Vec<(&'static str, Bounds)>) =
        if phrase.contains("latent attention") {
            let row = need(after(phrase, "through a row of "));
            let turned = need(after(phrase, " + "));
            let all = [("heads", heads()), ("width", width()), ("row", row)];
            (
                "mla",
                [&all[..], &[("turned", turned), ("sight", sight())]].concat(),
            )
        } else if phrase.contains("attention") {
            let values = after(phrase, "values of ").unwrap_or_else(width);
            let all = [("heads", heads()), ("groups", groups()), ("width", width())];
            (
                "attention",
                [&all[..], &[("values", values), ("sight", sight())]].concat(),
            )
        } else if phrase.contains("delta net") {
            let all = [("heads", heads()), ("groups", groups()), ("width", width())];
            ("delta_net", [&all[..], &[("state", state())]].concat())
        } else if phrase.contains("selective scan") {
            let channels = need(before(phrase, &["channels"]));
            ("mamba", vec![("channels", channels), ("state", state())])
        } else if phrase.contains("state-space scan") {
            let channels = need(before(phrase, &["channels"]));
            let all = [
                ("heads", heads()),
                ("groups", groups()),
                ("channels", channels),
            ];
            ("mamba2", [&all[..], &[("state", state())]].concat())
        } else if phrase.contains("convolution") {
            let tokens = need(before(phrase, &["token", "tokens"]));
            ("short_conv", vec![("tokens", tokens), ("state", state())])
        } else if phrase.contains(" expert") {
            let used = need(before(phrase, &["of"]));
            let experts = need(before(phrase, &["expert", "experts"]));
            let width = need(before(phrase, &["wide"]));
            (
                "moe",
                vec![("used", used), ("experts", experts), ("width", width)],
            )
        } else if phrase.contains("network") {
            ("ffn", vec![("width", need(before(phrase, &["wide"])))])
        } else if phrase.contains("linear map") {
            ("linear", Vec::new())
        } else if phrase.contains("stored factor") {
            ("identity", Vec::new())
        } else {
            panic!("nobody knows what `{phrase}` is")
        };
    let mut facts = Facts {
        kind: kind.to_owned(),
        numbers: numbers.into_iter().collect(),
    };
    if matches!(kind, "attention" | "mla")
        && let Some(base) = turned(phrase, ropes)
    {
        facts = facts.with("base", base);
    }
    (facts, times)
}

/// The layers that words speak of; `told` are those that the sentence spoke of before.
fn which(words: &str, n: usize, told: &BTreeSet<usize>) -> BTreeSet<usize> {
    let words = words.to_lowercase();
    if words == "every layer" {
        return (0..n).collect();
    }
    if let Some(rest) = words.strip_prefix("every ") {
        let (step, first) = rest.split_once(" layer from layer ").expect("a pattern");
        let step = step.trim_end_matches(|c: char| c.is_alphabetic());
        let (step, first) = (
            step.parse().expect("a step"),
            first.parse().expect("a layer"),
        );
        return (first..n).step_by(step).collect();
    }
    if words.starts_with("the other ") {
        let rest: BTreeSet<usize> = (0..n).filter(|layer| !told.contains(layer)).collect();
        let said = before(&words, &["layer", "layers"]).map_or(1, |(n, _)| n);
        assert_eq!(rest.len() as u64, said, "{words}");
        return rest;
    }
    let list = words
        .strip_prefix("layers ")
        .or_else(|| words.strip_prefix("layer "));
    let list = list.unwrap_or_else(|| panic!("which layers are `{words}`?"));
    let pieces = list.split(", ").flat_map(|part| part.split(" and "));
    let piece = |piece: &str| -> Vec<usize> {
        let number = |text: &str| text.parse::<usize>().expect("a layer");
        match piece.split_once(" to ") {
            Some((first, last)) => (number(first)..=number(last)).collect(),
            None => vec![number(piece)],
        }
    };
    pieces.flat_map(piece).collect()
}

/// What a paragraph says of each layer, and how often.
fn said_of_layers(text: &str, n: usize) -> Vec<Vec<(Facts, usize)>> {
    let mut layers = vec![Vec::new(); n];
    let ropes = ropes(text);
    for sentence in text
        .split_inclusive(". ")
        .map(|s| s.trim_end_matches(['.', ' ']))
    {
        let mut told = BTreeSet::new();
        for clause in sentence.split("; ") {
            let verb = [" has ", " have "]
                .into_iter()
                .find(|verb| clause.contains(verb));
            let Some((subject, rest)) = verb.and_then(|verb| clause.split_once(verb)) else {
                continue;
            };
            let of = which(subject, n, &told);
            for phrase in rest.split(", plus ") {
                let facts = said(phrase, &ropes);
                of.iter()
                    .for_each(|layer| layers[*layer].push(facts.clone()));
            }
            told.extend(of);
        }
    }
    layers
}

fn check(name: &str, plan: &Plan) {
    let text = describe(plan);
    let (mut wrong, n) = (Vec::new(), plan.layers.len());
    for (il, (said, is)) in said_of_layers(&text, n)
        .iter()
        .zip(true_of_layers(plan))
        .enumerate()
    {
        for facts in &is {
            let times = is.iter().filter(|other| *other == facts).count();
            let holding = said.iter().filter(|(said, _)| said.holds(facts));
            if !holding
                .clone()
                .any(|(_, n)| *n == times || said.len() < is.len())
            {
                wrong.push(format!("layer {il}: {facts:?} is not told"));
            }
        }
        for (said, _) in said {
            if !is.iter().any(|facts| said.holds(facts)) {
                wrong.push(format!("layer {il}: told, but not so: {said:?}"));
            }
        }
    }
    for (what, words) in [
        ("layers", format!("in {n} layer")),
        (
            "the stream",
            format!("a stream of {} elements", plan.n_embd),
        ),
        (
            "the vocabulary",
            format!("{} tokens in the vocabulary", plan.n_vocab),
        ),
    ] {
        if !text.contains(&words) {
            wrong.push(format!("{what}: `{words}` is not there"));
        }
    }
    let has_head = plan.head.as_ref().is_some_and(|head| head.unit.is_some());
    if text.contains("ends in a vector") == has_head
        || text.contains("An encoder") != (plan.mode == Mode::Encoder)
        || text.contains("fills in masked") != (plan.mode == Mode::Diffusion)
    {
        wrong.push("what comes out is told wrongly".to_owned());
    }
    // What reads a text as a whole keeps nothing of it.
    let keeps = plan.units().any(|unit| unit.state.is_some()) && plan.mode == Mode::Causal;
    if text.contains("A cache of f16 keeps") != keeps {
        wrong.push("what is kept is told wrongly".to_owned());
    }
    for rope in &plan.ropes {
        let words = format!("turns {} elements", int(rope, "dims"));
        if !text.contains(&words) {
            wrong.push(format!("`{words}` is not there"));
        }
    }
    assert!(wrong.is_empty(), "{name}:\n{}\n{text}", wrong.join("\n"));
    assert!(text.len() < 4000, "{name} is told at length:\n{text}");
}

fn plan_of(arch: &str, set: &[(&str, &str)]) -> Plan {
    let library = library();
    let (_, mut request) = request(arch, &serde_json::json!({ "synth": [arch] }));
    let set = set
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    request.set.extend(set);
    let def = library.get(arch).expect("built in");
    design(&def, &request).expect("the settings go together").1
}

#[test]
fn what_is_told_of_every_golden_is_so() {
    let library = library();
    for entry in index() {
        let name = entry["name"].as_str().expect("a name");
        let (arch, request) = request(name, &entry);
        let def = library.get(&arch).expect("built in");
        let (_, plan) = design(&def, &request).expect("the golden can be made");
        check(name, &plan);
    }
}

#[test]
fn patterns_of_layers_are_told_as_such() {
    let plan = plan_of("gemma3", &[("block_count", "26"), ("n_swa", "512")]);
    check("26 layers", &plan);
    let text = describe(&plan);
    assert!(
        text.contains("Every 6th layer from layer 5 has full attention"),
        "{text}"
    );
    assert!(
        text.contains("the other 22 layers have attention over a window of 512 tokens"),
        "{text}"
    );
}

#[test]
fn layers_that_differ_one_by_one_are_told_with_bounds() {
    // Numbers of heads that follow no pattern: more kinds than anybody reads.
    let mut state = 1u32;
    let mut next = |n: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (state >> 24) % n
    };
    for n in [2, 5, 9, 40] {
        let groups: Vec<u32> = (0..n).map(|_| 2 * next(6)).collect();
        let heads: Vec<String> = groups.iter().map(|g| (2 * g).to_string()).collect();
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        let widths: Vec<String> = (0..n).map(|_| (32 * next(8)).to_string()).collect();
        let plan = plan_of(
            "openelm",
            &[
                ("block_count", &n.to_string()),
                ("n_head", &heads.join(",")),
                ("n_head_kv", &groups.join(",")),
                ("n_ff", &widths.join(",")),
                ("d_head", "16"),
                ("d_head_v", "16"),
            ],
        );
        check(&format!("{n} layers"), &plan);
    }
}

#[test]
fn every_tensor_has_one_share() {
    let library = library();
    for entry in index() {
        let name = entry["name"].as_str().expect("a name");
        let (arch, request) = request(name, &entry);
        let def = library.get(&arch).expect("built in");
        let (_, plan) = design(&def, &request).expect("the golden can be made");
        let shares = shares(&plan);
        let bytes: u64 = shares.iter().map(|share| share.bytes).sum();
        let n: usize = shares.iter().map(|share| share.n_tensors).sum();
        let weights: u64 = shares.iter().map(|share| share.n_weights).sum();
        assert_eq!(
            (n, bytes),
            (plan.tensors.len(), plan.weight_bytes()),
            "{name}"
        );
        assert_eq!(weights, plan.n_weights(), "{name}");
        let names: BTreeSet<&str> = shares.iter().map(|share| share.what.as_str()).collect();
        assert_eq!(names.len(), shares.len(), "{name}: each use once");
        // Only factors are told as such: no other block's weights.
        let factors = plan.units().filter(|u| u.contract.0.name == "identity");
        let own: BTreeSet<usize> = factors
            .flat_map(|u| u.weights.iter().flatten().copied())
            .collect();
        let told = shares.iter().find(|share| share.what == "stored factor");
        assert_eq!(told.map_or(0, |share| share.n_tensors), own.len(), "{name}");
    }
}

/// Keys that a query at `position`, the last so far, sees, one by one.
fn n_seen(plan: &Plan, cache: usize, position: u64) -> u64 {
    let unit = &plan.caches[cache].unit;
    let options = &unit.contract.0.options;
    let at = options.iter().position(|option| option.name == "window");
    let Resolved::Choice(window) = unit.options[at.expect("a window")] else {
        panic!("{}: no kind of window", unit.path);
    };
    let size = plan.caches[cache].window().unwrap_or(u64::MAX);
    let sees = |key: &u64| match window {
        "chunked" => key / size == position / size,
        "symmetric" => position - key <= size / 2,
        _ => position - key < size,
    };
    (0..=position).filter(sees).count() as u64
}

#[test]
fn a_token_reads_the_keys_that_it_sees() {
    let library = library();
    let golden = |entry: &serde_json::Value| {
        let (arch, request) = request(entry["name"].as_str().expect("a name"), entry);
        let def = library.get(&arch).expect("built in");
        design(&def, &request).expect("the golden can be made").1
    };
    let mut plans: Vec<Plan> = index().iter().map(golden).collect();
    plans.push(plan_of("llama4", &[("chunk", "8")]));
    let chunks = plans.iter().flat_map(|plan| &plan.caches).filter(|cache| {
        let options = &cache.unit.options;
        options.contains(&Resolved::Choice("chunked")) && cache.window() == Some(8)
    });
    assert!(chunks.count() > 0, "a model has small chunks");
    for (plan, position) in plans
        .iter()
        .flat_map(|plan| (0..40).map(move |at| (plan, at)))
    {
        let rows = plan.units().filter_map(|unit| match unit.state.as_ref()? {
            StatePlan::KeyValue(rows) => Some(rows),
            StatePlan::Recurrent(_) => None,
        });
        let bytes = rows.map(|rows| {
            let values = if rows.v_in_k { 0 } else { rows.v };
            2 * (rows.k + values) * n_seen(plan, rows.cache, position)
        });
        let read = plan.cache_bytes_read(position, TensorType::F16, TensorType::F16);
        assert_eq!(read, Some(bytes.sum()), "{} at {position}", plan.arch);
    }
}
