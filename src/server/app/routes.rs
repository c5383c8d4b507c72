//! The list of routes: the handler of each, and its description in `/openapi.json` and at `/docs`.
//!
//! Router and documentation come from the same rows, so they cannot diverge.

use std::sync::Arc;

use axum::http::{HeaderMap, Method};
use axum::response::Html;
use axum::routing::{delete, get, post};
use axum::{Extension, Router};

use super::openapi;
pub(super) use super::route::AnsweredBy;
use super::route::{ResponseDoc, Route};
use crate::endpoints::{
    adapters, anthropic, batches, chat, completions, diagram, embeddings, health, infill, lab,
    llama_server, metrics, models, ollama, pooling, props, quit, render, rerank, responses,
    sampling, slots, tokens, transcriptions,
};
use crate::http::api_keys::Role;
use crate::http::context::STATES;
use crate::http::error_format::ErrorFormat;
use crate::http::json::Json;
use crate::http::proxies::RequestSource;
use crate::page;
use crate::pool::Pool;
use crate::request::fields::RequestPart as _;

/// JSON with any keys and status 200.
const ANY: ResponseDoc = ResponseDoc {
    keys: &[],
    types: &[],
    status: "200",
    has_model: false,
};

/// As `ANY`, for a route whose `?model=NAME` selects the model.
const OF_MODEL: ResponseDoc = ResponseDoc {
    has_model: true,
    ..ANY
};

const fn json(keys: &'static [&'static str]) -> ResponseDoc {
    ResponseDoc { keys, ..ANY }
}

const fn file(types: &'static [&'static str]) -> ResponseDoc {
    ResponseDoc { types, ..ANY }
}

const COMPLETION: ResponseDoc = json(&["id", "object", "created", "model", "choices", "usage"]);
const RESPONSE: ResponseDoc = json(&["id", "object", "created_at", "model", "status", "output"]);
const LIST: ResponseDoc = json(&["object", "data", "first_id", "last_id", "has_more"]);
const FILE: ResponseDoc = json(&["id", "object", "bytes", "created_at", "filename", "purpose"]);
const BATCH: ResponseDoc = json(&["id", "object", "endpoint", "input_file_id", "status"]);
const INPUT_TOKENS: ResponseDoc = json(&["object", "input_tokens"]);
const EMBEDDINGS: ResponseDoc = json(&["object", "data", "model", "usage"]);
const TRANSCRIPT: ResponseDoc = json(&["text"]);
const MESSAGE: ResponseDoc = json(&[
    "id",
    "type",
    "role",
    "content",
    "model",
    "stop_reason",
    "usage",
]);

macro_rules! routes {
    ($(
        $owner:ident: $method:ident $path:literal, $handler:path, $summary:literal
        $(, $fields:expr)? $(=> $shape:expr)?;
    )*) => {
        pub(crate) fn router() -> Router<Arc<Pool>> {
            Router::new()$(.route($path, $method($handler)))*
        }

        pub(crate) static ROUTES: &[Route] = &[$(Route {
            owner: AnsweredBy::$owner,
            method: stringify!($method),
            path: $path,
            summary: $summary,
            fields: routes!(@fields $($fields)?),
            shape: routes!(@shape $($shape)?),
        },)*];
    };
    (@fields $fields:expr) => { Some($fields) };
    (@fields) => { None };
    (@shape $shape:expr) => { $shape };
    (@shape) => { ANY };
}

