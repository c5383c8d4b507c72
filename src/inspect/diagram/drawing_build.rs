//! Builds a drawing from a plan and the graph that the model builds for it.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use lab_base::util::wording;
use lab_core::arch::{ArchDef, ContractUse, Join, Mode, Resource, Setting};
use lab_core::plan::{BranchPlan, LayerPlan, NormUse, Plan, SlotPlan, Unit};

use super::context::DrawContext;
use super::ids;
use super::kinds::{self, kinds, without_index};
use super::ops::{GraphReader, is_folded};
use super::traced_plan::TracedPlan;
use super::words;
use super::{
    BoxNote, Branch, Drawing, Factor, Kept, LayerKind, Slot, SourceRows, UnitBox, WeightCost,
};

impl Drawing {
    pub fn new(def: &ArchDef, sample: &TracedPlan) -> Self {
        let (plan, steps) = (sample.plan(), sample.steps());
        let mut places: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
        for (at, step) in steps.iter().enumerate() {
            places.entry((step.kind, &step.path)).or_default().push(at);
        }
        let context = DrawContext {
            def,
            is_symbolic: sample.is_symbolic,
            sample,
            plan,
            steps,
            reader: GraphReader::new(steps),
            of_layer: kinds(plan, steps),
            places,
            uses: uses(def, plan),
            roles: roles(plan),
            taken: HashMap::new(),
            placed: vec![false; steps.len()],
        };
        let mut drawing = context.drawing(&sample.name);
        ids::name(&mut drawing);
        drawing
    }
}

impl<'a> DrawContext<'a> {
    fn drawing(mut self, name: &str) -> Drawing {
        let plan = self.plan;
        let of_source = plan.source.as_ref();
        let source = of_source.map(|of| self.stage(&of.embed, "embed"));
        let of_target = plan.target.as_ref();
        let n_of_source = of_source.map_or(0, |of| of.n_layers);
        let n_of_source = n_of_source + of_target.map_or(0, |of| of.n_layers);
        let embed = self.stage(&plan.embed, "embed");
        let own = plan.write.as_ref();
        let write = self.mix(own.as_slice(), "Several hidden states", None);
        let per_layer = plan.per_layer.as_ref();
        let per_layer = per_layer.map(|unit| self.stage(unit, "per_layer"));
        let n_kinds = self.of_layer.iter().max().map_or(0, |most| most + 1);
        let mut drawn: Vec<LayerKind> = (0..n_kinds).map(|kind| self.kind(kind)).collect();
        self.tell_apart(&mut drawn);
        let mut end = Vec::new();
        if let Some(head) = &plan.head {
            let own = head.read.as_ref();
            end.extend(self.mix(own.as_slice(), "One of the hidden states", None));
            end.extend(head.norm.as_ref().and_then(|norm| self.norm(&[norm], None)));
            end.extend(head.unit.as_ref().map(|unit| self.stage(unit, "head")));
        }
        let is_unplaced = |at: &usize| !self.placed[*at] && !is_folded(&self.steps[*at]);
        let unplaced = (0..self.steps.len()).filter(is_unplaced).collect();
        let begin = source.into_iter().chain([embed]);
        let begin = begin
            .filter(|part: &UnitBox| !part.ops.is_empty())
            .chain(write);
        let begin = begin.chain(per_layer.filter(|part| !part.ops.is_empty()));
        Drawing {
            name: name.to_owned(),
            arch: plan.arch.clone(),
            mode: plan.mode,
            is_symbolic: self.is_symbolic,
            facts: self.facts(),
            begin: begin.collect(),
            source_rows: match of_source {
                Some(of) if of.is_rows => SourceRows::Tower,
                None if of_target.is_some() => SourceRows::Target,
                _ => SourceRows::Tokens,
            },
            source: kinds::pattern(&self.of_layer[..n_of_source]),
            pattern: kinds::pattern(&self.of_layer[n_of_source..]),
            cost: self.cost(&(0..plan.tensors.len()).collect()),
            kept: self.all_kept(),
            scenes: self.scenes(),
            kinds: drawn,
            layers: self.of_layer,
            end,
            unplaced,
            towers: Vec::new(),
            overlay: None,
        }
    }

    fn stage(&mut self, unit: &Unit, kind: &str) -> UnitBox {
        self.unit_part(&[unit], kind, None)
    }

