//! Pictures of lab responses: logit lens, patching grid, expert routing, attention weights, logit attribution.
//!
//! The input is JSON from `POST /v1/lab/run`, `POST /v1/lab/patch` or `bench lab run`, and is not trusted: sizes are
//! checked before anything is drawn, and texts of tokens are escaped.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::diagram::svg::{
    self, Chart, Fragment, Grid, GridCell, HeatMap, MAX_CELLS, Theme, escape,
};
use lab_core::artifacts::packed::PackedArray;
use lab_media::picture::{self, PictureLimits};

/// The part of a response that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabPicture {
    /// The likeliest token after each layer.
    Lens,
    /// How much each value restores of the answer to the other prompt.
    Patch,
    /// The router weights of the experts of each token.
    Routing,
    /// The attention weights of each token.
    Attention,
    /// The attention weights from a token to the rows of pictures, over the pictures.
    AttentionMap,
    /// The contributions of parts of the model to a token's logit.
    Attribution,
}

/// The layers and heads that are drawn; empty for all.
#[derive(Clone, Debug, Default)]
pub struct ChartFilter {
    pub layers: Vec<u64>,
    pub heads: Vec<usize>,
    /// The position of the token from which attention is drawn over pictures; default: the last captured one.
    pub position: Option<u64>,
    /// The pictures of the prompt, in their order.
    pub pictures: Vec<PromptPicture>,
}

/// A picture of a prompt, as it is drawn.
#[derive(Clone, Debug)]
pub struct PromptPicture {
    /// As JPEG, small.
    file: Arc<[u8]>,
    /// Width and height.
    size: [f64; 2],
}

/// The longer side of a picture that is drawn, in pixels at most.
const PICTURE_SIDE: NonZeroU32 = NonZeroU32::new(640).expect("a side of pixels");

impl PromptPicture {
    /// A picture from the bytes of its file.
    ///
    /// # Errors
    /// The bytes are no picture that a prompt can have.
    pub fn read(bytes: &[u8]) -> Result<Self, ChartError> {
        let picture = picture::decode(bytes, &PictureLimits::default());
        let picture = picture.map_err(|error| ChartError(error.to_string()))?;
        let size = picture.size();
        let file = picture.thumbnail(PICTURE_SIDE);
        let file = file.ok_or_else(|| ChartError("the picture could not be drawn".into()))?;
        Ok(Self {
            file: file.into(),
            size: [size.width, size.height].map(|side| f64::from(side.get())),
        })
    }
}

/// The error of a response that cannot be drawn: what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ChartError(String);

fn problem<T>(message: impl Into<String>) -> Result<T, ChartError> {
    Err(ChartError(message.into()))
}

/// The chart of a response.
///
/// # Errors
/// The response has other contents, or more cells than are drawn.
pub fn chart(
    picture: LabPicture,
    response: &Value,
    chosen: &ChartFilter,
) -> Result<Chart, ChartError> {
    let result = &response["results"][0]["lab"];
    let lab = if result.is_object() { result } else { response };
    let mut chart = match picture {
        LabPicture::Lens => lens(response, lab, chosen),
        LabPicture::Patch => patch(response, chosen),
        LabPicture::Routing => routing(response, lab, chosen),
        LabPicture::Attention => attention(response, lab, chosen),
        LabPicture::AttentionMap => attention_map(response, lab, chosen),
        LabPicture::Attribution => attribution(response, lab, chosen),
    }?;
    if chart.maps.is_empty() && chart.grids.iter().all(|grid| grid.rows.is_empty()) {
        return problem("nothing to draw: no rows, or none of the chosen layers and heads");
    }
    if let Some(model) = response["model"].as_str() {
        chart.title = format!("{} of {}", chart.title, token_text(model));
    }
    check_cells(chart.n_cells() as u64)?;
    Ok(chart)
}

/// Checks the number of cells against the limit.
pub fn check_cells(n: u64) -> Result<(), ChartError> {
    match n <= MAX_CELLS as u64 {
        true => Ok(()),
        false => problem(format!(
            "the picture has {n} cells, the limit is {MAX_CELLS}: fewer layers, heads or tokens have fewer"
        )),
    }
}

/// A chart as an SVG document.
pub fn svg(chart: &Chart) -> String {
    svg_in(chart, Theme::Light)
}

