//! `GET /v1/sampling`: every sampling parameter with its meaning, type, range and default, from the table of the
//! stages. The page at `/` builds its form from it.

use serde_json::{Value, json};

use lab_sampling::{
    GlobalKind, GlobalParameter, LISTS, ListKind, ListParameter, NumberKind, OTHERS, PARAMETERS,
    Parameter, StageName,
};

use crate::http::json::Json;

/// A bound; `None` if it is only that of the type.
fn bound(bound: f64) -> Option<f64> {
    (bound.abs() < f64::MAX).then_some(bound)
}

fn number<P>(parameter: &Parameter<P>) -> Value {
    let kind = match parameter.kind {
        NumberKind::Real => "number",
        NumberKind::Count | NumberKind::Integer => "integer",
    };
    let range = &parameter.api;
    json!({
        "name": parameter.name, "technique": parameter.technique, "doc": parameter.doc.trim(),
        "kind": kind, "default": parameter.default, "off": parameter.off,
        "low": bound(range.low), "high": bound(range.high), "range": range.text,
    })
}

fn list<P>(list: &ListParameter<P>) -> Value {
    let kind = match list.kind {
        ListKind::Biases(_) => "biases",
        ListKind::Breakers(_) => "texts",
    };
    json!({
        "name": list.name, "technique": list.technique, "doc": list.doc.trim(),
        "kind": kind, "default": list.default,
    })
}

fn other(other: &GlobalParameter) -> Value {
    let kind = match other.kind {
        GlobalKind::Integer => "integer",
        GlobalKind::Stages => "stages",
        GlobalKind::Flag => "flag",
    };
    json!({
        "name": other.name, "technique": null, "doc": other.doc, "kind": kind,
        "default": null, "default_text": other.default.replace('`', ""),
    })
}

/// All parameters: first those that are the only one of their technique, then the others grouped by technique.
pub(crate) async fn settings() -> Json {
    let mut all: Vec<Value> = PARAMETERS.iter().map(number).collect();
    for own in LISTS {
        let is_of = |value: &Value| value["technique"] == own.technique;
        let at = all.iter().rposition(is_of).map_or(0, |last| last + 1);
        all.insert(at, list(own));
    }
    let n_of = |value: &Value| {
        all.iter()
            .filter(|v| v["technique"] == value["technique"])
            .count()
    };
    let (alone, grouped): (Vec<Value>, Vec<Value>) =
        all.iter().cloned().partition(|value| n_of(value) == 1);
    // The only parameter of a technique is set most often.
    let all: Vec<Value> = alone
        .into_iter()
        .chain(OTHERS.iter().map(other))
        .chain(grouped)
        .collect();
    let stages: Vec<&str> = StageName::ALL.iter().map(|stage| stage.as_str()).collect();
    Json(json!({ "object": "list", "data": all, "stages": stages }))
}
