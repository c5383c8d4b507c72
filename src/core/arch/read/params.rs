//! Reads parameters: numbers that a definition computes, or reads from the model file.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::DefinitionReader;
use crate::arch::definition::{LAYER, Param, ParamSource};
use crate::arch::diagnostic::Span;
use crate::arch::expr::{Expr, Value};
use crate::arch::table::{TableFields, TomlItem, ValueForm};

const SYNTH: ValueForm = ValueForm::Either(&[ValueForm::List(&ValueForm::Value), ValueForm::Value]);

impl<'a> DefinitionReader<'a> {
    pub(crate) fn params(&mut self, item: TomlItem<'a>) -> BTreeMap<String, Param> {
        let Some(table) = self.table(item, "params") else {
            return BTreeMap::new();
        };
        let mut params = BTreeMap::new();
        for (name, value) in table {
            let source = match value.get_ref() {
                DeValue::Table(table) => self.keyed_param(table, value.span()),
                _ => self.expr(value).map(ParamSource::Derived),
            };
            if LAYER.contains(&name.get_ref().as_ref()) {
                let name_of = name.get_ref();
                self.report(
                    name.span(),
                    format!("`{name_of}` is the index of the layer and cannot be a parameter"),
                );
            }
            if let Some(source) = source {
                params.insert(
                    name.get_ref().to_string(),
                    Param {
                        source,
                        span: Some(name.span()),
                        assumption: None,
                    },
                );
            }
        }
        params
    }

    /// The `[assumptions]` table: parameters that follow from the size of a model because files do not state them, with
    /// reasons.
    pub(crate) fn assumptions(&mut self, item: TomlItem<'a>) -> BTreeMap<String, Param> {
        let Some(table) = self.table(item, "assumptions") else {
            return BTreeMap::new();
        };
        let mut params = BTreeMap::new();
        for (name, value) in table {
            let Some(inner) = self.table(value, "assumptions") else {
                continue;
            };
            let mut fields = TableFields::new(inner, value.span(), "an assumption");
            let reason = self.required_text(&mut fields, "reason");
            let Some(item) = fields.take_required("value", ValueForm::Value) else {
                self.missing(&fields, "value");
                continue;
            };
            let source = self.expr(item).map(ParamSource::Derived);
            self.finish(fields);
            if let (Some(source), Some(reason)) = (source, reason) {
                let param = Param {
                    source,
                    span: Some(name.span()),
                    assumption: Some(reason.value),
                };
                params.insert(name.get_ref().to_string(), param);
            }
        }
        params
    }

    fn keyed_param(&mut self, table: &'a DeTable<'a>, span: Span) -> Option<ParamSource> {
        let mut fields = TableFields::new(table, span.clone(), "a parameter");
        let relative = fields.take("key", ValueForm::TEXT_OR_TEXTS);
        let absolute = fields.take("global_key", ValueForm::TEXT_OR_TEXTS);
        let keys = match (relative, absolute) {
            (Some(item), None) | (None, Some(item)) => self.text_or_texts(item, "key"),
            _ => {
                self.report(
                    span,
                    "a parameter read from the file has either `key` or `global_key`",
                );
                Vec::new()
            }
        };
        let default = match fields.take("default", ValueForm::Value) {
            Some(item) => Some(self.expr(item)?),
            None => None,
        };
        let synth = fields.take("synth", SYNTH).and_then(|item| {
            let plain = match item.get_ref() {
                DeValue::Array(items) => {
                    let items = items.iter().map(|item| self.expr(item));
                    list_of_numbers(&items.collect::<Option<Vec<Expr>>>()?)
                }
                _ => Some(self.expr(item)?).filter(|expr| expr.as_literal().is_some()),
            };
            if plain.is_none() {
                self.report(
                    item.span(),
                    "`synth` is a plain value, or a list of numbers",
                );
            }
            plain
        });
        let zero = self.choice(&mut fields, "zero", &[("unset", false), ("value", true)]);
        self.finish(fields);
        Some(ParamSource::Key {
            keys,
            absolute: absolute.is_some(),
            default,
            zero_is_value: zero.unwrap_or(false),
            synth,
        })
    }
}

/// The list of these numbers; none if an item is not a plain number.
fn list_of_numbers(items: &[Expr]) -> Option<Expr> {
    let number = |item: &Expr| match item.as_literal()? {
        Value::Str(_) => None,
        number => Some(number.clone()),
    };
    let values = items.iter().map(number).collect::<Option<_>>();
    values.map(|values| Expr::literal(Value::List(values)))
}
