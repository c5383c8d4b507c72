//! Grids of coloured cells with names of rows and columns, for numbers from a lab plan.
//!
//! A colour represents a range of numbers, which the legend states. Cells with texts are as wide as these, up to a
//! maximum; cells without are small squares, whose columns have as many names as fit. Columns that do not fit into the
//! width of a page continue below.

use std::sync::Arc;

use super::fragment::{DrawItem, Fragment, Rect};
use super::overlay::swatch;
use super::stack::framed;
use super::text::{TextStyle, cut, width};
use crate::diagram::boxes::{COLD, HOT, LEVELS};
use crate::diagram::overlay::digits;

/// Maximum number of cells in a picture.
pub const MAX_CELLS: usize = 40_000;

/// Borders between the colours, as shares of the end of the scale.
const BORDERS: [f64; LEVELS - 1] = [0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9];
/// The colours of negative numbers, palest first. Numbers around zero have the first colour of the positive ones.
const COOL: [&str; LEVELS - 1] = [
    "hot u1", "hot u2", "hot u3", "hot u4", "hot u5", "hot u6", "hot u7", "hot u8",
];
/// The classes of areas on pictures, the most transparent first.
const HEAT: [&str; LEVELS] = [
    "heat h0", "heat h1", "heat h2", "heat h3", "heat h4", "heat h5", "heat h6", "heat h7",
    "heat h8",
];
/// The longer side of a picture.
const PICTURE: f64 = 320.0;
/// Maximum width of a row of grids, and of columns.
const ROOM: f64 = 1700.0;
/// Maximum width of the name of a row.
const NAME: f64 = 190.0;
/// Side length of a cell without text, and height of a cell with text.
const SIDE: f64 = 14.0;
const HIGH: f64 = 22.0;
/// Maximum width of the text of a cell.
const TEXT: f64 = 92.0;
/// Total horizontal padding of a cell with text.
const PAD: f64 = 10.0;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    pub title: String,
    /// Explanations of how to read the picture.
    pub lines: Vec<String>,
    /// The quantity that the colours represent.
    pub quantity: String,
    /// The end of the scale: the strongest colours represent numbers near this or above, and near its negative or
    /// below.
    pub end: f64,
    /// The meaning of a cell without a number.
    pub empty: String,
    pub grids: Vec<Grid>,
    /// Pictures with numbers. A chart has grids or these.
    pub maps: Vec<HeatMap>,
}

/// A picture, and numbers of areas of it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    pub title: String,
    pub note: String,
    /// The picture as JPEG.
    pub picture: Arc<[u8]>,
    /// Its width and height, in any unit.
    pub size: [f64; 2],
    /// Areas, left, top, right and bottom as shares of the picture, each with its number.
    pub areas: Vec<([f64; 4], f64)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// The title of the grid.
    pub title: String,
    pub rows: Vec<String>,
    /// Names of the columns: a number, and a text that is only shown above cells with texts.
    pub columns: Vec<[String; 2]>,
    /// Rows of cells, with one cell for each column.
    pub cells: Vec<Vec<GridCell>>,
}

/// A number with its text, if it has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GridCell {
    /// The number that determines the colour.
    pub value: Option<f64>,
    /// The text in the cell.
    pub text: String,
}

impl Chart {
    pub fn n_cells(&self) -> usize {
        let sizes = self.grids.iter().map(|g| g.rows.len() * g.columns.len());
        sizes.sum::<usize>() + self.maps.iter().map(|map| map.areas.len()).sum::<usize>()
    }

    fn values(&self) -> impl Iterator<Item = Option<f64>> {
        self.grids
            .iter()
            .flat_map(|grid| grid.cells.iter().flatten())
            .map(|cell| cell.value)
    }

