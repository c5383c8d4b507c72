//! Plans a definition's stages, layers and slots one after the other, and collects all problems.

use std::collections::HashMap;

use super::facts::{FileFacts, LayerIndex, LayerScope, WholeLists};
use super::layer_plan::blocks;
use super::mixes::MixUse;
use super::planner::{Planned, Planner, Reported, index_of};
use super::{
    BranchPlan, DiffusionPlan, DraftBlock, Error, HeadPlan, KeyValuePlan, LayerPlan, MAX_LAYERS,
    NormUse, Plan, SlotPlan, TargetPlan, TensorSet, Unit,
};
use crate::arch::expr::{Expr, Scope, Value};
use crate::arch::{
    ArchDef, Branch, ContractUse, Head, Join, Mode, OF_FILE, Presence, Reads, Resource,
    SHIFT_LOGITS, Setting, Slot, Spanned, Stack, TARGET, TargetUse,
};
use lab_base::weights::Metadata;

/// Maximum number of branches of slots in all layers, so that a hostile definition cannot exhaust memory.
const MAX_BRANCHES: usize = 1 << 16;
impl<'a> Planner<'a> {
    /// The plan, or all problems.
    pub(super) fn plan(mut self) -> Result<Plan, Vec<String>> {
        match self.model() {
            Ok(plan) => Ok(plan),
            Err(Reported) => Err(self.problems),
        }
    }

    fn model(&mut self) -> Planned<Plan> {
        let def = self.facts.def;
        let global = self.facts.global();
        let is_tower = def.mode == Mode::Tower;
        let n_embd = match is_tower {
            // Of a tower, the width of its input rows.
            true => self.input_width(&def.embed, &global),
            false => self.number(&global, "n_embd"),
        };
        let n_vocab = match is_tower {
            true => Ok(0),
            false => self.number(&global, "n_vocab"),
        };
        let n_ctx_train = match self.facts.param("n_ctx_train", &global, false) {
            Ok(Value::Int(n)) if n > 0 => n as u64,
            _ => 0,
        };
        // Without the two sizes, all later checks would fail for the same reason.
        let (n_embd, n_vocab) = (n_embd?, n_vocab?);
        let embed = self
            .unit(def.embed.contract.name, &def.embed, &global, &[])
            .ok();
        self.adapters = self.adapters(embed.as_ref(), n_vocab);
        let per_layer = match &def.per_layer {
            Some(instance) => Some(self.unit("per_layer_input", instance, &global, &[])?),
            None => None,
        };
        let pool = self.unit("pool", &def.pool, &global, &[])?;
        let write = self.mix(def.write.as_ref(), "embed.write", &global, MixUse::Start)?;
        let states = write.as_ref().and_then(|unit| unit.option_int("count"));
        self.states = states.unwrap_or(1);
        for tap in ["layer_in", "embd"] {
            self.taps.insert(tap.into(), n_embd);
        }
        let ple = per_layer.as_ref().and_then(|unit| unit.option_int("width"));
        if let Some(width) = ple.filter(|width| *width > 0) {
            self.taps.insert("ple".into(), width);
        }
        let n_before = self.problems.len();
        let mut target = match &def.target {
            Some(target) => Some(self.target(target, &global, n_embd)?),
            None => None,
        };
        let of_target = target.as_ref().map(TargetPlan::row_width);
        if let Some(width) = of_target {
            self.taps.insert(TARGET.into(), width);
        }
        let (layers, n_before_tokens, n_embd) = self.layers(n_embd, of_target)?;
        let n_of_source = if def.reads_source() {
            n_before_tokens
        } else {
            0
        };
        if let Some(target) = &mut target {
            target.n_layers = n_before_tokens;
        }
        // A count without a value, and a broken layer, are reported already.
        // The weights of a drafter may be absent.
        let may_be_absent = def.target.is_some();
        if layers.is_empty() && self.problems.len() == n_before && !may_be_absent {
            self.report("there are no layers".into());
        }
        let head = match &def.head {
            Some(head) => {
                let table = embed.as_ref().and_then(|embed| embed.weight("tokens"));
                let is_classifier = ["cls", "cls.output"]
                    .iter()
                    .any(|key| pool.weight(key).is_some());
                let planned = self.head(head, table, &global, n_embd, is_classifier)?;
                let is_there =
                    planned.read.is_some() || planned.norm.is_some() || planned.unit.is_some();
                is_there.then_some(planned)
            }
            None => None,
        };
        let source = match def.reads_source() {
            true => {
                let embed = embed.as_ref().ok_or(Reported)?;
                self.source(&layers, (n_of_source, embed), &global).ok()
            }
            false => None,
        };
        let diffusion = match def.mode {
            Mode::Diffusion => Some(self.diffusion(&global)?),
            _ => None,
        };
        let unclaimed = self.unclaimed();
        let unread = self.facts.unread();
        let embed = embed.ok_or(Reported)?;
        self.check_owners(&layers);
        self.check_selections(&layers);
        self.check_pooled(&layers);
        self.check_mixes(&layers, write.is_some());
        if !self.problems.is_empty() {
            return Err(Reported);
        }
        let values = self.facts.values.take().into_iter();
        let params = values.filter_map(|(name, mut of)| Some((name, of.remove(&None)?)));
        Ok(Plan {
            arch: def.name.clone(),
            mode: def.mode,
            n_embd,
            n_vocab,
            n_ctx_train,
            params: params.collect(),
            keys: self.facts.keys.take(),
            devices: Vec::new(),
            tensors: std::mem::take(&mut self.tensors),
            norms: std::mem::take(&mut self.norms),
            acts: std::mem::take(&mut self.acts),
            ropes: std::mem::take(&mut self.ropes),
            caches: std::mem::take(&mut self.caches),
            selections: std::mem::take(&mut self.selections),
            embed,
            write,
            per_layer,
            layers,
            head,
            diffusion,
            source,
            target,
            pool,
            unclaimed,
            unread,
        })
    }

