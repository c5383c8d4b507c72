//! The fields of a request body. Each part of a request is a struct declared by [`fields!`], which takes its fields out
//! of the body. Of the remaining fields, those that nobody knows and those that are known to have no effect here are
//! recorded (`unsupported_fields`), so that the response names them. Where the server is strict, a field that nobody knows is
//! refused; the error suggests the nearest known name. In objects that only this project defines it always is.
//!
//! A field that is known to change the result and is not supported is refused, never ignored. Null means the default.
//! Not here: fields within objects that other APIs define (`object_fields`).

use std::any::Any;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use lab_core::arch::nearest;

use super::object_fields::{self, ObjectFields};
use super::unsupported_fields;
use crate::http::context::RequestContext;
use crate::http::error::{Error, quoted};
use crate::http::error_format::ErrorFormat;

pub(crate) trait RequestPart: Sized {
    /// Its documented fields.
    fn documented() -> Vec<FieldDoc>;

    fn take_from(body: &mut BodyFields) -> Result<Self, Error>;
}

pub(crate) trait FieldType: DeserializeOwned + 'static {
    /// What an absent field is; `None` if it has to be there.
    fn absent() -> Option<Self> {
        None
    }
}

impl<T: DeserializeOwned + 'static> FieldType for Option<T> {
    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl FieldType for String {}
impl FieldType for Value {}
impl FieldType for Vec<u32> {}
impl FieldType for Vec<Value> {}

#[derive(Clone, Debug)]
pub(crate) struct FieldDoc {
    pub(crate) name: &'static str,
    /// The Rust type of the field.
    pub(crate) ty: String,
    pub(crate) doc: String,
}

impl FieldDoc {
    /// A field as written in the source: its name, type and attributes.
    pub(crate) fn declared(name: &'static str, ty: &str, attributes: &[&str]) -> Self {
        let docs = attributes.iter().filter_map(|attribute| {
            let text = attribute.strip_prefix("doc")?;
            let start = text.find('"')? + 1;
            let end = text.rfind('"').filter(|end| *end > start)?;
            Some(text[start..end].trim().replace("\\\"", "\""))
        });
        Self {
            name,
            ty: ty.to_owned(),
            doc: docs.collect::<Vec<_>>().join(" "),
        }
    }
}

/// The fields of a request: its own, which replace others of the same name, and those of its parts.
pub(crate) fn joined(mut own: Vec<FieldDoc>, parts: Vec<Vec<FieldDoc>>) -> Vec<FieldDoc> {
    for field in parts.into_iter().flatten() {
        if own.iter().all(|other| other.name != field.name) {
            own.push(field);
        }
    }
    own
}

/// Declares a part of a request: a struct whose fields are deserialised from JSON. `..part: Type` is a part of it, whose
/// fields are those of the same body. `prunes` names the shapes of objects within the fields.
macro_rules! fields {
    ($(#[$meta:meta])* $vis:vis struct $name:ident $(prunes $shapes:path)? {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ty,)*
        $(..$part_vis:vis $part:ident: $part_ty:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $ty,)*
            $($part_vis $part: $part_ty,)*
        }

        impl $crate::request::fields::RequestPart for $name {
            fn documented() -> Vec<$crate::request::fields::FieldDoc> {
                let own = vec![$(
                    $crate::request::fields::FieldDoc::declared(
                        stringify!($field), stringify!($ty), &[$(stringify!($field_meta)),*],
                    ),
                )*];
                $crate::request::fields::joined(own, vec![$(<$part_ty>::documented(),)*])
            }

            fn take_from(
                body: &mut $crate::request::fields::BodyFields,
            ) -> Result<Self, $crate::http::error::Error> {
                $($shapes.iter().try_for_each(|(name, shape)| body.prune(name, shape))?;)?
                Ok(Self {
                    $($field: body.field(stringify!($field))?,)*
                    $($part: body.take()?,)*
                })
            }
        }
    };
}

pub(crate) use fields;

/// The body of a request, which `http::body` has read already, within its limit.
pub(crate) async fn read_body(body: axum::body::Body) -> Result<Bytes, Error> {
    let body = to_bytes(body, usize::MAX).await;
    body.map_err(|_| Error::Body("the body could not be read".into()))
}

impl<S: Send + Sync> FromRequest<S> for BodyFields {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self, Error> {
        let (head, body) = request.into_parts();
        Self::read(&head.headers, &read_body(body).await?)
    }
}

/// The fields of a body as a type. `CLOSED`: only this project defines them.
pub(crate) struct Fields<T, const CLOSED: bool = false>(pub(crate) T);