routes! {
    Server: get "/", page::page, "A page to chat with the models." => file(&["text/html"]);
    Server: get "/page/{file}", page::file, "The files of that page." => file(&["text/javascript", "text/css"]);
    Server: get "/health", health::health, "The server's state, and which models are loaded or being loaded."
        => json(&["status", "loaded"]);
    Server: get "/healthz", health::health, "As `/health`." => json(&["status", "loaded"]);
    Server: get "/readyz", health::health, "As `/health`: status 503 while new requests should go elsewhere."
        => json(&["status", "loaded"]);
    Server: get "/livez", health::live, "Status 503 if the process should be started again." => json(&["status"]);
    Server: get "/version", health::version, "The version of the program." => json(&["version"]);
    Server: get "/v1/models", models::list, "The models, with their numbers and whether they are loaded."
        => json(&["object", "data"]);
    Server: get "/models", models::list, "As `/v1/models`." => json(&["object", "data"]);
    Server: get "/v1/models/{id}", models::one, "One model. Loads nothing."
        => json(&["id", "object", "created", "owned_by"]);
    Server: get "/v1/models/{id}/{repo}", models::one, "As above, for a name `OWNER/REPO`."
        => json(&["id", "object", "created", "owned_by"]);
    Server: get "/v1/models/{id}/{repo}/diagram", diagram::diagram, "The picture of a model with such a name."
        => file(&["image/svg+xml"]);
    Server: get "/v1/models/{id}/diagram", diagram::diagram,
        "The picture of a model as SVG; `view=layers` shows its kinds of layers. Loads nothing."
        => file(&["image/svg+xml"]);
    Server: get "/v1/sampling", sampling::settings, "Every sampling parameter with its meaning, range and default.";
    Server: post "/models/load", models::load,
        "Loads a model; with `stream`, events report the progress.", models::LoadFields::documented;
    Server: post "/models/pull", models::pull,
        "Downloads a model of the Hugging Face Hub; with `stream`, events report the progress.", models::PullFields::documented;
    Server: post "/models/unload", models::unload, "Unloads a model after its active requests.", models::UnloadFields::documented;
    Server: post "/models/rescan", models::rescan, "Looks for models in the folder again.", Vec::new;
    Server: post "/render", render::render, "Markdown as HTML that is safe to show, as the page does.", render::RenderFields::documented
        => json(&["html"]);
    Server: post "/quit", quit::quit, "Ends the server when the requests under way are complete.", Vec::new
        => ResponseDoc { status: "202", ..ANY };
    Loaded: get "/props", props::props, "The state and the settings of a model, and its chat template." => OF_MODEL;
    Loaded: get "/slots", props::slots, "The active sequences of a model." => OF_MODEL;
    Model: post "/slots/{id}", slots::slot,
        "Saves the last prefix of a slot to a file (`action=save`), restores it from one or erases it.", slots::SlotFields::documented
        => ResponseDoc { keys: &["id_slot"], ..OF_MODEL };
    Server: get "/metrics", metrics::metrics, "Counters, gauges and histograms for Prometheus."
        => file(&["text/plain"]);
    Model: get "/v1/lab/points", lab::points,
        "The values of a model that can be captured and edited, with shapes and meanings.";
    Model: post "/v1/lab/run", lab::run, "Reads a prompt, and captures and edits values of the model.", lab::run_fields;
    Model: post "/v1/lab/patch", lab::patch::patch,
        "Activation patching: runs a prompt with values of another prompt, and measures the effect of each.",
        lab::patch::Patch::documented;
    Server: post "/v1/lab/pictures", lab::pictures::picture,
        "A response of the lab as a picture, SVG.", lab::pictures::PictureRequest::documented;
    Server: get "/v1/lab/artifacts", lab::artifacts::list, "The results that are stored as files.";
    Server: get "/v1/lab/artifacts/{id}", lab::artifacts::get, "The file of a result.";
    Server: delete "/v1/lab/artifacts/{id}", lab::artifacts::delete, "Removes a result.";
    Server: get "/v1/lab/vectors", lab::vectors::list, "The vectors that edits, captures and lenses may name.";
    Server: post "/v1/lab/vectors", lab::vectors::keep, "Stores vectors for later requests.", lab::vectors::VectorsUpload::documented;
    Server: delete "/v1/lab/vectors/{id}", lab::vectors::delete, "Removes vectors that a request has sent.";
    Server: get "/v1/files", batches::files::list, "The files of a client, in pages." => LIST;
    Server: post "/v1/files", batches::files::upload, "Stores a file: a form with the parts `purpose` and `file`." => FILE;
    Server: get "/v1/files/{id}", batches::files::get, "What is known of a file." => FILE;
    Server: delete "/v1/files/{id}", batches::files::delete, "Removes a file." => json(&["id", "object", "deleted"]);
    Server: get "/v1/files/{id}/content", batches::files::content, "The contents of a file."
        => file(&["application/octet-stream"]);
    Server: get "/v1/batches", batches::list, "The batches of a client, in pages." => LIST;
    Server: post "/v1/batches", batches::create, "Starts the requests of a file.", batches::BatchFields::documented => BATCH;
    Server: get "/v1/batches/{id}", batches::get, "The state of a batch." => BATCH;
    Server: post "/v1/batches/{id}/cancel", batches::cancel, "Cancels a batch." => BATCH;
    Model: get "/lora-adapters", adapters::list, "The adapters of a model and their scales." => OF_MODEL;
    Model: post "/lora-adapters", adapters::set,
        "Sets the scales of the adapters of a model: a list of objects with `id` and `scale`." => OF_MODEL;
    Server: post "/v1/load_lora_adapter", adapters::load,
        "Loads an adapter, which requests choose by its name.", adapters::LoadAdapterFields::documented
        => file(&["text/plain"]);
    Server: post "/v1/unload_lora_adapter", adapters::unload, "Unloads an adapter that was loaded so.",
        adapters::UnloadAdapterFields::documented => file(&["text/plain"]);
    Model: post "/v1/chat/completions", chat::completions, "Completes a conversation.", chat::fields => COMPLETION;
    Model: post "/chat/completions", chat::completions, "As `/v1/chat/completions`.", chat::fields => COMPLETION;
    Model: post "/v1/chat/completions/input_tokens", chat::input_tokens,
        "The number of tokens of a conversation's prompt.", chat::fields => INPUT_TOKENS;
    Model: post "/chat/completions/input_tokens", chat::input_tokens,
        "As `/v1/chat/completions/input_tokens`.", chat::fields => INPUT_TOKENS;
    Model: post "/v1/responses", responses::responses,
        "Completes a conversation, in the shape of OpenAI's responses.", responses::fields => RESPONSE;
    Model: post "/responses", responses::responses, "As `/v1/responses`.", responses::fields => RESPONSE;
    Server: get "/v1/responses/{id}", responses::stored::get,
        "A stored response; with `stream=true` the events of one that runs in the background." => RESPONSE;
    Server: get "/responses/{id}", responses::stored::get, "As `/v1/responses/{id}`." => RESPONSE;
    Server: delete "/v1/responses/{id}", responses::stored::delete, "Removes a stored response."
        => json(&["id", "object", "deleted"]);
    Server: delete "/responses/{id}", responses::stored::delete, "As `/v1/responses/{id}`."
        => json(&["id", "object", "deleted"]);
    Server: post "/v1/responses/{id}/cancel", responses::stored::cancel,
        "Cancels a response that runs in the background." => RESPONSE;
    Server: post "/responses/{id}/cancel", responses::stored::cancel,
        "As `/v1/responses/{id}/cancel`." => RESPONSE;
    Server: get "/v1/responses/{id}/input_items", responses::stored::input_items,
        "The items that a stored response was made from." => LIST;
    Server: get "/responses/{id}/input_items", responses::stored::input_items,
        "As `/v1/responses/{id}/input_items`." => LIST;
    Model: post "/v1/responses/input_tokens", responses::input_tokens,
        "The number of tokens of a conversation's prompt.", responses::fields => INPUT_TOKENS;
    Model: post "/responses/input_tokens", responses::input_tokens,
        "As `/v1/responses/input_tokens`.", responses::fields => INPUT_TOKENS;
    Model: post "/v1/messages", anthropic::messages,
        "Completes a conversation, in Anthropic's shape.", anthropic::fields => MESSAGE;
    Model: post "/v1/messages/count_tokens", anthropic::count_tokens,
        "The number of tokens of a conversation's prompt.", anthropic::fields
        => json(&["input_tokens"]);
    Model: post "/api/chat", ollama::chat, "Completes a conversation, in Ollama's shape.", ollama::chat_fields
        => json(&["model", "created_at", "message", "done"]);
    Model: post "/api/generate", ollama::generate, "Completes a prompt, in Ollama's shape.", ollama::generate_fields
        => json(&["model", "created_at", "response", "done"]);
    Model: post "/api/embed", ollama::embed, "Embeddings of texts, in Ollama's shape.", ollama::embed_fields
        => json(&["model", "embeddings"]);
    Model: post "/api/embeddings", ollama::embeddings, "The embedding of a text, in Ollama's older shape.", ollama::old_embed_fields
        => json(&["embedding"]);
    Server: get "/api/tags", ollama::tags, "The models, in Ollama's shape." => json(&["models"]);
    Server: get "/api/ps", ollama::ps, "The models that are loaded, in Ollama's shape." => json(&["models"]);
    Server: post "/api/show", ollama::show,
        "What a model is and can do, in Ollama's shape. Loads nothing.", ollama::ShowFields::documented
        => json(&["details", "model_info", "capabilities"]);
    Server: post "/api/pull", ollama::pull,
        "Downloads a model of the Hugging Face Hub, in Ollama's shape.", ollama::PullFields::documented => json(&["status"]);
    Server: delete "/api/delete", ollama::delete, "Refused: models are not removed over HTTP.";
    Server: get "/api/version", ollama::version, "The version of Ollama whose API this is." => json(&["version"]);
    Model: post "/v1/completions", completions::completions, "Completes a prompt, or scores it.", completions::CompletionFields::documented
        => COMPLETION;
    Model: post "/completion", llama_server::completion, "Completes a prompt, in the shape of llama-server.", llama_server::CompletionFields::documented;
    Model: post "/completions", llama_server::completion, "As `/completion`.", llama_server::CompletionFields::documented;
    Model: post "/infill", infill::infill,
        "Fill-in-the-middle completion, in the shape of llama-server.", infill::InfillFields::documented;
    Model: post "/v1/embeddings", embeddings::embeddings, "Embeddings of texts.", embeddings::EmbeddingFields::documented => EMBEDDINGS;
    Model: post "/embeddings", embeddings::embeddings, "As `/v1/embeddings`.", embeddings::EmbeddingFields::documented => EMBEDDINGS;
    Model: post "/v1/rerank", rerank::rerank,
        "The order of documents by how well they answer a query.", rerank::RerankFields::documented;
    Model: post "/v1/reranking", rerank::rerank, "As `/v1/rerank`.", rerank::RerankFields::documented;
    Model: post "/v2/rerank", rerank::rerank, "As `/v1/rerank`.", rerank::RerankFields::documented;
    Model: post "/rerank", rerank::rerank,
        "As `/v1/rerank`; with `texts` in the shape of TEI.", rerank::RerankFields::documented;
    Model: post "/reranking", rerank::rerank, "As `/rerank`.", rerank::RerankFields::documented;
    Model: post "/v1/score", rerank::score, "The scores of pairs of texts.", rerank::ScoreFields::documented;
    Model: post "/score", rerank::score, "As `/v1/score`.", rerank::ScoreFields::documented;
    Model: post "/classify", rerank::classify,
        "The scores of the classes of texts.", rerank::ClassifyFields::documented;
    Model: post "/pooling", pooling::pooling,
        "The vectors of texts, or the scores of their classes or of those of their tokens.",
        pooling::PoolingFields::documented;
    Model: post "/v1/audio/transcriptions", transcriptions::transcriptions,
        "The text of a sound: a form with the parts `file` and `model`.", transcriptions::fields => TRANSCRIPT;
    Model: post "/v1/audio/translations", transcriptions::translations,
        "The text of a sound in English: a form as of `/v1/audio/transcriptions`.", transcriptions::fields => TRANSCRIPT;
    Model: post "/tokenize", tokens::tokenize, "The tokens of a text or of a conversation.", tokens::tokenize_fields
        => json(&["count", "max_model_len", "tokens"]);
    Model: post "/detokenize", tokens::detokenize, "The text of tokens.", tokens::DetokenizeFields::documented
        => json(&["prompt", "content"]);
    Model: get "/tokenizer_info", tokens::info, "The vocabulary's special tokens and numbers."
        => ResponseDoc { keys: &["vocab_size", "eos_token"], ..OF_MODEL };
    Model: post "/apply-template", tokens::apply_template,
        "The text that the chat template makes of a conversation.", tokens::TemplateFields::documented => json(&["prompt"]);
    Server: get "/openapi.json", document, "This list in the form of OpenAPI 3.1.";
    Server: get "/docs", docs, "This list as a page." => file(&["text/html"]);
}