    /// The width of the input rows of a tower.
    fn input_width(&mut self, input: &ContractUse, global: &LayerScope<'_>) -> Planned<u64> {
        let unit = self.unit("input", input, global, &[])?;
        unit.option_int("width").ok_or(Reported)
    }

    /// What a drafter reads of its target.
    fn target(
        &mut self,
        target: &'a TargetUse,
        global: &LayerScope<'_>,
        n_embd: u64,
    ) -> Planned<TargetPlan> {
        let mut after = Vec::with_capacity(target.after.len());
        for number in &target.after {
            let lists = WholeLists(global);
            let values = match self.evaluate(&number.value, &lists, &"target: after")? {
                Value::List(values) => values,
                value => vec![value],
            };
            for value in values {
                match value {
                    Value::Int(n) if n >= 0 => after.push(n as u64),
                    other => self.problem(format!(
                        "target: after: {other} layers, expected an integer from 0"
                    ))?,
                }
            }
        }
        let width = match &target.width {
            None => n_embd,
            Some(width) => match self.evaluate(&width.expr, global, &"target: width")? {
                Value::Int(n) if n > 0 => n as u64,
                other => self.problem(format!(
                    "target: width: {other}, expected a positive integer"
                ))?,
            },
        };
        let n_heads = match &target.heads {
            None => 1,
            Some(heads) => match self.evaluate(&heads.expr, global, &"target: heads")? {
                Value::Int(n) if n >= 0 => n as u64,
                other => self.problem(format!(
                    "target: heads: {other}, expected an integer from 0"
                ))?,
            },
        };
        let mut flag = |setting: &Option<Setting>, name: &str| match setting {
            None => Ok(false),
            Some(flag) => {
                match self.evaluate(&flag.expr, global, &format_args!("target: {name}"))? {
                    Value::Bool(flag) => Ok(flag),
                    other => {
                        self.problem(format!("target: {name}: {other}, expected true or false"))
                    }
                }
            }
        };
        let is_normed = flag(&target.normed, "normed")?;
        let has_distances = flag(&target.distances, "distances")?;
        let from_first = flag(&target.from_first, "from_first")?;
        let block = match target.block.as_ref().zip(target.mask.as_ref()) {
            None => None,
            Some((len, mask)) => {
                let n_vocab = self.number(global, "n_vocab")?;
                let len = self.evaluate(&len.expr, global, &"target: block")?;
                let mask = self.evaluate(&mask.expr, global, &"target: mask")?;
                match (len, mask) {
                    (Value::Int(len @ 2..), Value::Int(mask))
                        if (0..n_vocab as i64).contains(&mask) =>
                    {
                        Some(DraftBlock {
                            len: len as u64,
                            mask: mask as u32,
                            from_first,
                        })
                    }
                    (len, mask) => self.problem(format!(
                        "target: a block of {len} tokens with the mask {mask}, expected 2 or more, and a token below {n_vocab}"
                    ))?,
                }
            }
        };
        Ok(TargetPlan {
            after,
            is_normed,
            width,
            n_layers: 0,
            has_distances,
            block,
            n_heads,
        })
    }

