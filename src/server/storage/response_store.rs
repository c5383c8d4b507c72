//! The responses that `/v1/responses` stores: their input and output items, by which later requests continue a
//! conversation, and background responses while they run.
//!
//! They are kept in the memory of the server until it ends. Invariant: number and size of the responses are bounded, the
//! least recently used go first, one that runs is never evicted; a response or item is found only by the client that it
//! was made for. Not here: the shapes of responses and items.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use lab_base::util::lock::lock;

/// Maximum number of stored responses.
const MAX_RESPONSES: usize = 4096;
/// Maximum number of background responses that run or wait at a time.
const MAX_RUNNING: usize = 64;
/// Maximum number of ids of which is known why they are gone.
const MAX_GONE: usize = 4096;

/// Why a response is not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Nothing is stored.
    Off,
    Evicted,
    Deleted,
    Unknown,
}

impl Missing {
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Off => "this server stores no responses (`--response-store 0`)",
            Self::Evicted => {
                "it was evicted: the most recently used responses are kept (`--response-store`)"
            }
            Self::Deleted => "it was deleted",
            Self::Unknown => {
                "it is not known: it was made with `store: false`, with another API key, or before the server was started"
            }
        }
    }
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It exceeds the space that responses which run leave.
    Full,
    /// As many as may run are running.
    Busy { limit: usize },
}

#[derive(Debug, Default)]
pub(crate) struct ResponseStore {
    /// Maximum number of bytes of all responses together; 0 = nothing is stored.
    max_bytes: usize,
    stored: Mutex<Stored>,
}

/// A client and an id.
type Key = (String, String);

fn key(owner: &str, id: &str) -> Key {
    (owner.to_owned(), id.to_owned())
}

#[derive(Debug, Default)]
struct Stored {
    by_id: HashMap<Key, StoredResponse>,
    /// The responses by the time of their last use.
    order: BTreeMap<u64, Key>,
    n_uses: u64,
    /// The response that each item belongs to.
    items: HashMap<Key, String>,
    /// Responses that were evicted or deleted, the earliest first.
    gone: VecDeque<(Key, Missing)>,
    n_bytes: usize,
    n_running: usize,
}

#[derive(Debug)]
struct StoredResponse {
    last_use: u64,
    previous: Option<String>,
    /// The items of its input as a JSON array, and the response as a JSON object.
    input: String,
    response: String,
    item_ids: Vec<String>,
    n_bytes: usize,
    background: Option<BackgroundRun>,
}

#[derive(Debug)]
struct BackgroundRun {
    /// Whether it runs, for those who wait for its events and for its task, which ends when it does not.
    is_running: watch::Sender<bool>,
    /// Number of its events so far.
    n_events: watch::Sender<usize>,
    events: Vec<Bytes>,
    keeps_events: bool,
}

/// A response that is to be stored.
#[derive(Clone, Debug)]
pub(crate) struct NewResponse {
    pub(crate) owner: String,
    pub(crate) id: String,
    pub(crate) previous: Option<String>,
    pub(crate) input: Arc<Vec<Value>>,
}

/// Events of a background response, in order.
pub(crate) struct KeptEvents {
    pub(crate) events: Vec<Bytes>,
    pub(crate) is_over: bool,
    /// Changes with each event and at the end.
    pub(crate) changes: watch::Receiver<usize>,
}

fn items_of(response: &Value) -> &[Value] {
    response["output"].as_array().map_or(&[], Vec::as_slice)
}

impl StoredResponse {
    fn is_running(&self) -> bool {
        let run = self.background.as_ref();
        run.is_some_and(|run| *run.is_running.borrow())
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.response).unwrap_or_default()
    }

    fn input(&self) -> Vec<Value> {
        serde_json::from_str(&self.input).unwrap_or_default()
    }
}

impl Stored {
    fn touch(&mut self, key: &Key) {
        self.n_uses += 1;
        let now = self.n_uses;
        if let Some(entry) = self.by_id.get_mut(key) {
            self.order
                .remove(&std::mem::replace(&mut entry.last_use, now));
            self.order.insert(now, key.clone());
        }
    }

    fn find(&mut self, owner: &str, id: &str) -> Result<&mut StoredResponse, Missing> {
        let key = key(owner, id);
        self.touch(&key);
        let gone = &self.gone;
        let why = || gone.iter().rev().find(|(gone, _)| *gone == key);
        let found = self.by_id.get_mut(&key);
        found.ok_or_else(|| why().map_or(Missing::Unknown, |(_, why)| *why))
    }