async fn document(source: Option<Extension<RequestSource>>, headers: HeaderMap) -> Json {
    let prefix = source.as_ref().and_then(|source| source.prefix(&headers));
    Json(openapi::document(ROUTES, prefix))
}

async fn docs() -> Html<String> {
    openapi::page(ROUTES)
}

/// The process that answers a request; the server if there is no such route.
pub(crate) fn answered_by(method: &Method, path: &str) -> AnsweredBy {
    // HEAD is answered by the process that answers GET.
    let method = if *method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    let is_it = |route: &&Route| {
        is_at(route.path, path) && route.method.eq_ignore_ascii_case(method.as_str())
    };
    let route = ROUTES.iter().find(is_it);
    route.map_or(AnsweredBy::Server, |route| route.owner)
}

/// Whether a path is that of a route, in which `{NAME}` stands for one part.
fn is_at(route: &str, path: &str) -> bool {
    let (mut own, mut found) = (route.split('/'), path.split('/'));
    loop {
        match (own.next(), found.next()) {
            (None, None) => return true,
            (Some(own), Some(found))
                if own == found || (own.starts_with('{') && !found.is_empty()) => {}
            _ => return false,
        }
    }
}

/// The name of a route in metrics and the log: its pattern. What no route has is one, of which there could be any number.
pub(crate) fn pattern(path: &str) -> &'static str {
    let all = ROUTES.iter().filter(|route| is_at(route.path, path));
    // The router prefers the route with the fewest open parts.
    let n_open = |route: &&Route| {
        route
            .path
            .split('/')
            .filter(|part| part.starts_with('{'))
            .count()
    };
    all.min_by_key(n_open).map_or("other", |route| route.path)
}