/// A chart as an SVG document with the colours of a theme.
pub fn svg_in(chart: &Chart, theme: Theme) -> String {
    let piece = Fragment {
        theme,
        ..svg::chart(chart)
    };
    piece.to_svg(&chart.title, &chart.lines.join(" "))
}

/// A chart as an HTML page that loads nothing.
pub fn page(chart: &Chart) -> String {
    let piece = svg::chart(chart);
    let style = format!("{}\nbody{{margin:0;background:var(--paper)}}", svg::SHEET);
    let sum = BASE64_STANDARD.encode(Sha256::digest(style.as_bytes()));
    let (w, h, title) = (piece.w.ceil(), piece.h.ceil(), escape(&chart.title));
    let elements = piece.elements(true);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{sum}'; \
         img-src data:; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>{style}</style>\n</head>\n<body>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" \
         aria-label=\"{title}\">\n{elements}</svg>\n</body>\n</html>\n"
    )
}

/// The text of a token as one word: spaces as dots; quotes, line ends and non-printable characters escaped.
pub fn token_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' ' => out.push('\u{b7}'),
            '\'' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

/// The tokens at the positions, from the texts or ids of a response.
struct TokenLabels<'a> {
    pieces: &'a Value,
    ids: &'a Value,
}

impl TokenLabels<'_> {
    fn at(&self, position: u64) -> String {
        let at = usize::try_from(position).unwrap_or(usize::MAX);
        match (&self.pieces[at], &self.ids[at]) {
            (Value::String(text), _) => token_text(text),
            (_, Value::Number(id)) => id.to_string(),
            _ => String::new(),
        }
    }

    /// The name of a column: number and token.
    fn column(&self, position: u64) -> [String; 2] {
        [position.to_string(), self.at(position)]
    }

    fn row(&self, position: u64) -> String {
        format!("{position} {}", self.at(position))
    }
}

