//! The reference of the language is the one of this code, and nothing in the language is unused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lab_core::arch::expr::Expr;
use lab_core::arch::{ArchDef, Contract, ContractUse, Library, OptionKind};
use lab_core::blocks::REGISTRY;
use lab_core::hf::Maps;

use crate::goldens::{library, towers};
use crate::support::command::definitions;

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/blocks.md");
    let stored = std::fs::read_to_string(path).expect("docs/blocks.md is there");
    assert!(
        stored == library().reference(&towers()),
        "docs/blocks.md is not what the contracts say: bench arch blocks > docs/blocks.md"
    );
}

/// The names that the place of use gives; the head of the page describes them.
const GIVEN: [&str; 6] = ["il", "depth", "width", "place", "states", "n_kv"];

#[test]
fn the_reference_defines_every_name_that_it_uses() {
    let page = library().reference(&towers());
    let mut faults = BTreeSet::new();
    for contract in REGISTRY.all() {
        let weights = contract.weights.iter();
        let shapes = weights.clone().flat_map(|weight| weight.shape);
        let points = contract.points.iter().flat_map(|point| point.shape);
        let whens = weights.map(|weight| weight.when);
        let whens = whens.chain(contract.options.iter().map(|option| option.when));
        let rules = contract.rules.iter().map(|rule| rule.holds);
        for text in shapes.chain(points).copied().chain(whens).chain(rules) {
            let expr = Expr::parse(text, 0).expect("contracts hold expressions");
            expr.for_each_name(&mut |name, _| {
                let is_defined = contract.option(name).is_some()
                    || GIVEN.contains(&name)
                    || page.contains(&format!("\n| `{name}` | "));
                if !is_defined {
                    faults.insert(format!("{}: `{name}` in `{text}`", contract.name));
                }
            });
        }
    }
    assert!(faults.is_empty(), "not on the page: {faults:#?}");
    assert!(GIVEN.iter().all(|name| page.contains(&format!("`{name}`"))));
}

fn instances(def: &ArchDef) -> Vec<&ContractUse> {
    let resources = def.resources.values();
    let stages = [&def.embed, &def.pool].into_iter().chain(&def.per_layer);
    let head = def.head.iter().map(|head| &head.unit);
    let slots = def.stacks.iter().flat_map(|stack| &stack.slots);
    let blocks = slots.flat_map(|slot| &slot.branches).map(|b| &b.block);
    resources.chain(stages).chain(head).chain(blocks).collect()
}

/// Whether a default is the same in all models.
fn is_constant(default: &str, params: &BTreeSet<String>) -> bool {
    let is_word = default.chars().all(|c| c.is_alphanumeric() || c == '_');
    // The norm `default` is what a block computes with, not a choice.
    default != "default"
        && (default.parse::<f64>().is_ok() || (is_word && !params.contains(default)))
}

/// What a contract offers: every option whose default is a constant, so that no model file decides
/// it, and every name that such an option can have.
fn offered(contract: &Contract, params: &BTreeSet<String>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for option in contract.options.iter().filter(|o| !o.is_derived) {
        if option
            .default
            .is_some_and(|default| !is_constant(default, params))
        {
            continue;
        }
        all.insert(option.name.to_owned());
        if let OptionKind::Choice(names) = option.kind {
            all.extend(names.iter().map(|name| format!("{} = {name}", option.name)));
        }
    }
    all
}

