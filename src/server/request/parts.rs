//! The content of a message that another API's request becomes: its texts and media in their order.

use serde_json::{Value, json};

use crate::http::context::RequestContext;

/// Texts and media. Texts that follow each other are one.
#[derive(Debug, Default)]
pub(crate) struct ContentParts {
    parts: Vec<Value>,
    /// The places of media in the request, by the indices of their parts.
    media: Vec<(usize, String)>,
}

impl ContentParts {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(crate) fn push_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.parts.last_mut().map(|last| &mut last["text"]) {
            Some(Value::String(before)) => before.push_str(text),
            _ => self.parts.push(json!({ "type": "text", "text": text })),
        }
    }

    /// Adds a medium, which stands at the place `at` of the request.
    pub(crate) fn push_medium(&mut self, part: Value, at: impl Into<String>) {
        self.media.push((self.parts.len(), at.into()));
        self.parts.push(part);
    }

    pub(crate) fn extend(&mut self, other: Self) {
        let mut media = other.media.into_iter().peekable();
        for (i, part) in other.parts.into_iter().enumerate() {
            match media.next_if(|(at, _)| *at == i) {
                Some((_, at)) => self.push_medium(part, at),
                None => self.push_text(part["text"].as_str().unwrap_or_default()),
            }
        }
    }

    /// Whether it is one text or nothing.
    pub(crate) fn is_text(&self) -> bool {
        self.media.is_empty()
    }

    /// The text, without media.
    pub(crate) fn text(&self) -> &str {
        let first = self.parts.first();
        first
            .and_then(|part| part["text"].as_str())
            .unwrap_or_default()
    }

    /// The content of the message with this index: a text, or parts if there are media. Errors name the places of the request.
    pub(crate) fn into_content(self, message: usize) -> Value {
        if self.is_text() {
            return self.text().into();
        }
        let record = RequestContext::current();
        for (k, at) in self.media {
            // What is within a part has another name in the request.
            record.rename_whole(format!("messages[{message}].content[{k}]"), at);
        }
        self.parts.into()
    }
}
