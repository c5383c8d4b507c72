//! `POST` and `GET /v1/batches`, `GET /v1/batches/{id}`, `POST /v1/batches/{id}/cancel`: the requests of a file, answered
//! when there is room.
//!
//! A request of a batch takes the way of one over HTTP, with the owner of the batch. Results are added to a file as they
//! come, so a batch that a server did not complete goes on in the next one that has the same folder of files.

pub(crate) mod files;
pub(crate) mod lines;

use std::collections::HashSet;
use std::io::BufReader;
use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use futures_util::stream::{self, StreamExt};
use lab_base::util::clock::unix_seconds;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use self::files::{Id, named, store};
use self::lines::{BatchRequest, ENDPOINTS, LineFault};
use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::{Error, invalid, quoted, refuse};
use crate::http::json::Json;
use crate::http::local_client::LocalClient;
use crate::request::fields::{Fields, fields};
use crate::request::page_query::{PageQuery, query};
use crate::storage::batch_store::BatchStore;
use crate::storage::file_store::{BATCH_OUTPUT, FileError, new_id};

fields! {
    pub(crate) struct BatchFields {
        /// The id of a file with the purpose `batch`: a request in each line, as an object with `custom_id`, `method`, `url` and `body`.
        input_file_id: String,
        /// The endpoint of all requests: `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or `/v1/responses`.
        endpoint: String,
        /// A batch has as much time as it needs.
        completion_window: Option<String>,
        metadata: Option<Map<String, Value>>,
    }
}

/// Maximum size of the metadata of a batch as JSON, in bytes.
const MAX_METADATA: usize = 16 << 10;

pub(crate) async fn create(
    State(pool): State<Arc<Pool>>,
    Extension(client): Extension<LocalClient>,
    Fields(fields): Fields<BatchFields>,
) -> Result<Json, Error> {
    let store = store(&pool)?;
    if !ENDPOINTS.contains(&fields.endpoint.as_str()) {
        let (found, known) = (quoted(&fields.endpoint), ENDPOINTS.join("`, `"));
        let message = format!("`endpoint` is `{found}`, expected one of `{known}`");
        return invalid("endpoint", message);
    }
    let owner = RequestContext::current().owner();
    let input = store.files.get(&owner, &fields.input_file_id);
    match input {
        None => {
            let id = quoted(&fields.input_file_id);
            return invalid("input_file_id", format!("there is no file `{id}`"));
        }
        Some(file) if file.purpose != "batch" => {
            let purpose = file.purpose;
            return refuse(
                "input_file_id",
                format!(" has the purpose `{purpose}`, expected `batch`"),
            );
        }
        Some(_) => {}
    }
    let metadata = json!(fields.metadata.unwrap_or_default());
    if metadata.to_string().len() > MAX_METADATA {
        return refuse("metadata", format!(" has more than {MAX_METADATA} bytes"));
    }
    if let Some(limit) = store.limit_reached() {
        return Err(Error::Busy { limit });
    }
    let batch = json!({
        "id": new_id("batch_"), "object": "batch", "endpoint": fields.endpoint, "errors": null,
        "input_file_id": fields.input_file_id,
        "completion_window": fields.completion_window.as_deref().unwrap_or("24h"),
        "status": "validating", "output_file_id": null, "error_file_id": null,
        "created_at": unix_seconds(), "in_progress_at": null, "expires_at": null,
        "finalizing_at": null, "completed_at": null, "failed_at": null, "expired_at": null,
        "cancelling_at": null, "cancelled_at": null,
        "request_counts": { "total": 0, "completed": 0, "failed": 0 }, "metadata": metadata,
    });
    store.save(&owner, &batch);
    let work = BatchWork::new(&pool, client, owner, batch.clone());
    // A record of its own: the one of this request ends with it.
    tokio::spawn(RequestContext::detached().scope(work.run()));
    Ok(Json(batch))
}

pub(crate) async fn list(
    State(pool): State<Arc<Pool>>,
    page: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json, Error> {
    let all = store(&pool)?.list(&RequestContext::current().owner());
    query(page)?.page(all, 20, 100).map(Json)
}

fn missing(id: String) -> impl FnOnce() -> Error {
    move || Error::NotFound { what: "batch", id }
}

pub(crate) async fn get(State(pool): State<Arc<Pool>>, id: Id) -> Result<Json, Error> {
    let (owner, id) = named(id);
    let found = store(&pool)?.get(&owner, &id);
    found.map(Json).ok_or_else(missing(id))
}

pub(crate) async fn cancel(State(pool): State<Arc<Pool>>, id: Id) -> Result<Json, Error> {
    let (owner, id) = named(id);
    let store = store(&pool)?;
    let mut batch = store.get(&owner, &id).ok_or_else(missing(id.clone()))?;
    let status = batch["status"].as_str().unwrap_or_default();
    if !["validating", "in_progress", "cancelling"].contains(&status) {
        let message = format!("a batch with the status `{status}` cannot be cancelled");
        return invalid("id", message);
    }
    // The work writes what follows, unless it has just ended.
    store.cancel(&id);
    batch["status"] = "cancelling".into();
    batch["cancelling_at"] = unix_seconds().into();
    Ok(Json(batch))
}

/// The work on the batches that an earlier server did not complete.
pub(crate) fn resumed(
    pool: &Arc<Pool>,
    client: &LocalClient,
) -> Vec<impl Future<Output = ()> + Send + 'static> {
    let open = pool.config.batches.iter().flat_map(BatchStore::open_ones);
    open.map(|(owner, batch)| BatchWork::new(pool, client.clone(), owner, batch).run())
        .collect()
}