    /// Plans the layers of all stacks for a hidden state of this width, and rows of a target of the other width. Returns the layers, how
    /// many of them come before those that read tokens, and the width of the last hidden state, which differs in a tower alone; none if
    /// planning stops because of the problems found.
    fn layers(
        &mut self,
        own: u64,
        of_target: Option<u64>,
    ) -> Planned<(Vec<LayerPlan>, usize, u64)> {
        let (mut layers, mut n_branches) = (Vec::new(), 0);
        let mut n_before_tokens = 0;
        let (def, global) = (self.facts.def, self.facts.global());
        let reads_target = def.stacks.first().is_some_and(|s| s.reads == Reads::Target);
        let mut n_embd = match of_target.filter(|_| reads_target) {
            Some(width) => width,
            None => own,
        };
        for (at, stack) in def.stacks.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| def.stacks[before].reads);
            if stack.reads == Reads::Tokens && before.is_some_and(|before| before != Reads::Tokens)
            {
                n_before_tokens = layers.len();
                match reads_target {
                    false => self.end_of_source(n_embd),
                    true => {
                        self.end_of_source(own);
                        self.taps.insert(TARGET.into(), n_embd);
                        n_embd = own;
                    }
                }
            }
            let count = self.evaluate(
                &stack.count,
                &global,
                &format_args!("{}: count", stack.name),
            );
            let count = match count {
                Ok(Value::Int(n)) if (0..=MAX_LAYERS as i64).contains(&n) => n as u64,
                Ok(other) => self.problem(format!(
                    "{}: the number of layers is {other}, expected 0 to {MAX_LAYERS}",
                    stack.name
                ))?,
                Err(Reported) => continue,
            };
            for depth in 0..count {
                if let Ok((layer, width)) = self.layer(at, stack, depth, n_embd) {
                    layers.push(layer);
                    n_embd = width;
                }
                let branches = stack.slots.iter().map(|slot| slot.branches.len().max(1));
                n_branches += branches.sum::<usize>();
                if n_branches > MAX_BRANCHES {
                    let path = &stack.name;
                    self.problem::<()>(format!(
                        "{path}.{depth}: the model has more than {MAX_BRANCHES} branches of slots"
                    ))?;
                }
                if self.has_too_many_problems() {
                    return Err(Reported);
                }
            }
        }
        Ok((layers, n_before_tokens, n_embd))
    }

    /// Plans a layer that reads a hidden state of this width. Returns it, and the width after it.
    fn layer(
        &mut self,
        at: usize,
        stack: &'a Stack,
        depth: u64,
        mut n_embd: u64,
    ) -> Planned<(LayerPlan, u64)> {
        let mut index = LayerIndex {
            stack: at,
            depth,
            il: None,
        };
        let mut scope = LayerScope {
            index: Some(index),
            ..self.facts.global()
        };
        let path = format!("{}.{depth}", stack.name);
        let il = match &stack.il {
            None => depth,
            Some(il) => match self.evaluate(&il.expr, &scope, &format_args!("{path}: il"))? {
                Value::Int(il) if il >= 0 => il as u64,
                other => self.problem(format!(
                    "{path}: the layer of the file is {other}, expected an integer from 0"
                ))?,
            },
        };
        index.il = Some(il);
        let prefix = stack.prefix.replace("{il}", &il.to_string());
        scope.index = Some(index);
        scope.prefix = &prefix;
        self.requirements(&scope);
        self.taps.insert("layer_in".into(), n_embd);
        let mut slots = Vec::with_capacity(stack.slots.len());
        for (at, slot) in stack.slots.iter().enumerate() {
            if let Ok(Some((slot, width))) = self.slot(at, slot, &path, &scope, n_embd) {
                slots.push(slot);
                n_embd = width;
            }
        }
        let layer = LayerPlan {
            path,
            depth,
            il,
            stack: at,
            slots,
        };
        Ok((layer, n_embd))
    }

    /// Checks the conditions of `require`.
    fn requirements(&mut self, scope: &LayerScope<'_>) {
        let def = self.facts.def;
        for Spanned { value: expr, span } in &def.require {
            let failed = match expr.evaluate(scope) {
                Ok(Value::Bool(true)) => continue,
                Ok(Value::Bool(false)) => {
                    let mut values = Vec::new();
                    expr.for_each_name(&mut |name, _| {
                        if let Ok(value) = scope.name(name, false) {
                            values.push(format!("{name} = {value}"));
                        }
                    });
                    format!("found {}", values.join(", "))
                }
                Ok(other) => format!("it is `{other}`, expected true or false"),
                Err(error) => error,
            };
            let message = format!("the definition requires `{expr}` of a file: {failed}");
            // The other conditions are checked as well.
            let _: Planned<()> = self.problem_at(span, expr.source(), &message);
        }
    }

    /// Checks that a unit that reads the keys of another one has the same cache and row widths.
    fn check_owners(&mut self, layers: &[LayerPlan]) {
        let units =
            blocks(layers).filter_map(|unit| Some((unit.path.as_str(), unit.key_values()?)));
        let stored: HashMap<&str, &KeyValuePlan> = units
            .clone()
            .filter(|(_, rows)| rows.owner.is_none())
            .collect();
        for (path, rows) in units {
            let Some(owner) = &rows.owner else { continue };
            let same = |other: &KeyValuePlan| {
                (other.cache, other.k, other.v, other.v_in_k)
                    == (rows.cache, rows.k, rows.v, rows.v_in_k)
            };
            match stored.get(owner.as_str()) {
                None => self.report(format!(
                    "{path}: reads the keys of {owner}, which stores none"
                )),
                Some(other) if !same(other) => self.report(format!(
                    "{path}: reads the keys of {owner}, whose cache or widths differ"
                )),
                Some(_) => {}
            }
        }
    }

    fn diffusion(&mut self, scope: &LayerScope<'_>) -> Planned<DiffusionPlan> {
        match self.facts.param(SHIFT_LOGITS, scope, false) {
            Ok(Value::Bool(shift_logits)) => Ok(DiffusionPlan { shift_logits }),
            Ok(other) => self.problem(format!(
                "`{SHIFT_LOGITS}` is {other}, expected true or false"
            )),
            Err(error) => self.problem(error),
        }
    }

    fn holds(&mut self, when: Option<&Expr>, scope: &LayerScope<'_>, path: &str) -> Planned<bool> {
        let Some(when) = when else { return Ok(true) };
        match self.evaluate(when, scope, &format_args!("{path}: when"))? {
            Value::Bool(holds) => Ok(holds),
            other => self.problem(format!(
                "{path}: when: expected true or false, found `{other}`"
            )),
        }
    }

    /// A slot of a layer, and the width of the hidden state after it; none where its condition, or that of each of its
    /// branches, does not hold.
    fn slot(
        &mut self,
        at: usize,
        slot: &'a Slot,
        layer: &str,
        scope: &LayerScope<'_>,
        hidden: u64,
    ) -> Planned<Option<(SlotPlan, u64)>> {
        let path = format!("{layer}.{}", slot.name);
        if !self.holds(slot.when.as_ref(), scope, &path)? {
            return Ok(None);
        }
        let mut active = Vec::new();
        for (at, branch) in slot.branches.iter().enumerate() {
            if self.holds(branch.when.as_ref(), scope, &path)? {
                active.push((at, branch));
            }
        }
        if active.is_empty() {
            return Ok(None);
        }
        let n_embd = match self.reads_all(slot.read.as_ref(), &path, scope)? {
            true => hidden.saturating_mul(self.states),
            false => hidden,
        };
        // A branch that never has another beside it needs no name in its path.
        let alone = active.len() == 1
            && slot
                .branches
                .iter()
                .all(|b| b.name == active[0].1.name || b.when.is_some());
        self.taps.insert("x".into(), n_embd);
        let width = self.tap(slot.from.as_ref(), &path, n_embd)?;
        self.taps.insert("h".into(), width);
        let branches: Vec<Planned<(BranchPlan, u64)>> = active
            .into_iter()
            .map(|(at, branch)| {
                let inner = if alone {
                    path.clone()
                } else {
                    format!("{path}.{}", branch.name)
                };
                self.branch(at, branch, &inner, scope, (width, slot.join))
            })
            .collect();
        // Its weight is reported together with those of broken branches.
        let pre = self.norm(slot.pre.as_ref(), &path, "in", scope, width);
        let branches: Vec<(BranchPlan, u64)> = branches.into_iter().collect::<Planned<_>>()?;
        let (first, others) = branches.split_first().ok_or(Reported)?;
        let (out, of_first) = (first.1, &first.0.block.path);
        if let Some((other, width)) = others.iter().find(|(_, width)| *width != out) {
            return self.problem(format!(
                "{}: the result has {width} elements, and that of {of_first} {out}",
                other.block.path
            ));
        }
        let joined = match slot.join {
            Join::Add => n_embd,
            Join::Set => out,
            Join::Append => n_embd.saturating_add(out),
            Join::Keep => n_embd,
        };
        let post = self.norm(slot.post.as_ref(), &path, "out", scope, out);
        let after = self.norm(slot.after.as_ref(), &path, "after", scope, joined);
        let scale = self.factor(slot.scale.as_ref(), &path, scope);
        let [read, write] = self.mixes_of(slot, &path, scope)?;
        // The hidden states of a mix keep their width.
        let next = if slot.read.is_some() || slot.write.is_some() {
            hidden
        } else {
            joined
        };
        let slot = SlotPlan {
            read,
            from: slot.from.as_ref().map(|f| f.value.clone()),
            pre: pre?,
            branches: branches.into_iter().map(|(branch, _)| branch).collect(),
            post: post?,
            scale: scale?,
            join: slot.join,
            after: after?,
            write,
            path,
            at,
        };
        Ok(Some((slot, next)))
    }

    /// Plans a branch whose slot reads rows of `width` elements. Returns it and the width of its result.
    fn branch(
        &mut self,
        at: usize,
        branch: &'a Branch,
        path: &str,
        scope: &LayerScope<'_>,
        (width, join): (u64, Join),
    ) -> Planned<(BranchPlan, u64)> {
        let n_embd = self.taps.get("x").copied().ok_or(Reported)?;
        let width = self.tap(branch.from.as_ref(), path, width)?;
        let side = match branch.side.is_some() {
            true => Some(self.side(branch, path, width)?),
            false => None,
        };
        let pre = self.norm(branch.pre.as_ref(), path, "in", scope, width);
        let is_tower = self.facts.def.mode == Mode::Tower;
        let changes_width = is_tower || self.facts.def.target.is_some();
        // The result has the width of the hidden state, or is refused below; that of a tower has the width that its block says.
        let known = (!changes_width).then_some(n_embd);
        let post = known.map(|n| self.norm(branch.post.as_ref(), path, "out", scope, n));
        let factor = self.factor(branch.factor.as_ref(), path, scope);
        // The rows of a tower have different widths at different places.
        let given = [("n_embd", width)];
        let given = if changes_width { &given[..] } else { &[] };
        let block = self.unit(path, &branch.block, scope, given);
        let out = match &block {
            Ok(unit) => {
                let inputs = [Some(width), side];
                self.result_width(&branch.block, unit, (scope, given), inputs)?
            }
            Err(Reported) => n_embd,
        };
        let post = match post {
            Some(post) => post,
            None => self.norm(branch.post.as_ref(), path, "out", scope, out),
        };
        if let Some(save) = &branch.save {
            let before = self.taps.get(&save.value).filter(|_| branch.appends);
            let width = before.map_or(out, |before| before.saturating_add(out));
            self.taps.insert(save.value.clone(), width);
        }
        if out != n_embd && !(changes_width && join != Join::Add) {
            let problem = format!(
                "{path}: the result has {out} elements, and the hidden state that it meets {n_embd}"
            );
            return self.problem_at(&branch.block.span, "result", &problem);
        }
        let branch = BranchPlan {
            name: branch.name.clone(),
            at,
            tokens: branch.tokens,
            from: branch.from.as_ref().map(|f| f.value.clone()),
            side: branch.side.as_ref().map(|f| f.value.clone()),
            pre: pre?,
            block: block?,
            post: post?,
            factor: factor?,
            save: branch.save.as_ref().map(|s| s.value.clone()),
            appends: branch.appends,
        };
        Ok((branch, out))
    }

    /// A norm by name: a declared norm, or the default kind with the weight of that name.
    fn norm(
        &mut self,
        setting: Option<&Setting>,
        path: &str,
        place: &str,
        scope: &LayerScope<'_>,
        width: u64,
    ) -> Planned<Option<NormUse>> {
        let Some(setting) = setting else {
            return Ok(None);
        };
        let name = self.name(setting, Resource::Norm, (path, scope))?;
        if name.is_empty() || name == "none" {
            return Ok(None);
        }
        let instance = self.named(Resource::Norm, &name, path)?;
        let path = format!("{path}.{place}");
        let unit = self.unit(&path, &instance, scope, &[("width", width)])?;
        let (weight, bias) = (unit.weight("weight"), unit.weight("bias"));
        let kind = Unit {
            path: String::new(),
            weights: Vec::new(),
            ..unit
        };
        let norm = index_of(&mut self.norms, kind);
        Ok(Some(NormUse {
            path,
            norm,
            weight,
            bias,
        }))
    }

    /// Whether the file has a weight of an instance.
    fn has_any(&self, instance: &ContractUse) -> bool {
        let used = instance
            .weights
            .iter()
            .filter(|weight| weight.presence != Presence::Forbidden);
        let names = used.map(|weight| {
            weight
                .tensor
                .strip_prefix(OF_FILE)
                .unwrap_or(&weight.tensor)
        });
        names
            .into_iter()
            .any(|name| self.facts.tensors.has(name, false))
    }

    /// Plans the end of the model. Encoders have logits if the file has a head.
    fn head(
        &mut self,
        head: &Head,
        table: Option<usize>,
        global: &LayerScope<'_>,
        n_embd: u64,
        is_classifier: bool,
    ) -> Planned<HeadPlan> {
        let read = self.mix(head.read.as_ref(), "head.read", global, MixUse::End)?;
        let norm = self.norm(head.norm.as_ref(), "head", "in", global, n_embd)?;
        let is_encoder = self.facts.def.mode == Mode::Encoder;
        if is_classifier || is_encoder && !self.has_any(&head.unit) {
            return Ok(HeadPlan {
                read,
                norm,
                unit: None,
            });
        }
        let mut unit = self.unit("head", &head.unit, global, &[])?;
        // A head without its own matrix projects with the token table.
        if let Some(output) = unit
            .contract
            .0
            .weights
            .iter()
            .position(|w| w.key == "output")
            && unit.weights[output].is_none()
        {
            unit.weights[output] = table;
        }
        Ok(HeadPlan {
            read,
            norm,
            unit: Some(unit),
        })
    }
}

impl Plan {
    /// Resolves a definition with the metadata and tensors of a model.
    ///
    /// # Errors
    /// Metadata keys or tensors are missing, shapes are wrong, or rules are broken. All problems are returned together.
    pub fn new(def: &ArchDef, metadata: &Metadata, tensors: &dyn TensorSet) -> Result<Self, Error> {
        let facts = FileFacts::new(def, metadata, tensors);
        Planner::new(&facts).plan().map_err(|problems| Error {
            arch: def.name.clone(),
            problems,
        })
    }
}
