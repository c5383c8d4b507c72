//! Reads the weights of a use: their tensors, and whether they must exist.

use std::collections::BTreeMap;

use toml::de::DeValue;

use super::DefinitionReader;
use crate::arch::contract::{Contract, Presence, WeightSpec};
use crate::arch::definition::{OF_FILE, OR, WeightUse, braced_param};
use crate::arch::diagnostic::{Diagnostic, Span};
use crate::arch::expr::Expr;
use crate::arch::table::{TableFields, TomlItem, ValueForm};

/// Last character of the name of an optional tensor.
const MAYBE: char = '?';

impl<'a> DefinitionReader<'a> {
    /// Reports a text that cannot name a tensor.
    fn tensor_text(&mut self, text: &str, span: Span) {
        if is_tensor_name(text) {
            return;
        }
        let problem = Diagnostic::new(span, format!("`{text}` is not a tensor name"));
        self.problems.push(
            problem.with_help(match text {
                "true" | "false" => format!("write `{text}` without quotes"),
                _ => "a weight is a name, true or false, and no expression; where names differ by \
                  layer, write two branches with `when`"
                    .to_owned(),
            }),
        );
    }

    /// The `weights` table: a string renames a weight, `true` requires it, `false` forbids it.
    pub(super) fn weights(
        &mut self,
        fields: &mut TableFields<'a>,
        contract: &'static Contract,
    ) -> Vec<WeightUse> {
        let mut given: BTreeMap<&'static str, TomlItem<'a>> = BTreeMap::new();
        if let Some(item) = fields.take("weights", ValueForm::Weights(contract))
            && let Some(table) = self.table(item, "weights")
        {
            for (key, value) in table {
                match contract.weight(key.get_ref()) {
                    Some(spec) => {
                        given.insert(spec.key, value);
                    }
                    None => {
                        let known = contract.weights.iter().map(|w| w.key);
                        let what = format!("weight of `{}`", contract.name);
                        self.problems.push(Diagnostic::unknown(
                            key.span(),
                            &what,
                            key.get_ref(),
                            known,
                        ));
                    }
                }
            }
        }
        let mut renamed: BTreeMap<&'static str, String> = BTreeMap::new();
        for (&key, item) in &given {
            if let DeValue::String(name) = item.get_ref() {
                let name = name.strip_suffix(MAYBE).unwrap_or(name);
                self.tensor_text(name, item.span());
                renamed.insert(key, name.to_owned());
            }
        }
        contract
            .weights
            .iter()
            .map(|spec| {
                let default = spec.presence;
                let presence = match given
                    .get(spec.key)
                    .map(|item| (item.get_ref(), item.span()))
                {
                    None => default,
                    // A tensor that is named is required, unless the name is marked as optional.
                    Some((DeValue::String(name), _)) if name.ends_with(MAYBE) => Presence::Optional,
                    Some((DeValue::String(_), _)) => Presence::Required,
                    Some((DeValue::Boolean(true), _)) => Presence::Required,
                    Some((DeValue::Boolean(false), _)) => Presence::Forbidden,
                    Some((other, span)) => {
                        let found = other.type_str();
                        let problem = format!(
                            "weight `{}`: expected a tensor name, true or false, found {found}",
                            spec.key
                        );
                        self.report(span, problem);
                        default
                    }
                };
                weight_use(spec, tensor_name(spec.key, spec.tensor, &renamed), presence)
            })
            .collect()
    }
}

/// The use of a contract's weight with this tensor.
pub(super) fn weight_use(spec: &WeightSpec, tensor: String, presence: Presence) -> WeightUse {
    WeightUse {
        tensor,
        when: contract_expr(spec.when),
        shape: spec.shape.iter().map(|dim| contract_expr(dim)).collect(),
        presence,
    }
}

pub(super) fn contract_expr(text: &'static str) -> Expr {
    Expr::of_program(text).unwrap_or_else(|problem| {
        // Contracts are part of the program; the test over all contracts parses each of them.
        panic!("contract expression `{text}`: {}", problem.message)
    })
}

fn is_tensor_name(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    text.split(OR).all(|text| {
        let text = text.strip_prefix(OF_FILE).unwrap_or(text);
        let text = match braced_param(text) {
            Some((before, _, after)) => format!("{before}0{after}"),
            None => text.to_owned(),
        };
        !text.is_empty() && text.chars().all(fits) && !matches!(&*text, "true" | "false")
    })
}

/// Name of a weight's tensor after renaming. A name without a dot gets the ending of the contract's own name. A dot at
/// its end stands for no ending. A `.bias` or `.scale` follows the weight it belongs to.
fn tensor_name(key: &str, default: &str, renamed: &BTreeMap<&'static str, String>) -> String {
    let ending = default.rfind('.').map_or("", |dot| &default[dot..]);
    let own = renamed.get(key);
    let parent = key
        .rsplit_once('.')
        .and_then(|(parent, _)| renamed.get(parent));
    let Some(names) = own.or(parent) else {
        return default.to_owned();
    };
    let with_ending = |name: &str| match own.is_some() && name.contains('.') {
        true => name.trim_end_matches('.').to_owned(),
        false => {
            let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
            format!("{stem}{ending}")
        }
    };
    let names: Vec<String> = names.split(OR).map(with_ending).collect();
    names.join(&OR.to_string())
}
