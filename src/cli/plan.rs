//! `bench plan`: the resolved plan of a model.

use clap::Args as ClapArgs;
use serde_json::{Map, Value, json};

use lab_base::util::wording::bytes;
use lab_core::arch::{Join, OptionKind, ResolvedOption, Resource};
use lab_core::model::{DeviceUse, Estimator};
use lab_core::models::unread_keys;
use lab_core::plan::{BranchPlan, NormUse, PROCESSOR, Plan, SlotPlan, StatePlan, Unit};
use lab_inspect::describe::has_effect;

use super::model::ModelArg;
use super::options::{LoadDefaults, LoadOptions};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut opened = args.load.open(&args.model.source()?)?;
    let settings = args.load.resolve(&opened, LoadDefaults::LOCAL)?;
    args.load.place(&mut opened, &settings)?;
    let plan = &opened.plan;
    // For the CPU alone, `bench inspect` reports the memory in more detail.
    let memory = match plan.devices.is_empty() {
        true => Vec::new(),
        false => {
            let mut estimator = Estimator::with(plan, &opened.weights, &opened.adapters)?;
            estimator.memory(&settings)?.devices
        }
    };
    let unread = unread_keys(plan, opened.weights.metadata());
    if args.json {
        return output::json(&to_json(plan, &unread, &memory));
    }
    let mut text = format!(
        "{} ({}): {} layers, {} weights in {}, vocabulary {}, trained on {} positions\n",
        plan.arch,
        plan.mode.name(),
        plan.layers.len(),
        plan.n_weights(),
        bytes(plan.weight_bytes()),
        plan.n_vocab,
        plan.n_ctx_train
    );
    for used in &memory {
        text.push_str(&format!(
            "{} for {} tokens\n",
            device_line(used),
            settings.n_ctx
        ));
    }
    for (at, rope) in plan.ropes.iter().enumerate() {
        let users = match plan
            .ropes
            .iter()
            .filter(|other| other.path == rope.path)
            .count()
        {
            1 => String::new(),
            _ => format!(" ({})", layers_with(plan, at)),
        };
        text.push_str(&format!("{}{users}: {}\n", rope.path, options(plan, rope)));
    }
    for cache in &plan.caches {
        text.push_str(&format!(
            "cache.{}: {}\n",
            cache.name,
            options(plan, &cache.unit)
        ));
    }
    unit_text(&mut text, plan, &plan.embed);
    if let Some(write) = &plan.write {
        unit_text(&mut text, plan, write);
    }
    if let Some(per_layer) = &plan.per_layer {
        unit_text(&mut text, plan, per_layer);
    }
    for layer in &plan.layers {
        text.push_str(&format!("{}\n", layer.path));
        for slot in &layer.slots {
            slot_text(&mut text, plan, slot);
        }
    }
    if let Some(head) = &plan.head {
        if let Some(read) = &head.read {
            unit_text(&mut text, plan, read);
        }
        norm_text(&mut text, plan, head.norm.as_ref());
        if let Some(unit) = &head.unit {
            unit_text(&mut text, plan, unit);
        }
    }
    output::bytes(text.as_bytes())
}

/// The memory use of a model on a device, in one line.
pub(super) fn device_line(used: &DeviceUse) -> String {
    format!(
        "{}: weights {}, key/value cache and states {}, scratch memory {}",
        used.device,
        bytes(used.mapped.saturating_add(used.weights)),
        bytes(used.cache),
        bytes(used.compute),
    )
}

/// The device of each part by its path, as a number, with the meaning of the numbers. Input of
/// `bench diagram --overlay`.
fn placement(plan: &Plan) -> Value {
    let devices = plan.devices.iter().map(String::as_str);
    let devices = [PROCESSOR].into_iter().chain(devices).enumerate();
    let devices: Vec<String> = devices.map(|(at, name)| format!("{at} {name}")).collect();
    let head = plan.head.as_ref().and_then(|head| head.unit.as_ref());
    let parts = [&plan.embed].into_iter().chain(&plan.per_layer);
    let parts = parts.chain(plan.units()).chain(head);
    json!({
        "quantity": format!("device: {}", devices.join(", ")),
        "parts": parts.map(|unit| (unit.path.clone(), json!(unit.device))).collect::<Map<_, _>>(),
    })
}

