//! Prints the reference of the language as Markdown, from the contracts.

use std::collections::{BTreeMap, BTreeSet};

use super::chains::reached;
use super::contract::{Contract, OptionKind, OptionSpec, Presence, Registry, Resource};
use super::definition::{Param, ParamSource};
use super::expr::Expr;
use super::point::PointSpec;
use super::state::StateSpec;

impl Registry {
    /// Every block, stage and resource: its computation, options, weights and state, and the `users` (architectures)
    /// that use it.
    pub fn to_markdown(&self, users: &dyn Fn(&str) -> Vec<String>) -> String {
        let mut out = String::from(
            "# Blocks, stages and resources\n\n\
             Made by `bench arch blocks` from the contracts in `src/core/blocks/`; do not edit. Shapes are in ggml's order, fastest dimension\n\
             first. [adding-a-model.md](adding-a-model.md) says how blocks are put together.\n\n\
             Defaults, shapes, conditions and rules are expressions. A name in them is an option or a derived value of the same section,\n\
             or a parameter ([listed at the end](#parameters); a definition may override it). These names are given by the place of use:\n\n\
             - `il`: layer of the file. `depth`: place of the layer in its stack. Both count from 0.\n\
             - `width` of `[norm.NAME]`: elements of the rows that are normalised.\n\
             - `place` of `[mix.NAME]`: 0 at the start, 1 within a layer, 2 at the end. `states`: hidden states of a token at that place.\n\
             - `n_kv`: keys that the pass reads. `{name}`: the name by which a resource is used.\n\
             - `has('KEY')`: whether the file has the weight. `dim('KEY', i)`: its dimension `i`, from 0. `count('KEY')`: length of a\n\
               metadata array.\n",
        );
        out.push_str("\n## Blocks\n\nWhat a branch computes, `block = \"NAME\"`: from `[n_embd, n_tokens]` to the same.\n");
        for block in self.blocks {
            section(&mut out, block.name, block, &users(block.name));
        }
        out.push_str("\n## Stages\n");
        for (title, contract) in [
            ("[embed]", self.embed),
            ("[per_layer_input]", self.per_layer),
            ("[head]", self.head),
            ("[pool]", self.pool),
        ] {
            section(&mut out, title, contract, &[]);
        }
        out.push_str("\n## Resources\n\nDeclared once under a name, used by it. Those of `archs/common.toml` and kinds of which nothing else must be\n\
             stated (`act = \"silu\"`, `rope = \"neox\"`) need no declaration.\n");
        for kind in Resource::ALL {
            let title = format!("[{}.NAME]", kind.name());
            section(&mut out, &title, self.resource(kind), &[]);
        }
        out.push_str("\n## Points\n\nValues that can be read and changed ([lab.md](lab.md)). Blocks and stages state theirs above; these are of slots and branches:\n\n");
        points(&mut out, self.wiring.iter().copied());
        out
    }
}

fn section(out: &mut String, title: &str, contract: &Contract, users: &[String]) {
    out.push_str(&format!("\n### `{title}`\n\n{}\n\n", contract.summary));
    if !contract.formula.is_empty() {
        out.push_str(&format!(
            "```\n{}\n```\n\n",
            super::formula::general(contract.formula)
        ));
    }
    let options = || contract.options.iter().filter(|option| !option.is_derived);
    if options().next().is_some() {
        out.push_str("| option | values | default | meaning |\n|---|---|---|---|\n");
        for option in options() {
            let default = match option.default {
                Some(default) => format!("`{}`", cell(default)),
                None => "must be stated".into(),
            };
            out.push_str(&format!(
                "| `{}` | {} | {default} | {} |\n",
                option.name,
                kind(option.kind),
                cell(&meaning(option))
            ));
        }
        out.push('\n');
    }
    let derived = contract.options.iter().filter(|option| option.is_derived);
    let derived: Vec<String> = derived
        .filter_map(|option| {
            Some(format!(
                "- `{}` = `{}` ({})\n",
                option.name,
                value(option)?,
                meaning(option)
            ))
        })
        .collect();
    if !derived.is_empty() {
        out.push_str(&format!(
            "Derived values, which no definition sets:\n\n{}\n",
            derived.concat()
        ));
    }
    if !contract.weights.is_empty() {
        out.push_str("| weight | tensor | shape | present | meaning |\n|---|---|---|---|---|\n");
        for weight in contract.weights {
            let presence = match (weight.presence, weight.may_forbid) {
                (Presence::Required, false) => "always",
                (Presence::Required, true) => "unless forbidden",
                _ => "if the file has it",
            };
            let presence = match weight.when {
                "true" => presence.to_owned(),
                when => format!("{presence}, when `{}`", cell(when)),
            };
            out.push_str(&format!(
                "| `{}` | `{}` | `[{}]` | {presence} | {} |\n",
                weight.key,
                weight.tensor,
                cell(&weight.shape.join(", ")),
                cell(weight.doc)
            ));
        }
        out.push('\n');
    }
    if let Some(side) = contract.side {
        out.push_str(&format!("`side` of the branch: {}.\n\n", side.doc));
    }
    match contract.state {
        StateSpec::None => {}
        StateSpec::KeyValue { cache, k, v, .. } => out.push_str(&format!(
            "KV cache per position: `{k}` elements of keys and `{v}` of values, in `{cache}`.\n\n"
        )),
        StateSpec::Recurrent(parts) => {
            let parts: Vec<String> = parts
                .iter()
                .map(|(name, size)| format!("{name}, `{size}` elements"))
                .collect();
            out.push_str(&format!("State per sequence: {}.\n\n", parts.join("; ")));
        }
    }
    points(out, contract.points.iter());
    if !contract.rules.is_empty() {
        out.push_str("Rules:\n\n");
    }
    for rule in contract.rules {
        out.push_str(&format!("- {}: `{}`\n", rule.message, rule.holds));
    }
    if !users.is_empty() {
        out.push_str(&format!("\nUsed by {}.\n", users.join(", ")));
    }
}

