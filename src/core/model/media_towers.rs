//! The towers of a model, and the rows that they make of media.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use lab_media::{Piece, RowSource, View};

use crate::models::media::{MediaProcessors, PreparedMedium, PromptMedia};
use crate::models::towers::OpenedTower;
use crate::plan::Media;
use lab_base::ggml::dequantize;
use lab_base::weights::Weights;

use super::error::{Error, Result};
use super::estimate::{Estimator, larger};
use super::load::ProgressFn;
use super::media::{FIRST_MEDIA_ID, MediaRows};
use super::memory_use::TowerUse;
use super::named_value::NamedValue;
use super::options::Options;
use super::points::{Point, Points};
use super::tower::{Tower, TowerInput, TowerRows, grid_of, input_width};

/// The prefix of the names of learned rows that stand among the rows of a medium.
const LEARNED: &str = "row.";

/// Maximum number of input rows of a run of several views.
const MAX_ROWS_AT_ONCE: u64 = 4096;

/// Maximum bytes of the rows that are kept for media that come again.
const KEPT_BYTES: usize = 256 << 20;

/// The loaded towers of a model.
pub struct MediaTowers {
    towers: Vec<LoadedTower>,
    /// The points of all towers.
    points: Vec<Point>,
    processors: MediaProcessors,
    /// The first token id of each known medium, by its hash.
    ids: HashMap<[u8; 32], u32>,
    /// The id after all that are given.
    next_id: u32,
    /// The rows of the latest media, the latest last.
    kept: VecDeque<([u8; 32], Arc<MediaRows>)>,
    /// The medium whose rows are being computed.
    encoding: Option<UnfinishedMedium>,
}

/// A medium whose rows are computed in pieces.
struct UnfinishedMedium {
    hash: [u8; 32],
    views: Vec<ViewRows>,
    /// The results of the first views.
    results: Vec<TowerRows>,
    /// The paths of the values that are captured.
    paths: Vec<String>,
    /// Their rows in the first views.
    captured: TowerCaptures,
    /// The number of views of the run that has begun; 0 if none has.
    n_running: usize,
}

/// The rows of the media of a prompt, as far as they are computed, and the values of towers that are captured meanwhile.
#[derive(Clone, Debug, Default)]
pub struct EncodedMedia {
    pub(super) rows: Vec<Arc<MediaRows>>,
    /// The kinds of media and the paths within their towers of the values that are captured.
    wanted: Vec<(Media, String)>,
    /// The captured values of each medium, by their paths.
    captured: Vec<TowerCaptures>,
}

/// The captured values of a medium, by their paths within its tower.
type TowerCaptures = HashMap<String, TowerCapture>;

/// The rows of a value of a tower for a medium.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TowerCapture {
    /// Elements, row by row.
    pub elements: Vec<f32>,
    /// The number of rows of each view.
    pub n_of_views: Vec<usize>,
}

impl EncodedMedia {
    /// No rows yet; values of these points of towers will be captured.
    pub fn capturing<'p>(points: impl IntoIterator<Item = &'p Point>) -> Self {
        let mut wanted: Vec<(Media, String)> = Vec::new();
        for point in points {
            let Some((tower, path)) = point.tower.zip(point.path.split_once('.')) else {
                continue;
            };
            let own = (tower.media, path.1.to_owned());
            if !wanted.contains(&own) {
                wanted.push(own);
            }
        }
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Adds the rows of the next medium.
    pub fn push(&mut self, rows: Arc<MediaRows>) {
        self.rows.push(rows);
        self.captured.push(HashMap::new());
    }

    /// The number of media whose rows are computed.
    pub fn n(&self) -> usize {
        self.rows.len()
    }

    /// The grid (time, height, width) of the rows of a view of a medium, once they are computed.
    pub fn grid(&self, medium: usize, view: usize) -> Option<[usize; 3]> {
        let grid = self.rows.get(medium)?.grids.get(view)?;
        Some(grid.map(|n| n as usize))
    }

    /// The captured rows of a point for a medium.
    pub fn captured(&self, medium: usize, point: &Point) -> Option<&TowerCapture> {
        let (_, path) = point.path.split_once('.')?;
        self.captured.get(medium)?.get(path)
    }
}

/// The points of a tower that can be captured; none if no sample of its media fits it.
pub fn tower_points(tower: &OpenedTower, processors: &MediaProcessors) -> Vec<Point> {
    let points = |part: u32| {
        let sample = processors
            .sample(tower.media, NonZeroU32::new(part)?)
            .ok()?;
        let cells = tower_cells(tower, processors, &sample).ok()?;
        Points::of_tower(&tower.plan, tower.media, cells).ok()
    };
    // Small samples first. Some towers read inputs of one size alone.
    let found = [8, 4, 2, 1].into_iter().find_map(points);
    found.unwrap_or_else(|| {
        tracing::warn!(
            "no sample fits the tower {}: its values have no names",
            tower.def.name
        );
        Vec::new()
    })
}

