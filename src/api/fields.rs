//! The fields of a request body. Each part of a request is a struct declared by [`fields!`], which takes its fields out
//! of the body. A remaining field is either known to have no effect here and is recorded (`known`), or refused; the
//! error for an unknown field suggests the nearest known name.
//!
//! A field that changes the result and is not supported is refused, never ignored. Null means the default.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::arch::nearest;

use super::MAX_BODY_BYTES;
use super::error::{Error, quoted};
use super::known;
use super::record::Record;

/// A part of a request, whose fields are taken out of a body.
pub(super) trait Fields: DeserializeOwned {
    /// The names of its fields.
    const NAMES: &'static [&'static str];
    /// The name, type and attributes of each field as written in the source.
    const WRITTEN: &'static [(&'static str, &'static str, &'static [&'static str])];
}

/// A documented field.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The Rust type of the field.
    pub(super) ty: String,
    /// The description of the field; may be empty.
    pub(super) doc: String,
}

/// The fields of a part of a request.
pub(super) fn of<T: Fields>() -> Vec<Field> {
    let field = |(name, ty, attributes): &(&'static str, &str, &[&str])| {
        let docs = attributes.iter().filter_map(|attribute| {
            let text = attribute.strip_prefix("doc")?;
            let start = text.find('"')? + 1;
            let end = text.rfind('"').filter(|end| *end > start)?;
            Some(text[start..end].trim().replace("\\\"", "\""))
        });
        Field {
            name,
            ty: (*ty).to_owned(),
            doc: docs.collect::<Vec<_>>().join(" "),
        }
    };
    T::WRITTEN.iter().map(field).collect()
}

/// Declares a part of a request: a struct that is deserialised from JSON, and the names of its fields.
macro_rules! fields {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, serde::Deserialize)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $ty,)*
        }

        impl $crate::api::fields::Fields for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($field),)*];
            const WRITTEN: &'static [(&'static str, &'static str, &'static [&'static str])] = &[
                $((stringify!($field), stringify!($ty), &[$(stringify!($field_meta)),*]),)*
            ];
        }
    };
}

pub(super) use fields;

/// The fields of a body, or of an object within it, that no part has taken yet.
#[derive(Debug)]
pub(super) struct Body {
    /// The name of the object within the body, followed by a dot; empty for the body itself.
    prefix: String,
    left: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Body {
    /// Reads the JSON object that a client sent.
    ///
    /// # Errors
    /// The body is too large, has another content type or is not a JSON object.
    pub(super) fn read(
        headers: &HeaderMap,
        body: Result<Bytes, BytesRejection>,
    ) -> Result<Self, Error> {
        let body = body.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Error::TooLarge {
                limit: MAX_BODY_BYTES,
            },
            _ => Error::Body(rejection.to_string()),
        })?;
        // A page of another origin can send other content types without a preflight request.
        let kind = headers.get(header::CONTENT_TYPE);
        let kind = kind.map(|kind| kind.to_str().unwrap_or("?"));
        let essence = kind.and_then(|kind| kind.split(';').next()).unwrap_or("");
        if !essence.trim().eq_ignore_ascii_case("application/json") {
            return Err(Error::ContentType(kind.map(str::to_owned)));
        }
        match serde_json::from_slice(&body) {
            Ok(Value::Object(fields)) => Ok(Self::of(fields)),
            Ok(_) => Err(Error::Body("the body is not a JSON object".into())),
            Err(error) => Err(Error::Body(format!("the body is not JSON: {error}"))),
        }
    }

    /// A body with these fields.
    pub(super) fn of(fields: Map<String, Value>) -> Self {
        Self {
            prefix: String::new(),
            left: fields,
            known: Vec::new(),
        }
    }

    /// The object `name` within a body. Errors name its fields with a dot.
    pub(super) fn within(name: &str, fields: Map<String, Value>) -> Self {
        Self {
            prefix: format!("{name}."),
            ..Self::of(fields)
        }
    }

    /// The same body; these fields replace its own of the same names.
    pub(super) fn with(mut self, fields: Map<String, Value>) -> Self {
        self.left.extend(fields);
        self
    }

    /// Whether a field is present and not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The value of a field that no part has taken.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.left.get(name).filter(|value| !value.is_null())
    }

    /// Takes one field; `None` if it is absent or null.
    pub(super) fn take_one(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.left.remove(name).filter(|value| !value.is_null())
    }

    /// Takes one field as a type; `None` if it is absent or null.
    ///
    /// # Errors
    /// The value has another type; the error names the field.
    pub(super) fn take_as<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<T>, Error> {
        self.known.push(name);
        let own: Map<String, Value> = self.left.remove_entry(name).into_iter().collect();
        let mut of: BTreeMap<String, Option<T>> = self.typed(own)?;
        Ok(of.remove(name).flatten())
    }

    /// Takes a part of the request.
    ///
    /// # Errors
    /// A field is missing or of another type; the error names it.
    pub(super) fn take<T: Fields>(&mut self) -> Result<T, Error> {
        self.known.extend(T::NAMES);
        let own = T::NAMES
            .iter()
            .filter_map(|name| self.left.remove_entry(*name));
        let own = own.collect();
        self.typed(own)
    }

    fn typed<T: DeserializeOwned>(&self, fields: Map<String, Value>) -> Result<T, Error> {
        serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
            // The path may hold a key that the client chose, of any length.
            let path = quoted(&error.path().to_string());
            let inner = error.into_inner().to_string();
            let missing = inner.strip_prefix("missing field `");
            match missing.and_then(|rest| rest.split_once('`')) {
                // serde writes the path of the body itself as a dot.
                Some((field, _)) if path == "." => {
                    Error::missing(format!("{}{field}", self.prefix))
                }
                Some((field, _)) => Error::missing(format!("{}{path}.{field}", self.prefix)),
                None => Error::kind(format!("{}{path}", self.prefix), &plain(&inner)),
            }
        })
    }

    /// Records the remaining fields that have no effect here, and refuses all others that are not null.
    ///
    /// # Errors
    /// The first field that is unknown, not supported or of another type.
    pub(super) fn finish(self) -> Result<(), Error> {
        let record = Record::current();
        for (name, value) in self.left.iter().filter(|(_, value)| !value.is_null()) {
            let known = known::find(name).filter(|_| self.prefix.is_empty());
            match known {
                Some(known) if known.is_ignored(value)? => record.ignore(known.name),
                Some(_) => {}
                None => return Err(self.unknown(name)),
            }
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> Error {
        let prefix = &self.prefix;
        let others = known::names().filter(|_| prefix.is_empty());
        let near = nearest(name, self.known.iter().copied().chain(others));
        let hint = near.map(|near| format!("; did you mean `{prefix}{near}`?"));
        let param = format!("{prefix}{}", quoted(name));
        Error::Field {
            message: format!("unknown parameter: `{param}`{}", hint.unwrap_or_default()),
            param,
            code: "unknown_parameter",
        }
    }
}

/// A serde message in plain words, with a shortened quotation.
pub(super) fn plain(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return quoted(message);
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "a text",
        "a sequence" => "an array",
        "a map" => "an object",
        other => other,
    };
    format!("{}, expected {expected}", quoted(found))
}
