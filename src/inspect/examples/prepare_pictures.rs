//! Prepares pictures as a folder says, for `scripts/picture_sizes.py`.
//!
//! `prepare_pictures FOLDER` reads lines of a picture's path, a tab and a path for results: the values of all views as f32 at `PATH.f32`,
//! and at `PATH.json` the rules' marker, the shapes, grids and text with a token for each row, or an error.

use std::io::BufRead;
use std::path::Path;
use std::{env, fs, io};

use lab_core::hf::processor::Processors;
use lab_media::picture::{PictureLimits, PictureRules, decode, prepare};
use lab_media::{Medium, Piece, RowSource, expand};
use serde_json::{Value as Json, json};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let folder = env::args_os().nth(1).ok_or("expected a folder")?;
    let rules = Processors::open(&[])?.pictures(Path::new(&folder))?;
    let rules = rules.ok_or("the folder has no image processor")?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (picture, out) = line
            .split_once('\t')
            .ok_or("expected a path, a tab, a path")?;
        let (result, values) = match prepared(&rules, Path::new(picture)) {
            Ok((result, values)) => (result, values),
            Err(error) => (json!({ "error": error.to_string() }), Vec::new()),
        };
        fs::write(format!("{out}.f32"), values)?;
        fs::write(format!("{out}.json"), result.to_string())?;
    }
    Ok(())
}

fn prepared(rules: &PictureRules, picture: &Path) -> Result<(Json, Vec<u8>), Failure> {
    let limits = PictureLimits::default();
    let picture = decode(&fs::read(picture)?, &limits)?;
    let made = prepare(&picture, rules, 0, &limits)?;
    let medium = Medium {
        marker: &rules.marker,
        row_token: &rules.row_token,
        layout: &made.layout,
    };
    let text = expand(&rules.marker, &[medium], &rules.prompt)?;
    let views = made.views.iter();
    let views: Vec<Json> = views
        .map(|view| json!({ "shape": view.shape, "patches": view.patches, "grid": view.grid }))
        .collect();
    let rows = made.layout.iter().filter_map(|piece| match piece {
        Piece::Rows { rows, .. } => Some(rows),
        Piece::Text(_) => None,
    });
    // Of each row the view, the row and the weight of its sources; none of a learned one.
    let rows: Vec<Json> = rows
        .flatten()
        .map(|row| match row {
            RowSource::View { view, row } => json!([[view, row, 1]]),
            RowSource::Mixed(sources) => json!(sources),
            RowSource::Learned(_) => json!([]),
        })
        .collect();
    let values = made.views.iter().flat_map(|view| &view.values);
    let values = values.flat_map(|value| value.to_le_bytes()).collect();
    let result = json!({ "marker": rules.marker, "text": text, "views": views, "rows": rows });
    Ok((result, values))
}