fn tokens(response: &Value) -> TokenLabels<'_> {
    TokenLabels {
        pieces: &response["pieces"],
        ids: &response["tokens"],
    }
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a [Value], ChartError> {
    match &value[name] {
        Value::Array(list) => Ok(list),
        _ => problem(format!("`{name}`: expected a list, as in a response")),
    }
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, ChartError> {
    match &value[name] {
        Value::String(text) => Ok(text),
        _ => problem(format!("`{name}`: expected a string, as in a response")),
    }
}

fn position(value: &Value) -> Result<u64, ChartError> {
    match value.as_u64() {
        Some(position) => Ok(position),
        None => problem("expected positions from 0, as the response has them"),
    }
}

pub fn layer_of(point: &str) -> Option<u64> {
    let rest = point.strip_prefix("layers.")?;
    rest.split('.').next()?.parse().ok()
}

impl ChartFilter {
    /// Whether a point belongs to a chosen layer.
    pub fn has(&self, point: &str) -> bool {
        let is_chosen = |layer: u64| self.layers.contains(&layer);
        self.layers.is_empty() || layer_of(point).is_some_and(is_chosen)
    }
}

/// A chart of layers by positions: the likeliest token, with its probability as the colour.
fn lens(response: &Value, lab: &Value, chosen: &ChartFilter) -> Result<Chart, ChartError> {
    let tokens = tokens(response);
    let mut grid = Grid::default();
    let mut positions: Option<Vec<u64>> = None;
    for layer in list(lab, "lens")? {
        let point = text(layer, "point")?;
        if !chosen.has(point) {
            continue;
        }
        let rows = list(layer, "rows")?;
        let own = rows.iter().map(|row| position(&row["position"]));
        let own: Vec<u64> = own.collect::<Result<_, _>>()?;
        if *positions.get_or_insert_with(|| own.clone()) != own {
            let point = token_text(point);
            return problem(format!("`{point}` has other positions than the first"));
        }
        let cell = |row: &Value| -> Result<GridCell, ChartError> {
            let top = list(row, "top")?.first().unwrap_or(&Value::Null);
            let value = top["logprob"].as_f64().map(f64::exp);
            let text = top["token"].as_str().map(token_text).unwrap_or_default();
            Ok(GridCell { value, text })
        };
        grid.rows.push(token_text(point));
        let cells = rows.iter().map(cell).collect::<Result<_, _>>()?;
        grid.cells.push(cells);
        check_cells((grid.rows.len() * own.len()) as u64)?;
    }
    let positions = positions.unwrap_or_default();
    grid.columns = positions.iter().map(|at| tokens.column(*at)).collect();
    Ok(Chart {
        title: "Logit lens".into(),
        lines: vec![
            "The likeliest next token after each layer, as final norm and output head read its hidden state.".into(),
            "A column has the position and the token that is read there. A dot in a token is a space.".into(),
        ],
        quantity: "probability of that token".into(),
        end: 1.0,
        empty: "no number".into(),
        grids: vec![grid],
        maps: Vec::new(),
    })
}

/// A chart of points by positions: the effect of each value.
fn patch(response: &Value, chosen: &ChartFilter) -> Result<Chart, ChartError> {
    let (pieces, ids) = (&response["pieces"], &response["tokens"]);
    let of = |prompt: &str| TokenLabels {
        pieces: &pieces[prompt],
        ids: &ids[prompt],
    };
    let (clean, corrupt) = (of("clean"), of("corrupt"));
    let column = |positions: &Value| -> Result<[String; 2], ChartError> {
        let Value::Array(all) = positions else {
            return problem("`positions`: expected lists of positions, as the response has them");
        };
        Ok(match all.as_slice() {
            [] => Default::default(),
            [one] => {
                let one = position(one)?;
                let (from, to) = (clean.at(one), corrupt.at(one));
                let token = match from == to {
                    true => from,
                    false => format!("{to} \u{2192} {from}"),
                };
                [one.to_string(), token]
            }
            [first, .., last] => {
                let (first, last) = (position(first)?, position(last)?);
                [format!("{first} to {last}"), "together".into()]
            }
        })
    };
    let columns = list(response, "positions")?.iter().map(column);
    let mut grid = Grid {
        columns: columns.collect::<Result<_, _>>()?,
        ..Grid::default()
    };
    let (points, effects) = (list(response, "points")?, list(response, "effects")?);
    if points.len() != effects.len() {
        let (n, m) = (effects.len(), points.len());
        return problem(format!(
            "`effects` has {n} rows, expected {m}, one for each point"
        ));
    }
    check_cells(points.len().saturating_mul(grid.columns.len()) as u64)?;
    for (point, row) in points.iter().zip(effects) {
        let Some(point) = point.as_str() else {
            return problem("`points`: expected names, as the response has them");
        };
        let row = match row {
            Value::Array(row) if row.len() == grid.columns.len() => row,
            _ => {
                let (point, n) = (token_text(point), grid.columns.len());
                return problem(format!(
                    "`effects` of `{point}`: expected a list of {n}, one for each of `positions`"
                ));
            }
        };
        if !chosen.has(point) {
            continue;
        }
        let cell = |value: &Value| GridCell {
            value: value.as_f64(),
            text: value.as_f64().map_or_else(|| "none".into(), two_digits),
        };
        grid.rows.push(token_text(point));
        grid.cells.push(row.iter().map(cell).collect());
    }
    let measure = |name: &str| response[name].as_f64().map(|v| format!("{v:.3}"));
    let measures = match (measure("clean"), measure("corrupt")) {
        (Some(clean), Some(corrupt)) => format!(
            "The measure is {clean} for the clean prompt and {corrupt} for the corrupt one."
        ),
        _ => String::new(),
    };
    Ok(Chart {
        title: "Patching".into(),
        lines: vec![
            "What a run of the corrupt prompt has back of the clean answer with one value of the clean run.".into(),
            "Where the prompts differ a column has the token of the corrupt one, then that of the clean one.".into(),
            measures,
        ],
        quantity: "effect: 0 is the corrupt prompt, 1 the clean one".into(),
        end: 1.0,
        empty: "no number".into(),
        grids: vec![grid],
        maps: Vec::new(),
    })
}

/// A captured value, with a row for each position.
struct CapturedRows<'a> {
    point: &'a str,
    positions: Vec<u64>,
    rows: Vec<Vec<f32>>,
    shape: Vec<usize>,
}

