//! `GET /openapi.json` and `GET /docs`: the routes and the fields of their bodies, generated from the list of routes
//! and from the structs that bodies are read into.

use std::fmt::Write;

use axum::response::Html;
use serde_json::{Map, Value, json};

use super::route::Route;
use crate::http::error_format::ErrorFormat;
use crate::request::fields::FieldDoc;

/// The JSON schema of a Rust type of a field.
fn schema(ty: &str) -> Value {
    let inner = |outer: &str| {
        let rest = ty.strip_prefix(outer)?.trim_start();
        rest.strip_prefix('<')?.strip_suffix('>').map(str::trim)
    };
    if let Some(ty) = inner("Option") {
        let mut schema = schema(ty);
        if let Some(kind) = schema.get("type").cloned() {
            schema["type"] = json!([kind, "null"]);
        }
        return schema;
    }
    if let Some(ty) = inner("Vec") {
        return json!({ "type": "array", "items": schema(ty) });
    }
    match ty {
        "bool" => json!({ "type": "boolean" }),
        "String" => json!({ "type": "string" }),
        "u32" | "u64" | "usize" => json!({ "type": "integer", "minimum": 0 }),
        "i32" | "i64" => json!({ "type": "integer" }),
        "f32" | "f64" => json!({ "type": "number" }),
        other if other.starts_with("Map") => json!({ "type": "object" }),
        // The description of the field says what its struct holds.
        _ => json!({}),
    }
}

/// An example value that every model accepts, for fields whose type does not determine one.
fn example(name: &str) -> Option<Value> {
    Some(match name {
        "messages" => json!([{ "role": "user", "content": "2+2=?" }]),
        "prompt" | "input" | "query" | "text_1" | "text_2" => json!("2+2=?"),
        "documents" => json!(["4", "5"]),
        "tokens" => json!([5, 6, 7]),
        "max_tokens" | "max_output_tokens" | "n_predict" => json!(16),
        _ => return None,
    })
}

fn is_required(field: &FieldDoc) -> bool {
    !field.ty.starts_with("Option")
}

/// The schema of an object. `is_own`: a field that is not known is refused.
fn object(fields: &[FieldDoc], is_own: bool) -> Value {
    let property = |field: &FieldDoc| {
        let mut schema = schema(&field.ty);
        if !field.doc.is_empty() {
            schema["description"] = field.doc.clone().into();
        }
        if let Some(example) = example(field.name) {
            schema["examples"] = json!([example]);
        }
        (field.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    let required = fields.iter().filter(|field| is_required(field));
    let required: Vec<&str> = required.map(|field| field.name).collect();
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": !is_own,
    })
}

/// The parameters of a route: names in braces in its path, and the query that selects the model.
fn parameters(route: &Route) -> Vec<Value> {
    let parameter = |name: &str, place: &str, is_required: bool| {
        json!({
            "name": name, "in": place, "required": is_required, "schema": { "type": "string" },
        })
    };
    let names = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        Some(parameter(name, "path", true))
    });
    let model = parameter("model", "query", false);
    let model = Some(model).filter(|_| route.shape.has_model);
    names.chain(model).collect()
}

fn answer(route: &Route) -> Value {
    let shape = route.shape;
    if !shape.types.is_empty() {
        let types = shape
            .types
            .iter()
            .map(|name| ((*name).to_owned(), json!({})));
        return json!({ "description": "The answer", "content": types.collect::<Map<_, _>>() });
    }
    let schema = match shape.keys {
        [] => json!({}),
        keys => json!({ "type": "object", "required": keys }),
    };
    let mut content = json!({ "application/json": { "schema": schema } });
    let fields = route.fields.map_or_else(Vec::new, |fields| fields());
    if fields.iter().any(|field| field.name == "stream") {
        let kind = match ErrorFormat::of(route.path) {
            ErrorFormat::Ollama => "application/x-ndjson",
            _ => "text/event-stream",
        };
        content[kind] = json!({ "schema": { "type": "string" } });
    }
    json!({ "description": "The answer", "content": content })
}

fn operation(route: &Route) -> Value {
    let error = match ErrorFormat::of(route.path) {
        ErrorFormat::Anthropic => "AnthropicError",
        ErrorFormat::Ollama => "OllamaError",
        ErrorFormat::OpenAi | ErrorFormat::Responses | ErrorFormat::LlamaServer => "Error",
    };
    let error = json!({ "$ref": format!("#/components/responses/{error}") });
    let mut operation = json!({
        "summary": route.summary,
        "responses": { route.shape.status: answer(route), "4XX": error, "5XX": error },
    });
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(fields) = route.fields {
        operation["requestBody"] = json!({
            "required": true,
            "content": { route.content_type(): { "schema": object(&fields(), route.is_closed()) } },
        });
    }
    operation
}