#[test]
fn every_option_is_used_by_some_architecture() {
    let library = library();
    let mut used: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    // Names that several blocks share, such as activations, need one user among them.
    let mut shared: BTreeSet<String> = BTreeSet::new();
    let mut params: BTreeSet<String> = BTreeSet::new();
    // What a folder's map writes into metadata is chosen as well.
    let maps = Maps::open(&[]).expect("the built-in maps");
    let of_towers = Maps::towers(&[]).expect("the built-in maps");
    let sources = maps.sources().chain(of_towers.sources());
    let mapped: Vec<String> = sources.map(|(_, source)| source.text.clone()).collect();
    let mut of_maps: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let defs = |of: &Library| -> Vec<ArchDef> {
        let names = of.sources().map(|(name, _)| name.to_owned());
        names.map(|name| of.get(&name).expect("sound")).collect()
    };
    let drafters = definitions().drafters;
    let all = [defs(&library), defs(&towers()), defs(&drafters)].concat();
    for def in &all {
        let printed = def
            .params
            .iter()
            .map(|(name, param)| (name.as_str(), format!("{param:?}")));
        let printed: BTreeMap<&str, String> = printed.collect();
        params.extend(def.params.keys().cloned());
        for instance in instances(def) {
            let used = used.entry(instance.contract.name).or_default();
            for (spec, setting) in instance.contract.options.iter().zip(&instance.options) {
                if setting.span.is_some() {
                    used.insert(spec.name.to_owned());
                }
                // A name can be the default's, or one of those that an expression chooses from or
                // a parameter stands for.
                let mut texts = vec![setting.expr.source()];
                setting.expr.for_each_name(&mut |name, _| {
                    if let Some(param) = printed.get(name) {
                        texts.push(param);
                        let maps = of_maps.entry(name.to_owned()).or_insert_with(|| {
                            let maps = mapped.iter().map(String::as_str);
                            maps.filter(|map| map.contains(name)).collect()
                        });
                        texts.extend(&*maps);
                    }
                });
                let is_named = |choice: &str| {
                    let quoted = format!("'{choice}'");
                    let mut texts = texts.iter();
                    texts.any(|text| *text == choice || text.contains(&quoted))
                };
                // A kind of a resource may be named where the resource would be.
                let (of, choices) = match spec.kind {
                    OptionKind::Choice(choices) => (spec.name, choices),
                    OptionKind::Resource(kind) => ("kind", REGISTRY.resource(kind).plain_kinds()),
                    _ => continue,
                };
                let choices = choices.iter().filter(|choice| is_named(choice));
                used.extend(choices.map(|choice| format!("{of} = {choice}")));
            }
        }
    }
    let stages = [
        REGISTRY.embed,
        REGISTRY.input,
        REGISTRY.per_layer,
        REGISTRY.head,
        REGISTRY.norm,
        REGISTRY.act,
        REGISTRY.rope,
        REGISTRY.cache,
        REGISTRY.selection,
        REGISTRY.pool,
        REGISTRY.mix,
    ];
    for names in used.values() {
        shared.extend(names.iter().filter(|name| name.contains(" = ")).cloned());
    }
    let mut set = users(&library);
    set.extend(users(&towers()));
    set.extend(users(&drafters));
    let mut unused = Vec::new();
    for contract in REGISTRY.blocks.iter().copied().chain(stages) {
        // What files decide and no definition sets is no option: it follows from them (`=>`).
        let own = contract.options.iter().filter(|o| !o.is_derived);
        let unset = own.filter(|o| !set.contains_key(&(contract.name, o.name)));
        let unset = unset.filter(|o| {
            o.default
                .is_some_and(|default| !is_constant(default, &params))
        });
        unused.extend(unset.map(|o| format!("{}: {}", contract.name, o.name)));
        let mut used = used.remove(contract.name).unwrap_or_default();
        used.extend(shared.iter().cloned());
        for what in offered(contract, &params).difference(&used) {
            unused.push(format!("{}: {what}", contract.name));
        }
    }
    assert!(unused.is_empty(), "nothing uses:\n{}", unused.join("\n"));
}

/// What definitions say, by block or resource: each option that they set, with those that set it.
fn users(library: &Library) -> BTreeMap<(&'static str, &'static str), BTreeSet<String>> {
    let mut users: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    let names: Vec<String> = library.sources().map(|(name, _)| name.to_owned()).collect();
    for name in names {
        let def = library.get(&name).expect("sound");
        for instance in instances(&def) {
            let settings = instance.contract.options.iter().zip(&instance.options);
            let own = settings.filter(|(_, setting)| setting.span.is_some());
            let options = own.map(|(spec, _)| spec.name).chain([""]);
            for option in options {
                let key = (instance.contract.name, option);
                users.entry(key).or_default().insert(def.names[0].clone());
            }
        }
    }
    users
}

#[test]
fn what_one_definition_alone_uses_has_a_reason() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lone-options.md");
    let page = std::fs::read_to_string(path).expect("docs/lone-options.md is there");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: BTreeMap<(String, String), (String, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row
                .split(" | ")
                .map(|cell| cell.trim_matches(['`', ' ', '|']))
                .collect();
            let [of, option, user, reason] = cells[..] else {
                panic!("four cells: {row}");
            };
            (
                (of.to_owned(), option.to_owned()),
                (user.to_owned(), reason.to_owned()),
            )
        })
        .collect();
    let users = users(&library());
    let blocks: BTreeSet<&str> = REGISTRY.blocks.iter().map(|block| block.name).collect();
    let is_lone = |of: &str, option: &str| {
        let of = users.get(&(of, option));
        of.is_some_and(|users| users.len() == 1)
    };
    let mut expected = BTreeMap::new();
    for ((of, option), users) in users.iter().filter(|(_, users)| users.len() == 1) {
        // A block with one user needs one reason, not one for each of its options.
        if option.is_empty() && !blocks.contains(of) || !option.is_empty() && is_lone(of, "") {
            continue;
        }
        let user = users.first().expect("one").clone();
        expected.insert(((*of).to_owned(), (*option).to_owned()), user);
    }
    let stated = rows
        .iter()
        .map(|(key, (user, _))| (key.clone(), user.clone()));
    let stated: BTreeMap<_, _> = stated.collect();
    let without: Vec<_> = expected
        .iter()
        .filter(|(key, user)| stated.get(*key) != Some(user))
        .collect();
    let stale: Vec<_> = stated
        .keys()
        .filter(|key| !expected.contains_key(*key))
        .collect();
    assert!(
        without.is_empty() && stale.is_empty(),
        "docs/lone-options.md: no reason for {without:?}; several or no users: {stale:?}"
    );
    assert!(
        rows.values().all(|(_, reason)| reason.len() > 20),
        "a reason is a sentence"
    );
}
