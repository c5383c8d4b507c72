//! Reads uses of contracts: their options and weights, and the resources that a definition declares.

use toml::de::DeTable;

use super::DefinitionReader;
use super::weights::{contract_expr, weight_use};
use crate::arch::contract::{Contract, OptionKind, OptionSpec, Resource, RowWidth};
use crate::arch::definition::{ContractUse, Resources, Setting, WeightUse};
use crate::arch::diagnostic::{Diagnostic, Span};
use crate::arch::expr::{Expr, Value};
use crate::arch::state::StateSpec;
use crate::arch::table::{TableFields, ValueForm};

impl<'a> DefinitionReader<'a> {
    pub(super) fn resources(&mut self, fields: &mut TableFields<'a>) -> Resources {
        let mut out = Resources::new();
        for kind in Resource::ALL {
            let contract = self.registry.resource(kind);
            let Some(item) = fields.take(kind.name(), ValueForm::Tables(contract.name)) else {
                continue;
            };
            let Some(table) = self.table(item, kind.name()) else {
                continue;
            };
            let plain = contract.plain_kinds();
            for (name, value) in table {
                let own = name.get_ref().as_ref();
                if own == "none" {
                    self.report(
                        name.span(),
                        "`none` means the absence of a resource and cannot be declared",
                    );
                } else if plain.contains(&own) {
                    let problem = format!("`{own}` is a kind that needs no declaration");
                    let help = "one with parameters has a name of its own";
                    self.problems
                        .push(Diagnostic::new(name.span(), problem).with_help(help));
                }
                let Some(inner) = self.table(value, kind.name()) else {
                    continue;
                };
                if let Some(instance) = self.whole_instance(inner, name.span(), contract) {
                    out.insert((kind, name.get_ref().to_string()), instance);
                }
            }
        }
        out
    }

    /// The resources of every kind that needs no declaration, as if they were declared with their kind only.
    pub(super) fn plain_resources(&self) -> Resources {
        let mut out = Resources::new();
        for kind in Resource::ALL {
            let contract = self.registry.resource(kind);
            for name in contract.plain_kinds() {
                let setting = |spec: &OptionSpec| Setting {
                    expr: match spec.default {
                        Some(default) => default_expr(default, spec.kind),
                        None => Expr::literal(Value::Str((*name).into())),
                    },
                    span: None,
                };
                let options = contract.options.iter().map(setting).collect();
                let weights = contract.weights.iter();
                let weights =
                    weights.map(|spec| weight_use(spec, spec.tensor.to_owned(), spec.presence));
                let instance = assembled(contract, options, weights.collect(), 0..0);
                out.insert((kind, (*name).to_owned()), instance);
            }
        }
        out
    }

    pub(super) fn whole_instance(
        &mut self,
        table: &'a DeTable<'a>,
        span: Span,
        contract: &'static Contract,
    ) -> Option<ContractUse> {
        self.instance(TableFields::new(table, span, contract.name), contract)
    }

    /// The options and weights of a contract, from the remaining keys of a table.
    pub(super) fn instance(
        &mut self,
        mut fields: TableFields<'a>,
        contract: &'static Contract,
    ) -> Option<ContractUse> {
        let mut options = Vec::with_capacity(contract.options.len());
        for spec in contract.options {
            let item = match (spec.is_derived, spec.default) {
                (true, _) => fields.take(spec.name, ValueForm::Derived(spec)),
                (false, None) => fields.take_required(spec.name, ValueForm::Option(spec)),
                (false, Some(_)) => fields.take(spec.name, ValueForm::Option(spec)),
            };
            if let (true, Some(item), Some(expr)) = (spec.is_derived, item, spec.default) {
                let problem = format!("`{}` is not an option: it follows from `{expr}`", spec.name);
                let help = "parameters are set under `[params]`";
                self.problems
                    .push(Diagnostic::new(item.span(), problem).with_help(help));
                continue;
            }
            let setting = match item {
                Some(item) => match spec.kind {
                    OptionKind::Choice(_) | OptionKind::Resource(_) => self.name(item),
                    _ => self.setting(item),
                },
                None => match spec.default {
                    Some(default) => Some(Setting {
                        expr: default_expr(default, spec.kind),
                        span: None,
                    }),
                    None => {
                        let problem = format!(
                            "missing key `{}` (required by `{}`)",
                            spec.name, contract.name
                        );
                        self.problems.push(
                            Diagnostic::new(fields.span.clone(), problem).with_help(spec.doc),
                        );
                        None
                    }
                },
            };
            options.push(setting);
        }
        let weights = self.weights(&mut fields, contract);
        let span = fields.span.clone();
        self.finish(fields);
        let options = options.into_iter().collect::<Option<_>>()?;
        Some(assembled(contract, options, weights, span))
    }
}

/// A use of a contract with these settings and the contract's own expressions.
fn assembled(
    contract: &'static Contract,
    options: Vec<Setting>,
    weights: Vec<WeightUse>,
    span: Span,
) -> ContractUse {
    let rules = contract.rules.iter();
    let state = match contract.state {
        StateSpec::None => Vec::new(),
        StateSpec::KeyValue {
            k,
            v,
            heads,
            v_in_k,
            index,
            pooled,
            ..
        } => {
            let pooled = pooled.map(|of| [of.width, of.span, of.reach]);
            let own = [k, v, heads, v_in_k, index].into_iter();
            own.chain(pooled.into_iter().flatten())
                .map(contract_expr)
                .collect()
        }
        StateSpec::Recurrent(parts) => parts.iter().map(|(_, size)| contract_expr(size)).collect(),
    };
    ContractUse {
        contract,
        options,
        weights,
        rules: rules.map(|rule| contract_expr(rule.holds)).collect(),
        side: contract.side.map(|side| contract_expr(side.width)),
        result: match contract.rows {
            RowWidth::To(width) => Some(contract_expr(width)),
            RowWidth::Hidden | RowWidth::Any => None,
        },
        state,
        span,
    }
}

/// The default of an option: a name, or an expression (`(cls_act)`).
fn default_expr(text: &'static str, kind: OptionKind) -> Expr {
    let is_name = match kind {
        OptionKind::Choice(names) => names.contains(&text),
        OptionKind::Resource(_) => !text.starts_with('('),
        _ => false,
    };
    match is_name {
        true => Expr::literal(Value::Str(text.into())),
        false => contract_expr(text),
    }
}
