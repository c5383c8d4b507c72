//! Reads the keys of a TOML table one by one, and their values as texts, numbers, expressions and tables. Reading
//! continues after a problem, so that all problems are reported together.
//!
//! The caller that takes a key states the form of its value ([`ValueForm`]), so the recorded keys describe the language:
//! `schema` makes a JSON Schema of them.

use std::collections::BTreeMap;

use toml::Spanned as TomlSpanned;
use toml::de::{DeTable, DeValue};

use super::contract::{Contract, OptionSpec};
use super::definition::OF_FILE;
use super::diagnostic::{Diagnostic, MANY, Span, Spanned, nearest};
use super::expr::{Expr, Value};

/// Maximum number of items of a list or table, far above every need: work may grow with its square.
const MAX_ITEMS: usize = 1024;

/// A value in a TOML file.
pub(crate) type TomlItem<'a> = &'a TomlSpanned<DeValue<'a>>;

/// The form of the value of a key.
#[derive(Clone, Debug)]
pub(crate) enum ValueForm {
    Text,
    Texts,
    /// A plain word, or an expression that results in one.
    Name,
    Word(Vec<&'static str>),
    /// True or false.
    Flag,
    /// A number or an expression.
    Number,
    /// True, false or an expression.
    Condition,
    /// Any value, or an expression.
    Value,
    Either(&'static [Self]),
    List(&'static Self),
    /// A table with any keys.
    Map(&'static Self),
    Table(&'static str),
    /// Tables of this kind under any keys.
    Tables(&'static str),
    Branch,
    Option(&'static OptionSpec),
    Weights(&'static Contract),
    /// No value is allowed: it follows from parameters, which a message can state.
    Derived(&'static OptionSpec),
}

impl ValueForm {
    pub(crate) const TEXT_OR_TEXTS: Self = Self::Either(&[Self::Text, Self::Texts]);
}

/// A key that a reader asked for.
#[derive(Clone, Debug)]
pub(crate) struct KeySpec {
    pub(crate) key: &'static str,
    pub(crate) form: ValueForm,
    pub(crate) is_required: bool,
}

impl KeySpec {
    /// The expression from which a value follows that no definition sets.
    fn follows_from(&self) -> Option<&'static str> {
        match self.form {
            ValueForm::Derived(spec) => spec.default,
            _ => None,
        }
    }

    /// Whether a table may have the key.
    pub(crate) fn is_possible(&self) -> bool {
        self.follows_from().is_none()
    }
}

/// Reads values and collects problems.
pub(crate) struct TableReader<'a> {
    pub(crate) source: &'a str,
    pub(crate) problems: Vec<Diagnostic>,
    /// The keys of every kind of table that was read.
    pub(crate) kinds: BTreeMap<&'static str, Vec<KeySpec>>,
}

/// A table whose keys are taken one by one; remaining keys are unknown.
pub(crate) struct TableFields<'a> {
    table: &'a DeTable<'a>,
    pub(crate) span: Span,
    /// The kind of the table: a noun with its article, or a name of the language.
    pub(crate) kind: &'static str,
    pub(crate) known: Vec<KeySpec>,
}

impl<'a> TableFields<'a> {
    pub(crate) fn new(table: &'a DeTable<'a>, span: Span, kind: &'static str) -> Self {
        Self {
            table,
            span,
            kind,
            known: Vec::new(),
        }
    }

    fn what(&self) -> String {
        match self.kind.contains(' ') {
            true => self.kind.to_owned(),
            false => format!("`{}`", self.kind),
        }
    }

    pub(crate) fn take(&mut self, key: &'static str, form: ValueForm) -> Option<TomlItem<'a>> {
        self.known.push(KeySpec {
            key,
            form,
            is_required: false,
        });
        self.given(key)
    }

    /// The value of a required key; the caller reports a missing one.
    pub(crate) fn take_required(
        &mut self,
        key: &'static str,
        form: ValueForm,
    ) -> Option<TomlItem<'a>> {
        self.known.push(KeySpec {
            key,
            form,
            is_required: true,
        });
        self.given(key)
    }

    /// The value of a key, whether taken or not.
    pub(crate) fn given(&self, key: &str) -> Option<TomlItem<'a>> {
        self.table
            .iter()
            .find(|(name, _)| name.get_ref() == key)
            .map(|(_, value)| value)
    }

    /// The keys that were not taken.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (&'a str, Span, TomlItem<'a>)> {
        self.table
            .iter()
            .filter(|(name, _)| self.known.iter().all(|known| known.key != name.get_ref()))
            .map(|(name, value)| (&**name.get_ref(), name.span(), value))
    }
}

impl<'a> TableReader<'a> {
    pub(crate) fn new(source: &'a str) -> Self {
        Self {
            source,
            problems: Vec::new(),
            kinds: BTreeMap::new(),
        }
    }

    pub(crate) fn report(&mut self, span: Span, message: impl Into<String>) {
        self.problems.push(Diagnostic::new(span, message));
    }

    /// Reports a value of `key` that is not what is `expected`.
    pub(crate) fn wrong<T>(&mut self, item: TomlItem<'a>, key: &str, expected: &str) -> Option<T> {
        let found = item.get_ref().type_str();
        let problem = format!("`{key}`: expected {expected}, found {found}");
        self.report(item.span(), problem);
        None
    }

    /// Whether there are too many problems to continue.
    fn is_full(&self) -> bool {
        self.problems.len() >= MANY
    }

    /// Whether a list or table has at most the allowed number of items; otherwise a problem is reported.
    pub(crate) fn is_short(&mut self, item: TomlItem<'a>, n: usize) -> bool {
        if n > MAX_ITEMS {
            let message = format!("{n} items, expected at most {MAX_ITEMS}");
            self.report(item.span(), message);
        }
        n <= MAX_ITEMS
    }

    /// Reports the keys that were not taken.
    pub(crate) fn finish(&mut self, fields: TableFields<'_>) {
        for (name, span, _) in fields.rest() {
            if self.is_full() {
                break;
            }
            let known = fields.known.iter().filter(|known| known.is_possible());
            let known = known.map(|known| known.key);
            let mut problem = Diagnostic::unknown(span, "key", name, known);
            problem.message.push_str(&format!(" in {}", fields.what()));
            let all = || fields.known.iter();
            let near = nearest(name, all().map(|known| known.key));
            let near = all().find(|known| Some(known.key) == near);
            if let Some((key, from)) = near.and_then(|near| Some((near.key, near.follows_from()?)))
            {
                problem.help = Some(format!(
                    "`{key}` is not an option: it follows from `{from}`, and parameters are set under `[params]`"
                ));
            }
            self.problems.push(problem);
        }
        let all = self.kinds.entry(fields.kind).or_default();
        for known in fields.known {
            if all.iter().all(|other| other.key != known.key) {
                all.push(known);
            }
        }
    }

    pub(crate) fn optional_expr(
        &mut self,
        fields: &mut TableFields<'a>,
        key: &'static str,
        form: ValueForm,
    ) -> Option<Expr> {
        fields.take(key, form).and_then(|item| self.expr(item))
    }

    pub(crate) fn optional_text(
        &mut self,
        fields: &mut TableFields<'a>,
        key: &'static str,
    ) -> Option<Spanned<String>> {
        let item = fields.take(key, ValueForm::Text)?;
        self.text(item, key)
    }

    pub(crate) fn optional_texts(
        &mut self,
        fields: &mut TableFields<'a>,
        key: &'static str,
    ) -> Vec<Spanned<String>> {
        let item = fields.take(key, ValueForm::Texts);
        item.map_or_else(Vec::new, |item| self.texts(item, key))
    }

    /// The entries of the table at a key, by their names.
    pub(crate) fn entries(
        &mut self,
        fields: &mut TableFields<'a>,
        key: &'static str,
        form: ValueForm,
    ) -> Vec<(Spanned<String>, TomlItem<'a>)> {
        let item = fields.take(key, form);
        let table = item.and_then(|item| self.table(item, key));
        let entries = table.into_iter().flatten();
        let named =
            |name: &TomlSpanned<_>| Spanned::new(ToString::to_string(name.get_ref()), name.span());
        entries.map(|(name, item)| (named(name), item)).collect()
    }

    pub(crate) fn any_texts(
        &mut self,
        fields: &mut TableFields<'a>,
        key: &'static str,
    ) -> Vec<String> {
        let item = fields.take(key, ValueForm::TEXT_OR_TEXTS);
        item.map_or_else(Vec::new, |item| self.text_or_texts(item, key))
    }

    pub(crate) fn expr(&mut self, item: TomlItem<'a>) -> Option<Expr> {
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

    /// A value that is a name: a plain word is the name itself, any other text is an expression.
    pub(crate) fn name(&mut self, item: TomlItem<'a>) -> Option<Expr> {
        let plain = |text: &str| {
            let text = text.strip_prefix(OF_FILE).unwrap_or(text);
            !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'))
        };
        match item.get_ref() {
            DeValue::String(text) if plain(text) => {
                Some(Expr::literal(Value::Str(text.to_string())))
            }
            DeValue::String(_) => self.expr(item),
            other => {
                self.report(
                    item.span(),
                    format!("expected a name, found {}", other.type_str()),
                );
                None
            }
        }
    }

    pub(crate) fn expr_text(&mut self, text: &str, span: Span) -> Option<Expr> {
        // A text without escapes is in the file as it is, so problems can point into it.
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
        fields: &mut TableFields<'a>,
        key: &'static str,
        names: &[(&'static str, T)],
    ) -> Option<T> {
        let words = names.iter().map(|(name, _)| *name).collect();
        let item = fields.take(key, ValueForm::Word(words))?;
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
        fields: &mut TableFields<'a>,
        key: &'static str,
    ) -> Option<Spanned<String>> {
        match fields.take_required(key, ValueForm::Text) {
            Some(item) => self.text(item, key),
            None => {
                self.missing(fields, key);
                None
            }
        }
    }

    pub(crate) fn missing(&mut self, fields: &TableFields<'_>, key: &str) {
        let problem = format!("missing key `{key}` (required in {})", fields.what());
        self.report(fields.span.clone(), problem);
    }

    pub(crate) fn text(&mut self, item: TomlItem<'a>, key: &str) -> Option<Spanned<String>> {
        match item.get_ref() {
            DeValue::String(text) => Some(Spanned::new(text.to_string(), item.span())),
            _ => self.wrong(item, key, "a string"),
        }
    }

    pub(crate) fn text_or_texts(&mut self, item: TomlItem<'a>, key: &str) -> Vec<String> {
        match item.get_ref() {
            DeValue::Array(_) => self.texts(item, key).into_iter().map(|t| t.value).collect(),
            _ => self.text(item, key).map(|t| t.value).into_iter().collect(),
        }
    }

    pub(crate) fn texts(&mut self, item: TomlItem<'a>, key: &str) -> Vec<Spanned<String>> {
        match item.get_ref() {
            DeValue::Array(items) if !self.is_short(item, items.len()) => Vec::new(),
            DeValue::Array(items) => items
                .iter()
                .filter_map(|item| self.text(item, key))
                .collect(),
            _ => self
                .wrong(item, key, "an array of texts")
                .unwrap_or_default(),
        }
    }

    pub(crate) fn table(&mut self, item: TomlItem<'a>, key: &str) -> Option<&'a DeTable<'a>> {
        match item.get_ref() {
            DeValue::Table(table) => self.is_short(item, table.len()).then_some(table),
            _ => self.wrong(item, key, "a table"),
        }
    }

    pub(crate) fn tables(&mut self, item: TomlItem<'a>, key: &str) -> Vec<(&'a DeTable<'a>, Span)> {
        match item.get_ref() {
            DeValue::Array(items) if !self.is_short(item, items.len()) => Vec::new(),
            DeValue::Array(items) => items
                .iter()
                .filter_map(|item| Some((self.table(item, key)?, item.span())))
                .collect(),
            _ => self
                .wrong(item, key, "an array of tables")
                .unwrap_or_default(),
        }
    }
}
