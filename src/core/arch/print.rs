//! Prints a definition as TOML, with comments on the values that it does not state: defaults of options, and the
//! tensors of every block. The printed text has the same meaning when it is read.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use super::chains::reached;
use super::expr::{Expr, Value};
use super::{
    ArchDef, Branch, BranchTokens, ContractUse, Join, Mode, Param, ParamSource, Presence, Reads,
    SHIFT_LOGITS, START_TOKEN, Setting, Slot, Spanned, Stack,
};

impl ArchDef {
    /// The definition as TOML.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        // Writing to a text cannot fail.
        let _ = self.print(&mut out);
        out
    }

    fn print(&self, out: &mut String) -> fmt::Result {
        for line in self.notes.lines() {
            writeln!(out, "# {line}")?;
        }
        writeln!(out, "\nname = {}", quoted(&self.name))?;
        writeln!(out, "mode = {}", quoted(self.mode.name()))?;
        if let Some(drafter) = &self.drafter {
            writeln!(out, "drafter = {}", quoted(&drafter.value))?;
        }
        if !self.require.is_empty() {
            let all: Vec<String> = self
                .require
                .iter()
                .map(|r| quoted(r.value.source()))
                .collect();
            writeln!(out, "require = [{}]", all.join(", "))?;
        }
        self.print_ignored(out)?;
        writeln!(out, "\n[params]")?;
        let used = self.used_params();
        let params = self.params.iter().filter(|(name, _)| used.contains(*name));
        let (assumed, stated): (Vec<_>, Vec<_>) = params.partition(|(_, p)| p.assumption.is_some());
        for (name, param) in stated {
            writeln!(out, "{name} = {}", param_text(param))?;
        }
        if !assumed.is_empty() {
            writeln!(out, "\n[assumptions]")?;
        }
        for (name, param) in assumed {
            writeln!(out, "{name} = {}", param_text(param))?;
        }
        for ((kind, name), own) in &self.resources {
            // A kind that needs no declaration cannot be declared.
            if own.contract.plain_kinds().contains(&name.as_str()) {
                continue;
            }
            writeln!(out, "\n[{}.{name}]", kind.name())?;
            instance(out, own)?;
        }
        let is_tower = self.mode == Mode::Tower;
        writeln!(out, "\n[{}]", if is_tower { "input" } else { "embed" })?;
        setting(out, "write", self.write.as_ref())?;
        instance(out, &self.embed)?;
        if let Some(per_layer) = &self.per_layer {
            writeln!(out, "\n[per_layer_input]")?;
            instance(out, per_layer)?;
        }
        if let Some(target) = &self.target {
            writeln!(out, "\n[target]")?;
            let after = target.after.iter().map(|n| quoted(n.value.source()));
            writeln!(out, "after = [{}]", after.collect::<Vec<_>>().join(", "))?;
            setting(out, "normed", target.normed.as_ref())?;
            setting(out, "width", target.width.as_ref())?;
            setting(out, "distances", target.distances.as_ref())?;
            setting(out, "block", target.block.as_ref())?;
            setting(out, "mask", target.mask.as_ref())?;
            setting(out, "from_first", target.from_first.as_ref())?;
            setting(out, "heads", target.heads.as_ref())?;
            tap(out, "tokens", target.tokens.as_ref())?;
        }
        for stack in &self.stacks {
            print_stack(out, stack)?;
        }
        if let Some(head) = &self.head {
            writeln!(out, "\n[head]")?;
            setting(out, "read", head.read.as_ref())?;
            setting(out, "norm", head.norm.as_ref())?;
            instance(out, &head.unit)?;
        }
        writeln!(out, "\n[pool]")?;
        instance(out, &self.pool)?;
        if !self.variants.is_empty() {
            writeln!(out, "\n[variants]")?;
        }
        for (name, text) in &self.variants {
            writeln!(out, "{} = {}", quoted(name), quoted(text))?;
        }
        Ok(())
    }

    fn print_ignored(&self, out: &mut String) -> fmt::Result {
        let own = self.ignore.keys.iter().filter(|(_, key)| !key.is_common);
        let keys: Vec<_> = own.collect();
        if self.ignore.tensors.is_empty() && keys.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n[ignore]")?;
        let names: Vec<String> = self
            .ignore
            .tensors
            .iter()
            .map(|name| quoted(name))
            .collect();
        writeln!(out, "tensors = [{}]", names.join(", "))?;
        for (key, ignored) in keys {
            writeln!(out, "keys.{} = {}", quoted(key), quoted(&ignored.reason))?;
        }
        Ok(())
    }

    /// The parameters that are used, directly or through others.
    fn used_params(&self) -> BTreeSet<String> {
        let mut open: Vec<String> = Vec::new();
        self.for_each_expr(&mut |expr| expr.for_each_name(&mut |name, _| open.push(name.into())));
        // Every plan reads the sizes of the hidden state and of the vocabulary.
        open.extend(["n_embd", "n_vocab", "n_ctx_train"].map(str::to_owned));
        open.extend((self.mode == Mode::Diffusion).then(|| SHIFT_LOGITS.to_owned()));
        open.extend(self.reads_source().then(|| START_TOKEN.to_owned()));
        reached(&self.params, open, Param::value_expr)
    }

    fn for_each_expr(&self, visit: &mut dyn FnMut(&Expr)) {
        self.require.iter().for_each(|r| visit(&r.value));
        let resources = self.resources.values();
        let head = self.head.iter().map(|head| &head.unit);
        let stages = [&self.embed, &self.pool]
            .into_iter()
            .chain(&self.per_layer)
            .chain(head);
        let settings = self.write.iter();
        let of_target = self.target.iter();
        let of_target = of_target.flat_map(|target| {
            [
                &target.normed,
                &target.width,
                &target.block,
                &target.mask,
                &target.from_first,
                &target.heads,
                &target.distances,
            ]
        });
        let settings = settings.chain(of_target.flatten());
        let after = self.target.iter().flat_map(|target| &target.after);
        after.for_each(|n| visit(&n.value));
        let of_head = self.head.iter().flat_map(|head| [&head.read, &head.norm]);
        let settings = settings.chain(of_head.flatten());
        settings.for_each(|setting| visit(&setting.expr));
        for instance in resources.chain(stages) {
            exprs_of_instance(instance, visit);
        }
        for stack in &self.stacks {
            visit(&stack.count);
            stack.il.iter().for_each(|il| visit(&il.expr));
            for slot in &stack.slots {
                let settings = [&slot.pre, &slot.post, &slot.scale, &slot.after];
                let settings = settings.into_iter().chain([&slot.read, &slot.write]);
                settings.flatten().for_each(|s| visit(&s.expr));
                slot.when.iter().for_each(&mut *visit);
                for branch in &slot.branches {
                    let settings = [&branch.pre, &branch.post, &branch.factor];
                    settings.into_iter().flatten().for_each(|s| visit(&s.expr));
                    branch.when.iter().for_each(&mut *visit);
                    exprs_of_instance(&branch.block, visit);
                }
            }
        }
    }
}