/// Adds a slot: its input, its branches, and how their sum is combined with the hidden state.
fn slot_text(text: &mut String, plan: &Plan, slot: &SlotPlan) {
    if let Some(read) = &slot.read {
        unit_text(text, plan, read);
    }
    if let Some(tap) = &slot.from {
        text.push_str(&format!("  {}: reads {tap}\n", slot.path));
    }
    norm_text(text, plan, slot.pre.as_ref());
    for branch in &slot.branches {
        let path = &branch.block.path;
        if let Some(tap) = &branch.from {
            text.push_str(&format!("  {path}: reads {tap}\n"));
        }
        norm_text(text, plan, branch.pre.as_ref());
        unit_text(text, plan, &branch.block);
        if let Some(tap) = &branch.side {
            text.push_str(&format!("    side     {tap}\n"));
        }
        norm_text(text, plan, branch.post.as_ref());
        if let Some(factor) = branch.factor {
            text.push_str(&format!("  {path}: times {factor}\n"));
        }
        if let Some(tap) = &branch.save {
            text.push_str(&format!("  {path}: saved as {tap}\n"));
        }
    }
    norm_text(text, plan, slot.post.as_ref());
    let path = &slot.path;
    if let Some(scale) = slot.scale {
        text.push_str(&format!("  {path}: times {scale}\n"));
    }
    text.push_str(&format!(
        "  {path}: {}\n",
        match slot.join {
            Join::Add => "added to the hidden state",
            Join::Set => "replaces the hidden state",
        }
    ));
    norm_text(text, plan, slot.after.as_ref());
    if let Some(write) = &slot.write {
        unit_text(text, plan, write);
    }
}

fn norm_text(text: &mut String, plan: &Plan, norm: Option<&NormUse>) {
    if let Some(norm) = norm {
        let weight = norm
            .weight
            .map_or("no weight", |at| plan.tensors[at].name.as_str());
        text.push_str(&format!(
            "  {}: norm {}, {weight}\n",
            norm.path,
            options(plan, &plan.norms[norm.norm])
        ));
    }
}

fn unit_text(text: &mut String, plan: &Plan, unit: &Unit) {
    text.push_str(&format!(
        "  {}: {} {}{}\n",
        unit.path,
        unit.contract.0.name,
        options(plan, unit),
        match device(plan, unit.device) {
            Some(name) => format!(" on {name}"),
            None => String::new(),
        }
    ));
    let keys = unit.contract.0.weights.iter().map(|spec| spec.key);
    let keys = keys.chain(std::iter::repeat("update"));
    for (key, weight) in keys.zip(&unit.weights) {
        if let Some(at) = weight {
            let tensor = &plan.tensors[*at];
            let ty = tensor.ty.map_or("-", |ty| ty.name());
            text.push_str(&format!(
                "    {key:8} {} {:?} {ty} {}\n",
                tensor.name,
                tensor.shape,
                bytes(tensor.bytes)
            ));
        }
    }
    match &unit.state {
        Some(StatePlan::KeyValue(rows)) => {
            let name = &plan.caches[rows.cache].name;
            let values = if rows.v_in_k { 0 } else { rows.v };
            let line = match &rows.owner {
                Some(owner) => format!("    KV       that of `{owner}` in `{name}`\n"),
                None if rows.index > 0 => format!(
                    "    KV       {} + {values} elements per position and an index of {} in `{name}`\n",
                    rows.k, rows.index
                ),
                None => format!(
                    "    KV       {} + {values} elements per position in `{name}`\n",
                    rows.k
                ),
            };
            text.push_str(&line);
            if let Some(pooled) = &rows.pooled {
                text.push_str(&format!(
                    "    KV       {} elements per span of {} positions in `{name}`, computed from {} of each of {} positions in `{}`\n",
                    rows.k, pooled.span, pooled.width, pooled.reach, plan.caches[pooled.cache].name
                ));
            }
        }
        Some(StatePlan::Recurrent(parts)) => {
            let parts: Vec<String> = parts
                .iter()
                .map(|part| format!("{} ({})", part.size, part.name))
                .collect();
            let parts = parts.join(" + ");
            text.push_str(&format!("    state    {parts} elements per sequence\n"));
        }
        None => {}
    }
}