impl<S: Send + Sync, T: RequestPart, const CLOSED: bool> FromRequest<S> for Fields<T, CLOSED> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        let body = BodyFields::from_request(request, state).await?;
        let body = if CLOSED { body.closed() } else { body };
        body.whole().map(Self)
    }
}

/// Whether a request of Ollama's API has the content type that `curl -d` sends, or none, and no page sent it: browsers
/// name the origin of a page in every `POST` and `DELETE`.
fn is_of_curl(content_type: &str, headers: &HeaderMap) -> bool {
    ["", "application/x-www-form-urlencoded"].contains(&content_type)
        && !headers.contains_key(header::ORIGIN)
        && matches!(
            ErrorFormat::of(RequestContext::current().path()),
            ErrorFormat::Ollama
        )
}

/// The fields of a body, or of an object within it, that no part has taken yet.
#[derive(Debug)]
pub(crate) struct BodyFields {
    /// The name of the object within the body, followed by a dot; empty for the body itself.
    prefix: String,
    left: Map<String, Value>,
    known: Vec<&'static str>,
    /// Whether only this project defines the fields, so that one that is not known is a mistake.
    is_closed: bool,
}

impl BodyFields {
    /// Reads the JSON object that a client sent.
    pub(crate) fn read(headers: &HeaderMap, body: &[u8]) -> Result<Self, Error> {
        // A page of another origin can send other content types without a preflight request.
        let kind = headers.get(header::CONTENT_TYPE);
        let kind = kind.map(|kind| kind.to_str().unwrap_or("?"));
        let essence = kind.and_then(|kind| kind.split(';').next()).unwrap_or("");
        let essence = essence.trim().to_ascii_lowercase();
        if essence != "application/json" && !is_of_curl(&essence, headers) {
            return Err(Error::ContentType(kind.map(str::to_owned)));
        }
        let not_json =
            |error: &dyn std::fmt::Display| Error::Body(format!("the body is not JSON: {error}"));
        let text = std::str::from_utf8(body).map_err(|error| not_json(&error))?;
        match text.parse() {
            Ok(Value::Object(fields)) => Ok(Self::new(fields)),
            Ok(_) => Err(Error::Body("the body is not a JSON object".into())),
            Err(error) => Err(not_json(&error)),
        }
    }

    pub(crate) fn new(fields: Map<String, Value>) -> Self {
        Self {
            prefix: String::new(),
            left: fields,
            known: Vec::new(),
            is_closed: false,
        }
    }

    /// The object `name` within a body, which only this project defines. Errors name its fields with a dot.
    pub(crate) fn nested(name: &str, fields: Map<String, Value>) -> Self {
        Self {
            prefix: format!("{name}."),
            ..Self::new(fields).closed()
        }
    }

    pub(crate) fn closed(mut self) -> Self {
        self.is_closed = true;
        self
    }

    /// Removes the fields that are not known from the objects in a field, whose shape others define.
    pub(crate) fn prune(&mut self, name: &str, shape: &ObjectFields) -> Result<(), Error> {
        match self.left.get_mut(name) {
            Some(value) => object_fields::prune(value, name, shape),
            None => Ok(()),
        }
    }

    /// The same body; these fields replace its own of the same names.
    pub(crate) fn with(mut self, fields: Map<String, Value>) -> Self {
        self.left.extend(fields);
        self
    }