    fn remove(&mut self, key: &Key, why: Missing) {
        let Some(entry) = self.by_id.remove(key) else {
            return;
        };
        self.order.remove(&entry.last_use);
        self.n_bytes -= entry.n_bytes;
        for item in entry.item_ids {
            let at = (key.0.clone(), item);
            if self.items.get(&at) == Some(&key.1) {
                self.items.remove(&at);
            }
        }
        if let Some(run) = entry.background.filter(|run| *run.is_running.borrow()) {
            self.n_running -= 1;
            run.is_running.send_replace(false);
        }
        self.gone.push_back((key.clone(), why));
        if self.gone.len() > MAX_GONE {
            self.gone.pop_front();
        }
    }

    /// Evicts responses that do not run until the limits hold. Returns whether they hold.
    fn evict(&mut self, kept: &Key, max_bytes: usize) -> bool {
        while self.n_bytes > max_bytes || self.by_id.len() > MAX_RESPONSES {
            let is_idle = |key: &&Key| *key != kept && !self.by_id[*key].is_running();
            let Some(oldest) = self.order.values().find(is_idle).cloned() else {
                return false;
            };
            self.remove(&oldest, Missing::Evicted);
        }
        true
    }

    /// Sets the response of an entry, and the ids under which its items are found.
    fn set(&mut self, key: &Key, input: Option<&[Value]>, response: &Value) {
        let Some(entry) = self.by_id.get_mut(key) else {
            return;
        };
        let text = response.to_string();
        let ids = input.into_iter().flatten().chain(items_of(response));
        let ids = ids.filter_map(|item| item["id"].as_str());
        let before = entry.response.len();
        let mut n_bytes = entry.n_bytes + text.len() - before;
        for id in ids {
            if self
                .items
                .insert((key.0.clone(), id.to_owned()), key.1.clone())
                != Some(key.1.clone())
            {
                // The index names the owner too.
                n_bytes += 2 * id.len() + key.0.len() + key.1.len();
                entry.item_ids.push(id.to_owned());
            }
        }
        self.n_bytes = self.n_bytes + n_bytes - entry.n_bytes;
        (entry.n_bytes, entry.response) = (n_bytes, text);
    }
}

impl ResponseStore {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            stored: Mutex::default(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.max_bytes > 0
    }

    /// Stores a response. In place of one that is too large, that it was evicted is stored.
    pub(crate) fn keep(&self, new: &NewResponse, response: &Value) {
        if let Err(refused) = self.insert(new, response, None) {
            tracing::debug!(id = new.id, ?refused, "a response is not stored");
        }
    }

    /// Stores a response that starts to run in the background. The receiver is told when it is cancelled.
    pub(crate) fn start(
        &self,
        new: &NewResponse,
        response: &Value,
        keeps_events: bool,
    ) -> Result<watch::Receiver<bool>, Refused> {
        let (is_running, cancelled) = watch::channel(true);
        let run = BackgroundRun {
            is_running,
            n_events: watch::Sender::default(),
            events: Vec::new(),
            keeps_events,
        };
        self.insert(new, response, Some(run))?;
        Ok(cancelled)
    }

    fn insert(
        &self,
        new: &NewResponse,
        response: &Value,
        background: Option<BackgroundRun>,
    ) -> Result<(), Refused> {
        let key = key(&new.owner, &new.id);
        let input = serde_json::to_string(&*new.input).unwrap_or_default();
        let n_bytes = input.len() + 2 * (key.0.len() + key.1.len());
        let is_running = background.is_some();
        let mut stored = lock(&self.stored);
        if is_running && stored.n_running == MAX_RUNNING {
            return Err(Refused::Busy { limit: MAX_RUNNING });
        }
        stored.remove(&key, Missing::Evicted);
        let entry = StoredResponse {
            last_use: 0,
            previous: new.previous.clone(),
            input,
            response: String::new(),
            item_ids: Vec::new(),
            n_bytes,
            background,
        };
        stored.n_running += usize::from(is_running);
        stored.n_bytes += n_bytes;
        stored.by_id.insert(key.clone(), entry);
        stored.set(&key, Some(&new.input), response);
        stored.touch(&key);
        if !stored.evict(&key, self.max_bytes) {
            stored.remove(&key, Missing::Evicted);
            return Err(Refused::Full);
        }
        Ok(())
    }