fn exprs_of_instance(instance: &ContractUse, visit: &mut dyn FnMut(&Expr)) {
    instance.options.iter().for_each(|s| visit(&s.expr));
    for weight in &instance.weights {
        visit(&weight.when);
        weight.shape.iter().for_each(&mut *visit);
    }
    let widths = instance.side.iter().chain(&instance.result);
    let rest = instance.rules.iter().chain(widths);
    rest.chain(&instance.state).for_each(visit);
}

/// A text as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn param_text(param: &Param) -> String {
    let ParamSource::Key {
        keys,
        absolute,
        default,
        zero_is_value,
        synth,
    } = &param.source
    else {
        let ParamSource::Derived(expr) = &param.source else {
            return String::new();
        };
        return match &param.assumption {
            Some(reason) => format!(
                "{{ value = {}, reason = {} }}",
                quoted(expr.source()),
                quoted(reason)
            ),
            None => quoted(expr.source()),
        };
    };
    let field = if *absolute { "global_key" } else { "key" };
    let keys: Vec<String> = keys.iter().map(|key| quoted(key)).collect();
    let mut text = match keys.as_slice() {
        [key] => format!("{{ {field} = {key}"),
        keys => format!("{{ {field} = [{}]", keys.join(", ")),
    };
    for (name, expr) in [("default", default), ("synth", synth)] {
        if let Some(expr) = expr {
            let value = match expr.as_literal() {
                // A negative number in quotes would be an expression.
                Some(Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::List(_)) => {
                    expr.source().to_owned()
                }
                _ => quoted(expr.source()),
            };
            text.push_str(&format!(", {name} = {value}"));
        }
    }
    if *zero_is_value {
        text.push_str(", zero = \"value\"");
    }
    text + " }"
}

fn print_stack(out: &mut String, stack: &Stack) -> fmt::Result {
    writeln!(out, "\n[[stack]]")?;
    writeln!(out, "name = {}", quoted(&stack.name))?;
    writeln!(out, "prefix = {}", quoted(&stack.prefix))?;
    writeln!(out, "count = {}", quoted(stack.count.source()))?;
    setting(out, "il", stack.il.as_ref())?;
    if stack.reads != Reads::Tokens {
        writeln!(out, "reads = {}", quoted(stack.reads.name()))?;
    }
    stack
        .slots
        .iter()
        .try_for_each(|slot| print_slot(out, slot))
}

