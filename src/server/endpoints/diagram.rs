//! `GET /v1/models/{id}/diagram`: the diagram of a model as SVG, whether it is loaded or not. `view=layers` shows its
//! kinds of layers instead of the whole model.
//!
//! Diagrams are drawn on a separate thread, one at a time. Not here: how they are drawn.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;

use super::models::name_in_path;
use crate::http::error::{Error, invalid, quoted};
use crate::pool::{DiagramView, Pool};

fn view_of(query: Option<&str>) -> Result<DiagramView, Error> {
    let pairs = query.unwrap_or_default().split('&');
    let pairs = pairs.filter(|pair| !pair.is_empty());
    let mut view = DiagramView::Stack;
    for pair in pairs {
        view = match pair.split_once('=').unwrap_or((pair, "")) {
            ("view", "stack") => DiagramView::Stack,
            ("view", "layers") => DiagramView::Layers,
            ("view", other) => {
                let found = quoted(other);
                let message = format!("`view` is `{found}`, expected `stack` or `layers`");
                return invalid("view", message);
            }
            (name, _) => {
                let name = quoted(name);
                return invalid(&name, format!("unknown parameter: `{name}`"));
            }
        };
    }
    Ok(view)
}

/// An SVG file that is opened by itself may use styles, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; sandbox";

pub(crate) async fn diagram(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<Vec<String>>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<impl IntoResponse, Error> {
    let id = name_in_path(id);
    Ok(svg(pool.draw(&id, view_of(query.as_deref())?).await?))
}

pub(crate) fn svg(picture: String) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "image/svg+xml"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cache-control"), "no-cache"),
    ];
    (headers, picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_what_is_shown() {
        assert_eq!(view_of(None).ok(), Some(DiagramView::Stack));
        assert_eq!(view_of(Some("view=stack")).ok(), Some(DiagramView::Stack));
        assert_eq!(view_of(Some("view=layers")).ok(), Some(DiagramView::Layers));
        for bad in ["view=x", "view", "views=stack"] {
            assert!(view_of(Some(bad)).is_err(), "{bad}");
        }
    }
}
