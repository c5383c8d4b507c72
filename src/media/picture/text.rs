//! What stands in a prompt in place of a picture: texts, and rows of its views.

use crate::layout::{Piece, RowSource, View};

use super::grid::TileGrid;
use super::rules::{Mosaic, PictureRules};
use super::size::Extent;
use super::views::Views;

/// The ratio of lengths above which rows are interpolated.
const MAX_RATIO: f64 = 1.1;

/// The parts of a layout.
struct Pieces<'a> {
    rules: &'a PictureRules,
    views: &'a [View],
    index: usize,
    pieces: Vec<Piece>,
}

/// What stands in the prompt for the `index`th picture. `picture` is its size before it was resized.
pub(super) fn layout(
    rules: &PictureRules,
    picture: Extent,
    made: &Views,
    views: &[View],
    index: usize,
) -> Vec<Piece> {
    let layout = &rules.layout;
    let mut pieces = Pieces {
        rules,
        views,
        index,
        pieces: Vec::new(),
    };
    pieces.text(&layout.before);
    if layout.tiles_first {
        pieces.tiles(picture, made);
    }
    if made.tiles.is_some() && layout.tiles_first {
        pieces.text(&layout.between);
    }
    if let Some(view) = made.whole {
        pieces.text(&layout.whole[0]);
        pieces.view(view);
        pieces.text(&layout.whole[1]);
    }
    if made.tiles.is_some() && !layout.tiles_first {
        pieces.text(&layout.between);
        pieces.tiles(picture, made);
    }
    if let Some(name) = &layout.last_row {
        pieces.rows(vec![RowSource::Learned(name.clone())], [1, 1, 1]);
    }
    pieces.text(&layout.after);
    pieces.pieces
}

impl Pieces<'_> {
    fn text(&mut self, text: &str) {
        let text = text.replace("{index}", &self.index.to_string());
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Text(last)) => last.push_str(&text),
            _ => self.pieces.push(Piece::Text(text)),
        }
    }

    fn rows(&mut self, rows: Vec<RowSource>, grid: [usize; 3]) {
        self.pieces.push(Piece::Rows { rows, grid });
    }

    /// The rows of a view, or each line of them with text between.
    fn view(&mut self, view: usize) {
        let [time, height, width] = self.views[view].grid;
        let between = self.rules.layout.row_lines.clone();
        let rows = |range: std::ops::Range<usize>| range.map(|row| RowSource::View { view, row });
        if between.is_empty() {
            let all = rows(0..time * height * width).collect();
            return self.rows(all, [time, height, width]);
        }
        for line in 0..time * height {
            if line > 0 {
                self.text(&between);
            }
            let line = rows(line * width..(line + 1) * width).collect();
            self.rows(line, [1, 1, width]);
        }
    }

    fn tiles(&mut self, picture: Extent, made: &Views) {
        let Some((grid, first)) = made.tiles else {
            return;
        };
        let layout = &self.rules.layout;
        if let Some(mosaic) = &layout.mosaic {
            let (rows, grid) = mosaic_rows(mosaic, picture, grid, self.views[first].grid, first);
            return self.rows(rows, grid);
        }
        let (tile, columns, line) = (layout.tile.clone(), &layout.columns, &layout.line);
        for row in 0..grid.rows {
            if row > 0 {
                self.text(&layout.lines);
            }
            for column in 0..grid.columns {
                if column > 0 {
                    self.text(columns);
                }
                let place = |text: &str| {
                    let text = text.replace("{row}", &(row + 1).to_string());
                    text.replace("{column}", &(column + 1).to_string())
                };
                self.text(&place(&tile[0]));
                self.view(first + (row * grid.columns + column) as usize);
                self.text(&place(&tile[1]));
            }
            self.text(line);
        }
    }
}

/// The rows of all tiles as those of one picture: lines and columns that only show padding are left out, all are interpolated if they
/// are many, and each line ends in a learned row.
fn mosaic_rows(
    mosaic: &Mosaic,
    picture: Extent,
    grid: TileGrid,
    tile: [usize; 3],
    first: usize,
) -> (Vec<RowSource>, [usize; 3]) {
    let [_, tile_h, tile_w] = tile;
    let (lines, columns) = (grid.rows as usize, grid.columns as usize);
    let (all_h, all_w) = (lines * tile_h, columns * tile_w);
    let (h, w) = picture.sides();
    let (full_h, full_w) = (all_h as f64, all_w as f64);
    // Rounded to 7 digits, as transformers does against errors of floats.
    let inner = |length: f64| ((length * 1e7).round_ties_even() / 1e7) as usize;
    let (top, left) = match w / h > full_w / full_h {
        true => (all_h.saturating_sub(inner(h * (full_w / w))) / 2, 0),
        false => (0, all_w.saturating_sub(inner(w * (full_h / h))) / 2),
    };
    let (height, width) = (all_h - 2 * top, all_w - 2 * left);
    let source = |line: usize, column: usize| {
        let (line, column) = (line + top, column + left);
        let tile = (line / tile_h) * columns + column / tile_w;
        let row = (line % tile_h) * tile_w + column % tile_w;
        (first + tile, row)
    };
    let area = (height * width) as f64;
    let most = mosaic
        .max_tiles
        .map(|n| f64::from(n.get()) * (tile_h * tile_h) as f64);
    let ratio = most
        .map(|most| (area / most).sqrt())
        .filter(|ratio| *ratio > MAX_RATIO);
    let (to_h, to_w) = match ratio {
        Some(ratio) => {
            let shrunk = |length: usize| (length as f64 / ratio).floor() as usize;
            (shrunk(height), shrunk(width))
        }
        None => (height, width),
    };
    let mut rows = Vec::with_capacity(to_h * (to_w + 1));
    for line in 0..to_h {
        for column in 0..to_w {
            rows.push(match ratio {
                None => {
                    let (view, row) = source(line, column);
                    RowSource::View { view, row }
                }
                Some(_) => {
                    let (of_line, of_column) =
                        (halves(line, to_h, height), halves(column, to_w, width));
                    let pairs = of_line
                        .iter()
                        .flat_map(|a| of_column.iter().map(move |b| (a, b)));
                    let pairs = pairs.filter(|(a, b)| a.1 * b.1 != 0.0);
                    RowSource::Mixed(
                        pairs
                            .map(|(a, b)| {
                                let (view, row) = source(a.0, b.0);
                                (view, row, a.1 * b.1)
                            })
                            .collect(),
                    )
                }
            });
        }
        rows.push(RowSource::Learned(mosaic.line_row.clone()));
    }
    (rows, [1, to_h, to_w + 1])
}

/// The two elements between which an element of a shorter axis lies, with their weights: bilinear, the centres of elements being at
/// their halves.
fn halves(at: usize, of: usize, from: usize) -> [(usize, f32); 2] {
    let scale = from as f32 / of as f32;
    let place = (scale * (at as f32 + 0.5) - 0.5).max(0.0);
    let low = (place as usize).min(from - 1);
    let weight = place - low as f32;
    [(low, 1.0 - weight), ((low + 1).min(from - 1), weight)]
}