fn options(plan: &Plan, unit: &Unit) -> String {
    unit.contract
        .0
        .options
        .iter()
        .zip(&unit.options)
        .map(|(spec, value)| (spec, option(plan, spec.kind, value)))
        .filter(|(spec, value)| spec.default.is_none_or(|default| !is_same(default, value)))
        .filter(|(spec, _)| has_effect(spec, unit))
        .map(|(spec, value)| format!("{}={value}", spec.name))
        .collect::<Vec<String>>()
        .join(" ")
}

/// The name of a part's device; `None` for the CPU.
fn device(plan: &Plan, device: usize) -> Option<&str> {
    let at = device.checked_sub(1)?;
    plan.devices.get(at).map(String::as_str)
}

/// The layers whose blocks use a RoPE, as ranges.
fn layers_with(plan: &Plan, rope: usize) -> String {
    let uses = |unit: &Unit| {
        let mut options = unit.contract.0.options.iter().zip(&unit.options);
        options.any(|(spec, value)| {
            matches!(spec.kind, OptionKind::Resource(Resource::Rope))
                && matches!(value, ResolvedOption::Resource(Some(at)) if *at == rope)
        })
    };
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (il, layer) in plan.layers.iter().enumerate() {
        let mut branches = layer.slots.iter().flat_map(|slot| &slot.branches);
        if !branches.any(|branch| uses(&branch.block)) {
            continue;
        }
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == il => *last = il,
            _ => runs.push((il, il)),
        }
    }
    let runs: Vec<String> = runs
        .iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    format!("layers {}", runs.join(", "))
}

/// Whether a value equals the option's default, which is not shown.
fn is_same(default: &str, value: &str) -> bool {
    match (default.parse::<f64>(), value.parse::<f64>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => default.trim_matches('\'') == value,
    }
}

fn option(plan: &Plan, kind: OptionKind, value: &ResolvedOption) -> String {
    match (kind, value) {
        (OptionKind::Resource(resource), ResolvedOption::Resource(_)) => {
            match (resource, plan.resource(kind, value)) {
                (_, None) => "none".into(),
                (Resource::Cache, Some(unit)) => unit.path.replacen("cache.", "", 1),
                (Resource::Rope | Resource::Selection | Resource::Mix, Some(unit)) => {
                    unit.path.clone()
                }
                (Resource::Norm | Resource::Act, Some(unit)) => match unit.plain_kind() {
                    Some(kind) => kind.to_owned(),
                    None => format!("({})", options(plan, unit)),
                },
            }
        }
        (_, other) => other.to_value().to_string(),
    }
}

