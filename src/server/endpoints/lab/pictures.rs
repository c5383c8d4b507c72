//! `POST /v1/lab/pictures`: a lab response as a picture, SVG.
//!
//! Pictures are drawn on a separate thread, one at a time. Not here: how they are drawn.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use serde_json::Value;

use crate::Pool;
use crate::endpoints::diagram::svg;
use crate::http::error::{Error, refuse};
use crate::request::fields::{FieldType, Fields, fields};
use crate::request::lab::objects::{MAX_POSITIONS, too_many};
use crate::request::media::{MAX_MEDIA, blocking, bytes_of_url};
use lab_inspect::diagram::svg::Theme;
use lab_inspect::pictures::{self, ChartFilter, LabPicture, PromptPicture};

impl FieldType for LabPicture {}
impl FieldType for Theme {}

fields! {
    pub(crate) struct PictureRequest {
        /// What it shows: `lens`, `patch`, `routing`, `attention`, `attention_map` or `attribution`.
        picture: LabPicture,
        /// A response of `/v1/lab/run` or, with `patch`, of `/v1/lab/patch`.
        response: Value,
        /// Numbers of the layers that are drawn; default: all.
        layers: Option<Vec<u64>>,
        /// Numbers of the heads that are drawn; default: all.
        heads: Option<Vec<usize>>,
        /// With `attention_map`, the position of the token that attends; default: the last captured one.
        position: Option<u64>,
        /// With `attention_map`, the pictures of the prompt as data URLs, in their order.
        images: Option<Vec<String>>,
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
    let images = asked.images.unwrap_or_default();
    too_many("images", images.len(), MAX_MEDIA)?;
    let _turn = pool.drawing.lock().await;
    let paint = move || {
        let read = |(at, url): (usize, String)| {
            let param = format!("images[{at}]");
            let picture = PromptPicture::read(&bytes_of_url(&param, &url)?);
            picture.or_else(|error| refuse(&param, format!(": {error}")))
        };
        let filter = ChartFilter {
            layers,
            heads,
            position: asked.position,
            pictures: images
                .into_iter()
                .enumerate()
                .map(read)
                .collect::<Result<_, Error>>()?,
        };
        let chart = pictures::chart(asked.picture, &asked.response, &filter);
        let chart = chart.map_err(|fault| Error::invalid_value("response", fault.to_string()))?;
        Ok(pictures::svg_in(&chart, asked.theme.unwrap_or_default()))
    };
    Ok(svg(blocking(paint).await?))
}
