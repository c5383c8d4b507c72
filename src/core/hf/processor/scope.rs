//! The names that expressions of a processor file can use.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use serde_json::Value as Json;
use toml::{Table, Value as Toml};

use super::super::json::{at, convert};
use crate::arch::expr::{Expr, Scope, Value};

/// Maximum length of a chain of named values that follow from each other.
const MAX_CHAIN: usize = 32;

/// The configurations of a folder.
#[derive(Debug, Default)]
pub(super) struct FolderFiles {
    /// The object of the processor of one kind of media, to which names without a prefix belong.
    pub(super) own: Json,
    /// `processor_config.json`.
    pub(super) processor: Json,
    /// `tokenizer_config.json`.
    pub(super) tokenizer: Json,
    /// `config.json`.
    pub(super) config: Json,
    /// `processor_class`.
    pub(super) class: String,
    /// The type of the processor, such as `image_processor_type`, without the word for a fast version.
    pub(super) kind: String,
}

impl FolderFiles {
    /// The files as one object states them: the keys of the processor, and the other files under the names that expressions use.
    pub(super) fn stated(object: &Json, type_key: &str) -> Self {
        let text = |key: &str| object.get(key).and_then(Json::as_str).unwrap_or_default();
        let file = |key: &str| object.get(key).cloned().unwrap_or_default();
        Self {
            own: object.clone(),
            processor: file("processor"),
            tokenizer: file("tokenizer"),
            config: file("config"),
            class: text("processor_class").to_owned(),
            kind: text(type_key).to_owned(),
        }
    }
}

/// The names that expressions of a processor file can use: its named values, the keys of the folder's files, then its defaults.
pub(super) struct ProcessorScope<'a> {
    files: &'a FolderFiles,
    values: Option<&'a Table>,
    defaults: Option<&'a Table>,
    known: RefCell<HashMap<String, Value>>,
    depth: Cell<usize>,
}

impl<'a> ProcessorScope<'a> {
    pub(super) fn new(files: &'a FolderFiles, file: &'a Table) -> Self {
        let table = |key: &str| file.get(key).and_then(Toml::as_table);
        Self {
            files,
            values: table("values"),
            defaults: table("defaults"),
            known: RefCell::default(),
            depth: Cell::new(0),
        }
    }

    /// The value of a text that is an expression, of a number or a truth, or of a list of them.
    pub(super) fn value(&self, value: &Toml) -> Result<Value, String> {
        Ok(match value {
            Toml::String(text) => {
                let expression = Expr::parse(text, 0);
                let expression =
                    expression.map_err(|problem| format!("`{text}`: {}", problem.message))?;
                let value = expression.evaluate(self);
                value.map_err(|error| format!("`{text}`: {error}"))?
            }
            Toml::Integer(number) => Value::Int(*number),
            Toml::Float(number) => Value::Float(*number),
            Toml::Boolean(truth) => Value::Bool(*truth),
            Toml::Array(items) => Value::List(
                items
                    .iter()
                    .map(|item| self.value(item))
                    .collect::<Result<_, _>>()?,
            ),
            other => return Err(format!("found a {}, expected a value", other.type_str())),
        })
    }

    /// A text in which `{expression}` stands for its value. `{row}`, `{column}` and `{index}` stay: they belong to the prompt.
    pub(super) fn text(&self, text: &str) -> Result<String, String> {
        let (mut out, mut rest) = (String::new(), text);
        while let Some((head, after)) = rest.split_once('{') {
            let (inner, tail) = after
                .split_once('}')
                .ok_or_else(|| format!("`{text}`: a brace is not closed"))?;
            out.push_str(head);
            match inner {
                "row" | "column" | "index" => out.push_str(&format!("{{{inner}}}")),
                _ => out.push_str(&self.value(&Toml::String(inner.to_owned()))?.to_string()),
            }
            rest = tail;
        }
        Ok(out + rest)
    }

    /// Whether a table applies: whether the expression of its `when` holds.
    pub(super) fn applies(&self, table: &Table) -> Result<bool, String> {
        match table.get("when").map(|when| self.value(when)).transpose()? {
            None | Some(Value::Bool(true)) => Ok(true),
            Some(Value::Bool(false)) => Ok(false),
            Some(other) => Err(format!("`when` is {other}, expected true or false")),
        }
    }

    /// The value of a key in the files.
    fn stored(&self, name: &str) -> Option<Json> {
        let (object, key) = match name.split_once('.') {
            Some(("processor", key)) => (&self.files.processor, key),
            Some(("tokenizer", key)) => (&self.files.tokenizer, key),
            Some(("config", key)) => (&self.files.config, key),
            _ => (&self.files.own, name),
        };
        let value = at(object, key)?;
        (!value.is_null()).then(|| value.into_owned())
    }

    /// A named value or a default, evaluated once.
    fn once(&self, name: &str, value: &Toml) -> Result<Value, String> {
        if let Some(known) = self.known.borrow().get(name) {
            return Ok(known.clone());
        }
        if self.depth.get() == MAX_CHAIN {
            return Err(format!(
                "`{name}` depends on itself, or on more than {MAX_CHAIN} others"
            ));
        }
        self.depth.set(self.depth.get() + 1);
        let value = self.value(value);
        self.depth.set(self.depth.get() - 1);
        let value = value?;
        self.known
            .borrow_mut()
            .insert(name.to_owned(), value.clone());
        Ok(value)
    }
}

impl Scope for ProcessorScope<'_> {
    fn name(&self, name: &str, _whole: bool) -> Result<Value, String> {
        match name {
            "class" => return Ok(Value::Str(self.files.class.clone())),
            "type" => return Ok(Value::Str(self.files.kind.clone())),
            _ => {}
        }
        if let Some(value) = self.values.and_then(|values| values.get(name)) {
            return self.once(name, value);
        }
        if let Some(value) = self.stored(name) {
            return convert(&value).ok_or_else(|| format!("`{name}` is {value}, expected a value"));
        }
        match self.defaults.and_then(|defaults| defaults.get(name)) {
            Some(value) => self.once(name, value),
            None => Err(format!(
                "the folder has no `{name}`, and the file no default for it"
            )),
        }
    }

    fn has(&self, key: &str) -> Result<bool, String> {
        Ok(self.stored(key).is_some())
    }

    fn count(&self, key: &str) -> Result<i64, String> {
        let value = match self.has(key)? {
            true => self.name(key, true)?,
            false => return Ok(0),
        };
        Ok(match value {
            Value::List(items) => items.len() as i64,
            Value::Str(text) => text.chars().count() as i64,
            _ => 0,
        })
    }
}