fn print_slot(out: &mut String, slot: &Slot) -> fmt::Result {
    writeln!(out, "\n[[stack.slot]]")?;
    writeln!(out, "name = {}", quoted(&slot.name))?;
    when(out, slot.when.as_ref())?;
    setting(out, "read", slot.read.as_ref())?;
    tap(out, "from", slot.from.as_ref())?;
    setting(out, "pre", slot.pre.as_ref())?;
    setting(out, "post", slot.post.as_ref())?;
    setting(out, "scale", slot.scale.as_ref())?;
    if slot.join != Join::Add {
        writeln!(out, "join = {}", quoted(slot.join.name()))?;
    }
    setting(out, "after", slot.after.as_ref())?;
    setting(out, "write", slot.write.as_ref())?;
    slot.branches
        .iter()
        .try_for_each(|branch| print_branch(out, branch))
}

fn print_branch(out: &mut String, branch: &Branch) -> fmt::Result {
    writeln!(out, "\n[[stack.slot.branch]]")?;
    writeln!(out, "name = {}", quoted(&branch.name))?;
    writeln!(out, "block = {}", quoted(branch.block.contract.name))?;
    when(out, branch.when.as_ref())?;
    let names = BranchTokens::NAMES.iter();
    for (name, _) in names.filter(|(_, of)| *of == branch.tokens && *of != BranchTokens::All) {
        writeln!(out, "tokens = {}", quoted(name))?;
    }
    tap(out, "from", branch.from.as_ref())?;
    tap(out, "side", branch.side.as_ref())?;
    setting(out, "pre", branch.pre.as_ref())?;
    setting(out, "post", branch.post.as_ref())?;
    setting(out, "factor", branch.factor.as_ref())?;
    tap(
        out,
        if branch.appends { "append" } else { "save" },
        branch.save.as_ref(),
    )?;
    instance(out, &branch.block)
}

fn when(out: &mut String, expr: Option<&Expr>) -> fmt::Result {
    text(out, "when", expr.map(Expr::source))
}

fn tap(out: &mut String, key: &str, name: Option<&Spanned<String>>) -> fmt::Result {
    text(out, key, name.map(|name| name.value.as_str()))
}

fn setting(out: &mut String, key: &str, setting: Option<&Setting>) -> fmt::Result {
    text(out, key, setting.map(|setting| setting.expr.source()))
}

fn text(out: &mut String, key: &str, value: Option<&str>) -> fmt::Result {
    match value {
        Some(value) => writeln!(out, "{key} = {}", quoted(value)),
        None => Ok(()),
    }
}

fn instance(out: &mut String, instance: &ContractUse) -> fmt::Result {
    for (spec, setting) in instance.contract.options.iter().zip(&instance.options) {
        // A default may refer to other options, which a setting cannot.
        let mark = if setting.span.is_some() { "" } else { "# " };
        let value = quoted(setting.expr.source());
        writeln!(out, "{mark}{} = {value}  # {}", spec.name, spec.doc)?;
    }
    let weights = || instance.contract.weights.iter().zip(&instance.weights);
    let renamed: Vec<String> = weights()
        .filter_map(|(spec, weight)| {
            let value = match weight.presence {
                Presence::Forbidden => "false".to_owned(),
                // A name with a dot stays as it is; a name without one gets a dot at the end.
                presence => {
                    let dot = if weight.tensor.contains('.') { "" } else { "." };
                    let mark = if presence == Presence::Optional {
                        "?"
                    } else {
                        ""
                    };
                    quoted(&format!("{}{dot}{mark}", weight.tensor))
                }
            };
            let is_default = weight.tensor == spec.tensor && weight.presence == spec.presence;
            (!is_default).then(|| format!("{} = {value}", quoted(spec.key)))
        })
        .collect();
    if !renamed.is_empty() {
        writeln!(out, "weights = {{ {} }}", renamed.join(", "))?;
    }
    for (spec, weight) in weights().filter(|(_, w)| w.presence != Presence::Forbidden) {
        let shape: Vec<&str> = weight.shape.iter().map(Expr::source).collect();
        let presence = match weight.presence {
            Presence::Required => "",
            _ => ", if it is there",
        };
        let condition = match spec.when {
            "true" => String::new(),
            when => format!(", when {when}"),
        };
        let (tensor, shape) = (&weight.tensor, shape.join(", "));
        writeln!(
            out,
            "# {}: {tensor} [{shape}]{presence}{condition}: {}",
            spec.key, spec.doc
        )?;
    }
    Ok(())
}
