//! Metadata as JSON and back, without loss: `{"general.file_type": {"u32": 7}, ...}`.
//!
//! Every value is an object with one key, its type; arrays are `{"array": {"f32": [...]}}`. Numbers for which JSON has
//! no notation are text (`"NaN"`, `"inf"`), as are all 64-bit floats; strings of an array that are not UTF-8 are lists
//! of bytes. The folder format uses this, which people edit.

use serde_json::{Map, Value as Json, json};

use super::{Array, Metadata, StringArray, Value};

/// Maximum depth of arrays in arrays, as in GGUF.
const MAX_NESTING: u32 = 4;

pub(super) fn to_json(metadata: &Metadata) -> Json {
    let entries = metadata
        .iter()
        .map(|(key, value)| (key.to_owned(), value_to_json(value)));
    Json::Object(entries.collect())
}

/// The metadata in the result of [`to_json`].
pub(super) fn from_json(json: &Json) -> Result<Metadata, String> {
    let entries = json
        .as_object()
        .ok_or("expected an object of metadata keys")?;
    let mut metadata = Metadata::default();
    for (key, value) in entries {
        let value = value_from_json(value).map_err(|message| format!("key `{key}`: {message}"))?;
        metadata.insert(key.as_str(), value);
    }
    Ok(metadata)
}

trait Number: Sized {
    fn to_json(&self) -> Json;
    fn from_json(json: &Json) -> Option<Self>;
}

macro_rules! integers {
    ($( $ty:ty ),*) => { $(
        impl Number for $ty {
            fn to_json(&self) -> Json {
                json!(self)
            }

            fn from_json(json: &Json) -> Option<Self> {
                match json.as_u64() {
                    Some(v) => v.try_into().ok(),
                    None => json.as_i64()?.try_into().ok(),
                }
            }
        }
    )* };
}

integers!(u8, i8, u16, i16, u32, i32, u64, i64);

impl Number for bool {
    fn to_json(&self) -> Json {
        json!(self)
    }

    fn from_json(json: &Json) -> Option<Self> {
        json.as_bool()
    }
}

impl Number for f32 {
    fn to_json(&self) -> Json {
        match self.is_finite() {
            true => json!(f64::from(*self)),
            false => json!(self.to_string()),
        }
    }

    fn from_json(json: &Json) -> Option<Self> {
        match json.as_str() {
            Some(text) => text.parse().ok(),
            None => json.as_f64().map(|v| v as Self),
        }
    }
}

impl Number for f64 {
    // Text is parsed to the last bit; JSON's numbers are not.
    fn to_json(&self) -> Json {
        json!(self.to_string())
    }

    fn from_json(json: &Json) -> Option<Self> {
        match json.as_str() {
            Some(text) => text.parse().ok(),
            None => json.as_f64(),
        }
    }
}

macro_rules! numbers {
    ($( $name:literal = $variant:ident; )*) => {
        fn value_to_json(value: &Value) -> Json {
            match value {
                $( Value::$variant(v) => json!({ $name: v.to_json() }), )*
                Value::Str(text) => json!({ "string": text }),
                Value::Array(array) => json!({ "array": array_to_json(array) }),
            }
        }

        fn value_from_json(json: &Json) -> Result<Value, String> {
            let (ty, content) = only_entry(json)?;
            Ok(match ty {
                $( $name => Value::$variant(number(ty, content)?), )*
                "string" => match content.as_str() {
                    Some(text) => Value::Str(text.to_owned()),
                    None => return Err("expected a string".into()),
                },
                "array" => Value::Array(array_from_json(content, 1)?),
                _ => return Err(format!("`{ty}` is not a metadata type")),
            })
        }

        fn array_to_json(array: &Array) -> Json {
            match array {
                $( Array::$variant(items) => {
                    json!({ $name: items.iter().map(Number::to_json).collect::<Vec<_>>() })
                } )*
                Array::Str(items) => {
                    json!({ "string": items.iter().map(text_to_json).collect::<Vec<_>>() })
                }
                Array::Array(items) => {
                    json!({ "array": items.iter().map(array_to_json).collect::<Vec<_>>() })
                }
            }
        }

        fn array_from_json(json: &Json, depth: u32) -> Result<Array, String> {
            let (ty, content) = only_entry(json)?;
            let items = content.as_array().ok_or("expected a list")?;
            Ok(match ty {
                $( $name => Array::$variant(
                    items.iter().map(|item| number(ty, item)).collect::<Result<_, _>>()?,
                ), )*
                "string" => Array::Str(
                    items.iter().map(text_from_json).collect::<Result<StringArray, _>>()?,
                ),
                "array" if depth < MAX_NESTING => {
                    let inner = items.iter().map(|item| array_from_json(item, depth + 1));
                    Array::Array(inner.collect::<Result<_, _>>()?)
                }
                "array" => return Err(format!("arrays nest more than {MAX_NESTING} deep")),
                _ => return Err(format!("`{ty}` is not a metadata type")),
            })
        }
    };
}

