//! `bench plan`: the resolved plan of a model.

use std::fmt::Display;

use clap::Args as ClapArgs;
use serde_json::{Map, Value, json};

use lab_base::util::wording::bytes;
use lab_core::arch::{Mode, OptionKind, ResolvedOption, Resource};
use lab_core::hf::MAP_KEY;
use lab_core::model::{DeviceUse, Estimator, MemoryUse, drafter_memory};
use lab_core::models::towers::OpenedTower;
use lab_core::models::unread_keys;
use lab_core::plan::{BranchPlan, NormUse, PROCESSOR, Plan, SlotPlan, StatePlan, Unit};
use lab_inspect::describe::has_effect;

use super::options::{LoadOptions, ModelArg};
use super::sequences::{ParallelOption, room_text};
use super::{Failure, output};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sequences: ParallelOption,
    #[command(flatten)]
    load: LoadOptions,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut opened = args.load.open(&args.model.source()?)?;
    let settings = args.sequences.resolve(&args.load, &opened)?;
    args.load.place(&mut opened, &settings)?;
    let plan = &opened.plan;
    // A plan is shown even if the weights of the file cannot be loaded.
    let estimated = Estimator::with(plan, &opened.weights, &opened.adapters);
    let estimated = estimated.map_err(|error| error.to_string());
    let memory = estimated.and_then(|mut estimator| {
        let used = estimator.memory(&settings);
        let used = used.map_err(|error| error.to_string())?;
        let drafter = opened.drafter.iter();
        let drafter = drafter.map(|of| drafter_memory(of, (&opened.weights, plan), &settings));
        let drafter = drafter.collect::<Result<Vec<_>, _>>();
        let drafter = drafter.map_err(|error| error.to_string())?;
        Ok(drafter.iter().fold(used, MemoryUse::with_model))
    });
    let unread = unread_keys(plan, opened.weights.metadata());
    let towers = opened.media.iter().flat_map(|media| &media.towers);
    let towers: Vec<&OpenedTower> = towers.collect();
    if args.json {
        let mut fields = to_json(plan, &unread);
        fields["memory"] = json!(memory.as_ref().map_or(&[][..], |used| &used.devices));
        fields["n_ctx"] = json!(settings.n_ctx_seq);
        fields["parallel"] = json!(settings.n_seqs);
        let of_tower = |tower: &&OpenedTower| {
            let mut fields = to_json(&tower.plan, &[]);
            fields["media"] = json!(tower.media.name());
            fields["map"] = json!(tower.weights.metadata().str(MAP_KEY));
            fields
        };
        fields["towers"] = towers.iter().map(of_tower).collect();
        let drafter = opened.drafter.as_ref();
        fields["drafter"] = drafter.map_or(Value::Null, |of| to_json(&of.plan, &[]));
        return output::json(&fields);
    }
    let mut text = PlanText::new(plan);
    let room = room_text(&settings);
    match &memory {
        Ok(memory) => {
            for used in &memory.devices {
                text.line(format!("{} with {room}", device_line(used)));
            }
        }
        Err(why) => text.line(format!("memory with {room}: not known: {why}")),
    }
    text.parts();
    let mut out = text.out;
    for tower in towers {
        let map = tower.weights.metadata().str(MAP_KEY);
        let map = map.map_or_else(String::new, |map| format!(", by the map {map}"));
        out += &format!("\ntower of {}{map}\n", tower.media.name());
        let mut text = PlanText::new(&tower.plan);
        text.parts();
        out += &text.out;
    }
    if let Some(drafter) = &opened.drafter {
        out += &format!("\ndrafter {}\n", drafter.name);
        let mut text = PlanText::new(&drafter.plan);
        text.parts();
        out += &text.out;
    }
    output::bytes(out.as_bytes())
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

/// A plan as lines of text.
struct PlanText<'p> {
    plan: &'p Plan,
    out: String,
}

impl<'p> PlanText<'p> {
    /// The first line: how large the model is.
    fn new(plan: &'p Plan) -> Self {
        let (arch, mode, n) = (&plan.arch, plan.mode.name(), plan.layers.len());
        let (weights, size) = (plan.n_weights(), bytes(plan.weight_bytes()));
        let mut out = format!("{arch} ({mode}): {n} layers, {weights} weights in {size}");
        out += &match plan.mode {
            Mode::Tower => format!(", rows of {} elements\n", plan.n_embd),
            _ => format!(
                ", vocabulary {}, trained on {} positions\n",
                plan.n_vocab, plan.n_ctx_train
            ),
        };
        Self { plan, out }
    }

