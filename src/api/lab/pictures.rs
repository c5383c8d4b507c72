//! `POST /v1/lab/pictures`: a lab response as a picture, SVG.
//!
//! Pictures are drawn on a separate thread, one at a time. Not here: how they are drawn.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use serde::Deserialize;
use serde_json::Value;

use crate::api::Pool;
use crate::api::diagram::svg;
use crate::api::error::Error;
use crate::api::fields::{self, Body, Field, Kind, fields};

use super::objects::{MAX_POSITIONS, too_many};

/// The part of a response that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Picture {
    /// The likeliest token after each layer.
    Lens,
    /// How much each value restores of the answer to the other prompt.
    Patch,
    /// The router weights of the experts of each token.
    Routing,
    /// The attention weights of each token.
    Attention,
    /// The contributions of parts of the model to a token's logit.
    Attribution,
}

impl Kind for Picture {}

/// Draws a response, or only these layers and heads of it, as SVG; an error says what is wrong with the response.
pub type Painter =
    Arc<dyn Fn(Picture, &Value, Vec<u64>, Vec<usize>) -> Result<String, String> + Send + Sync>;

fields! {
    /// A picture.
    struct PictureRequest {
        /// What it shows: `lens`, `patch`, `routing`, `attention` or `attribution`.
        picture: Picture,
        /// A response of `/v1/lab/run` or, with `patch`, of `/v1/lab/patch`.
        response: Value,
        /// Numbers of the layers that are drawn; default: all.
        layers: Option<Vec<u64>>,
        /// Numbers of the heads that are drawn; default: all.
        heads: Option<Vec<usize>>,
    }
}

/// The documented fields of a picture.
pub(in crate::api) fn fields() -> Vec<Field> {
    fields::of::<PictureRequest>()
}

pub(in crate::api) async fn picture(
    State(pool): State<Arc<Pool>>,
    mut body: Body,
) -> Result<impl IntoResponse, Error> {
    let asked: PictureRequest = body.take()?;
    body.own().finish()?;
    let (layers, heads) = (
        asked.layers.unwrap_or_default(),
        asked.heads.unwrap_or_default(),
    );
    too_many("layers", layers.len(), MAX_POSITIONS)?;
    too_many("heads", heads.len(), MAX_POSITIONS)?;
    let Some(painter) = pool.painter.clone() else {
        let message = "responses are not drawn here";
        return Err(Error::unsupported("picture", message));
    };
    let _turn = pool.drawing.lock().await;
    let paint = move || painter(asked.picture, &asked.response, layers, heads);
    let painted = tokio::task::spawn_blocking(paint).await;
    let painted = painted.map_err(|error| Error::Engine {
        detail: error.to_string(),
    })?;
    let painted = painted.map_err(|message| Error::value("response", message))?;
    Ok(svg(painted))
}
