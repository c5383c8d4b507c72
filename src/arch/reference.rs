//! Prints the reference of the language as Markdown, from the contracts.

use super::contract::{Contract, OptionKind, OptionSpec, Presence, Registry, Resource};
use super::point::PointSpec;
use super::state::StateSpec;

impl Registry {
    /// Every block, stage and resource: its computation, options, weights and state, and the `users` (architectures)
    /// that use it.
    pub fn to_markdown(&self, users: &dyn Fn(&str) -> Vec<String>) -> String {
        let mut out = String::from(
            "# Blocks, stages and resources\n\n\
             Made by `bench arch blocks` from the contracts in `src/blocks/`; do not edit. Shapes are in ggml's order, fastest dimension\n\
             first. Defaults, shapes and conditions are expressions over the options before them, the parameters of `archs/common.toml`\n\
             and those of the definition. [adding-a-model.md](adding-a-model.md) says how they are put together.\n",
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
        .filter_map(|option| Some(format!("`{}` ({})", option.default?, meaning(option))))
        .collect();
    if !derived.is_empty() {
        out.push_str(&format!(
            "Values it takes from parameters and the file: {}.\n\n",
            derived.join(", ")
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
            "Keeps for each position a row of keys, `{k}` elements, and one of values, `{v}`, in the cache that `{cache}` names.\n\n"
        )),
        StateSpec::Recurrent(parts) => {
            let parts: Vec<String> = parts
                .iter()
                .map(|(name, size)| format!("{name}, `{size}` elements"))
                .collect();
            out.push_str(&format!("Keeps for each sequence: {}.\n\n", parts.join("; ")));
        }
    }
    points(out, contract.points.iter());
    for rule in contract.rules {
        out.push_str(&format!("- {}: `{}`\n", rule.message, rule.holds));
    }
    if !users.is_empty() {
        out.push_str(&format!("\nUsed by {}.\n", users.join(", ")));
    }
}

/// The points of contracts.
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

/// A text as a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