    /// Adds resources and parts, in the order of execution.
    fn parts(&mut self) {
        let plan = self.plan;
        for (at, rope) in plan.ropes.iter().enumerate() {
            let likes = plan.ropes.iter().filter(|other| other.path == rope.path);
            let users = match likes.count() {
                1 => String::new(),
                _ => format!(" ({})", layers_with(plan, at)),
            };
            self.line(format!("{}{users}: {}", rope.path, options(plan, rope)));
        }
        for cache in &plan.caches {
            let options = options(plan, &cache.unit);
            self.line(format!("cache.{}: {options}", cache.name));
        }
        let before = [&plan.embed].into_iter();
        self.units(before.chain(&plan.write).chain(&plan.per_layer));
        for layer in &plan.layers {
            self.line(&layer.path);
            layer.slots.iter().for_each(|slot| self.slot(slot));
        }
        if let Some(head) = &plan.head {
            self.units(&head.read);
            self.norm(&head.norm);
            self.units(&head.unit);
        }
    }

    fn line(&mut self, text: impl AsRef<str>) {
        self.out.push_str(text.as_ref());
        self.out.push('\n');
    }

    /// Adds a slot: its input, its branches, and how their sum is combined with the hidden state.
    fn slot(&mut self, slot: &SlotPlan) {
        self.units(&slot.read);
        self.remark(&slot.path, "reads", &slot.from);
        self.norm(&slot.pre);
        for branch in &slot.branches {
            let path = &branch.block.path;
            self.remark(path, "reads", &branch.from);
            self.norm(&branch.pre);
            self.units([&branch.block]);
            if let Some(tap) = &branch.side {
                self.line(format!("    side     {tap}"));
            }
            self.norm(&branch.post);
            self.remark(path, "times", &branch.factor);
            self.remark(path, "saved as", &branch.save);
        }
        self.norm(&slot.post);
        self.remark(&slot.path, "times", &slot.scale);
        let joined = slot.join.phrase();
        self.line(format!("  {}: {joined}", slot.path));
        self.norm(&slot.after);
        self.units(&slot.write);
    }

    fn remark(&mut self, path: &str, verb: &str, of: &Option<impl Display>) {
        if let Some(of) = of {
            self.line(format!("  {path}: {verb} {of}"));
        }
    }

    fn norm(&mut self, norm: &Option<NormUse>) {
        let plan = self.plan;
        if let Some(norm) = norm {
            let weight = norm.weight.map(|at| plan.tensors[at].name.as_str());
            let (weight, options) = (
                weight.unwrap_or("no weight"),
                options(plan, &plan.norms[norm.norm]),
            );
            self.line(format!("  {}: norm {options}, {weight}", norm.path));
        }
    }

    fn units<'u>(&mut self, units: impl IntoIterator<Item = &'u Unit>) {
        units.into_iter().for_each(|unit| self.unit(unit));
    }

    fn unit(&mut self, unit: &Unit) {
        let plan = self.plan;
        let device = device(plan, unit.device).map(|name| format!(" on {name}"));
        let (kind, options) = (unit.contract.0.name, options(plan, unit));
        let device = device.unwrap_or_default();
        self.line(format!("  {}: {kind} {options}{device}", unit.path));
        let keys = unit.contract.0.weights.iter().map(|spec| spec.key);
        let keys = keys.chain(std::iter::repeat("update"));
        for (key, at) in keys
            .zip(&unit.weights)
            .filter_map(|(key, at)| Some((key, (*at)?)))
        {
            let tensor = &plan.tensors[at];
            let (ty, size) = (tensor.ty.map_or("-", |ty| ty.name()), bytes(tensor.bytes));
            let (name, shape) = (&tensor.name, &tensor.shape);
            self.line(format!("    {key:8} {name} {shape:?} {ty} {size}"));
        }
        match &unit.state {
            Some(StatePlan::KeyValue(rows)) => {
                let name = &plan.caches[rows.cache].name;
                let (k, v) = (rows.k, if rows.v_in_k { 0 } else { rows.v });
                let index = match rows.index {
                    0 => String::new(),
                    n => format!(" and an index of {n}"),
                };
                self.line(match &rows.owner {
                    Some(owner) => format!("    KV       that of `{owner}` in `{name}`"),
                    None => {
                        format!("    KV       {k} + {v} elements per position{index} in `{name}`")
                    }
                });
                if let Some(pooled) = &rows.pooled {
                    let (span, width, reach) = (pooled.span, pooled.width, pooled.reach);
                    let from = &plan.caches[pooled.cache].name;
                    self.line(format!(
                        "    KV       {k} elements per span of {span} positions in `{name}`, computed from {width} of each of {reach} positions in `{from}`"
                    ));
                }
            }
            Some(StatePlan::Recurrent(parts)) => {
                let parts = parts
                    .iter()
                    .map(|part| format!("{} ({})", part.size, part.name));
                let parts = parts.collect::<Vec<String>>().join(" + ");
                self.line(format!("    state    {parts} elements per sequence"));
            }
            None => {}
        }
    }
}

