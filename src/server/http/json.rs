//! Responses in JSON.
//!
//! A tree of values takes some ten times the memory of its text. So large parts of a response, such as log-probabilities
//! and captured values, are text before they become a part of it.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::runtime::{Handle, RuntimeFlavor};

#[derive(Clone, Debug)]
pub(crate) struct Json<T = Value>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let text = serde_json::to_string(&self.0).expect("our own types are JSON");
        let mut response = text.into_response();
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

/// Does work that may take seconds. Other handlers of this thread go on elsewhere.
pub(crate) fn block_in_place<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

pub(crate) type JsonText = Box<RawValue>;

pub(crate) fn json_text(value: &impl Serialize) -> JsonText {
    to_raw_value(value).expect("our own types are JSON")
}

/// An object of a response, in the order in which its fields are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonObject(Vec<(String, JsonText)>);

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, part)| (name, part)))
    }
}

impl From<Value> for JsonObject {
    /// The fields of an object; none of any other value.
    fn from(value: Value) -> Self {
        match value {
            Value::Object(map) => {
                let fields = map.into_iter();
                fields
                    .map(|(name, value)| (name, json_text(&value)))
                    .collect()
            }
            _ => Self::default(),
        }
    }
}

impl JsonObject {
    /// Sets a field: in its place if there is one, otherwise at the end.
    pub(crate) fn put(&mut self, name: &str, part: impl Serialize) {
        let part = json_text(&part);
        match self.0.iter_mut().find(|(own, _)| own == name) {
            Some((_, own)) => *own = part,
            None => self.0.push((name.to_owned(), part)),
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(own, _)| own != name);
    }

    /// A field, or a part of one, by its path of names.
    pub(crate) fn at(&self, path: &str) -> Option<JsonText> {
        let (name, rest) = match path.split_once('/') {
            Some((name, rest)) => (name, Some(rest)),
            None => (path, None),
        };
        let (_, part) = self.0.iter().find(|(own, _)| own == name)?;
        let Some(rest) = rest else {
            return Some(part.clone());
        };
        let whole: Value = serde_json::from_str(part.get()).ok()?;
        let found = rest.split('/').try_fold(&whole, |at, name| at.get(name))?;
        Some(json_text(found))
    }
}

impl FromIterator<(String, JsonText)> for JsonObject {
    fn from_iter<I: IntoIterator<Item = (String, JsonText)>>(fields: I) -> Self {
        Self(fields.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_keep_their_order_and_texts_are_written_as_they_are() {
        let mut fields = JsonObject::from(json!({ "b": 1, "a": null, "c": { "d": [2] } }));
        fields.put("a", json_text(&[0.5]));
        fields.put("e", vec![JsonObject::from(json!({ "f": 3 }))]);
        let written = serde_json::to_string(&fields).expect("JSON");
        assert_eq!(written, r#"{"b":1,"a":[0.5],"c":{"d":[2]},"e":[{"f":3}]}"#);
        let at = |path: &str| fields.at(path).map(|part| json!(part));
        assert_eq!(at("a"), Some(json!([0.5])));
        assert_eq!(at("c/d"), Some(json!([2])));
        assert_eq!(at("c/x"), None);
        fields.remove("a");
        assert!(fields.at("a").is_none());
    }
}
