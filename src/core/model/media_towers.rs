//! The towers of a model, and the rows that they make of media.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lab_media::{Piece, RowSource, View};

use crate::models::media::{MediaProcessors, PreparedMedium};
use crate::models::towers::OpenedTower;
use crate::plan::Media;
use lab_base::ggml::dequantize;
use lab_base::weights::Weights;

use super::error::{Error, Result};
use super::estimate::Estimator;
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
        })
    }

    /// The first token id of a medium, and its rows: kept ones, or computed.
    ///
    /// # Errors
    /// The errors of [`Self::rows`], or no id is left.
    pub(super) fn known(&mut self, medium: &PreparedMedium) -> Result<(u32, Arc<MediaRows>)> {
        let (hash, rows) = (medium.hash, self.kept_rows(medium)?);
        let n = (rows.rows.len() / rows.width.max(1)) as u32;
        let id = match self.ids.get(&hash) {
            Some(id) => *id,
            None => {
                let id = self.next_id;
                let next = id.checked_add(n).ok_or_else(|| Error::Media {
                    found: "as many media as there are ids for".into(),
                    expected: "a model that is loaded again".into(),
                })?;
                self.next_id = next;
                self.ids.insert(hash, id);
                id
            }
        };
        Ok((id, rows))
    }

    /// The rows of a medium: kept ones, or computed.
    ///
    /// # Errors
    /// The errors of [`Self::rows`].
    pub(super) fn kept_rows(&mut self, medium: &PreparedMedium) -> Result<Arc<MediaRows>> {
        let hash = medium.hash;
        let found = self.kept.iter().position(|(of, _)| *of == hash);
        let rows = match found.and_then(|at| self.kept.remove(at)) {
            Some((_, rows)) => rows,
            None => Arc::new(self.rows(medium)?),
        };
        self.kept.push_back((hash, Arc::clone(&rows)));
        let bytes = |kept: &VecDeque<(_, Arc<MediaRows>)>| -> usize {
            kept.iter().map(|(_, rows)| size_of_val(&*rows.rows)).sum()
        };
        while self.kept.len() > 1 && bytes(&self.kept) > KEPT_BYTES {
            self.kept.pop_front();
        }
        Ok(rows)
    }

    /// How the media are prepared.
    pub fn processors(&self) -> &MediaProcessors {
        &self.processors
    }

    /// Bytes of the weights of all towers, used in place and copied.
    pub(super) fn weights(&self) -> [u64; 2] {
        let all = self.towers.iter().map(|of| of.tower.weights());
        all.fold([0, 0], |[a, b], [c, d]| [a + c, b + d])
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
        let prepared = view_rows(&self.processors, medium, own.tower.input_width())?;
        let mut results: Vec<TowerRows> = Vec::with_capacity(prepared.len());
        for inputs in runs(&prepared) {
            results.extend(own.tower.run(&inputs)?);
        }
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
        Ok(MediaRows {
            rows,
            width: n_embd,
        })
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
        let [mapped, weights] = estimator.weights();
        let prepared = view_rows(processors, medium, input_width(&tower.plan))?;
        let mut compute = 0;
        let mut last = None;
        for inputs in runs(&prepared) {
            let grid = grid_of(&tower.plan, &inputs)?;
            if last != Some(grid) {
                compute = estimator.tower_scratch(grid, options)?.max(compute);
                last = Some(grid);
            }
        }
        Ok(Self {
            mapped,
            weights,
            compute,
        })
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
