//! Keys of a TOML table, taken one by one, and their values as texts, numbers, expressions and
//! tables. Reading goes on after a problem, so that all of them are reported together.

use toml::Spanned as TomlSpanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{Diagnostic, Span, Spanned};
use super::expr::{Expr, Value};

/// A value in a TOML file.
pub(crate) type Item<'a> = &'a TomlSpanned<DeValue<'a>>;

/// Reads values and collects what is wrong with them.
pub(crate) struct TableReader<'a> {
    pub(crate) source: &'a str,
    pub(crate) problems: Vec<Diagnostic>,
}

/// A table whose keys are taken one by one; what is left at the end is unknown.
pub(crate) struct Fields<'a> {
    table: &'a DeTable<'a>,
    pub(crate) span: Span,
    pub(crate) known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(table: &'a DeTable<'a>, span: Span) -> Self {
        Self {
            table,
            span,
            known: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self, key: &'static str) -> Option<Item<'a>> {
        self.known.push(key);
        self.table
            .iter()
            .find(|(name, _)| name.get_ref() == key)
            .map(|(_, value)| value)
    }

    /// The keys nobody took.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (&'a str, Span, Item<'a>)> {
        self.table
            .iter()
            .filter(|(name, _)| !self.known.contains(&&**name.get_ref()))
            .map(|(name, value)| (&**name.get_ref(), name.span(), value))
    }
}

impl<'a> TableReader<'a> {
    pub(crate) fn new(source: &'a str) -> Self {
        Self {
            source,
            problems: Vec::new(),
        }
    }

    pub(crate) fn report(&mut self, span: Span, message: impl Into<String>) {
        self.problems.push(Diagnostic::new(span, message));
    }

    /// Reports the keys that nobody took.
    pub(crate) fn finish(&mut self, fields: &Fields<'_>, what: &str) {
        for (name, span, _) in fields.rest() {
            let known = fields.known.iter().copied();
            let mut problem = Diagnostic::unknown(span, "key", name, known);
            problem.message.push_str(&format!(" in {what}"));
            self.problems.push(problem);
        }
    }

    pub(crate) fn optional_expr(
        &mut self,
        fields: &mut Fields<'a>,
        key: &'static str,
    ) -> Option<Expr> {
        fields.take(key).and_then(|item| self.expr(item))
    }

    pub(crate) fn expr(&mut self, item: Item<'a>) -> Option<Expr> {
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

    pub(crate) fn expr_text(&mut self, text: &str, span: Span) -> Option<Expr> {
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

    pub(crate) fn choice<T: Copy>(
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

    pub(crate) fn required_text(
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

    pub(crate) fn text(&mut self, item: Item<'a>, key: &str) -> Option<Spanned<String>> {
        match item.get_ref() {
            DeValue::String(text) => Some(Spanned::new(text.to_string(), item.span())),
            other => {
                self.report(
                    item.span(),
                    format!("`{key}`: expected a string, found {}", other.type_str()),
                );
                None
            }
        }
    }

    pub(crate) fn text_or_texts(&mut self, item: Item<'a>, key: &str) -> Vec<String> {
        match item.get_ref() {
            DeValue::Array(_) => self.texts(item, key).into_iter().map(|t| t.value).collect(),
            _ => self.text(item, key).map(|t| t.value).into_iter().collect(),
        }
    }

    pub(crate) fn texts(&mut self, item: Item<'a>, key: &str) -> Vec<Spanned<String>> {
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

    pub(crate) fn table(&mut self, item: Item<'a>, key: &str) -> Option<&'a DeTable<'a>> {
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

    pub(crate) fn tables(&mut self, item: Item<'a>, key: &str) -> Vec<(&'a DeTable<'a>, Span)> {
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
