//! `POST /render`: Markdown of an answer as HTML that is safe to show. The page at `/` shows answers with it.

use serde_json::json;

use crate::http::error::Error;
use crate::http::json::Json;
use crate::page::markdown;
use crate::request::fields::{Fields, fields};

fields! {
    pub(crate) struct RenderFields {
        /// The Markdown, with tables, code and LaTeX between `$`, `$$`, `\(` or `\[`.
        text: String,
    }
}

pub(crate) async fn render(Fields(order): Fields<RenderFields>) -> Result<Json, Error> {
    let rendered = tokio::task::spawn_blocking(move || markdown::render(&order.text));
    let html = rendered.await.map_err(Error::engine)?;
    Ok(Json(json!({ "html": html })))
}