struct LoadedTower {
    media: Media,
    tower: Tower,
    /// Learned rows by name, each `[n_embd]`.
    learned: HashMap<String, Vec<f32>>,
}

impl MediaTowers {
    /// Loads towers; each runs with these options.
    ///
    /// # Errors
    /// The weights of a tower cannot be used, or memory is missing.
    pub fn load(
        opened: Vec<OpenedTower>,
        processors: MediaProcessors,
        options: &Options,
        progress: ProgressFn<'_>,
    ) -> Result<Self> {
        let points = opened
            .iter()
            .flat_map(|tower| tower_points(tower, &processors))
            .collect();
        let load = |opened: OpenedTower| {
            Ok(LoadedTower {
                media: opened.media,
                learned: learned_rows(&opened.weights)?,
                tower: Tower::load(opened.plan, &opened.weights, options.clone(), progress)?,
            })
        };
        Ok(Self {
            towers: opened.into_iter().map(load).collect::<Result<_>>()?,
            points,
            processors,
            ids: HashMap::new(),
            next_id: FIRST_MEDIA_ID,
            kept: VecDeque::new(),
            encoding: None,
        })
    }

    /// The first token id of a medium with these rows.
    ///
    /// # Errors
    /// No id is left.
    pub(super) fn id_of(&mut self, medium: &PreparedMedium, rows: &MediaRows) -> Result<u32> {
        if let Some(id) = self.ids.get(&medium.hash) {
            return Ok(*id);
        }
        let n = (rows.rows.len() / rows.width.max(1)) as u32;
        let id = self.next_id;
        let next = id.checked_add(n).ok_or_else(|| Error::Media {
            found: "as many media as there are ids for".into(),
            expected: "a model that is loaded again".into(),
        })?;
        self.next_id = next;
        self.ids.insert(medium.hash, id);
        Ok(id)
    }

