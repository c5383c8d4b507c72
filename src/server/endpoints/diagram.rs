//! `GET /v1/models/{id}/diagram`: the diagram of a model as SVG, whether it is loaded or not. `view=layers` shows its
//! kinds of layers instead of the whole model, `theme=dark` has the colours for a dark background.
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
use lab_inspect::diagram::svg::Theme;

/// What is shown, and in which colours.
fn view_of(query: Option<&str>) -> Result<(DiagramView, Theme), Error> {
    let pairs = query.unwrap_or_default().split('&');
    let pairs = pairs.filter(|pair| !pair.is_empty());
    let (mut view, mut theme) = (DiagramView::Stack, Theme::Light);
    for pair in pairs {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("view", "stack") => view = DiagramView::Stack,
            ("view", "layers") => view = DiagramView::Layers,
            ("theme", "light") => theme = Theme::Light,
            ("theme", "dark") => theme = Theme::Dark,
            (name @ ("view" | "theme"), found) => {
                let names = if name == "view" {
                    "`stack` or `layers`"
                } else {
                    "`light` or `dark`"
                };
                let found = quoted(found);
                return invalid(name, format!("`{name}` is `{found}`, expected {names}"));
            }
            (name, _) => {
                let name = quoted(name);
                return invalid(&name, format!("unknown parameter: `{name}`"));
            }
        }
    }
    Ok((view, theme))
}

/// An SVG file that is opened by itself may use styles, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; sandbox";

pub(crate) async fn diagram(
    State(pool): State<Arc<Pool>>,
    id: Result<Path<Vec<String>>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<impl IntoResponse, Error> {
    let id = name_in_path(id);
    let (view, theme) = view_of(query.as_deref())?;
    Ok(svg(pool.draw(&id, view, theme).await?))
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
        for (query, view, theme) in [
            (None, DiagramView::Stack, Theme::Light),
            (Some("view=stack"), DiagramView::Stack, Theme::Light),
            (Some("view=layers"), DiagramView::Layers, Theme::Light),
            (
                Some("theme=dark&view=layers"),
                DiagramView::Layers,
                Theme::Dark,
            ),
            (Some("theme=light"), DiagramView::Stack, Theme::Light),
        ] {
            assert_eq!(view_of(query).ok(), Some((view, theme)), "{query:?}");
        }
        for bad in ["view=x", "view", "views=stack", "theme=x", "theme"] {
            assert!(view_of(Some(bad)).is_err(), "{bad}");
        }
    }
}
