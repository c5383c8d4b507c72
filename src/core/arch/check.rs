//! Checks a definition as a whole: names, cycles, types.
//!
//! Everything that can be checked without a model file is checked here, before any weight is read. Each rule is a
//! function that appends to the problems; no rule depends on the result of another.

use std::collections::{BTreeMap, BTreeSet};

use super::chains::{self, param_exprs, reached};
use super::contract::{OptionKind, OptionSpec, Presence, Resource};
use super::definition::{
    ArchDef, Branch, BranchTokens, CommonDefinitions, ContractUse, GIVEN, Join, LAYER, Mode, NEXT,
    OF_FILE, Param, Reads, Resources, SHIFT_LOGITS, START_TOKEN, Setting, Slot, Stack, TAPS,
    TARGET, names_of,
};
use super::diagnostic::{Diagnostic, MANY, Span};
use super::expr::{Expr, Value};

/// The norm or mix for names that are not declared.
const DEFAULT: &str = "default";

pub(super) struct CheckResult {
    pub(super) problems: Vec<Diagnostic>,
    /// The used resources that have no declaration.
    pub(super) defaults: Resources,
}

/// All problems of a definition. If parts of it could not be read, nothing is reported as unused: the missing part may
/// use it.
pub(super) fn check(def: &ArchDef, is_whole: bool) -> CheckResult {
    let mut checker = Checker::new(&def.params, &def.resources, &def.defaults);
    checker.params();
    for condition in &def.require {
        let (expr, span) = (&condition.value, &condition.span);
        checker.typed(expr, span, true, "boolean", "require");
    }
    checker.resources();
    checker.instance(&def.embed, false, false);
    if let Some(per_layer) = &def.per_layer {
        checker.instance(per_layer, false, false);
    }
    checker.mix(def.write.as_ref(), 0..0, false);
    if let Some(head) = &def.head {
        checker.mix(head.read.as_ref(), head.unit.span.clone(), false);
        checker.wiring(&head.unit.span, None, [&head.norm, &None, &None], None);
        checker.instance(&head.unit, false, false);
    } else if !matches!(def.mode, Mode::Encoder | Mode::Tower) {
        checker.report(
            0..0,
            "only a definition with `mode = \"encoder\"` or `\"tower\"` may lack a `[head]`",
        );
    }
    checker.tower(def);
    checker.instance(&def.pool, false, false);
    if def.mode == Mode::Diffusion {
        checker.used.insert((None, SHIFT_LOGITS.to_owned()));
    }
    checker.stacks(def);
    checker.ends_of_mixes(def);
    checker.source(def);
    checker.target(def);
    let defaults = checker.used_defaults();
    if is_whole {
        checker.unread_taps(def);
        // What stands for a parameter of the target is used by the slots of some targets.
        if !def.stacks.iter().any(|stack| stack.has_slots_of_target) {
            checker.unused();
        }
    }
    CheckResult {
        problems: checker.problems,
        defaults,
    }
}

pub(super) fn check_common(common: &CommonDefinitions) -> Vec<Diagnostic> {
    let none = Resources::new();
    let mut checker = Checker::new(&common.params, &common.resources, &none);
    checker.params();
    checker.resources();
    checker.problems
}

struct Checker<'a> {
    params: &'a BTreeMap<String, Param>,
    declared: &'a Resources,
    /// Resources that need no declaration.
    defaults: &'a Resources,
    problems: Vec<Diagnostic>,
    /// Parameters and resources that are referred to.
    used: BTreeSet<(Option<Resource>, String)>,
    /// The names that the current option may have; in an expression they are in quotes.
    choices: &'static [&'static str],
}

impl<'a> Checker<'a> {
    fn new(
        params: &'a BTreeMap<String, Param>,
        declared: &'a Resources,
        defaults: &'a Resources,
    ) -> Self {
        Self {
            params,
            declared,
            defaults,
            problems: Vec::new(),
            used: BTreeSet::new(),
            choices: &[],
        }
    }

    fn is_resource(&self, kind: Resource, name: &str) -> bool {
        let key = (kind, name.to_owned());
        self.declared.contains_key(&key) || self.defaults.contains_key(&key)
    }