/// The document. `prefix`: the path below which a proxy serves this server.
pub(super) fn document(routes: &[Route], prefix: Option<&str>) -> Value {
    let mut paths = Map::new();
    for route in routes {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation(route);
    }
    let error = json!({ "type": "object", "properties": { "error": {
        "type": "object",
        "properties": {
            "message": { "type": "string" }, "type": { "type": "string" },
            "param": { "type": ["string", "null"] }, "code": { "type": "string" },
        },
        "required": ["message", "type", "param", "code"],
    } }, "required": ["error"] });
    let of_anthropic = json!({ "type": "object", "properties": {
        "type": { "const": "error" },
        "error": {
            "type": "object",
            "properties": { "type": { "type": "string" }, "message": { "type": "string" } },
            "required": ["type", "message"],
        },
    }, "required": ["type", "error"] });
    let of_ollama = json!({
        "type": "object", "properties": { "error": { "type": "string" } }, "required": ["error"],
    });
    let response = |schema: Value| {
        json!({
            "description": "A refusal or a failure",
            "content": { "application/json": { "schema": schema } },
        })
    };
    let mut document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Inference Lab Bench", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": { "responses": {
            "Error": response(error), "AnthropicError": response(of_anthropic),
            "OllamaError": response(of_ollama),
        } },
    });
    if let Some(prefix) = prefix {
        document["servers"] = json!([{ "url": prefix }]);
    }
    document
}

/// The text as HTML, with text between backquotes as code.
fn html(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let parts = text.split('`').enumerate().map(|(i, part)| match i % 2 {
        1 => format!("<code>{part}</code>"),
        _ => part.to_owned(),
    });
    parts.collect()
}

const STYLE: &str = "
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .25rem; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid #8886 }
td { overflow-wrap: anywhere }
code { font-family: ui-monospace, monospace }
";

pub(super) fn page(routes: &[Route]) -> Html<String> {
    let mut out = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width\"><title>API</title>");
    let _ = write!(out, "<style>{STYLE}</style><h1>API</h1>");
    out.push_str("<p>The same for programs: <a href=\"openapi.json\">openapi.json</a>.</p>");
    for route in routes {
        let (method, path) = (route.method.to_uppercase(), route.path);
        let summary = html(route.summary);
        let _ = write!(out, "<h2><code>{method} {path}</code></h2><p>{summary}</p>");
        let fields = route.fields.map_or_else(Vec::new, |fields| fields());
        if fields.is_empty() {
            continue;
        }
        out.push_str("<table><tr><th>Field</th><th>Type</th><th>Meaning</th></tr>");
        for field in &fields {
            let required = if is_required(field) { ", required" } else { "" };
            let kind = kind(&schema(&field.ty));
            let (name, doc) = (field.name, html(&field.doc));
            let _ = write!(
                out,
                "<tr><td><code>{name}</code></td><td>{kind}{required}</td><td>{doc}</td></tr>"
            );
        }
        out.push_str("</table>");
    }
    Html(out)
}

/// A schema in a word or two.
fn kind(schema: &Value) -> String {
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str),
        kind => kind.as_str(),
    };
    match kind {
        Some("array") => format!("array of {}", self::kind(&schema["items"])),
        Some(kind) => kind.to_owned(),
        None => "any".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::routes::ROUTES;
    use super::*;

    #[test]
    fn types_of_rust_become_schemas() {
        assert_eq!(schema("Option<u64>")["type"], json!(["integer", "null"]));
        assert_eq!(schema("Vec<String>")["items"]["type"], "string");
        assert_eq!(schema("Value"), json!({}));
        assert_eq!(kind(&schema("Option<Vec<u32>>")), "array of integer");
        assert_eq!(html("a < `b`"), "a &lt; <code>b</code>");
    }

    #[test]
    fn every_field_is_listed_once_and_has_the_doc_of_its_struct() {
        for route in ROUTES {
            let fields = route.fields.map_or_else(Vec::new, |fields| fields());
            for (i, field) in fields.iter().enumerate() {
                let earlier = fields[..i].iter().any(|other| other.name == field.name);
                assert!(!earlier, "{} of {}", field.name, route.path);
                assert!(!field.doc.contains("r\""), "{}", field.doc);
            }
        }
        let embeddings = ROUTES.iter().find(|route| route.path == "/v1/embeddings");
        let fields = embeddings.and_then(|route| route.fields).expect("fields")();
        let dimensions = fields.iter().find(|field| field.name == "dimensions");
        let doc = &dimensions.expect("a field").doc;
        assert_eq!(doc, "Number of elements that are kept of a vector.");
    }
}