    /// Computes rows of the media of a prompt, until a time is over; all of them without one. Returns whether all are
    /// known. The latest rows are kept for prompts that have the same media.
    ///
    /// # Errors
    /// The errors of [`Self::rows`].
    pub fn encode(
        &mut self,
        media: &PromptMedia,
        encoded: &mut EncodedMedia,
        end: Option<Instant>,
    ) -> Result<bool> {
        while let Some(medium) = media.media.get(encoded.rows.len()) {
            let of_kind = encoded
                .wanted
                .iter()
                .filter(|(media, _)| *media == medium.media);
            let paths: Vec<String> = of_kind.map(|(_, path)| path.clone()).collect();
            match self.kept_rows(medium, paths, end)? {
                Some((rows, captured)) => {
                    encoded.rows.push(rows);
                    encoded.captured.push(captured);
                }
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The rows of a medium, and its values of these paths: kept rows if no value is captured, or computed; none if the time is over before.
    fn kept_rows(
        &mut self,
        medium: &PreparedMedium,
        paths: Vec<String>,
        end: Option<Instant>,
    ) -> Result<Option<(Arc<MediaRows>, TowerCaptures)>> {
        let hash = medium.hash;
        let known = self.kept.iter().find(|(of, _)| *of == hash);
        let known = known.map(|(_, rows)| Arc::clone(rows));
        let (rows, captured) = match known {
            Some(rows) if paths.is_empty() => (rows, HashMap::new()),
            known => match self.rows_until(medium, paths, end)? {
                // Kept rows stay those of the medium.
                Some((rows, captured)) => (known.unwrap_or_else(|| Arc::new(rows)), captured),
                None => return Ok(None),
            },
        };
        self.kept.retain(|(of, _)| *of != hash);
        self.kept.push_back((hash, Arc::clone(&rows)));
        let bytes = |kept: &VecDeque<(_, Arc<MediaRows>)>| -> usize {
            kept.iter().map(|(_, rows)| size_of_val(&*rows.rows)).sum()
        };
        while self.kept.len() > 1 && bytes(&self.kept) > KEPT_BYTES {
            self.kept.pop_front();
        }
        Ok(Some((rows, captured)))
    }

    /// The points of all towers.
    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }

    /// How the media are prepared.
    pub fn processors(&self) -> &MediaProcessors {
        &self.processors
    }

    /// The memory of the weights of each tower.
    pub(super) fn memory(&self) -> impl Iterator<Item = TowerUse> {
        self.towers.iter().map(|of| of.tower.memory())
    }

    /// The values of the last run of a tower. Empty unless values are captured.
    pub fn values(&self, media: Media) -> Result<Vec<NamedValue>> {
        let tower = self.towers.iter().find(|tower| tower.media == media);
        tower.map_or(Ok(Vec::new()), |of| of.tower.values())
    }

    /// The rows of a medium, in the order of its layout.
    ///
    /// # Errors
    /// The model has no tower for it, the prepared values do not fit the tower, or a computation fails.
    pub fn rows(&mut self, medium: &PreparedMedium) -> Result<MediaRows> {
        let rows = self.rows_until(medium, Vec::new(), None)?;
        rows.map(|(rows, _)| rows)
            .ok_or_else(|| Error::Internal("a tower stopped without an end".into()))
    }

    /// As [`Self::rows`], with the values of these paths; none if the time is over before. The next call for the same medium and paths goes on.
    fn rows_until(
        &mut self,
        medium: &PreparedMedium,
        paths: Vec<String>,
        end: Option<Instant>,
    ) -> Result<Option<(MediaRows, TowerCaptures)>> {
        let begun = self.encoding.take();
        let fault = |found: String, expected: &str| Error::Tower {
            found,
            expected: expected.into(),
        };
        let own = self
            .towers
            .iter_mut()
            .find(|tower| tower.media == medium.media);
        let Some(own) = own else {
            return Err(fault(
                format!("a medium of kind {:?}", medium.media),
                "one that the model has a tower for",
            ));
        };
        let is_same = |begun: &UnfinishedMedium| begun.hash == medium.hash && begun.paths == paths;
        let mut encoding = match begun.filter(is_same) {
            Some(begun) => begun,
            None => UnfinishedMedium {
                paths,
                captured: HashMap::new(),
                hash: medium.hash,
                views: view_rows(&self.processors, medium, own.tower.input_width())?,
                results: Vec::new(),
                n_running: 0,
            },
        };
        if !encoding.run(&mut own.tower, end)? {
            own.tower.rest();
            self.encoding = Some(encoding);
            return Ok(None);
        }
        let results = encoding.results;
        let n_embd = own.tower.plan().n_embd as usize;
        let mut rows = Vec::new();
        for piece in &medium.prepared.layout {
            let Piece::Rows { rows: sources, .. } = piece else {
                continue;
            };
            for source in sources {
                append_row(source, &results, &own.learned, n_embd, &mut rows)
                    .ok_or_else(|| fault(format!("{source:?}"), "a row that the tower makes"))?;
            }
        }
        let rows = MediaRows {
            rows,
            width: n_embd,
            grids: results.iter().map(|of| of.cells).collect(),
        };
        Ok(Some((rows, encoding.captured)))
    }
}

impl UnfinishedMedium {
    /// Goes on until all views are computed or the time is over. Returns whether all are.
    fn run(&mut self, tower: &mut Tower, end: Option<Instant>) -> Result<bool> {
        loop {
            if self.n_running == 0 {
                let Some(inputs) = runs(&self.views[self.results.len()..]).next() else {
                    return Ok(true);
                };
                if !self.results.is_empty() && end.is_some_and(|end| Instant::now() >= end) {
                    return Ok(false);
                }
                tower.begin(&inputs, &self.paths)?;
                self.n_running = inputs.len();
            }
            if !tower.advance(end)? {
                return Ok(false);
            }
            self.results.extend(tower.results(self.n_running)?);
            if !self.paths.is_empty() {
                for (path, inputs) in tower.captured()? {
                    let own = self.captured.entry(path).or_default();
                    for (elements, n) in inputs {
                        own.elements.extend(elements);
                        own.n_of_views.push(n);
                    }
                }
            }
            self.n_running = 0;
        }
    }
}

impl TowerUse {
    /// The memory of a tower and of its run for a medium of its kind.
    ///
    /// # Errors
    /// The weights cannot be used, or the medium does not fit the tower.
    pub fn of(
        tower: &OpenedTower,
        processors: &MediaProcessors,
        medium: &PreparedMedium,
        options: &Options,
    ) -> Result<Self> {
        let mut estimator = Estimator::new(&tower.plan, &tower.weights)?;
        let prepared = view_rows(processors, medium, input_width(&tower.plan))?;
        let mut compute = vec![0; tower.plan.devices.len() + 1];
        let mut last = None;
        for inputs in runs(&prepared) {
            let grid = grid_of(&tower.plan, &inputs)?;
            if last != Some(grid) {
                larger(&mut compute, &estimator.tower_scratch(grid, options)?);
                last = Some(grid);
            }
        }
        Ok(estimator.of_tower(&compute))
    }
}

/// The cells (time, height, width) of the first view of a medium, as a tower reads it.
///
/// # Errors
/// The medium has no view, or one does not fit the tower.
pub fn tower_cells(
    tower: &OpenedTower,
    processors: &MediaProcessors,
    medium: &PreparedMedium,
) -> Result<[u64; 3]> {
    let prepared = view_rows(processors, medium, input_width(&tower.plan))?;
    let first = prepared.first().ok_or_else(|| Error::Tower {
        found: "no view".into(),
        expected: "at least one".into(),
    })?;
    Ok(first.cells)
}

/// The views of a medium as rows of a tower that has inputs of this width.
fn view_rows(
    with: &MediaProcessors,
    medium: &PreparedMedium,
    width: usize,
) -> Result<Vec<ViewRows>> {
    let of_view = |view: &View| {
        let rows = ViewRows::new(with, medium.media, view, width);
        rows.ok_or_else(|| Error::Tower {
            found: format!("values of the shape {:?}", view.shape),
            expected: "whole patches or frames of the tower's size".into(),
        })
    };
    medium.prepared.views.iter().map(of_view).collect()
}

/// Consecutive views of one grid, as many as a run computes together.
fn runs(mut left: &[ViewRows]) -> impl Iterator<Item = Vec<TowerInput<'_>>> {
    std::iter::from_fn(move || {
        let first = left.first()?;
        let n_cells: u64 = first.cells.iter().product::<u64>().max(1);
        let most = (MAX_ROWS_AT_ONCE / n_cells).max(1) as usize;
        let alike = left.iter().take(most);
        let n = alike.take_while(|of| of.cells == first.cells).count();
        let (now, after) = left.split_at(n);
        left = after;
        Some(now.iter().map(ViewRows::input).collect())
    })
}

/// The values of a view, as the rows that a tower reads.
struct ViewRows {
    rows: Vec<f32>,
    /// Time, height, width.
    cells: [u64; 3],
    valid: Option<u64>,
}

impl ViewRows {
    /// Rows of `width` values; none if the view does not have these values.
    fn new(with: &MediaProcessors, media: Media, view: &View, width: usize) -> Option<Self> {
        let (rows, cells, valid) = match media {
            Media::Image => {
                let (rows, cells) = with.pictures.as_ref()?.values.tower_rows(view, width)?;
                (rows, cells, None)
            }
            Media::Audio => with.sounds.as_ref()?.tower_rows(view, width)?,
        };
        Some(Self {
            rows,
            cells: cells.map(|n| n as u64),
            valid: valid.map(|n| n as u64),
        })
    }