fn options(plan: &Plan, unit: &Unit) -> String {
    let all = unit.contract.0.options.iter().zip(&unit.options);
    let all = all.map(|(spec, value)| (spec, option(plan, spec.kind, value)));
    let shown = all.filter(|(spec, value)| {
        !spec.default.is_some_and(|default| is_same(default, value)) && has_effect(spec, unit)
    });
    let shown = shown.map(|(spec, value)| format!("{}={value}", spec.name));
    shown.collect::<Vec<String>>().join(" ")
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
    let runs = runs.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    format!("layers {}", runs.collect::<Vec<String>>().join(", "))
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

fn to_json(plan: &Plan, unread: &[String]) -> Value {
    let unit = |unit: &Unit| unit_json(plan, unit);
    let units = |all: &[Unit]| all.iter().map(unit).collect::<Value>();
    let any = |of: &Option<Unit>| of.as_ref().map(unit);
    let name = |at: Option<usize>| at.map(|at| &plan.tensors[at].name);
    let norm = |norm: &Option<NormUse>| {
        norm.as_ref().map(|norm| {
            json!({
                "path": norm.path, "options": options_json(&plan.norms[norm.norm]),
                "weight": name(norm.weight), "bias": name(norm.bias),
            })
        })
    };
    // A branch is its block with norms, factor and taps.
    let branch = |branch: &BranchPlan| {
        let mut block = unit(&branch.block);
        block["from"] = json!(branch.from);
        block["side"] = json!(branch.side);
        block["pre"] = json!(norm(&branch.pre));
        block["post"] = json!(norm(&branch.post));
        block["factor"] = json!(branch.factor);
        block["save"] = json!(branch.save);
        block
    };
    let slot = |slot: &SlotPlan| {
        json!({
            "path": slot.path, "read": any(&slot.read), "from": slot.from, "pre": norm(&slot.pre),
            "branches": slot.branches.iter().map(branch).collect::<Value>(),
            "post": norm(&slot.post), "scale": slot.scale,
            "join": slot.join.name(),
            "after": norm(&slot.after), "write": any(&slot.write),
        })
    };
    let layers = plan.layers.iter().map(|layer| {
        json!({ "path": layer.path, "slots": layer.slots.iter().map(slot).collect::<Value>() })
    });
    json!({
        "arch": plan.arch,
        "mode": plan.mode.name(),
        "n_embd": plan.n_embd,
        "n_vocab": plan.n_vocab,
        "n_ctx_train": plan.n_ctx_train,
        "n_weights": plan.n_weights(),
        "weight_bytes": plan.weight_bytes(),
        "params": plan.params.iter().map(|(k, v)| (k.clone(), json!(v.to_string()))).collect::<Map<_, _>>(),
        "tensors": plan.tensors.iter().map(|t| json!({
            "name": t.name, "shape": t.shape, "type": t.ty.map(|ty| ty.name()), "bytes": t.bytes,
            "device": device(plan, t.device),
        })).collect::<Value>(),
        "acts": units(&plan.acts),
        "ropes": units(&plan.ropes),
        "selections": units(&plan.selections),
        "caches": plan.caches.iter().map(|c| json!({ "name": c.name, "options": options_json(&c.unit) })).collect::<Value>(),
        "embed": unit(&plan.embed),
        "write": any(&plan.write),
        "per_layer_input": any(&plan.per_layer),
        "layers": layers.collect::<Value>(),
        "head": plan.head.as_ref().map(|head| json!({
            "read": any(&head.read), "norm": norm(&head.norm), "unit": any(&head.unit),
        })),
        "unclaimed": plan.unclaimed,
        "unread": unread,
        "placement": placement(plan),
    })
}

fn options_json(unit: &Unit) -> Value {
    let options = unit.contract.0.options.iter().zip(&unit.options);
    let options = options.map(|(spec, value)| {
        let value = match value {
            ResolvedOption::Int(v) => json!(v),
            ResolvedOption::Float(v) => json!(v),
            ResolvedOption::List(v) => json!(v),
            ResolvedOption::Bool(v) => json!(v),
            ResolvedOption::Choice(v) => json!(v),
            ResolvedOption::Resource(v) => json!(v),
        };
        (spec.name, value)
    });
    options.collect()
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
        "weights": weights.collect::<Value>(),
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
        StatePlan::Recurrent(parts) => parts.iter().map(|part| (part.name, part.size)).collect(),
    }
}