    /// The class of a number. A number and its negative have colours of the same strength.
    fn class(&self, value: Option<f64>) -> &'static str {
        match value.map(|value| (self.level(value), value < 0.0)) {
            None => COLD,
            Some((at @ 1.., true)) => COOL[at - 1],
            Some((at, _)) => HOT[at],
        }
    }

    fn level(&self, value: f64) -> usize {
        let within = BORDERS.iter();
        within
            .filter(|border| **border * self.end <= value.abs())
            .count()
    }

    fn legend(&self, room: f64) -> Fragment {
        let border = |at: usize| digits(BORDERS[at] * self.end);
        let last = BORDERS.len();
        let negative = self.values().flatten().filter(|value| *value < 0.0);
        // The strongest colour of the negative numbers; `None` without negative numbers.
        let deepest = negative.map(|value| self.level(value)).max();
        let range = |at: usize| match at {
            0 if deepest.is_some() => format!("-{0} to {0}", border(0)),
            0 => format!("< {}", border(0)),
            at if at == last => format!("\u{2265} {}", border(at - 1)),
            at => format!("{} to {}", border(at - 1), border(at)),
        };
        let below = (1..=deepest.unwrap_or(0)).rev().map(|at| {
            let text = match at == last {
                true => format!("\u{2264} -{}", border(at - 1)),
                false => format!("-{} to -{}", border(at), border(at - 1)),
            };
            swatch(COOL[at - 1], &text)
        });
        let colours = if self.maps.is_empty() { HOT } else { HEAT };
        let shades = colours.iter().enumerate();
        let shades = shades.map(|(at, class)| swatch(class, &range(at)));
        let quantity = match deepest {
            None | Some(0) => self.quantity.clone(),
            _ => format!(
                "{}; blue is below zero, pale about zero, yellow to red above it",
                self.quantity
            ),
        };
        let has_empty = self.values().any(|value| value.is_none());
        let empty = (has_empty && !self.empty.is_empty()).then(|| swatch(COLD, &self.empty));
        let entries = below.chain(shades).chain(empty).collect();
        let mut fragment = Fragment::new(room, 0.0);
        fragment.write(0.0, TextStyle::Name, &quantity);
        fragment.skip(5.0);
        fragment.add(0.0, Fragment::wrapped(entries, (12.0, 5.0), room));
        fragment
    }
}

pub fn chart(chart: &Chart) -> Fragment {
    let grids = chart.grids.iter().map(|grid| drawn(grid, chart));
    let maps = chart.maps.iter().map(|map| drawn_map(map, chart));
    let grids = Fragment::wrapped(grids.chain(maps).collect(), (34.0, 26.0), ROOM);
    let room = grids.w.max(640.0);
    let mut page = Fragment::new(room, 0.0);
    page.write(
        0.0,
        TextStyle::Heading,
        &cut(&chart.title, TextStyle::Heading, 2.0 * room),
    );
    page.skip(4.0);
    for line in &chart.lines {
        page.write(
            0.0,
            TextStyle::Line,
            &cut(line, TextStyle::Line, 4.0 * room),
        );
    }
    page.skip(10.0);
    page.add(0.0, chart.legend(room));
    page.skip(18.0);
    page.add(0.0, grids);
    framed(page)
}

/// A picture under its areas, which hide it the less the smaller their numbers are.
fn drawn_map(map: &HeatMap, chart: &Chart) -> Fragment {
    let scale = PICTURE / map.size[0].max(map.size[1]).max(1.0);
    let [w, h] = map.size.map(|side| (side * scale).max(1.0));
    let mut fragment = Fragment::new(PICTURE, 0.0);
    fragment.write(
        0.0,
        TextStyle::Name,
        &cut(&map.title, TextStyle::Name, PICTURE),
    );
    fragment.write(
        0.0,
        TextStyle::Small,
        &cut(&map.note, TextStyle::Small, PICTURE),
    );
    fragment.skip(4.0);
    let top = fragment.h;
    fragment.push(DrawItem::Picture(
        Rect::new(0.0, top, w, h),
        Arc::clone(&map.picture),
    ));
    let place = |[left, top_share, right, bottom]: [f64; 4]| {
        let within = |share: f64, side: f64| (share.clamp(0.0, 1.0) * side * 2.0).round() / 2.0;
        let (x, y) = (within(left, w), within(top_share, h));
        Rect::new(x, top + y, within(right, w) - x, within(bottom, h) - y)
    };
    for (level, class) in HEAT.into_iter().enumerate() {
        let own = map
            .areas
            .iter()
            .filter(|(_, value)| chart.level(*value) == level);
        let boxes = own
            .map(|(area, _)| place(*area))
            .filter(|r| r.w > 0.0 && r.h > 0.0);
        let boxes: Vec<DrawItem> = boxes.map(|r| DrawItem::Box(r, 0.0, "area")).collect();
        if !boxes.is_empty() {
            fragment.push(DrawItem::Open(class, String::new()));
            fragment.items.extend(boxes);
            fragment.push(DrawItem::Close);
        }
    }
    fragment.push(DrawItem::Box(Rect::new(0.0, top, w, h), 0.0, "cell"));
    fragment.h = top + h;
    fragment
}

fn size(grid: &Grid) -> (f64, f64) {
    let cells = grid.cells.iter().flatten().map(|cell| cell.text.as_str());
    if cells.clone().all(str::is_empty) {
        return (SIDE, SIDE);
    }
    let names = grid.columns.iter().flatten().map(String::as_str);
    let widest = cells.chain(names).map(|text| width(text, TextStyle::Small));
    let widest = widest.fold(24.0, f64::max).min(TEXT);
    ((widest + PAD).ceil(), HIGH)
}