    fn kind(&mut self, kind: usize) -> LayerKind {
        let plan = self.plan;
        let mine = (0..plan.layers.len()).filter(|at| self.of_layer[*at] == kind);
        let places: Vec<usize> = mine.collect();
        let layers: Vec<&LayerPlan> = places.iter().map(|at| &plan.layers[*at]).collect();
        let slots = (0..layers[0].slots.len()).map(|at| {
            let same: Vec<&SlotPlan> = layers.iter().map(|layer| &layer.slots[at]).collect();
            self.slot(&same, &layers)
        });
        let slots: Vec<Slot> = slots.collect();
        let parts = slots.iter().flat_map(Slot::parts);
        let weights = parts.flat_map(|part| &part.weights);
        let tensors = weights.flat_map(|weight| weight.tensors.iter().copied());
        LayerKind {
            letter: letter(kind),
            cost: self.cost(&tensors.collect()),
            layers: places,
            slots,
            ..LayerKind::default()
        }
    }

    fn slot(&mut self, slots: &[&SlotPlan], layers: &[&LayerPlan]) -> Slot {
        let (slot, of, steps) = (slots[0], layers[0], self.steps);
        let def = &self.def.stacks[of.stack].slots[slot.at];
        let own: Vec<&Unit> = slots.iter().flat_map(|slot| &slot.read).collect();
        let read = self.mix(&own, "Read from the hidden states", Some(of));
        let own: Vec<&Unit> = slots.iter().flat_map(|slot| &slot.write).collect();
        let write = self.mix(&own, "Write to the hidden states", Some(of));
        let pre = self.norm_of(slots.iter().map(|s| &s.pre), of);
        let wires = self.steps_at("wiring", &slot.path);
        let n_wires = wires.len();
        let drawn = wires.into_iter().filter(|at| !is_folded(&steps[*at]));
        let mut left = drawn.peekable();
        let mut take = |op: &str| left.next_if(|at| steps[*at].op == op);
        let mut sums = Vec::new();
        let mut branches = Vec::new();
        for (at, branch) in slot.branches.iter().enumerate() {
            let same: Vec<&BranchPlan> = slots.iter().map(|slot| &slot.branches[at]).collect();
            let def = &def.branches[branch.at];
            let factor = branch.factor.and_then(|f| Some((f, take("SCALE")?)));
            sums.extend((at > 0).then(|| take("ADD")).flatten());
            branches.push(Branch {
                factor: factor.map(|factor| self.factor(factor, def.factor.as_ref())),
                ..self.branch(&same, of)
            });
        }
        let scale = slot.scale.and_then(|f| Some((f, take("SCALE")?)));
        let joined = match slot.join {
            Join::Add => take("ADD"),
            Join::Append => take("CONCAT"),
            Join::Set | Join::Keep => None,
        };
        // The same operations in the slots of the other layers.
        if left.next().is_none() {
            for slot in slots {
                let all = self.steps_at("wiring", &slot.path);
                self.place(if all.len() == n_wires { &all } else { &[] });
            }
        }
        Slot {
            name: def.name.clone(),
            path: without_index(&slot.path, of.depth),
            read,
            from: slot.from.clone(),
            pre,
            branches,
            sums,
            post: self.norm_of(slots.iter().map(|s| &s.post), of),
            scale: scale.map(|scale| self.factor(scale, def.scale.as_ref())),
            join: slot.join,
            joined,
            after: self.norm_of(slots.iter().map(|s| &s.after), of),
            write,
            note: BoxNote::default(),
        }
    }

    /// The part of a mix that several layers share.
    fn mix(&mut self, all: &[&Unit], title: &str, of: Option<&LayerPlan>) -> Option<UnitBox> {
        all.first()?;
        Some(UnitBox {
            title: title.to_owned(),
            ..self.unit_part(all, "mix", of)
        })
    }

    fn branch(&mut self, branches: &[&BranchPlan], of: &LayerPlan) -> Branch {
        let branch = branches[0];
        let pre = self.norm_of(branches.iter().map(|b| &b.pre), of);
        let units: Vec<&Unit> = branches.iter().map(|branch| &branch.block).collect();
        let mut block = self.unit_part(&units, units[0].contract.0.name, Some(of));
        if let Some(role) = branch.role() {
            let _ = write!(block.title, " ({role})");
        }
        Branch {
            from: branch.from.clone(),
            side: branch.side.clone(),
            pre,
            block,
            post: self.norm_of(branches.iter().map(|b| &b.post), of),
            factor: None,
            save: branch.save.clone(),
        }
    }