fn to_json(plan: &Plan, unread: &[String], memory: &[DeviceUse]) -> Value {
    json!({
        "arch": plan.arch,
        "mode": plan.mode.name(),
        "n_embd": plan.n_embd,
        "n_vocab": plan.n_vocab,
        "n_ctx_train": plan.n_ctx_train,
        "n_weights": plan.n_weights(),
        "weight_bytes": plan.weight_bytes(),
        "params": plan.params.iter().map(|(k, v)| (k.clone(), json!(v.to_string()))).collect::<serde_json::Map<_, _>>(),
        "tensors": plan.tensors.iter().map(|t| json!({
            "name": t.name, "shape": t.shape, "type": t.ty.map(|ty| ty.name()), "bytes": t.bytes,
            "device": device(plan, t.device),
        })).collect::<Vec<_>>(),
        "acts": plan.acts.iter().map(|unit| unit_json(plan, unit)).collect::<Vec<_>>(),
        "ropes": plan.ropes.iter().map(|unit| unit_json(plan, unit)).collect::<Vec<_>>(),
        "selections": plan.selections.iter().map(|unit| unit_json(plan, unit)).collect::<Vec<_>>(),
        "caches": plan.caches.iter().map(|c| json!({ "name": c.name, "options": options_json(&c.unit) })).collect::<Vec<_>>(),
        "embed": unit_json(plan, &plan.embed),
        "write": mix_json(plan, plan.write.as_ref()),
        "per_layer_input": plan.per_layer.as_ref().map(|unit| unit_json(plan, unit)),
        "layers": plan.layers.iter().map(|layer| json!({
            "path": layer.path,
            "slots": layer.slots.iter().map(|slot| json!({
                "path": slot.path,
                "read": mix_json(plan, slot.read.as_ref()),
                "from": slot.from,
                "pre": norm_json(plan, slot.pre.as_ref()),
                "branches": slot.branches.iter().map(|b| branch_json(plan, b)).collect::<Vec<_>>(),
                "post": norm_json(plan, slot.post.as_ref()),
                "scale": slot.scale,
                "join": match slot.join { Join::Add => "add", Join::Set => "set" },
                "after": norm_json(plan, slot.after.as_ref()),
                "write": mix_json(plan, slot.write.as_ref()),
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "head": plan.head.as_ref().map(|head| json!({
            "read": mix_json(plan, head.read.as_ref()),
            "norm": norm_json(plan, head.norm.as_ref()), "unit": head.unit.as_ref().map(|unit| unit_json(plan, unit)),
        })),
        "unclaimed": plan.unclaimed,
        "unread": unread,
        "memory": memory,
        "placement": placement(plan),
    })
}

/// The JSON of a mix: how several hidden states are read or written. Null if there is only one.
fn mix_json(plan: &Plan, mix: Option<&Unit>) -> Value {
    mix.map_or(Value::Null, |mix| unit_json(plan, mix))
}

/// The JSON of a branch: the block with its norms, factor and taps.
fn branch_json(plan: &Plan, branch: &BranchPlan) -> Value {
    let mut unit = unit_json(plan, &branch.block);
    for (key, value) in [
        ("from", json!(branch.from)),
        ("side", json!(branch.side)),
        ("pre", norm_json(plan, branch.pre.as_ref())),
        ("post", norm_json(plan, branch.post.as_ref())),
        ("factor", json!(branch.factor)),
        ("save", json!(branch.save)),
    ] {
        unit[key] = value;
    }
    unit
}

fn norm_json(plan: &Plan, norm: Option<&NormUse>) -> Value {
    norm.map_or(Value::Null, |norm| {
        json!({
            "path": norm.path,
            "options": options_json(&plan.norms[norm.norm]),
            "weight": norm.weight.map(|at| &plan.tensors[at].name),
            "bias": norm.bias.map(|at| &plan.tensors[at].name),
        })
    })
}

fn options_json(unit: &Unit) -> Value {
    let options = unit.contract.0.options.iter().zip(&unit.options);
    Value::Object(
        options
            .map(|(spec, value)| {
                let value = match value {
                    ResolvedOption::Int(v) => json!(v),
                    ResolvedOption::Float(v) => json!(v),
                    ResolvedOption::List(v) => json!(v),
                    ResolvedOption::Bool(v) => json!(v),
                    ResolvedOption::Choice(v) => json!(v),
                    ResolvedOption::Resource(v) => json!(v),
                };
                (spec.name.to_owned(), value)
            })
            .collect(),
    )
}

fn unit_json(plan: &Plan, unit: &Unit) -> Value {
    let specs = unit.contract.0.weights;
    let weights = unit.weights.iter().enumerate().filter_map(|(i, at)| {
        let name = &plan.tensors[(*at)?].name;
        // Tensors of LoRA updates have no key of their own.
        let key = specs.get(i).map_or(name.as_str(), |spec| spec.key);
        Some((key.to_owned(), json!(name)))
    });
    json!({
        "path": unit.path,
        "block": unit.contract.0.name,
        "device": device(plan, unit.device),
        "options": options_json(unit),
        "weights": weights.collect::<serde_json::Map<_, _>>(),
        "state": unit.state.as_ref().map(state_json),
    })
}

fn state_json(state: &StatePlan) -> Value {
    match state {
        StatePlan::KeyValue(rows) => json!({
            "cache": rows.cache, "k": rows.k, "v": rows.v, "heads": rows.heads,
            "v_in_k": rows.v_in_k, "owner": rows.owner, "index": rows.index,
            "pooled": rows.pooled.as_ref().map(|of| json!({
                "cache": of.cache, "width": of.width, "span": of.span, "reach": of.reach,
            })),
        }),
        StatePlan::Recurrent(parts) => parts
            .iter()
            .map(|part| (part.name.to_owned(), json!(part.size)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}
