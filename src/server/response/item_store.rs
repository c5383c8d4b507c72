//! The items of recent responses, so that a later request can name one by its id instead of sending it.
//!
//! They are kept in the process that made them, which is the engine process of the model, until it ends. Invariant:
//! number and size of the items are bounded, the oldest go first; an item is found only by the client that it was made
//! for. Not here: the shapes of items.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use lab_base::util::lock::lock;

use serde_json::Value;

const MAX_ITEMS: usize = 4096;
const MAX_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(crate) struct ItemStore(Mutex<Items>);

#[derive(Debug, Default)]
struct Items {
    by_id: HashMap<String, Item>,
    /// The ids, the oldest first.
    order: VecDeque<String>,
    n_bytes: usize,
}

#[derive(Debug)]
struct Item {
    /// The client that the item was made for; empty where there are no API keys.
    owner: String,
    json: String,
}

impl ItemStore {
    pub(crate) fn keep(&self, owner: &str, item: &Value) {
        let Some(id) = item.get("id").and_then(Value::as_str) else {
            return;
        };
        let json = item.to_string();
        let n_bytes = json.len() + id.len();
        if n_bytes > MAX_BYTES {
            return;
        }
        let mut items = lock(&self.0);
        let owner = owner.to_owned();
        if let Some(before) = items.by_id.insert(id.to_owned(), Item { owner, json }) {
            items.n_bytes -= before.json.len() + id.len();
        } else {
            items.order.push_back(id.to_owned());
        }
        items.n_bytes += n_bytes;
        while items.order.len() > MAX_ITEMS || items.n_bytes > MAX_BYTES {
            let Some(oldest) = items.order.pop_front() else {
                break;
            };
            let gone = items.by_id.remove(&oldest);
            items.n_bytes -= gone.map_or(0, |gone| gone.json.len() + oldest.len());
        }
    }

    /// The item with this id, if it was made for this client.
    pub(crate) fn get(&self, owner: &str, id: &str) -> Option<Value> {
        let items = lock(&self.0);
        let found = items.by_id.get(id).filter(|item| item.owner == owner)?;
        serde_json::from_str(&found.json).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_items_go_first_and_each_client_finds_its_own() {
        let kept = ItemStore::default();
        let item = |i: usize, text: &str| json!({ "id": format!("msg_{i}"), "text": text });
        for i in 0..MAX_ITEMS + 10 {
            kept.keep("one", &item(i, "a"));
        }
        assert_eq!(kept.get("one", "msg_9"), None);
        assert_eq!(kept.get("one", "msg_10"), Some(item(10, "a")));
        assert_eq!(kept.get("two", "msg_10"), None);
        assert_eq!(kept.get("", "msg_10"), None);
        kept.keep("one", &item(10, "b"));
        assert_eq!(kept.get("one", "msg_10"), Some(item(10, "b")));
        // Size is a bound too, and what exceeds it alone is not kept.
        let large = "x".repeat(MAX_BYTES / 3);
        for i in 0..4 {
            kept.keep("one", &item(10_000 + i, &large));
        }
        let found = |i: usize| kept.get("one", &format!("msg_{i}")).is_some();
        assert_eq!(
            [10_000, 10_001, 10_002, 10_003].map(found),
            [false, false, true, true]
        );
        kept.keep("one", &item(20_000, &"x".repeat(MAX_BYTES)));
        assert!(!found(20_000) && found(10_003));
        let items = kept.0.lock().expect("no panic");
        let sizes = items
            .by_id
            .iter()
            .map(|(id, item)| id.len() + item.json.len());
        assert_eq!(items.n_bytes, sizes.sum::<usize>());
        assert_eq!(items.by_id.len(), items.order.len());
    }
}