fn captured<'a>(
    lab: &'a Value,
    ending: &str,
    chosen: &ChartFilter,
) -> Result<Vec<CapturedRows<'a>>, ChartError> {
    let mut out = Vec::new();
    for value in list(lab, "captures")? {
        let point = text(value, "point")?;
        if !point.ends_with(ending) || !chosen.has(point) {
            continue;
        }
        let at = |message: String| ChartError(format!("`{}`: {message}", token_text(point)));
        if value.get("tensor").is_some() {
            let message =
                "its numbers are in a file; with `output` `inline` they are in the response";
            return Err(at(message.into()));
        }
        let array: PackedArray =
            serde_json::from_value(value.clone()).map_err(|e| at(e.to_string()))?;
        let positions = list(value, "positions")?.iter().map(position);
        let positions: Vec<u64> = positions.collect::<Result<_, _>>()?;
        let shape = array.shape().to_vec();
        let n = positions.len();
        if shape.len() < 2 || shape[0] != n {
            let expected = format!("expected a row for each of the {n} positions");
            return Err(at(format!("`shape` {shape:?}: {expected}")));
        }
        let rows = array.rows().map_err(at)?;
        out.push(CapturedRows {
            point,
            positions,
            rows,
            shape,
        });
    }
    Ok(out)
}

/// Columns that are counted from 0.
fn numbered(n: usize) -> Vec<[String; 2]> {
    (0..n).map(|at| [at.to_string(), String::new()]).collect()
}

/// A number with two digits. One that rounds to zero has no minus sign.
fn two_digits(value: f64) -> String {
    format!("{:.2}", (value * 100.0).round() / 100.0 + 0.0)
}

/// The smallest of `steps`, from 1 to 10, times a power of ten that is at least `most`.
fn round_end(most: f64, steps: &[f64]) -> f64 {
    if !most.is_finite() || most < 1e-9 {
        return 1.0;
    }
    let power = 10f64.powi(most.log10().floor() as i32);
    let mut ends = steps.iter().map(|n| n * power);
    ends.find(|end| *end >= most).unwrap_or(most)
}

/// A chart of tokens by experts, for each layer.
fn routing(response: &Value, lab: &Value, chosen: &ChartFilter) -> Result<Chart, ChartError> {
    let tokens = tokens(response);
    let weights = captured(lab, ".weights", chosen)?;
    let weights: HashMap<&str, &CapturedRows<'_>> =
        weights.iter().map(|own| (own.point, own)).collect();
    let routers = captured(lab, ".router", chosen)?;
    let n_of = |path: &str| {
        let is_own = |own: &&CapturedRows<'_>| own.point.strip_suffix(".router") == Some(path);
        let row = routers.iter().find(is_own).and_then(|own| own.rows.first());
        row.map_or(0, Vec::len)
    };
    let (mut grids, mut n_cells, mut end) = (Vec::new(), 0usize, 0.0f64);
    for picked in captured(lab, ".picked", chosen)? {
        let path = picked.point.trim_end_matches(".picked");
        let Some(weights) = weights.get(format!("{path}.weights").as_str()) else {
            let path = token_text(path);
            let text = format!("there is no `{path}.weights`: expected it next to `picked`");
            return problem(text);
        };
        if weights.positions != picked.positions {
            let path = token_text(path);
            return problem(format!(
                "`{path}`: `picked` and `weights` have other positions"
            ));
        }
        let numbers = picked.rows.iter().flatten();
        let most = numbers.fold(0.0f32, |most, at| most.max(*at));
        let n = n_of(path).max((most as usize).saturating_add(1));
        n_cells = n.saturating_mul(picked.rows.len()).saturating_add(n_cells);
        check_cells(n_cells as u64)?;
        let row = |(experts, weights): (&Vec<f32>, &Vec<f32>)| {
            let mut row = vec![GridCell::default(); n];
            for (expert, weight) in experts.iter().zip(weights) {
                let weight = f64::from(*weight);
                end = end.max(weight);
                row[*expert as usize].value = Some(weight).filter(|w| w.is_finite());
            }
            row
        };
        grids.push(Grid {
            title: token_text(path),
            rows: picked.positions.iter().map(|at| tokens.row(*at)).collect(),
            columns: numbered(n),
            cells: picked.rows.iter().zip(&weights.rows).map(row).collect(),
        });
    }
    if grids.is_empty() {
        return problem("there are no captures `picked` and `weights` of experts");
    }
    Ok(Chart {
        title: "Expert routing".into(),
        lines: vec![
            "A row is a token, a column an expert, counted from 0. Coloured experts are picked for the token.".into(),
        ],
        quantity: "weight of the expert".into(),
        end: round_end(end, &[1.0, 2.0, 5.0, 10.0]),
        empty: "not picked".into(),
        grids,
        maps: Vec::new(),
    })
}