    fn input(&self) -> TowerInput<'_> {
        TowerInput {
            rows: &self.rows,
            cells: self.cells,
            valid: self.valid,
        }
    }
}

/// Appends the row of a source; none if the tower does not make it.
fn append_row(
    source: &RowSource,
    results: &[TowerRows],
    learned: &HashMap<String, Vec<f32>>,
    n_embd: usize,
    out: &mut Vec<f32>,
) -> Option<()> {
    let row = |view: usize, row: usize| results.get(view)?.rows.chunks_exact(n_embd).nth(row);
    match source {
        RowSource::View { view, row: at } => out.extend_from_slice(row(*view, *at)?),
        RowSource::Mixed(parts) => {
            let mut sum = vec![0.0f64; n_embd];
            for (view, at, weight) in parts {
                let values = row(*view, *at)?.iter();
                for (sum, value) in sum.iter_mut().zip(values) {
                    *sum += f64::from(*weight) * f64::from(*value);
                }
            }
            out.extend(sum.into_iter().map(|value| value as f32));
        }
        RowSource::Learned(name) => {
            let start = out.len();
            out.extend_from_slice(learned.get(name)?);
            // Parts that layers add have no learned row.
            out.resize(start + n_embd, 0.0);
        }
    }
    Some(())
}

/// The learned rows of a tower, by their names.
fn learned_rows(weights: &Weights) -> Result<HashMap<String, Vec<f32>>> {
    let mut all = HashMap::new();
    for info in weights.tensors() {
        let Some(name) = info.name.strip_prefix(LEARNED) else {
            continue;
        };
        let n = info.shape.iter().product::<u64>();
        let mut bytes = vec![0; info.ty.tensor_bytes(&info.shape).unwrap_or(0) as usize];
        weights.rows(info, 0, &mut bytes)?;
        let mut values = vec![0.0; n as usize];
        dequantize(&bytes, info.ty, &mut values)?;
        all.insert(name.to_owned(), values);
    }
    Ok(all)
}