    /// Whether a field is present and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The value of a field that no part has taken.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.left.get(name).filter(|value| !value.is_null())
    }

    fn remove(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        // Most bodies have few fields and most fields are absent: comparing is quicker than hashing.
        let may_be = self.left.len() > 16 || self.left.keys().any(|key| key == name);
        may_be.then(|| self.left.remove(name)).flatten()
    }

    /// Takes one field; `None` if it is absent or null.
    pub(crate) fn take_one(&mut self, name: &'static str) -> Option<Value> {
        self.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn field<T: FieldType>(&mut self, name: &'static str) -> Result<T, Error> {
        match (self.remove(name), T::absent()) {
            (None, Some(absent)) | (Some(Value::Null), Some(absent)) => Ok(absent),
            (None, None) => Err(Error::missing(format!("{}{name}", self.prefix))),
            (Some(value), _) => self.typed(name, value),
        }
    }

    pub(crate) fn take<T: RequestPart>(&mut self) -> Result<T, Error> {
        T::take_from(self)
    }

    /// Takes the last part.
    pub(crate) fn whole<T: RequestPart>(mut self) -> Result<T, Error> {
        let whole = self.take()?;
        self.finish()?;
        Ok(whole)
    }

    fn typed<T: FieldType>(&self, name: &str, value: Value) -> Result<T, Error> {
        // What stays JSON is not read value by value.
        let value = match downcast(value) {
            Ok(same) => return Ok(same),
            Err(Value::Array(all)) => match downcast(all) {
                Ok(same) => return Ok(same),
                Err(all) => Value::Array(all),
            },
            Err(Value::Object(all)) => match downcast(all) {
                Ok(same) => return Ok(same),
                Err(all) => Value::Object(all),
            },
            Err(value) => value,
        };
        serde_path_to_error::deserialize(integral(value)).map_err(|error| {
            // The path may hold a key that the client chose, of any length. serde writes an empty one as a dot.
            let within = match quoted(&error.path().to_string()) {
                path if path == "." => String::new(),
                path if path.starts_with('[') => path,
                path => format!(".{path}"),
            };
            let path = format!("{}{name}{within}", self.prefix);
            let inner = error.into_inner().to_string();
            let missing = inner.strip_prefix("missing field `");
            match missing.and_then(|rest| rest.split_once('`')) {
                Some((field, _)) => Error::missing(format!("{path}.{field}")),
                None => Error::wrong_type(path, &plain_message(&inner)),
            }
        })
    }

    /// Records the remaining fields that have no effect here or that nobody knows, and refuses those that would change
    /// the result. Null is none of them.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let record = RequestContext::current();
        for (name, value) in self.left.iter().filter(|(_, value)| !value.is_null()) {
            let known = unsupported_fields::find(name).filter(|_| self.prefix.is_empty());
            match known {
                Some(known) if known.is_ignored(value)? => record.ignore(known.name),
                Some(_) => {}
                None if self.is_closed || record.is_strict() => return Err(self.unknown(name)),
                None => record.ignore(&quoted(name)),
            }
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> Error {
        let prefix = &self.prefix;
        let others = unsupported_fields::names().filter(|_| prefix.is_empty());
        let near = nearest(name, self.known.iter().copied().chain(others));
        let near = near.map(|near| format!("{prefix}{near}"));
        Error::unknown(format!("{prefix}{}", quoted(name)), near)
    }
}

/// A number, or an array of them, with what JSON calls `4.0` as the integer that it is.
pub(crate) fn integral(value: Value) -> Value {
    /// Beyond it not every integer has a float of its own.
    const MAX: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64();
            let float = float.filter(|float| float.fract() == 0.0 && float.abs() <= MAX);
            float.map_or(Value::Number(number), |float| (float as i64).into())
        }
        Value::Array(all) => all.into_iter().map(integral).collect(),
        other => other,
    }
}

/// A value as it is, or in `Some`, if `T` is its type or an `Option` of that.
fn downcast<A: 'static, T: 'static>(value: A) -> Result<T, A> {
    let mut kept = Some(Some(value));
    let any: &mut dyn Any = &mut kept;
    if let Some(found) = any.downcast_mut::<Option<T>>().and_then(Option::take) {
        return Ok(found);
    }
    let mut kept = kept.flatten();
    let any: &mut dyn Any = &mut kept;
    match any.downcast_mut::<Option<T>>().and_then(Option::take) {
        Some(found) => Ok(found),
        None => Err(kept.expect("it was not taken")),
    }
}

/// A serde message in plain words, with a shortened quotation.
pub(crate) fn plain_message(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return quoted(message);
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "an array",
        "a map" => "an object",
        other => other,
    };
    format!("{}, expected {expected}", quoted(found))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_become_types_and_errors_name_their_place() {
        let Value::Object(fields) = json!({
            "text": "a", "value": [1, null], "list": [{ "a": 1 }], "map": { "k": "v" },
            "numbers": [1, -2], "nested": { "k": [1, "x"] }, "none": null,
        }) else {
            unreachable!("it is an object")
        };
        let mut body = BodyFields::nested("part", fields);
        assert_eq!(body.field("text").ok(), Some(Some("a".to_owned())));
        assert_eq!(body.field("value").ok(), Some(json!([1, null])));
        assert_eq!(body.field("list").ok(), Some(vec![json!({ "a": 1 })]));
        let map: Option<Map<String, Value>> = body.field("map").expect("an object");
        assert_eq!(map.expect("it is there")["k"], "v");
        assert_eq!(body.field::<Option<u32>>("none").ok(), Some(None));
        assert_eq!(body.field::<Option<u32>>("absent").ok(), Some(None));
        let told = |error: Option<Error>| error.expect("it is refused").to_string();
        let missing = told(body.field::<String>("absent").err());
        assert!(missing.contains("`part.absent`"), "{missing}");
        let numbers = told(body.field::<Vec<u32>>("numbers").err());
        assert!(numbers.contains("`part.numbers[1]`"), "{numbers}");
        type Nested = Option<std::collections::BTreeMap<String, Vec<u32>>>;
        let nested = told(body.field::<Nested>("nested").err());
        assert!(nested.contains("`part.nested.k[1]`"), "{nested}");
    }
}
