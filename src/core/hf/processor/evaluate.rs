//! A table of a processor file as serde reads it: what is asked for decides whether a string is an expression or a text. A table whose
//! `when` does not hold is absent; of an array of tables the first that applies counts, except where a list is asked for.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;
use toml::{Table, Value as Toml};

use super::scope::ProcessorScope;
use crate::arch::expr::Value;

/// A problem of a table, with the keys that lead to it.
#[derive(Debug)]
pub(super) struct EvaluateError {
    keys: Vec<String>,
    message: String,
}

impl EvaluateError {
    fn within(mut self, key: &str) -> Self {
        self.keys.push(key.to_owned());
        self
    }
}

impl fmt::Display for EvaluateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, key) in self.keys.iter().rev().enumerate() {
            write!(f, "{}{key}", if i == 0 { "" } else { "." })?;
        }
        let colon = if self.keys.is_empty() { "" } else { ": " };
        write!(f, "{colon}{}", self.message)
    }
}

impl std::error::Error for EvaluateError {}

impl de::Error for EvaluateError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self {
            keys: Vec::new(),
            message: message.to_string(),
        }
    }
}

fn error(message: impl fmt::Display) -> EvaluateError {
    de::Error::custom(message)
}

/// What is read: a part of the file, or an element of an evaluated list.
#[derive(Clone)]
pub(super) enum Item<'a> {
    Written(&'a Toml),
    Evaluated(Value),
}

/// Something to read, and the names that its expressions can use.
#[derive(Clone)]
pub(super) struct Evaluated<'a, 's> {
    pub(super) item: Item<'a>,
    pub(super) scope: &'s ProcessorScope<'s>,
}

impl<'a, 's> Evaluated<'a, 's> {
    fn written(&self, item: &'a Toml) -> Self {
        Self {
            item: Item::Written(item),
            scope: self.scope,
        }
    }