    /// Adds an event of a background response, and its state if it has changed. Returns whether it goes on: it does not
    /// if it was cancelled or is over.
    pub(crate) fn advance(
        &self,
        owner: &str,
        id: &str,
        event: Option<Bytes>,
        response: Option<&Value>,
        is_over: bool,
    ) -> bool {
        let key = key(owner, id);
        let mut stored = lock(&self.stored);
        let Some(entry) = stored
            .by_id
            .get_mut(&key)
            .filter(|entry| entry.is_running())
        else {
            return false;
        };
        let mut n_new = 0;
        if let Some(run) = &mut entry.background {
            if let Some(event) = event.filter(|_| run.keeps_events) {
                n_new = event.len();
                run.events.push(event);
            }
            run.is_running.send_replace(!is_over);
            run.n_events.send_replace(run.events.len());
        }
        entry.n_bytes += n_new;
        stored.n_bytes += n_new;
        stored.n_running -= usize::from(is_over);
        if let Some(response) = response {
            stored.set(&key, None, response);
        }
        if !stored.evict(&key, self.max_bytes) {
            stored.remove(&key, Missing::Evicted);
            return false;
        }
        !is_over
    }

    fn found<T>(
        &self,
        owner: &str,
        id: &str,
        get: impl FnOnce(&mut StoredResponse) -> T,
    ) -> Result<T, Missing> {
        if !self.is_on() {
            return Err(Missing::Off);
        }
        lock(&self.stored).find(owner, id).map(get)
    }

    pub(crate) fn get(&self, owner: &str, id: &str) -> Result<Value, Missing> {
        self.found(owner, id, |entry| entry.json())
    }

    /// The items that a response was made from, those of earlier responses first. With `has_output`, its own output
    /// follows. An error names the response that is missing.
    pub(crate) fn items(
        &self,
        owner: &str,
        id: &str,
        has_output: bool,
    ) -> Result<Vec<Value>, (String, Missing)> {
        let mut chain = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next {
            let parts = self.found(owner, &id, |entry| {
                let parts = (entry.input.clone(), entry.response.clone());
                (entry.previous.clone(), parts)
            });
            let parts = parts.map_err(|why| (id, why))?;
            next = parts.0;
            chain.push(parts.1);
        }
        let n = chain.len();
        let mut items = Vec::new();
        for (i, (input, response)) in chain.into_iter().rev().enumerate() {
            items.extend(serde_json::from_str::<Vec<Value>>(&input).unwrap_or_default());
            if has_output || i + 1 < n {
                let response: Value = serde_json::from_str(&response).unwrap_or_default();
                items.extend_from_slice(items_of(&response));
            }
        }
        Ok(items)
    }

    /// The item with this id, if it was made for this client.
    pub(crate) fn item(&self, owner: &str, id: &str) -> Option<Value> {
        let mut stored = lock(&self.stored);
        let response = stored.items.get(&key(owner, id))?.clone();
        let entry = stored.find(owner, &response).ok()?;
        let (input, response) = (entry.input(), entry.json());
        let mut all = items_of(&response).iter().chain(&input);
        all.find(|item| item["id"] == id).cloned()
    }

    pub(crate) fn remove(&self, owner: &str, id: &str) -> Result<(), Missing> {
        self.get(owner, id)?;
        lock(&self.stored).remove(&key(owner, id), Missing::Deleted);
        Ok(())
    }

    /// Whether a response runs; `None` if it was not made in the background.
    pub(crate) fn is_running(&self, owner: &str, id: &str) -> Result<Option<bool>, Missing> {
        self.found(owner, id, |entry| {
            entry.background.as_ref().map(|_| entry.is_running())
        })
    }