/// The captured attention weights of the chosen layers, each with its path and the numbers of positions, heads and keys.
fn attention_weights<'a>(
    lab: &'a Value,
    chosen: &ChartFilter,
) -> Result<Vec<(String, [usize; 3], CapturedRows<'a>)>, ChartError> {
    let points = list(lab, "captures")?.iter();
    let points = points.filter_map(|value| value["point"].as_str());
    // The weights of experts have the same ending as attention weights.
    let routed = points.filter_map(|point| point.strip_suffix(".picked"));
    let routed: HashSet<&str> = routed.collect();
    let mut all = Vec::new();
    for own in captured(lab, ".weights", chosen)? {
        let path = own.point.trim_end_matches(".weights");
        if routed.contains(path) {
            continue;
        }
        let [n_rows, n_heads, n_keys] = own.shape[..] else {
            let point = token_text(own.point);
            return problem(format!("`{point}`: expected positions, heads and keys"));
        };
        all.push((token_text(path), [n_rows, n_heads, n_keys], own));
    }
    match all.is_empty() {
        true => problem("there are no captures `attn.weights` of the chosen layers"),
        false => Ok(all),
    }
}

/// A row of a picture in the prompt: its position, its view, and the area that it shows.
type PictureRow = (usize, u64, [f64; 4]);

/// The rows of each picture of a response that show an area of it.
fn picture_rows(lab: &Value) -> Result<Vec<Vec<PictureRow>>, ChartError> {
    let of_medium = |medium: &Value| {
        let rows = list(medium, "rows")?.iter();
        let row = |row: &Value| -> Option<PictureRow> {
            let position = usize::try_from(row["position"].as_u64()?).ok()?;
            let mut area = [0.0; 4];
            for (at, side) in area.iter_mut().enumerate() {
                *side = row["area"][at].as_f64().filter(|side| side.is_finite())?;
            }
            Some((position, row["view"].as_u64()?, area))
        };
        Ok(rows.filter_map(row).collect())
    };
    let media = list(lab, "media")?.iter();
    let pictures = media.filter(|medium| medium["type"] == "image");
    pictures.map(of_medium).collect()
}

/// Rows of views in groups, within which no views overlap: tiles, and the whole picture. In each group the views are in their order.
fn apart(rows: &[PictureRow]) -> Vec<Vec<PictureRow>> {
    let mut bounds: BTreeMap<u64, [f64; 4]> = BTreeMap::new();
    for (_, view, [left, top, right, bottom]) in rows {
        let own = bounds
            .entry(*view)
            .or_insert([*left, *top, *right, *bottom]);
        *own = [
            own[0].min(*left),
            own[1].min(*top),
            own[2].max(*right),
            own[3].max(*bottom),
        ];
    }
    let meets = |a: &[f64; 4], b: &[f64; 4]| {
        const EDGE: f64 = 1e-6;
        let along = |from: usize, to: usize| a[from] + EDGE < b[to] && b[from] + EDGE < a[to];
        along(0, 2) && along(1, 3)
    };
    let mut groups: Vec<Vec<u64>> = Vec::new();
    for (view, own) in &bounds {
        let is_free = |group: &&mut Vec<u64>| !group.iter().any(|other| meets(own, &bounds[other]));
        match groups.iter_mut().find(is_free) {
            Some(group) => group.push(*view),
            None => groups.push(vec![*view]),
        }
    }
    let rows_of = |group: Vec<u64>| {
        let own = rows.iter().filter(|(_, view, _)| group.contains(view));
        own.copied().collect()
    };
    groups.into_iter().map(rows_of).collect()
}