    fn norm_of<'p>(
        &mut self,
        all: impl Iterator<Item = &'p Option<NormUse>>,
        of: &LayerPlan,
    ) -> Option<UnitBox> {
        self.norm(&all.flatten().collect::<Vec<_>>(), Some(of))
    }

    /// The part of a norm at one place in several layers.
    fn norm(&mut self, all: &[&NormUse], layer: Option<&LayerPlan>) -> Option<UnitBox> {
        let of = &self.plan.norms[all.first()?.norm];
        let steps: Vec<Vec<usize>> = all.iter().map(|norm| self.norm_steps(norm)).collect();
        // Each use of a norm becomes a unit with its own path and weights.
        let weights = |norm: &NormUse| {
            let specs = of.contract.0.weights.iter();
            let placed = specs.map(|spec| match spec.key {
                "weight" => norm.weight,
                _ => norm.bias,
            });
            placed.collect()
        };
        let units = all.iter().map(|norm| Unit {
            path: norm.path.clone(),
            weights: weights(norm),
            ..of.clone()
        });
        let units: Vec<Unit> = units.collect();
        let default = || self.def.resource(Resource::Norm, "default");
        let instance = self.instance(&of.path).or_else(default);
        Some(UnitBox {
            title: words::norm(of),
            ..self.part(&units.iter().collect::<Vec<_>>(), &steps, instance, layer)
        })
    }

    /// The operations of a norm. Norms before and after a block that have no name of their own share a path.
    fn norm_steps(&mut self, norm: &NormUse) -> Vec<usize> {
        let all = self.steps_at("norm", &norm.path);
        let begins = |at: &usize| matches!(self.steps[*at].op.as_str(), "RMS_NORM" | "NORM");
        let starts: Vec<usize> = (0..all.len()).filter(|at| begins(&all[*at])).collect();
        let nth = self.taken.entry(norm.path.clone()).or_default();
        let start = starts.get(*nth).copied().unwrap_or(0);
        let end = starts.get(*nth + 1).copied().unwrap_or(all.len());
        *nth += 1;
        all[start..end].to_vec()
    }

    fn factor(&self, (value, step): (f64, usize), setting: Option<&Setting>) -> Factor {
        let text = match setting.filter(|_| self.is_symbolic) {
            Some(setting) => setting.expr.source().to_owned(),
            None => wording::tidy(value),
        };
        Factor { text, step }
    }

    /// The total of a set of tensors; `None` without a file.
    pub(super) fn cost(&self, tensors: &BTreeSet<usize>) -> Option<WeightCost> {
        let mut cost = self.known(WeightCost::default())?;
        for at in tensors {
            let tensor = &self.plan.tensors[*at];
            cost.params += tensor.shape.iter().product::<u64>();
            cost.bytes += tensor.bytes;
        }
        cost.share = cost.bytes as f64 / self.plan.weight_bytes().max(1) as f64;
        Some(cost)
    }

    fn facts(&self) -> Vec<(String, String)> {
        let plan = self.plan;
        let mut facts = Vec::new();
        let mut fact = |name: &str, value: String| facts.push((name.to_owned(), value));
        if self.is_symbolic {
            fact("hidden size", "n_embd".into());
            if plan.mode != Mode::Tower {
                fact("vocabulary", "n_vocab".into());
            }
            return facts;
        }
        fact("layers", plan.layers.len().to_string());
        if plan.mode == Mode::Tower {
            fact("elements of a row", plan.n_embd.to_string());
        } else {
            fact("hidden size", plan.n_embd.to_string());
            fact("vocabulary", plan.n_vocab.to_string());
        }
        if plan.n_ctx_train > 0 {
            fact("context length", plan.n_ctx_train.to_string());
        }
        fact("weights", wording::count(plan.n_weights()));
        fact("bytes", wording::bytes(plan.weight_bytes()));
        facts
    }

    /// The memory that all layers keep between passes.
    pub(super) fn all_kept(&self) -> Kept {
        let mut all = Kept::default();
        for unit in self.plan.units() {
            let one = self.kept(unit, 1);
            for (sum, own) in [
                (&mut all.per_token, one.per_token),
                (&mut all.in_window, one.in_window),
                (&mut all.per_sequence, one.per_sequence),
            ] {
                *sum = own.map_or(*sum, |own| Some(sum.unwrap_or(0).saturating_add(own)));
            }
        }
        all
    }

    /// The definition's instance of the unit at a path.
    pub(super) fn instance(&self, path: &str) -> Option<&'a ContractUse> {
        self.uses.get(path)?.1
    }
}