    /// Whether nothing is there: a table that does not apply, or only such tables.
    fn is_absent(&self) -> Result<bool, EvaluateError> {
        match self.item {
            Item::Written(Toml::Table(table)) => Ok(!self.scope.applies(table).map_err(error)?),
            Item::Written(Toml::Array(items)) if !items.is_empty() => {
                for item in items {
                    if !item.is_table() || !self.written(item).is_absent()? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The first table of an array that applies; anything else as it is.
    fn chosen(&self) -> Result<Self, EvaluateError> {
        let Item::Written(Toml::Array(items)) = self.item else {
            return Ok(self.clone());
        };
        for item in items {
            let item = self.written(item);
            if !item.is_absent()? {
                return Ok(item);
            }
        }
        Err(error("none of the tables applies"))
    }

    fn value(&self) -> Result<Value, EvaluateError> {
        match &self.item {
            Item::Written(item) => self.scope.value(item).map_err(error),
            Item::Evaluated(value) => Ok(value.clone()),
        }
    }

    fn text(&self) -> Result<String, EvaluateError> {
        match &self.item {
            Item::Written(Toml::String(text)) => self.scope.text(text).map_err(error),
            Item::Evaluated(Value::Str(text)) => Ok(text.clone()),
            Item::Written(other) => Err(error(format!(
                "found a {}, expected a text",
                other.type_str()
            ))),
            Item::Evaluated(other) => Err(error(format!("found `{other}`, expected a text"))),
        }
    }

    fn table(&self) -> Result<&'a Table, EvaluateError> {
        match self.chosen()?.item {
            Item::Written(Toml::Table(table)) => Ok(table),
            Item::Written(other) => Err(error(format!(
                "found a {}, expected a table",
                other.type_str()
            ))),
            Item::Evaluated(other) => Err(error(format!("found `{other}`, expected a table"))),
        }
    }

    /// The elements of a list.
    fn list(&self) -> Result<Vec<Item<'a>>, EvaluateError> {
        if let Item::Written(Toml::Array(items)) = self.item {
            let mut all = Vec::new();
            for item in items {
                if !self.written(item).is_absent()? {
                    all.push(Item::Written(item));
                }
            }
            return Ok(all);
        }
        match self.value()? {
            Value::List(items) => Ok(items.into_iter().map(Item::Evaluated).collect()),
            other => Err(error(format!("found `{other}`, expected a list"))),
        }
    }
}

/// A number of a float that has no fraction: quotients of expressions are floats.
fn visit<'de, V: Visitor<'de>>(value: &Value, visitor: V) -> Result<V::Value, EvaluateError> {
    match value {
        Value::Int(number) => visitor.visit_i64(*number),
        Value::Bool(truth) => visitor.visit_bool(*truth),
        Value::Float(number) => visitor.visit_f64(*number),
        Value::Str(text) => visitor.visit_str(text),
        Value::List(_) => Err(error(format!("found `{value}`, expected one value"))),
    }
}

impl<'de> de::Deserializer<'de> for Evaluated<'_, '_> {
    type Error = EvaluateError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EvaluateError> {
        match self.value()? {
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                visitor.visit_i64(number as i64)
            }
            value => visit(&value, visitor),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EvaluateError> {
        visit(&self.value()?, visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EvaluateError> {
        visitor.visit_string(self.text()?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EvaluateError> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EvaluateError> {
        match self.is_absent()? {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, EvaluateError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EvaluateError> {
        let items = self.list()?.into_iter();
        visitor.visit_seq(Elements {
            items,
            scope: self.scope,
            at: 0,
        })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, EvaluateError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EvaluateError> {
        visitor.visit_map(Entries::new(&self)?)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, EvaluateError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, EvaluateError> {
        if matches!(self.item, Item::Written(Toml::String(_))) {
            return visitor.visit_enum(self.text()?.into_deserializer());
        }
        let entries = Entries::new(&self)?.entries.collect::<Vec<_>>();
        let [(name, item)] = entries.as_slice() else {
            let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
            return Err(error(format!("found {names:?}, expected one of the kinds")));
        };
        visitor.visit_enum(Variant {
            name,
            content: self.written(item),
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple_struct identifier ignored_any
    }
}

/// The elements of a list, one after another.
struct Elements<'a, 's, I: Iterator<Item = Item<'a>>> {
    items: I,
    scope: &'s ProcessorScope<'s>,
    at: usize,
}

impl<'de, 'a, I: Iterator<Item = Item<'a>>> SeqAccess<'de> for Elements<'a, '_, I> {
    type Error = EvaluateError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, EvaluateError> {
        let Some(item) = self.items.next() else {
            return Ok(None);
        };
        let scope = self.scope;
        let value = seed.deserialize(Evaluated { item, scope });
        let at = self.at;
        self.at += 1;
        value
            .map(Some)
            .map_err(|problem| problem.within(&at.to_string()))
    }
}

/// The entries of a table that are there.
struct Entries<'a, 's> {
    entries: std::vec::IntoIter<(&'a String, &'a Toml)>,
    current: Option<(&'a String, &'a Toml)>,
    scope: &'s ProcessorScope<'s>,
}

impl<'a, 's> Entries<'a, 's> {
    fn new(of: &Evaluated<'a, 's>) -> Result<Self, EvaluateError> {
        let mut entries = Vec::new();
        for (key, item) in of.table()? {
            let is_absent = key == "when" || {
                let item = of.written(item);
                item.is_absent().map_err(|problem| problem.within(key))?
            };
            if !is_absent {
                entries.push((key, item));
            }
        }
        Ok(Self {
            entries: entries.into_iter(),
            current: None,
            scope: of.scope,
        })
    }
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = EvaluateError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, EvaluateError> {
        self.current = self.entries.next();
        let Some((key, _)) = self.current else {
            return Ok(None);
        };
        let key: StrDeserializer<'_, EvaluateError> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, EvaluateError> {
        let Some((key, item)) = self.current.take() else {
            return Err(error("a value without a key"));
        };
        let value = seed.deserialize(Evaluated {
            item: Item::Written(item),
            scope: self.scope,
        });
        value.map_err(|problem| problem.within(key))
    }
}

/// A kind and what belongs to it.
struct Variant<'n, 'a, 's> {
    name: &'n str,
    content: Evaluated<'a, 's>,
}

impl<'de, 'a, 's> EnumAccess<'de> for Variant<'_, 'a, 's> {
    type Error = EvaluateError;
    type Variant = Evaluated<'a, 's>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), EvaluateError> {
        let name: StrDeserializer<'_, EvaluateError> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self.content))
    }
}

impl<'de> VariantAccess<'de> for Evaluated<'_, '_> {
    type Error = EvaluateError;

    fn unit_variant(self) -> Result<(), EvaluateError> {
        Err(error("this kind has no keys"))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, EvaluateError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, EvaluateError> {
        de::Deserializer::deserialize_seq(self, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, EvaluateError> {
        de::Deserializer::deserialize_map(self, visitor)
    }
}