/// The value of a derived option, as it is written in a definition.
fn value(option: &OptionSpec) -> Option<String> {
    let text = option.default?;
    // Parentheses make an expression of a lone parameter.
    let inner = text
        .strip_prefix('(')
        .and_then(|text| text.strip_suffix(')'));
    let inner = inner.filter(|inner| !inner.contains(['(', ')']));
    Some(match option.kind {
        OptionKind::Resource(kind) if text == "default" => format!("[{}.default]", kind.name()),
        _ => inner.unwrap_or(text).to_owned(),
    })
}

fn names(contract: &Contract, out: &mut BTreeSet<String>) {
    let state: Vec<&str> = match contract.state {
        StateSpec::None => Vec::new(),
        StateSpec::KeyValue { k, v, .. } => vec![k, v],
        StateSpec::Recurrent(parts) => parts.iter().map(|(_, size)| *size).collect(),
    };
    let options = contract.options.iter();
    let options = options.flat_map(|option| [option.default.unwrap_or("0"), option.when]);
    let shapes = contract.weights.iter().flat_map(|weight| weight.shape);
    let whens = contract.weights.iter().map(|weight| weight.when);
    let points = contract.points.iter().flat_map(|point| point.shape);
    let rules = contract.rules.iter().map(|rule| rule.holds);
    let all = options.chain(shapes.copied()).chain(whens).chain(state);
    for text in all.chain(points.copied()).chain(rules) {
        if let Ok(expr) = Expr::parse(text, 0) {
            expr.for_each_name(&mut |name, _| _ = out.insert(name.to_owned()));
        }
    }
}

/// The common parameters that contracts read, and those that these follow from.
pub(super) fn parameters(registry: &Registry, params: &BTreeMap<String, Param>) -> String {
    let mut open = BTreeSet::new();
    registry
        .all()
        .for_each(|contract| names(contract, &mut open));
    let used = reached(params, open, Param::value_expr);
    let used = used.iter().filter_map(|name| params.get_key_value(name));
    let mut out = String::from(
        "\n## Parameters\n\nThe parameters of `archs/common.toml` that the sections above read. Keys are relative to `<architecture>.`, those with `/` in\n\
         front are whole.\n\n| parameter | metadata key | value, or default |\n|---|---|---|\n",
    );
    for (name, param) in used {
        let (keys, value) = match &param.source {
            ParamSource::Derived(expr) => (Vec::new(), format!("`{}`", cell(expr.source()))),
            ParamSource::Key {
                keys,
                absolute,
                default,
                ..
            } => {
                let mark = if *absolute { "/" } else { "" };
                let keys = keys.iter().map(|key| format!("`{mark}{key}`")).collect();
                let default = default
                    .as_ref()
                    .map(|expr| format!("`{}`", cell(expr.source())));
                (
                    keys,
                    default.unwrap_or_else(|| "the file must have it".into()),
                )
            }
        };
        out.push_str(&format!("| `{name}` | {} | {value} |\n", keys.join(", ")));
    }
    out
}

fn points(out: &mut String, points: impl ExactSizeIterator<Item = &'static PointSpec>) {
    if points.len() == 0 {
        return;
    }
    out.push_str("| point | shape for a token | TransformerLens | meaning |\n|---|---|---|---|\n");
    for point in points {
        let alias = point.alias.map(|alias| format!("`{alias}`"));
        out.push_str(&format!(
            "| `{}` | `[{}]` | {} | {} |\n",
            point.name,
            cell(&point.shape.join(", ")),
            alias.unwrap_or_default(),
            cell(point.doc)
        ));
    }
    out.push('\n');
}

fn kind(kind: OptionKind) -> String {
    match kind {
        OptionKind::Int => "integer".into(),
        OptionKind::Float => "number".into(),
        OptionKind::List => "list of integers".into(),
        OptionKind::Bool => "true, false".into(),
        OptionKind::Choice(names) => names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", "),
        OptionKind::Resource(kind) => format!("`[{}.NAME]`, `none`", kind.name()),
    }
}

/// The purpose of an option, and the condition under which it has an effect.
pub(super) fn meaning(option: &OptionSpec) -> String {
    // The text of an option that turns itself off already states its condition.
    let is_own = option.when.starts_with(option.name);
    match option.when {
        when if is_own || when == "true" => option.doc.to_owned(),
        when => format!("{}; when `{when}`", option.doc),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