    /// The events of a background response from number `start`; `None` if its events are not kept.
    pub(crate) fn events(
        &self,
        owner: &str,
        id: &str,
        start: usize,
    ) -> Result<Option<KeptEvents>, Missing> {
        self.found(owner, id, |entry| {
            let run = entry.background.as_ref().filter(|run| run.keeps_events)?;
            Some(KeptEvents {
                events: run.events.get(start..).unwrap_or_default().to_vec(),
                is_over: !entry.is_running(),
                changes: run.n_events.subscribe(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn new(owner: &str, id: &str, previous: Option<&str>, text: &str) -> NewResponse {
        let item = json!({ "id": format!("msg_of_{id}"), "text": text });
        NewResponse {
            owner: owner.to_owned(),
            id: id.to_owned(),
            previous: previous.map(str::to_owned),
            input: Arc::new(vec![item]),
        }
    }

    fn response(id: &str) -> Value {
        json!({ "id": id, "output": [{ "id": format!("out_of_{id}") }] })
    }

    fn check_counts(store: &ResponseStore) {
        let stored = lock(&store.stored);
        let sum: usize = stored.by_id.values().map(|entry| entry.n_bytes).sum();
        assert_eq!(stored.n_bytes, sum);
        assert!(stored.n_bytes <= store.max_bytes);
        assert_eq!(stored.by_id.len(), stored.order.len());
        let n_items: usize = stored
            .by_id
            .values()
            .map(|entry| entry.item_ids.len())
            .sum();
        assert!(stored.items.len() <= n_items);
    }

    #[test]
    fn a_conversation_is_its_items_in_order_and_belongs_to_one_client() {
        let store = ResponseStore::new(1 << 20);
        store.keep(&new("one", "a", None, "1"), &response("a"));
        store.keep(&new("one", "b", Some("a"), "2"), &response("b"));
        let ids = |items: Vec<Value>| {
            let ids = items
                .iter()
                .map(|item| item["id"].as_str().map(str::to_owned));
            ids.map(|id| id.expect("an id")).collect::<Vec<_>>()
        };
        let all = store.items("one", "b", true).expect("stored");
        assert_eq!(ids(all), ["msg_of_a", "out_of_a", "msg_of_b", "out_of_b"]);
        let read = store.items("one", "b", false).expect("stored");
        assert_eq!(ids(read), ["msg_of_a", "out_of_a", "msg_of_b"]);
        assert_eq!(store.get("two", "b"), Err(Missing::Unknown));
        assert_eq!(store.item("two", "out_of_b"), None);
        assert!(store.item("one", "out_of_b").is_some() && store.item("one", "msg_of_a").is_some());
        assert_eq!(store.remove("two", "a"), Err(Missing::Unknown));
        assert_eq!(store.remove("one", "a"), Ok(()));
        assert_eq!(store.get("one", "a"), Err(Missing::Deleted));
        assert_eq!(store.item("one", "out_of_a"), None);
        let broken = store.items("one", "b", true);
        assert_eq!(broken, Err(("a".to_owned(), Missing::Deleted)));
        check_counts(&store);
        let off = ResponseStore::new(0);
        off.keep(&new("one", "a", None, "1"), &response("a"));
        assert_eq!(off.get("one", "a"), Err(Missing::Off));
    }

    #[test]
    fn the_least_recently_used_go_first_and_what_exceeds_the_store_is_not_kept() {
        let store = ResponseStore::new(100_000);
        let large = "x".repeat(30_000);
        for id in ["a", "b", "c"] {
            store.keep(&new("", id, None, &large), &response(id));
        }
        store.get("", "a").expect("it is used");
        store.keep(&new("", "d", None, &large), &response("d"));
        assert_eq!(store.get("", "b"), Err(Missing::Evicted));
        assert!(store.get("", "a").is_ok() && store.get("", "c").is_ok());
        store.keep(&new("", "e", None, &"x".repeat(200_000)), &response("e"));
        assert_eq!(store.get("", "e"), Err(Missing::Evicted));
        check_counts(&store);
        let store = ResponseStore::new(1 << 26);
        for i in 0..MAX_RESPONSES + 5 {
            let id = i.to_string();
            store.keep(&new("", &id, None, "1"), &response(&id));
        }
        assert_eq!(store.get("", "4"), Err(Missing::Evicted));
        assert!(store.get("", "5").is_ok());
        check_counts(&store);
    }

    #[test]
    fn a_running_response_is_not_evicted_and_its_events_count() {
        let store = ResponseStore::new(10_000);
        let started = |id: &str| store.start(&new("", id, None, "1"), &response(id), true);
        let cancelled = started("a").expect("it starts");
        let event = || Some(Bytes::from(vec![b'x'; 3000]));
        assert!(store.advance("", "a", event(), None, false));
        assert!(store.advance("", "a", event(), Some(&response("a")), false));
        store.keep(&new("", "b", None, &"x".repeat(6000)), &response("b"));
        assert_eq!(store.get("", "b"), Err(Missing::Evicted));
        let kept = store.events("", "a", 1).expect("stored").expect("kept");
        assert_eq!((kept.events.len(), kept.is_over), (1, false));
        // A response may become shorter.
        let mut long = response("a");
        long["text"] = "x".repeat(100).into();
        assert!(store.advance("", "a", None, Some(&long), false));
        assert!(!store.advance("", "a", None, Some(&response("a")), true));
        assert!(!*cancelled.borrow());
        assert_eq!(store.is_running("", "a"), Ok(Some(false)));
        // Its events exceed the store.
        started("c").expect("it starts");
        assert!(store.advance("", "c", event(), None, false));
        assert!(store.advance("", "c", event(), None, false));
        assert!(store.advance("", "c", event(), None, false));
        assert!(!store.advance("", "c", event(), None, false));
        assert_eq!(store.get("", "c"), Err(Missing::Evicted));
        check_counts(&store);
        assert_eq!(lock(&store.stored).n_running, 0);
        let store = ResponseStore::new(1 << 20);
        for i in 0..=MAX_RUNNING {
            let id = i.to_string();
            let started = store.start(&new("", &id, None, "1"), &response(&id), false);
            assert_eq!(started.is_ok(), i < MAX_RUNNING, "{i}");
        }
    }
}
