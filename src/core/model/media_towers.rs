//! The towers of a model, and the rows that they make of media.

use std::collections::{HashMap, VecDeque};
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
    processors: MediaProcessors,
    /// The first token id of each known medium, by its hash.
    ids: HashMap<[u8; 32], u32>,
    /// The id after all that are given.
    next_id: u32,
    /// The rows of the latest media, the latest last.
    kept: VecDeque<([u8; 32], Arc<MediaRows>)>,
    /// The medium whose rows are being computed.
    encoding: Option<Encoding>,
}

/// A medium whose rows are computed in pieces.
struct Encoding {
    hash: [u8; 32],
    views: Vec<ViewRows>,
    /// The results of the first views.
    results: Vec<TowerRows>,
    /// The number of views of the run that has begun; 0 if none has.
    n_running: usize,
}

/// The rows of the media of a prompt, as far as they are computed.
#[derive(Clone, Debug, Default)]
pub struct EncodedMedia(pub(super) Vec<Arc<MediaRows>>);

impl EncodedMedia {
    /// Adds the rows of the next medium.
    pub fn push(&mut self, rows: Arc<MediaRows>) {
        self.0.push(rows);
    }

    /// The number of media whose rows are computed.
    pub fn n(&self) -> usize {
        self.0.len()
    }
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
        let load = |opened: OpenedTower| {
            Ok(LoadedTower {
                media: opened.media,
                learned: learned_rows(&opened.weights)?,
                tower: Tower::load(opened.plan, &opened.weights, options.clone(), progress)?,
            })
        };
        Ok(Self {
            towers: opened.into_iter().map(load).collect::<Result<_>>()?,
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
        while let Some(medium) = media.media.get(encoded.0.len()) {
            match self.kept_rows(medium, end)? {
                Some(rows) => encoded.0.push(rows),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The rows of a medium: kept ones, or computed; none if the time is over before.
    fn kept_rows(
        &mut self,
        medium: &PreparedMedium,
        end: Option<Instant>,
    ) -> Result<Option<Arc<MediaRows>>> {
        let hash = medium.hash;
        let found = self.kept.iter().position(|(of, _)| *of == hash);
        let rows = match found.and_then(|at| self.kept.remove(at)) {
            Some((_, rows)) => rows,
            None => match self.rows_until(medium, end)? {
                Some(rows) => Arc::new(rows),
                None => return Ok(None),
            },
        };
        self.kept.push_back((hash, Arc::clone(&rows)));
        let bytes = |kept: &VecDeque<(_, Arc<MediaRows>)>| -> usize {
            kept.iter().map(|(_, rows)| size_of_val(&*rows.rows)).sum()
        };
        while self.kept.len() > 1 && bytes(&self.kept) > KEPT_BYTES {
            self.kept.pop_front();
        }
        Ok(Some(rows))
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
        let rows = self.rows_until(medium, None)?;
        rows.ok_or_else(|| Error::Internal("a tower stopped without an end".into()))
    }

    /// As [`Self::rows`]; none if the time is over before. The next call for the same medium goes on.
    fn rows_until(
        &mut self,
        medium: &PreparedMedium,
        end: Option<Instant>,
    ) -> Result<Option<MediaRows>> {
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
        let mut encoding = match begun.filter(|begun| begun.hash == medium.hash) {
            Some(begun) => begun,
            None => Encoding {
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
        Ok(Some(MediaRows {
            rows,
            width: n_embd,
        }))
    }
}

impl Encoding {
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
                tower.begin(&inputs)?;
                self.n_running = inputs.len();
            }
            if !tower.advance(end)? {
                return Ok(false);
            }
            self.results.extend(tower.results(self.n_running)?);
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