/// Pictures of the prompt with the attention from a token to their rows, for each layer: of each chosen head, or the mean of all.
fn attention_map(response: &Value, lab: &Value, chosen: &ChartFilter) -> Result<Chart, ChartError> {
    let rows = picture_rows(lab)?;
    let (found, expected) = (chosen.pictures.len(), rows.len());
    if found != expected || found == 0 {
        return problem(format!(
            "{found} pictures are given, and the prompt has {expected}: expected those of the prompt, in their order"
        ));
    }
    if let Some(at) = rows.iter().position(Vec::is_empty) {
        return problem(format!(
            "the rows of picture {} are no grid over it",
            at + 1
        ));
    }
    let (mut maps, mut n_cells, mut end, mut read_at) = (Vec::new(), 0usize, 0.0f64, None);
    for (path, [_, n_heads, n_keys], own) in attention_weights(lab, chosen)? {
        let at = match chosen.position {
            None => own.positions.len().checked_sub(1),
            Some(position) => own.positions.iter().position(|own| *own == position),
        };
        let Some(at) = at else {
            return problem(format!(
                "`{path}` has no weights of the token that is asked for"
            ));
        };
        read_at = Some(own.positions[at]);
        let each = chosen.heads.iter().filter(|head| **head < n_heads);
        let mut heads: Vec<(String, Vec<usize>)> = each
            .map(|head| (format!("head {head}"), vec![*head]))
            .collect();
        if chosen.heads.is_empty() {
            heads.push((format!("mean of {n_heads} heads"), (0..n_heads).collect()));
        }
        for (name, heads) in heads {
            let weight = |position: usize| {
                let of_head = |head: &usize| match position < n_keys {
                    true => own.rows[at]
                        .get(head * n_keys + position)
                        .map_or(0.0, |w| f64::from(*w)),
                    false => 0.0,
                };
                heads.iter().map(of_head).sum::<f64>() / heads.len().max(1) as f64
            };
            for (picture, (rows, drawn)) in rows.iter().zip(&chosen.pictures).enumerate() {
                let groups = apart(rows);
                let n_groups = groups.len();
                for (group, rows) in groups.into_iter().enumerate() {
                    n_cells = n_cells.saturating_add(rows.len());
                    check_cells(n_cells as u64)?;
                    let areas = rows
                        .iter()
                        .map(|(position, _, area)| (*area, weight(*position)));
                    let areas: Vec<([f64; 4], f64)> =
                        areas.filter(|(_, w)| w.is_finite()).collect();
                    end = areas.iter().fold(end, |most, (_, w)| most.max(*w));
                    let sum: f64 = areas.iter().map(|(_, weight)| weight).sum();
                    let of = match expected {
                        1 => String::new(),
                        _ => format!(", picture {}", picture + 1),
                    };
                    let views = match n_groups {
                        1 => String::new(),
                        n => format!(", views {} of {n}", group + 1),
                    };
                    maps.push(HeatMap {
                        title: format!("{path}, {name}{of}"),
                        note: format!(
                            "{} of the attention is on these rows{views}",
                            two_digits(sum)
                        ),
                        picture: Arc::clone(&drawn.file),
                        size: drawn.size,
                        areas,
                    });
                }
            }
        }
    }
    let token = read_at
        .map(|at| tokens(response).row(at))
        .unwrap_or_default();
    Ok(Chart {
        title: "Attention to pictures".into(),
        lines: vec![
            format!(
                "How much the token at position {token} attends to each row of a picture, over the area that the row shows."
            ),
            "The rest of the attention is on the other tokens.".into(),
        ],
        quantity: "attention weight".into(),
        end: round_end(end, &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0]),
        empty: String::new(),
        grids: Vec::new(),
        maps,
    })
}

/// A chart of positions by positions, for each head.
fn attention(response: &Value, lab: &Value, chosen: &ChartFilter) -> Result<Chart, ChartError> {
    let tokens = tokens(response);
    let (mut grids, mut n_cells) = (Vec::new(), 0usize);
    for (path, [n_rows, n_heads, n_keys], own) in attention_weights(lab, chosen)? {
        let is_chosen = |head: &usize| chosen.heads.is_empty() || chosen.heads.contains(head);
        for head in (0..n_heads).filter(is_chosen) {
            n_cells = n_cells.saturating_add(n_rows.saturating_mul(n_keys));
            check_cells(n_cells as u64)?;
            let cell = |weight: &f32| GridCell {
                value: Some(f64::from(*weight)).filter(|w| *w != 0.0 && w.is_finite()),
                ..GridCell::default()
            };
            let row = |row: &Vec<f32>| {
                let own = row.iter().skip(head * n_keys).take(n_keys);
                own.map(cell).collect()
            };
            grids.push(Grid {
                title: format!("{path}, head {head}"),
                rows: own.positions.iter().map(|at| tokens.row(*at)).collect(),
                columns: numbered(n_keys),
                cells: own.rows.iter().map(row).collect(),
            });
        }
    }
    if grids.is_empty() {
        return problem("there are no captures `attn.weights` of the chosen layers and heads");
    }
    Ok(Chart {
        title: "Attention weights".into(),
        lines: vec![
            "A row is a token, a column the position that it reads. A row sums to 1, or less where the model has sinks.".into(),
        ],
        quantity: "attention weight".into(),
        end: 1.0,
        empty: "0, or not attended to".into(),
        grids,
        maps: Vec::new(),
    })
}