numbers! {
    "u8" = U8;
    "i8" = I8;
    "u16" = U16;
    "i16" = I16;
    "u32" = U32;
    "i32" = I32;
    "f32" = F32;
    "bool" = Bool;
    "u64" = U64;
    "i64" = I64;
    "f64" = F64;
}

fn number<T: Number>(ty: &str, json: &Json) -> Result<T, String> {
    T::from_json(json).ok_or_else(|| format!("expected a {ty}, found {}", excerpt(json)))
}

fn only_entry(json: &Json) -> Result<(&str, &Json), String> {
    let mut entries = json.as_object().into_iter().flat_map(Map::iter);
    match (entries.next(), entries.next()) {
        (Some((ty, content)), None) => Ok((ty, content)),
        _ => Err(format!(
            "expected an object of a type and a value, found {}",
            excerpt(json)
        )),
    }
}

fn text_to_json(text: &[u8]) -> Json {
    match std::str::from_utf8(text) {
        Ok(text) => json!(text),
        Err(_) => json!(text),
    }
}

fn text_from_json(json: &Json) -> Result<Vec<u8>, String> {
    if let Some(text) = json.as_str() {
        return Ok(text.as_bytes().to_vec());
    }
    let bytes = json.as_array().and_then(|bytes| {
        let bytes = bytes.iter().map(<u8 as Number>::from_json);
        bytes.collect::<Option<Vec<u8>>>()
    });
    bytes.ok_or_else(|| format!("expected a string or bytes, found {}", excerpt(json)))
}

fn excerpt(json: &Json) -> String {
    const SHOWN: usize = 40;
    let text = json.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_to_the_last_bit() {
        let strings: StringArray = [&b"a"[..], b"", b"\xff\0", "naïve".as_bytes()]
            .into_iter()
            .collect();
        let nested = Array::Array(vec![Array::U8(vec![]), Array::Str(strings.clone())]);
        let floats = [0.1, -0.0, f32::MIN_POSITIVE, 1e-45, f32::MAX, f32::INFINITY];
        let wide = [0.1, 5e-324, f64::MAX, f64::NEG_INFINITY, 1e-300 / 3.0];
        let metadata = Metadata::from_iter([
            ("u8", Value::U8(u8::MAX)),
            ("i8", Value::I8(i8::MIN)),
            ("u16", Value::U16(u16::MAX)),
            ("i16", Value::I16(i16::MIN)),
            ("u32", Value::U32(u32::MAX)),
            ("i32", Value::I32(i32::MIN)),
            ("f32", Value::F32(-0.1)),
            ("bool", Value::Bool(true)),
            ("string", Value::Str("naïve\n\"".into())),
            ("u64", Value::U64(u64::MAX)),
            ("i64", Value::I64(i64::MIN)),
            ("f64", Value::F64(1.0 / 3.0)),
            ("of f32", Value::Array(Array::F32(floats.to_vec()))),
            ("of f64", Value::Array(Array::F64(wide.to_vec()))),
            ("of bool", Value::Array(Array::Bool(vec![true, false]))),
            ("of i64", Value::Array(Array::I64(vec![i64::MIN, i64::MAX]))),
            ("of strings", Value::Array(Array::Str(strings))),
            ("of arrays", Value::Array(nested)),
        ]);
        let text = serde_json::to_string(&to_json(&metadata)).expect("JSON");
        let json: Json = serde_json::from_str(&text).expect("JSON");
        assert_eq!(from_json(&json), Ok(metadata));
        let nan = value_from_json(&value_to_json(&Value::F32(f32::NAN)));
        assert!(matches!(nan, Ok(Value::F32(v)) if v.is_nan()), "{nan:?}");
    }

    #[test]
    fn what_is_no_metadata_is_refused_by_key() {
        let mut deep = json!({"u8": [1]});
        for _ in 0..4 {
            deep = json!({"array": [deep]});
        }
        let refusals = |all: &[Json]| {
            let message = |json| from_json(json).expect_err("no metadata");
            all.iter().map(message).collect::<Vec<_>>().join("\n")
        };
        insta::assert_snapshot!(
            refusals(&[
                json!([1]),
                json!({"a": 7}),
                json!({"a": {"u8": 256}}),
                json!({"a": {"u32": -1}}),
                json!({"a": {"u99": 1}}),
                json!({"a": {"u8": 1, "i8": 1}}),
                json!({"a": {"array": {"string": [[256]]}}}),
                json!({"a": {"array": deep}}),
            ]),
            @r#"
        expected an object of metadata keys
        key `a`: expected an object of a type and a value, found 7
        key `a`: expected a u8, found 256
        key `a`: expected a u32, found -1
        key `a`: `u99` is not a metadata type
        key `a`: expected an object of a type and a value, found {"u8":1,"i8":1}
        key `a`: expected a string or bytes, found [256]
        key `a`: arrays nest more than 4 deep
        "#
        );
    }
}