/// Every mix of hidden states, with its instance in the definition.
fn mixes<'a>(def: &'a ArchDef, plan: &'a Plan) -> Vec<(&'a Unit, Option<&'a ContractUse>)> {
    let slots = plan.layers.iter().flat_map(|layer| {
        let slots = layer.slots.iter();
        slots.flat_map(|slot| {
            let def = &def.stacks[layer.stack].slots[slot.at];
            [(&slot.read, &def.read), (&slot.write, &def.write)]
        })
    });
    let head = plan.head.iter().zip(&def.head);
    let head = head.map(|(head, def)| (&head.read, &def.read));
    let all = std::iter::once((&plan.write, &def.write));
    let all = all.chain(slots).chain(head);
    let declared = |unit: &Unit, setting: &Setting| {
        let mut names = Vec::new();
        let mut add = |name: &str| names.push(name.to_owned());
        setting.expr.for_each_text_result(&mut add);
        add("default");
        let own = names.iter();
        let mut own = own.filter_map(|name| def.resource(Resource::Mix, name));
        // An expression may name several resources; those of the same kind are equivalent.
        own.find(|own| own.options[0].expr.as_literal() == Some(&unit.options[0].to_value()))
    };
    let all = all.filter_map(|(unit, setting)| {
        let (unit, setting) = (unit.as_ref()?, setting.as_ref()?);
        Some((unit, declared(unit, setting)))
    });
    all.collect()
}

/// Every unit by its path, with its instance in the definition.
fn uses<'a>(
    def: &'a ArchDef,
    plan: &'a Plan,
) -> HashMap<&'a str, (&'a Unit, Option<&'a ContractUse>)> {
    let head = def.head.as_ref().map(|head| &head.unit);
    let planned = plan.head.as_ref().and_then(|head| head.unit.as_ref());
    let stages = [
        (plan.source.as_ref().map(|of| &of.embed), Some(&def.embed)),
        (Some(&plan.embed), Some(&def.embed)),
        (plan.per_layer.as_ref(), def.per_layer.as_ref()),
        (planned, head),
    ];
    let stages = stages.into_iter();
    let stages = stages.filter_map(|(unit, own)| Some((unit?, own)));
    let resources = plan.norms.iter().chain(&plan.acts).chain(&plan.ropes);
    let caches = plan.caches.iter().map(|cache| &cache.unit);
    let resources = resources.chain(caches).chain(&plan.selections);
    let declared = resources.map(|unit| {
        let (kind, name) = unit.path.split_once('.').unwrap_or_default();
        let kind = Resource::ALL.into_iter().find(|own| own.name() == kind);
        (unit, kind.and_then(|kind| def.resource(kind, name)))
    });
    let blocks = plan.layers.iter().flat_map(|layer| {
        let slots = layer.slots.iter();
        slots.flat_map(|slot| {
            let def = &def.stacks[layer.stack].slots[slot.at];
            let branches = slot.branches.iter();
            branches.map(|own| (&own.block, Some(&def.branches[own.at].block)))
        })
    });
    let all = stages.chain(declared).chain(blocks).chain(mixes(def, plan));
    all.map(|(unit, own)| (unit.path.as_str(), (unit, own)))
        .collect()
}

fn roles(plan: &Plan) -> HashMap<&str, String> {
    let slots = plan.layers.iter().flat_map(|layer| &layer.slots);
    let branches = slots.flat_map(|slot| &slot.branches);
    let with_role = branches.filter(|branch| branch.role().is_some());
    let named = with_role.map(|branch| (&*branch.block.path, branch.short()));
    named.collect()
}

/// The letter of a kind: `A` to `Z`, then `A1`.
fn letter(kind: usize) -> String {
    let letter = (b'A' + (kind % 26) as u8) as char;
    match kind / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{round}"),
    }
}