/// The unit that a part belongs to, and its head, if any.
fn part(name: &str) -> (&str, Option<usize>) {
    if let Some(slot) = name.strip_suffix(".rest") {
        return (slot, None);
    }
    let head = name.rsplit_once(".heads.");
    let head = head.and_then(|(slot, head)| Some((slot, head.parse().ok()?)));
    head.map_or((name, None), |(slot, head)| (slot, Some(head)))
}

/// A chart of parts by positions; if the parts are heads, of slots by heads for each position.
fn attribution(response: &Value, lab: &Value, chosen: &ChartFilter) -> Result<Chart, ChartError> {
    let tokens = tokens(response);
    let own = &lab["attribution"];
    let of = own["of"]["token"].as_str().map(token_text);
    let of = of.unwrap_or_default();
    let names = list(own, "parts")?.iter();
    let names: Vec<&str> = names
        .map(|name| name.as_str().unwrap_or_default())
        .collect();
    let is_drawn = |name: &str| chosen.layers.is_empty() || chosen.has(&format!("{name}."));
    let rows = list(own, "rows")?;
    check_cells((names.len() as u64).saturating_mul(rows.len() as u64))?;
    let mut positions = Vec::new();
    let mut values: Vec<Vec<f64>> = Vec::new();
    for row in rows {
        positions.push(position(&row["position"])?);
        let all = list(row, "values")?.iter();
        let all: Vec<f64> = all.map(|v| v.as_f64().unwrap_or(f64::NAN)).collect();
        if all.len() != names.len() {
            let (n, m) = (all.len(), names.len());
            return problem(format!(
                "`values` has {n} numbers, expected {m}, one for each part"
            ));
        }
        values.push(all);
    }
    let cell = |value: f64| GridCell {
        value: Some(value).filter(|v| v.is_finite()),
        text: two_digits(value),
    };
    let heads = names.iter().filter_map(|name| part(name).1);
    let n_heads = heads.max().map_or(0, |head| head.saturating_add(1));
    let mut grids = Vec::new();
    if n_heads == 0 {
        let drawn = names.iter().enumerate().filter(|(_, name)| is_drawn(name));
        let drawn = drawn.map(|(at, name)| {
            let cells = values.iter().map(|all| cell(all[at]));
            (token_text(name), cells.collect::<Vec<GridCell>>())
        });
        let (rows, cells) = drawn.unzip();
        grids.push(Grid {
            rows,
            columns: positions.iter().map(|at| tokens.column(*at)).collect(),
            cells,
            ..Grid::default()
        });
    } else {
        check_cells((names.len() as u64).saturating_mul(n_heads as u64))?;
        let heads = (0..n_heads).map(|head| [format!("head {head}"), String::new()]);
        let columns: Vec<[String; 2]> = heads.chain([["rest".into(), String::new()]]).collect();
        for (at, all) in positions.iter().zip(&values) {
            let mut grid = Grid {
                title: format!("after {}", tokens.row(*at)),
                columns: columns.clone(),
                ..Grid::default()
            };
            let mut last = "";
            for (name, value) in names.iter().zip(all) {
                let (slot, head) = part(name);
                if !is_drawn(slot) {
                    continue;
                }
                if grid.rows.is_empty() || slot != last {
                    grid.rows.push(token_text(slot));
                    grid.cells.push(vec![GridCell::default(); columns.len()]);
                    check_cells(((grids.len() + 1) * grid.rows.len() * columns.len()) as u64)?;
                }
                last = slot;
                if let Some(row) = grid.cells.last_mut() {
                    row[head.unwrap_or(n_heads)] = cell(*value);
                }
            }
            grids.push(grid);
        }
    }
    let largest = values.iter().flatten().filter(|value| value.is_finite());
    let largest = largest.fold(0.0f64, |most, value| most.max(value.abs()));
    Ok(Chart {
        title: format!("Parts of the logit of `{of}`"),
        lines: vec![
            "What each part adds to the logit, with the scale of the final norm as of the whole hidden state.".into(),
            "The parts and the biases of the head sum to the logit.".into(),
        ],
        quantity: "part of the logit".into(),
        // Fine steps: colours beyond the largest part would stand for nothing.
        end: round_end(largest, &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]),
        empty: String::new(),
        grids,
        maps: Vec::new(),
    })
}