/// The work on a batch.
struct BatchWork {
    pool: Arc<Pool>,
    client: LocalClient,
    owner: String,
    batch: Value,
    cancelled: watch::Receiver<bool>,
}

/// Why a batch fails.
type BatchFault = Vec<Value>;

fn fault(code: &str, message: &dyn std::fmt::Display, line: Option<usize>) -> Value {
    json!({ "code": code, "message": message.to_string(), "param": null, "line": line })
}

impl BatchWork {
    fn new(pool: &Arc<Pool>, client: LocalClient, owner: String, batch: Value) -> Self {
        let id = batch["id"].as_str().unwrap_or_default();
        let (sender, never) = watch::channel(false);
        drop(sender);
        let store = pool.config.batches.as_ref();
        Self {
            cancelled: store.map_or(never, |store| store.start(id)),
            pool: Arc::clone(pool),
            client,
            owner,
            batch,
        }
    }

    async fn run(mut self) {
        let pool = Arc::clone(&self.pool);
        let Ok(store) = store(&pool) else {
            return;
        };
        let mut cancelled = self.cancelled.clone();
        let ended = tokio::select! {
            biased;
            _ = cancelled.wait_for(|is_cancelled| *is_cancelled) => None,
            done = self.complete(store) => Some(done),
        };
        match ended {
            None => {
                self.batch["cancelling_at"] = unix_seconds().into();
                self.set(store, "cancelled");
            }
            Some(Ok(())) => {
                self.set(store, "finalizing");
                self.set(store, "completed");
            }
            Some(Err(errors)) => {
                self.batch["errors"] = json!({ "object": "list", "data": errors });
                self.set(store, "failed");
            }
        }
        store.end(self.batch["id"].as_str().unwrap_or_default());
    }

    fn set(&mut self, store: &BatchStore, status: &str) {
        self.batch["status"] = status.into();
        self.batch[format!("{status}_at")] = unix_seconds().into();
        store.save(&self.owner, &self.batch);
    }

    /// The contents of a file of the batch.
    fn open(&self, store: &BatchStore, name: &str) -> Option<BufReader<std::fs::File>> {
        let id = self.batch[name].as_str()?;
        let (_, data) = store.files.open_data(&self.owner, id)?;
        Some(BufReader::new(data))
    }

    /// Answers the requests that have no result.
    async fn complete(&mut self, store: &BatchStore) -> Result<(), BatchFault> {
        let gone = || vec![fault("file_not_found", &"the input file is gone", None)];
        let read = |error: std::io::Error| vec![fault("file_unreadable", &error, None)];
        let endpoint = self.batch["endpoint"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let input = self.open(store, "input_file_id").ok_or_else(gone)?;
        let n = lines::check(input, Some(&endpoint)).map_err(read)?;
        let of_line = |it: &LineFault| fault("invalid_request", &it.message, Some(it.line));
        let n = n.map_err(|faults| faults.iter().map(of_line).collect::<BatchFault>())?;
        if n == 0 {
            return Err(vec![fault(
                "empty_file",
                &"the input file has no requests",
                None,
            )]);
        }
        let mut counts = [0, 0];
        let mut known = HashSet::new();
        for (count, name) in counts.iter_mut().zip(["output_file_id", "error_file_id"]) {
            for line in self
                .open(store, name)
                .into_iter()
                .flat_map(std::io::BufRead::lines)
            {
                let line: Value = serde_json::from_str(&line.map_err(read)?).unwrap_or_default();
                if let Some(id) = line["custom_id"].as_str() {
                    *count += usize::from(known.insert(id.to_owned()));
                }
            }
        }
        self.batch["request_counts"]["total"] = n.into();
        self.count(counts);
        self.set(store, "in_progress");
        let input = self.open(store, "input_file_id").ok_or_else(gone)?;
        let left = lines::requests(input, Some(&endpoint)).filter_map(|request| {
            let request = request.ok()?.ok()?;
            (!known.contains(&request.custom_id)).then_some(request)
        });
        let (client, owner) = (self.client.clone(), self.owner.clone());
        let answered = |request: BatchRequest| {
            let (client, owner, turns) = (client.clone(), owner.clone(), Arc::clone(&store.turns));
            async move {
                let _turn = turns.acquire_owned().await;
                request.answered(&client, &owner).await
            }
        };
        let mut results = stream::iter(left)
            .map(answered)
            .buffer_unordered(store.n_turns);
        while let Some(result) = results.next().await {
            let (i, name) = match result.is_ok {
                true => (0, "output_file_id"),
                false => (1, "error_file_id"),
            };
            let full = |error: FileError| vec![fault("storage_full", &error, None)];
            if self.batch[name].is_null() {
                let id = self.batch["id"].as_str().unwrap_or_default();
                let file_name = format!("{id}_{}.jsonl", ["output", "error"][i]);
                let file = store
                    .files
                    .create(&self.owner, &file_name, BATCH_OUTPUT, b"");
                self.batch[name] = file.map_err(full)?.id.into();
                store.save(&self.owner, &self.batch);
            }
            let id = self.batch[name].as_str().unwrap_or_default();
            let line = format!("{}\n", result.line);
            let added = store.files.append(&self.owner, id, line.as_bytes());
            added.map_err(full)?;
            counts[i] += 1;
            self.count(counts);
            store.update(&self.owner, &self.batch);
        }
        Ok(())
    }

    fn count(&mut self, [completed, failed]: [usize; 2]) {
        self.batch["request_counts"]["completed"] = completed.into();
        self.batch["request_counts"]["failed"] = failed.into();
    }
}
