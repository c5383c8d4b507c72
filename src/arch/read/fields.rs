//! Keys of a TOML table, taken one by one, and their values as texts, names, numbers and tables.

use toml::de::{DeTable, DeValue};

use super::{Item, Reader};
use crate::arch::definition::Setting;
use crate::arch::diagnostic::{Diagnostic, Span, Spanned};
use crate::arch::expr::{Expr, Value};

/// A table whose keys are taken one by one; what is left at the end is unknown.
pub(super) struct Fields<'a> {
    table: &'a DeTable<'a>,
    pub(super) span: Span,
    pub(super) known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(table: &'a DeTable<'a>, span: Span) -> Self {
        Self {
            table,
            span,
            known: Vec::new(),
        }
    }

    pub(super) fn take(&mut self, key: &'static str) -> Option<Item<'a>> {
        self.known.push(key);
        self.table
            .iter()
            .find(|(name, _)| name.get_ref() == key)
            .map(|(_, value)| value)
    }

    /// The keys nobody took.
    pub(super) fn rest(&self) -> impl Iterator<Item = (&'a str, Span, Item<'a>)> {
        self.table
            .iter()
            .filter(|(name, _)| !self.known.contains(&&**name.get_ref()))
            .map(|(name, value)| (&**name.get_ref(), name.span(), value))
    }
}

impl<'a> Reader<'a> {
    pub(super) fn optional_expr(
        &mut self,
        fields: &mut Fields<'a>,
        key: &'static str,
    ) -> Option<Expr> {
        fields.take(key).and_then(|item| self.expr(item))
    }

    pub(super) fn optional_setting(
        &mut self,
        fields: &mut Fields<'a>,
        key: &'static str,
    ) -> Option<Setting> {
        fields.take(key).and_then(|item| self.setting(item))
    }

    pub(super) fn optional_name(
        &mut self,
        fields: &mut Fields<'a>,
        key: &'static str,
    ) -> Option<Setting> {
        fields.take(key).and_then(|item| self.name(item))
    }

    pub(super) fn setting(&mut self, item: Item<'a>) -> Option<Setting> {
        Some(Setting {
            expr: self.expr(item)?,
            span: Some(item.span()),
        })
    }

    /// A value that is a name: a plain word is the name itself, anything else an expression.
    pub(super) fn name(&mut self, item: Item<'a>) -> Option<Setting> {
        let plain = |text: &str| {
            !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'))
        };
        let expr = match item.get_ref() {
            DeValue::String(text) if plain(text) => Expr::literal(Value::Str(text.to_string())),
            DeValue::String(_) => self.expr(item)?,
            other => {
                self.report(
                    item.span(),
                    format!("expected a name, found {}", other.type_str()),
                );
                return None;
            }
        };
        Some(Setting {
            expr,
            span: Some(item.span()),
        })
    }

    pub(super) fn expr(&mut self, item: Item<'a>) -> Option<Expr> {
        let span = item.span();
        let literal = match item.get_ref() {
            DeValue::Integer(number) => {
                i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
                    .ok()
                    .map(Value::Int)
            }
            DeValue::Float(number) => number
                .as_str()
                .replace('_', "")
                .parse()
                .ok()
                .filter(|v: &f64| v.is_finite())
                .map(Value::Float),
            DeValue::Boolean(truth) => Some(Value::Bool(*truth)),
            DeValue::String(text) => return self.expr_text(text, span),
            other => {
                self.report(
                    span,
                    format!(
                        "expected a value or an expression, found {}",
                        other.type_str()
                    ),
                );
                return None;
            }
        };
        if literal.is_none() {
            self.report(span, "the number is out of range");
        }
        literal.map(Expr::literal)
    }

    pub(super) fn expr_text(&mut self, text: &str, span: Span) -> Option<Expr> {
        // Without escapes the text stands in the file as it is, and problems point into it.
        let written = self.source.get(span.clone()).unwrap_or_default();
        let start = written.find(text).filter(|_| !text.is_empty());
        match Expr::parse(text, span.start + start.unwrap_or(0)) {
            Ok(expr) => Some(expr),
            Err(mut problem) => {
                if start.is_none() {
                    problem.span = span;
                }
                self.problems.push(problem);
                None
            }
        }
    }

    pub(super) fn choice<T: Copy>(
        &mut self,
        item: Item<'a>,
        key: &str,
        names: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(item, key)?;
        let found = names
            .iter()
            .find(|(name, _)| *name == text.value)
            .map(|(_, value)| *value);
        if found.is_none() {
            let known = names.iter().map(|(name, _)| *name);
            let what = format!("value of `{key}`");
            self.problems
                .push(Diagnostic::unknown(text.span, &what, &text.value, known));
        }
        found
    }

    pub(super) fn required_text(
        &mut self,
        fields: &mut Fields<'a>,
        key: &'static str,
        what: &str,
    ) -> Option<Spanned<String>> {
        match fields.take(key) {
            Some(item) => self.text(item, key),
            None => {
                self.report(
                    fields.span.clone(),
                    format!("missing key `{key}` (required in {what})"),
                );
                None
            }
        }
    }

    pub(super) fn text(&mut self, item: Item<'a>, key: &str) -> Option<Spanned<String>> {
        match item.get_ref() {
            DeValue::String(text) => Some(Spanned::new(text.to_string(), item.span())),
            other => {
                self.report(
                    item.span(),
                    format!("`{key}`: expected text, found {}", other.type_str()),
                );
                None
            }
        }
    }

    pub(super) fn text_or_texts(&mut self, item: Item<'a>, key: &str) -> Vec<String> {
        match item.get_ref() {
            DeValue::Array(_) => self.texts(item, key).into_iter().map(|t| t.value).collect(),
            _ => self.text(item, key).map(|t| t.value).into_iter().collect(),
        }
    }

    pub(super) fn texts(&mut self, item: Item<'a>, key: &str) -> Vec<Spanned<String>> {
        match item.get_ref() {
            DeValue::Array(items) => items
                .iter()
                .filter_map(|item| self.text(item, key))
                .collect(),
            other => {
                let problem = format!(
                    "`{key}`: expected an array of texts, found {}",
                    other.type_str()
                );
                self.report(item.span(), problem);
                Vec::new()
            }
        }
    }

    pub(super) fn table(&mut self, item: Item<'a>, key: &str) -> Option<&'a DeTable<'a>> {
        match item.get_ref() {
            DeValue::Table(table) => Some(table),
            other => {
                self.report(
                    item.span(),
                    format!("`{key}`: expected a table, found {}", other.type_str()),
                );
                None
            }
        }
    }

    pub(super) fn tables(&mut self, item: Item<'a>, key: &str) -> Vec<(&'a DeTable<'a>, Span)> {
        match item.get_ref() {
            DeValue::Array(items) => items
                .iter()
                .filter_map(|item| Some((self.table(item, key)?, item.span())))
                .collect(),
            other => {
                let problem = format!(
                    "`{key}`: expected an array of tables, found {}",
                    other.type_str()
                );
                self.report(item.span(), problem);
                Vec::new()
            }
        }
    }
}