/// Requests that concern all clients.
const OF_ADMIN: [(Method, &str); 11] = [
    (Method::POST, slots::ROUTE),
    (Method::POST, "/quit"),
    (Method::POST, "/models/load"),
    (Method::POST, "/models/unload"),
    (Method::POST, "/models/rescan"),
    (Method::POST, "/models/pull"),
    (Method::POST, "/lora-adapters"),
    (Method::POST, "/v1/load_lora_adapter"),
    (Method::POST, "/v1/unload_lora_adapter"),
    (Method::POST, "/api/pull"),
    (Method::DELETE, "/api/delete"),
];

/// The role that a key needs for a request; none if it needs no key: load balancers have none, and the page is where visitors enter
/// theirs.
pub(crate) fn needs(method: &Method, path: &str) -> Option<Role> {
    let is_open = STATES.contains(&path) || page::is_file(path);
    if is_open && [Method::GET, Method::HEAD].contains(method) {
        return None;
    }
    let of_admin = OF_ADMIN
        .iter()
        .any(|(own, route)| own == method && is_at(route, path));
    Some(match path {
        _ if of_admin => Role::Admin,
        path if path.starts_with("/v1/lab/") => Role::Lab,
        _ => Role::Use,
    })
}

/// Whether the events of a route can be comments, which keep a connection alive while a model is loaded.
pub(crate) fn can_stream(path: &str) -> bool {
    let route = ROUTES.iter().find(|route| route.path == path);
    let route = route.filter(|_| ErrorFormat::of(path) != ErrorFormat::Ollama);
    let fields = route.and_then(|route| route.fields);
    fields.is_some_and(|fields| fields().iter().any(|field| field.name == "stream"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn read(path: impl AsRef<Path>) -> String {
        let path = root().join(path);
        std::fs::read_to_string(path).expect("it is readable")
    }

    /// The endpoints in the table of docs/http-api.md: `METHOD /path`. Methods and paths may share cells.
    fn of_page() -> BTreeSet<String> {
        let (page, mut found) = (read("docs/http-api.md"), BTreeSet::new());
        let rows = page
            .lines()
            .skip_while(|line| !line.starts_with("| endpoint "));
        let rows = rows.skip(2).take_while(|line| line.starts_with("| "));
        for row in rows {
            let cell = row.split('|').nth(1).expect("a cell");
            let (mut methods, mut is_open) = (Vec::new(), false);
            for token in cell.split('`').skip(1).step_by(2) {
                let (method, path) = match token.split_once(' ') {
                    Some((method, path)) => (Some(method), Some(path)),
                    None if token.starts_with('/') => (None, Some(token)),
                    None => (Some(token), None),
                };
                if let Some(method) = method {
                    if !is_open {
                        methods.clear();
                    }
                    methods.push(method);
                    is_open = path.is_none();
                }
                let all = path
                    .iter()
                    .flat_map(|path| methods.iter().map(move |m| format!("{m} {path}")));
                found.extend(all);
            }
        }
        found
    }

    #[test]
    fn the_name_of_a_route_is_its_pattern() {
        for (path, expected) in [
            ("/", "/"),
            ("/v1/models", "/v1/models"),
            ("/v1/models/a", "/v1/models/{id}"),
            ("/v1/models/a/b", "/v1/models/{id}/{repo}"),
            ("/v1/models/a/diagram", "/v1/models/{id}/diagram"),
            ("/v1/responses/input_tokens", "/v1/responses/input_tokens"),
            ("/v1/responses/resp_1", "/v1/responses/{id}"),
            ("/v1/models/", "other"),
            ("/v1/models/a/b/c/d", "other"),
            ("/evil", "other"),
            ("", "other"),
        ] {
            assert_eq!(pattern(path), expected, "{path}");
        }
        for route in ROUTES {
            assert_eq!(pattern(route.path), route.path);
        }
    }

    #[test]
    fn what_concerns_all_clients_needs_an_administrator() {
        for (method, path) in &OF_ADMIN {
            let is_it = |route: &&Route| {
                route.path == *path && route.method.eq_ignore_ascii_case(method.as_str())
            };
            assert!(ROUTES.iter().any(|route| is_it(&route)), "{method} {path}");
        }
        let of = |method: Method, path: &str| needs(&method, path);
        assert_eq!(of(Method::POST, "/models/load"), Some(Role::Admin));
        assert_eq!(of(Method::POST, "/slots/0"), Some(Role::Admin));
        assert_eq!(of(Method::GET, "/slots"), Some(Role::Use));
        assert_eq!(of(Method::GET, "/models"), Some(Role::Use));
        assert_eq!(of(Method::GET, "/v1/lab/artifacts/1"), Some(Role::Lab));
        assert_eq!(of(Method::POST, "/v1/chat/completions"), Some(Role::Use));
        assert_eq!(of(Method::GET, "/readyz"), None);
        assert_eq!(of(Method::POST, "/readyz"), Some(Role::Use));
        assert_eq!(of(Method::GET, "/"), None);
        // A route that is not known gives nothing away without a key.
        assert_eq!(of(Method::GET, "/nothing"), Some(Role::Use));
    }

    #[test]
    fn the_page_lists_every_route() {
        let own = ROUTES.iter();
        let own = own.map(|route| format!("{} {}", route.method.to_uppercase(), route.path));
        let own: BTreeSet<String> = own.collect();
        assert_eq!(of_page(), own);
    }

    /// Every part that a handler takes from a body must be among the documented fields of its route.
    #[test]
    fn every_part_of_a_request_is_documented() {
        let (mut sources, mut folders) = (String::new(), vec!["src/server".into()]);
        while let Some(folder) = folders.pop() {
            let folder = root().join::<PathBuf>(folder);
            for file in std::fs::read_dir(folder).expect("it is readable") {
                let path = file.expect("it is readable").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => sources.push_str(&read(path)),
                }
            }
        }
        let mut n = 0;
        for part in sources.split("\nfields! {").skip(1) {
            let name = part
                .split("struct ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next());
            let name = name.expect("a name");
            // The fields of the objects `diffusion` and `lab` are nested.
            let is_inner = ["DiffusionFields", "LabFields"].contains(&name);
            // A route names it, or it is a part of another.
            let names = [
                format!("{name}::documented"),
                format!("::<{name}>"),
                format!(": {name},\n"),
            ];
            let is_listed = names.iter().any(|name| sources.contains(name));
            assert!(is_listed || is_inner, "{name}");
            n += 1;
        }
        assert!(n > 15, "{n}");
    }
}
