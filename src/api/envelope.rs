//! What all objects of a response have in common: id, time, model, fingerprint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::engine::serving::{self, Served};

/// The common fields of a response, whole or in chunks.
pub(super) struct Envelope {
    pub(super) served: Arc<Served>,
    pub(super) id: String,
    pub(super) created: u64,
    wants_usage: bool,
}

impl Envelope {
    /// A new response whose id starts with `prefix`; `wants_usage` says whether the last chunk of a stream
    /// has the usage.
    pub(super) fn new(served: Arc<Served>, prefix: &str, wants_usage: bool) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (now, count) = (serving::now(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self {
            served,
            id: format!("{prefix}{now:x}{count:08x}"),
            created: now,
            wants_usage,
        }
    }

    /// An object of the response.
    pub(super) fn object(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.served.name,
            "system_fingerprint": self.served.fingerprint, "choices": choices,
        })
    }

    /// A chunk of a stream: only the last one has the usage.
    pub(super) fn chunk(&self, object: &str, choices: &Value) -> Value {
        let mut chunk = self.object(object, choices);
        if self.wants_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Data after the last completion of a stream.
    pub(super) fn done(&self, object: &str, usage: Value) -> Vec<Value> {
        let last = self.wants_usage.then(|| {
            let mut last = self.object(object, &json!([]));
            last["usage"] = usage;
            last
        });
        last.into_iter().collect()
    }
}