/// The number of columns that share a name, so that names do not overlap.
fn step(columns: &[[String; 2]], w: f64) -> usize {
    let names = columns.iter().map(|name| width(&name[0], TextStyle::Small));
    let widest = names.fold(0.0, f64::max).min(TEXT) + 6.0;
    let needed = (widest / w).ceil() as usize;
    let round = [1, 2, 5, 10, 20, 50].into_iter().find(|n| *n >= needed);
    round.unwrap_or(needed)
}

fn drawn(grid: &Grid, chart: &Chart) -> Fragment {
    let (w, h) = size(grid);
    let names = grid.rows.iter().map(|name| width(name, TextStyle::Small));
    let every = if h > SIDE { 1 } else { step(&grid.columns, w) };
    // The names of the first and last columns are wider than their cells.
    let spill = every as f64 * w / 2.0;
    let left = (names.fold(24.0, f64::max).min(NAME) + 8.0)
        .max(spill)
        .ceil();
    let n = (((ROOM - left) / w) as usize).max(1);
    let mut fragment = Fragment {
        w: left + w * n.min(grid.columns.len()) as f64 + spill,
        ..Fragment::default()
    };
    if !grid.title.is_empty() {
        let title = cut(&grid.title, TextStyle::Name, fragment.w.max(NAME));
        fragment.w = fragment.w.max(width(&title, TextStyle::Name).ceil());
        fragment.write(0.0, TextStyle::Name, &title);
        fragment.skip(4.0);
    }
    for (at, columns) in grid.columns.chunks(n).enumerate() {
        if at > 0 {
            fragment.skip(16.0);
        }
        band(
            &mut fragment,
            grid,
            chart,
            (at * n, columns),
            every,
            (left, w, h),
        );
    }
    fragment
}

fn band(
    fragment: &mut Fragment,
    grid: &Grid,
    chart: &Chart,
    (from, columns): (usize, &[[String; 2]]),
    every: usize,
    (left, w, h): (f64, f64, f64),
) {
    let lines = if h > SIDE { 2 } else { 1 };
    for line in 0..lines {
        fragment.h += TextStyle::Small.leading();
        for (at, name) in columns.iter().enumerate().step_by(every) {
            let room = w * every as f64 - 4.0;
            let name = cut(&name[line], TextStyle::Small, room);
            let x = left + (at as f64 + 0.5) * w;
            fragment.middle(
                x,
                fragment.h - TextStyle::Small.drop(),
                TextStyle::Small,
                &name,
            );
        }
    }
    fragment.skip(2.0);
    let top = fragment.h;
    let places = grid.cells.iter().enumerate().flat_map(|(row, cells)| {
        let own = cells.iter().skip(from).take(columns.len()).enumerate();
        own.map(move |(column, cell)| {
            let (x, y) = (left + column as f64 * w, top + row as f64 * h);
            (Rect::new(x, y, w, h), cell)
        })
    });
    let places: Vec<(Rect, &GridCell)> = places.collect();
    let line = if h > SIDE { "swatch" } else { "fine" };
    // Grouping cells by colour takes less text than a group for each cell.
    for class in HOT.into_iter().chain(COOL).chain([COLD]) {
        let own = places
            .iter()
            .filter(|(_, cell)| chart.class(cell.value) == class);
        let boxes = own.map(|(place, _)| DrawItem::Box(*place, 0.0, line));
        let boxes: Vec<DrawItem> = boxes.collect();
        if !boxes.is_empty() {
            fragment.push(DrawItem::Open(class, String::new()));
            fragment.items.extend(boxes);
            fragment.push(DrawItem::Close);
        }
    }
    for (place, cell) in places {
        let text = cut(&cell.text, TextStyle::Small, w - PAD / 2.0);
        if !text.is_empty() {
            let (x, y) = (place.x + w / 2.0, place.y + h / 2.0 + 4.0);
            let (middle, style) = (super::Anchor::Middle, TextStyle::Small);
            fragment.push(DrawItem::Text(x, y, middle, style, "on", text));
        }
    }
    for (row, name) in grid.rows.iter().enumerate() {
        let y = top + (row as f64 + 0.5) * h + 4.0;
        let name = cut(name, TextStyle::Small, NAME);
        fragment.end(left - 6.0, y, TextStyle::Small, &name);
    }
    fragment.h = top + grid.rows.len() as f64 * h;
}