    fn resource_names(&self, kind: Resource) -> impl Iterator<Item = &'a str> {
        names_of(kind, self.declared, self.defaults)
    }

    fn report(&mut self, span: Span, message: impl Into<String>) {
        self.problems.push(Diagnostic::new(span, message));
    }

    fn params(&mut self) {
        // Common parameters have no place; they count as users of others only when they are used themselves.
        for param in self.params.values() {
            let Some(span) = &param.span else { continue };
            for expr in param_exprs(param) {
                self.names(expr, span, true, &[]);
            }
        }
        self.problems.extend(chains::problems(self.params));
    }

    fn resources(&mut self) {
        for instance in self.declared.values() {
            self.instance(instance, true, false);
        }
    }

    /// The used resources that have no declaration, including those that only other such resources use.
    fn used_defaults(&mut self) -> Resources {
        let mut found = Resources::new();
        loop {
            let used = self.used.iter();
            let used = used.filter_map(|(kind, name)| Some(((*kind)?, name.clone())));
            let new: Vec<_> = used
                .filter(|key| !self.declared.contains_key(key) && !found.contains_key(key))
                .filter_map(|key| Some((self.defaults.get(&key)?, key)))
                .collect();
            if new.is_empty() {
                return found;
            }
            for (instance, key) in new {
                self.instance(instance, true, false);
                found.insert(key, instance.clone());
            }
        }
    }

    fn stacks(&mut self, def: &ArchDef) {
        let mut names = BTreeSet::new();
        let mut taps: BTreeSet<String> = TAPS
            .iter()
            .filter(|tap| **tap != "ple" || def.per_layer.is_some())
            // With several hidden states there is no single one before a layer.
            .filter(|tap| **tap != "layer_in" || def.write.is_none())
            .filter(|tap| **tap != TARGET || def.target.is_some())
            .map(|tap| (*tap).to_owned())
            .collect();
        let all_slots = || def.stacks.iter().flat_map(|stack| &stack.slots);
        taps.extend(
            all_slots()
                .flat_map(|s| &s.branches)
                .filter_map(|b| b.save.as_ref())
                .map(|s| s.value.clone()),
        );
        for stack in &def.stacks {
            let span = stack.name_span.clone();
            if !names.insert(&stack.name) {
                let problem = Diagnostic::new(
                    span.clone(),
                    format!("two stacks are named `{}`", stack.name),
                );
                self.problems
                    .push(problem.with_help("give one of them another `name`"));
            }
            if !stack.prefix.contains("{il}") {
                self.report(
                    stack.prefix_span.clone(),
                    format!(
                        "the prefix `{}` does not contain `{{il}}`, the layer",
                        stack.prefix
                    ),
                );
            }
            self.typed(&stack.count, &span, false, "number", "count");
            if let Some(il) = &stack.il {
                let span = il.span.as_ref().unwrap_or(&span);
                self.typed(&il.expr, span, true, "number", "il");
                let mut reads_itself = false;
                il.expr
                    .for_each_name(&mut |name, _| reads_itself |= name == "il");
                if reads_itself {
                    let problem = "the layer of the file follows from `depth`, not from itself";
                    self.report(span.clone(), problem);
                }
            }
            for slot in &stack.slots {
                self.slot(slot, &taps);
            }
        }
    }

    /// Checks that stacks that read a source come first, and that only a model that writes text has a source.
    fn source(&mut self, def: &ArchDef) {
        if !def.reads_source() {
            return;
        }
        self.used.insert((None, START_TOKEN.to_owned()));
        let is_source = |stack: &&Stack| stack.reads.is_source();
        let first = def.stacks.iter().take_while(is_source).count();
        let late = def.stacks[first..].iter().find(is_source);
        if let Some(stack) = late {
            let problem = "a stack that reads the source comes before those that read tokens";
            self.report(stack.name_span.clone(), problem);
        } else if first == def.stacks.len() {
            let problem =
                "no stack reads tokens: of a model that only reads, the text is its tokens";
            self.report(def.stacks[0].name_span.clone(), problem);
        }
        if let Some(other) = def.stacks[..first]
            .iter()
            .find(|stack| stack.reads != def.stacks[0].reads)
        {
            let problem = "the stacks that read the source read either its tokens or rows";
            self.report(other.name_span.clone(), problem);
        }
        if let Some(per_layer) = &def.per_layer {
            let problem = "a model that reads a source has no input for each layer";
            self.report(per_layer.span.clone(), problem);
        }
        if let Some(write) = &def.write {
            let problem = "a model that reads a source has one hidden state for each token";
            self.report(write.span.clone().unwrap_or(0..0), problem);
        }
        if def.mode != Mode::Causal {
            let problem = format!("a model that reads a source is not `{}`", def.mode.name());
            self.report(def.stacks[0].name_span.clone(), problem);
        }
    }

    /// Checks what a drafter reads of its target, and that only a drafter reads it.
    fn target(&mut self, def: &ArchDef) {
        let of_target = |stack: &&Stack| stack.reads == Reads::Target;
        let first = def.stacks.iter().take_while(of_target).count();
        let Some(target) = &def.target else {
            for stack in def
                .stacks
                .iter()
                .filter(|stack| stack.reads == Reads::Target || stack.has_slots_of_target)
            {
                let problem = "a definition with `[target]` alone reads a target";
                self.report(stack.name_span.clone(), problem);
            }
            return;
        };
        for after in &target.after {
            self.typed(&after.value, &after.span, false, "number", "after");
        }
        for (setting, kind, what) in [
            (&target.normed, "boolean", "normed"),
            (&target.width, "number", "width"),
            (&target.distances, "boolean", "distances"),
            (&target.from_first, "boolean", "from_first"),
            (&target.block, "number", "block"),
            (&target.mask, "number", "mask"),
            (&target.heads, "number", "heads"),
        ] {
            if let Some(setting) = setting {
                let span = setting.span.as_ref().unwrap_or(&target.span);
                self.typed(&setting.expr, span, false, kind, what);
            }
        }
        if let Some(stack) = def.stacks[first..].iter().find(of_target) {
            let problem = "a stack that reads the target comes before those that read tokens";
            self.report(stack.name_span.clone(), problem);
        }
        if def.mode != Mode::Causal || def.reads_source() {
            let problem = "a drafter is causal and has no source";
            self.report(target.span.clone(), problem);
        }
        if def.write.is_some() {
            let problem = "a drafter has one hidden state for each token";
            self.report(target.span.clone(), problem);
        }
        if first == def.stacks.len() {
            let problem = "no stack reads tokens";
            self.report(target.span.clone(), problem);
        }
    }

    /// Checks that a tower has nothing that only tokens have, and that only a tower changes the width of rows.
    fn tower(&mut self, def: &ArchDef) {
        let slots = || def.stacks.iter().flat_map(|stack| &stack.slots);
        if def.mode == Mode::Tower {
            if let Some(head) = &def.head {
                let problem = "a tower has rows as its result and no `[head]`";
                self.report(head.unit.span.clone(), problem);
            }
            if let Some(per_layer) = &def.per_layer {
                let problem = "a tower reads no tokens and has no input for each layer";
                self.report(per_layer.span.clone(), problem);
            }
            let branches = slots().flat_map(|slot| &slot.branches);
            for branch in branches.filter(|branch| branch.tokens != BranchTokens::All) {
                let problem = "the rows of a tower are not tokens";
                self.report(branch.block.span.clone(), problem);
            }
            return;
        }
        let changes = |slot: &&Slot| matches!(slot.join, Join::Append | Join::Keep);
        let is_drafter = def.target.is_some();
        for slot in slots().filter(|slot| !is_drafter && changes(slot)) {
            let problem =
                "only a tower or a drafter appends to the rows of the hidden state, or keeps it";
            self.report(slot.span.clone(), problem);
        }
        let branches = slots().flat_map(|slot| &slot.branches);
        let mut appending = branches.clone().filter(|branch| branch.appends);
        for branch in appending.by_ref().filter(|_| !is_drafter) {
            let problem = "only a tower or a drafter appends to the rows of a tap";
            self.report(branch.block.span.clone(), problem);
        }
        for block in branches.map(|branch| &branch.block) {
            if block.contract.is_of_towers {
                let problem = format!("only a tower has the block `{}`", block.contract.name);
                self.report(block.span.clone(), problem);
            }
        }
    }

    fn slot(&mut self, slot: &Slot, taps: &BTreeSet<String>) {
        self.wiring(
            &slot.span,
            slot.when.as_ref(),
            [&slot.pre, &slot.post, &slot.after],
            slot.scale.as_ref(),
        );
        for mix in [&slot.read, &slot.write] {
            self.mix(mix.as_ref(), slot.span.clone(), true);
        }
        self.tap(slot.from.as_ref().map(|f| (&f.value, &f.span)), taps);
        for branch in &slot.branches {
            self.branch(branch, taps);
        }
    }

    fn branch(&mut self, branch: &Branch, taps: &BTreeSet<String>) {
        let span = &branch.block.span;
        self.wiring(
            span,
            branch.when.as_ref(),
            [&branch.pre, &branch.post, &None],
            branch.factor.as_ref(),
        );
        self.tap(branch.from.as_ref().map(|f| (&f.value, &f.span)), taps);
        self.tap(branch.side.as_ref().map(|f| (&f.value, &f.span)), taps);
        if let Some(side) = &branch.side
            && branch.block.contract.side.is_none()
        {
            let block = branch.block.contract.name;
            self.report(
                side.span.clone(),
                format!("`{block}` takes one input and no `side`"),
            );
        }
        if let Some(save) = &branch.save
            && TAPS.contains(&save.value.as_str())
        {
            self.report(
                save.span.clone(),
                format!(
                    "the tap `{}` exists already and cannot be saved to",
                    save.value
                ),
            );
        }
        self.instance(&branch.block, true, branch.side.is_some());
    }

    fn wiring(
        &mut self,
        span: &Span,
        when: Option<&Expr>,
        norms: [&Option<Setting>; 3],
        factor: Option<&Setting>,
    ) {
        if let Some(when) = when {
            self.typed(when, span, true, "boolean", "when");
        }
        for norm in norms.into_iter().flatten() {
            let span = norm.span.as_ref().unwrap_or(span);
            self.typed(&norm.expr, span, true, "string", "a norm");
            let mut names = Vec::new();
            norm.expr.for_each_text_result(&mut |name| {
                let name = name.strip_prefix(OF_FILE).unwrap_or(name);
                names.push(name.to_owned());
            });
            // An expression over parameters may give any name.
            if names.is_empty() {
                names.push(DEFAULT.to_owned());
            }
            for name in names
                .into_iter()
                .filter(|name| !name.is_empty() && name != "none")
            {
                let name = match self.is_resource(Resource::Norm, &name) {
                    true => name,
                    false => DEFAULT.to_owned(),
                };
                self.used.insert((Some(Resource::Norm), name));
            }
        }
        if let Some(factor) = factor {
            self.typed(
                &factor.expr,
                factor.span.as_ref().unwrap_or(span),
                true,
                "number",
                "a factor",
            );
        }
    }

    /// Checks a mix by its name: a declared mix, or the default with the weights of that name.
    fn mix(&mut self, mix: Option<&Setting>, span: Span, in_layer: bool) {
        let Some(mix) = mix else { return };
        let span = mix.span.clone().unwrap_or(span);
        self.typed(&mix.expr, &span, in_layer, "string", "a mix");
        let mut names = Vec::new();
        mix.expr
            .for_each_text_result(&mut |name| names.push(name.to_owned()));
        for name in names {
            let known = [name.as_str(), DEFAULT]
                .into_iter()
                .find(|name| self.is_resource(Resource::Mix, name));
            match known {
                Some(known) => {
                    self.used.insert((Some(Resource::Mix), known.to_owned()));
                }
                None => {
                    let known = self.resource_names(Resource::Mix);
                    let problem = Diagnostic::unknown(span.clone(), "mix", &name, known);
                    self.problems.push(problem);
                }
            }
        }
    }

    /// Checks that several hidden states start with the embedding and end with the head.
    fn ends_of_mixes(&mut self, def: &ArchDef) {
        let read = def.head.as_ref().and_then(|head| head.read.as_ref());
        let span = |mix: &Setting| mix.span.clone().unwrap_or(0..0);
        if let (Some(write), None) = (&def.write, read) {
            let problem = "the several hidden states that `[embed]` writes are read by no `[head]`";
            self.report(span(write), problem);
        }
        if def.write.is_some() {
            return;
        }
        let slots = def.stacks.iter().flat_map(|stack| &stack.slots);
        let of_slots = slots.flat_map(|slot| [&slot.read, &slot.write]);
        for mix in of_slots.flatten().chain(read) {
            let problem = Diagnostic::new(span(mix), "there is one hidden state alone");
            let help = "`write` of `[embed]` makes several";
            self.problems.push(problem.with_help(help));
        }
    }

    fn tap(&mut self, tap: Option<(&String, &Span)>, taps: &BTreeSet<String>) {
        if let Some((name, span)) = tap
            && !taps.contains(name)
        {
            let known = taps.iter().map(String::as_str);
            self.problems
                .push(Diagnostic::unknown(span.clone(), "tap", name, known));
        }
    }

    fn instance(&mut self, instance: &ContractUse, in_layer: bool, has_side: bool) {
        for (spec, setting) in instance.contract.options.iter().zip(&instance.options) {
            self.option(instance, spec, setting, in_layer);
        }
        for (spec, weight) in instance.contract.weights.iter().zip(&instance.weights) {
            // A second input may take the place of a product; otherwise a block needs its matrices.
            if weight.presence == Presence::Forbidden && !spec.may_forbid && !has_side {
                let problem = format!(
                    "weight `{}` is required by `{}` and cannot be forbidden",
                    spec.key, instance.contract.name
                );
                self.report(instance.span.clone(), problem);
            }
        }
        let options: Vec<&str> = instance.contract.options.iter().map(|o| o.name).collect();
        let of_weights = instance
            .weights
            .iter()
            .flat_map(|w| w.shape.iter().chain([&w.when]));
        let of_rows = instance.state.iter().chain(&instance.result);
        for expr in of_weights.chain(&instance.rules).chain(of_rows) {
            expr.for_each_name(&mut |name, _| {
                if !options.contains(&name) {
                    self.used.insert((None, name.to_owned()));
                }
            });
        }
    }

    fn option(
        &mut self,
        instance: &ContractUse,
        spec: &OptionSpec,
        setting: &Setting,
        in_layer: bool,
    ) {
        let Some(span) = &setting.span else {
            // A contract's default may also refer to the options before its own.
            let options = instance.contract.options.iter().map(|o| o.name);
            let options = options.take_while(|name| *name != spec.name);
            let options: Vec<&str> = options.chain(GIVEN).collect();
            self.names(&setting.expr, &instance.span, true, &options);
            self.choices(spec, setting, &instance.span);
            return;
        };
        let expected = match spec.kind {
            OptionKind::Int | OptionKind::Float | OptionKind::List => "number",
            OptionKind::Bool => "boolean",
            OptionKind::Choice(_) | OptionKind::Resource(_) => "string",
        };
        if let OptionKind::Choice(names) = spec.kind {
            self.choices = names;
        }
        self.typed(&setting.expr, span, in_layer, expected, spec.name);
        self.choices = &[];
        if spec.kind == OptionKind::Int
            && let Some(Value::Float(v)) = setting.expr.as_literal()
        {
            self.report(
                span.clone(),
                format!("`{}` takes a whole number, found {v:?}", spec.name),
            );
        }
        self.choices(spec, setting, span);
    }

    /// Checks the names that an option can result in: each must be one of its choices or a declared resource.
    fn choices(&mut self, spec: &OptionSpec, setting: &Setting, span: &Span) {
        let mut results = Vec::new();
        setting
            .expr
            .for_each_text_result(&mut |text| results.push(text.to_owned()));
        for text in results {
            match spec.kind {
                OptionKind::Choice(names) if !names.contains(&text.as_str()) => {
                    let what = format!("value of `{}`", spec.name);
                    self.problems.push(Diagnostic::unknown(
                        span.clone(),
                        &what,
                        &text,
                        names.iter().copied(),
                    ));
                }
                OptionKind::Resource(kind) if text != "none" => {
                    if !self.is_resource(kind, &text) {
                        let known = self.resource_names(kind);
                        let problem = Diagnostic::unknown(span.clone(), kind.name(), &text, known);
                        self.problems.push(problem);
                    }
                    self.used.insert((Some(kind), text));
                }
                _ => {}
            }
        }
    }

    fn typed(&mut self, expr: &Expr, span: &Span, in_layer: bool, expected: &str, what: &str) {
        self.names(expr, span, in_layer, &[]);
        if let Some(found) = expr.static_type()
            && found != expected
        {
            self.report(
                span.clone(),
                format!("`{what}` takes a {expected}, found {found} `{expr}`"),
            );
        }
    }

    /// Checks that every name of an expression is a parameter, the layer, or one of `also`.
    fn names(&mut self, expr: &Expr, span: &Span, in_layer: bool, also: &[&str]) {
        let mut unknown = Vec::new();
        expr.for_each_name(&mut |name, at| {
            if also.contains(&name) {
                return;
            }
            if LAYER.contains(&name) {
                if !in_layer {
                    unknown.push((name.to_owned(), at.clone()));
                }
            } else if self.params.contains_key(name) {
                self.used.insert((None, name.to_owned()));
            } else {
                unknown.push((name.to_owned(), at.clone()));
            }
        });
        for (name, at) in unknown {
            if self.problems.len() >= MANY {
                break;
            }
            if LAYER.contains(&name.as_str()) {
                self.report(at, format!("`{name}` has no meaning outside a layer"));
                continue;
            }
            let inside = span.start <= at.start && at.end <= span.end;
            let at = if inside || expr.as_literal().is_some() {
                at
            } else {
                span.clone()
            };
            let known = self.params.keys().map(String::as_str);
            let mut problem = Diagnostic::unknown(at, "parameter", &name, known);
            let is_resource = |kind| self.is_resource(kind, &name);
            if name == "none"
                || self.choices.contains(&name.as_str())
                || Resource::ALL.into_iter().any(is_resource)
            {
                problem.help = Some(format!("names are quoted in expressions: `'{name}'`"));
            }
            self.problems.push(problem);
        }
    }

    fn unread_taps(&mut self, def: &ArchDef) {
        let slots = || def.stacks.iter().flat_map(|stack| &stack.slots);
        let branches = || slots().flat_map(|slot| &slot.branches);
        let of_branches = branches().flat_map(|branch| [&branch.from, &branch.side]);
        let reads: BTreeSet<&str> = slots()
            .map(|slot| &slot.from)
            .chain(of_branches)
            .flatten()
            .map(|tap| tap.value.as_str())
            .collect();
        let saved = branches().filter_map(|branch| branch.save.as_ref());
        let is_read = |save: &str| reads.contains(save) || def.target.is_some() && save == NEXT;
        let unread: Vec<_> = saved.filter(|save| !is_read(save.value.as_str())).collect();
        for save in unread {
            let problem = format!("the tap `{}` is saved and never read", save.value);
            self.report(save.span.clone(), problem);
        }
    }

    fn unused(&mut self) {
        let names = self.used.iter().filter(|(kind, _)| kind.is_none());
        let names = names.map(|(_, name)| name.clone());
        let reached = reached(self.params, names, param_exprs);
        for (name, param) in self.params {
            if let Some(span) = &param.span
                && !reached.contains(name)
            {
                self.problems.push(Diagnostic::new(
                    span.clone(),
                    format!("parameter `{name}` is never used"),
                ));
            }
        }
        for ((kind, name), instance) in self.declared {
            if !self.used.contains(&(Some(*kind), name.clone())) {
                let problem = format!("{} `{name}` is never used", kind.name());
                self.problems
                    .push(Diagnostic::new(instance.span.clone(), problem));
            }
        }
    }
}
