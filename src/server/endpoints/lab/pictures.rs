//! `POST /v1/lab/pictures`: a lab response as a picture, SVG.
//!
//! Pictures are drawn on a separate thread, one at a time. Not here: how they are drawn.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use serde_json::Value;

use crate::Pool;
use crate::endpoints::diagram::svg;
use crate::http::error::Error;
use crate::request::fields::{FieldType, Fields, fields};
use crate::request::lab::objects::{MAX_POSITIONS, too_many};
use lab_inspect::diagram::svg::Theme;
use lab_inspect::pictures::{self, ChartFilter, LabPicture};

impl FieldType for LabPicture {}
impl FieldType for Theme {}

fields! {
    pub(crate) struct PictureRequest {
        /// What it shows: `lens`, `patch`, `routing`, `attention` or `attribution`.
        picture: LabPicture,
        /// A response of `/v1/lab/run` or, with `patch`, of `/v1/lab/patch`.
        response: Value,
        /// Numbers of the layers that are drawn; default: all.
        layers: Option<Vec<u64>>,
        /// Numbers of the heads that are drawn; default: all.
        heads: Option<Vec<usize>>,
        /// Its colours: `light` or `dark`; default: `light`.
        theme: Option<Theme>,
    }
}

pub(crate) async fn picture(
    State(pool): State<Arc<Pool>>,
    Fields(asked): Fields<PictureRequest, true>,
) -> Result<impl IntoResponse, Error> {
    let (layers, heads) = (
        asked.layers.unwrap_or_default(),
        asked.heads.unwrap_or_default(),
    );
    too_many("layers", layers.len(), MAX_POSITIONS)?;
    too_many("heads", heads.len(), MAX_POSITIONS)?;
    let _turn = pool.drawing.lock().await;
    let paint = move || {
        let filter = ChartFilter { layers, heads };
        let chart = pictures::chart(asked.picture, &asked.response, &filter);
        chart.map(|chart| pictures::svg_in(&chart, asked.theme.unwrap_or_default()))
    };
    let painted = tokio::task::spawn_blocking(paint).await;
    let painted = painted.map_err(Error::engine)?;
    let painted = painted.map_err(|fault| Error::invalid_value("response", fault.to_string()))?;
    Ok(svg(painted))
}
