//! What a request reads and changes of the values of its passes, and the checks of that. Plain data.
//!
//! A [`LabPlan`] names points as people do. [`LabPlan::compiled`] finds them among the points of the model,
//! checks lengths and numbers, and says how many bytes the results take before anything runs.

use std::sync::Arc;

use crate::arch::Parts;
use crate::files::vectors::Translators;
use crate::model::{LOGITS, Lab, LabCapture, LabEdit, LabOp, Point, Points, Positions};

use super::request::Rejected;

mod attribution;
mod vector;

pub(super) use attribution::Split;
pub use attribution::{Among, Attribution};
pub use vector::Vector;

/// Which tokens of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Where {
    /// The last one of the prompt.
    #[default]
    Last,
    /// All.
    All,
    /// Those of the prompt.
    Prompt,
    /// Those of the completion, as far as they are read: the last one is not.
    Answer,
    /// These positions; below 0, counted from the end of the prompt.
    List(Vec<i64>),
}

/// What is made of the rows of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduce {
    /// Nothing.
    #[default]
    None,
    /// Their mean.
    Mean,
    /// The length of each row.
    Norm,
    /// The largest of each element.
    Max,
    /// The largest elements of each row, with their places.
    TopK(usize),
}

/// Values to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// A point, or a pattern of points.
    pub point: String,
    /// Of which tokens.
    pub positions: Where,
    /// What is made of them.
    pub reduce: Reduce,
}

/// What an edit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditOp {
    /// Adds the vector.
    Add,
    /// Puts the vector there.
    Set,
    /// Multiplies.
    Scale,
    /// Puts zeros there.
    Zero,
    /// Takes out what lies along the vector.
    ProjectOut,
    /// Bounds elements.
    Clamp,
    /// Puts the hidden state before a layer in place of that after it.
    Skip,
    /// Has experts not picked.
    Exclude,
    /// Has experts picked.
    Force,
}

/// A change of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// A point, or a pattern of points.
    pub point: String,
    /// What it does.
    pub op: EditOp,
    /// Of which tokens.
    pub positions: Where,
    /// Of these, the ones that are among those as well.
    pub when: Where,
    /// Of these, the ones where a token with one of these ids is read; none: any token.
    pub tokens: Option<Vec<u32>>,
    /// What it adds or sets.
    pub vector: Vector,
    /// Which heads, elements or experts; none: all.
    pub parts: Option<(Parts, Vec<u64>)>,
    /// The factor of the vector, or of the value.
    pub scale: f32,
    /// Bounds of elements.
    pub bounds: [f32; 2],
    /// Whether the vector is as long as the value that it is added to, times the factor.
    pub norm_match: bool,
}

/// Logits of the hidden state after layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Lens {
    /// Points or patterns of points with the hidden state.
    pub points: Vec<String>,
    /// Of which tokens.
    pub positions: Where,
    /// Length of the list of most probable tokens.
    pub top_k: usize,
    /// Tokens whose place and probability are wanted.
    pub targets: Vec<u32>,
    /// What makes of a hidden state one that the output head reads.
    pub translators: Option<Arc<Translators>>,
}

/// What a request reads and changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabPlan {
    /// Values to read.
    pub captures: Vec<Capture>,
    /// Changes, in their order.
    pub edits: Vec<Edit>,
    /// The logit lens.
    pub lens: Option<Lens>,
    /// The parts of a logit.
    pub attribution: Option<Attribution>,
}

/// A plan for one prompt of a model.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    /// What the model is asked.
    pub(super) lab: Arc<Lab>,
    /// For each captured point which of [`LabPlan::captures`] it is of, its name there, and what is made of
    /// it.
    pub(super) captures: Vec<(usize, String, LabCapture, Reduce)>,
    /// Points with hidden states, by their names, each with the layer that it goes into.
    pub(super) lens: Vec<(String, LabCapture, Option<u64>)>,
    pub(super) translators: Option<Arc<Translators>>,
    pub(super) attribution: Option<Split>,
    pub(super) top_k: usize,
    pub(super) targets: Vec<u32>,
    /// Bytes of its results and edits at most.
    pub(super) n_bytes: u64,
}

/// Beyond every score by which experts are picked.
const BEYOND: f32 = 1e30;

fn refuse<T>(message: String) -> Result<T, Rejected> {
    let field = "lab";
    Err(Rejected::Field { field, message })
}

/// The length of a prompt and that of the sequence at most.
#[derive(Clone, Copy)]
struct Lengths {
    prompt: u32,
    all: u32,
}

impl Where {
    fn resolved(&self, n: Lengths) -> Result<Positions, Rejected> {
        Ok(match self {
            Self::Last => Positions::List(Arc::new([n.prompt - 1])),
            Self::All => Positions::Range(0, n.all),
            Self::Prompt => Positions::Range(0, n.prompt),
            Self::Answer => Positions::Range(n.prompt, n.all),
            Self::List(list) => {
                let resolved = list.iter().map(|at| {
                    let at = match at {
                        0.. => *at,
                        _ => i64::from(n.prompt).saturating_add(*at),
                    };
                    match u32::try_from(at) {
                        Ok(at) if at < n.all => Ok(at),
                        _ => refuse(format!("position {at} of a sequence of {} tokens", n.all)),
                    }
                });
                let all: Vec<u32> = resolved.collect::<Result<_, _>>()?;
                if all.is_empty() || !all.is_sorted_by(|a, b| a < b) {
                    return refuse("a list of positions rises and has no duplicates".into());
                }
                Positions::List(all.into())
            }
        })
    }
}

impl LabPlan {
    /// The plan for a prompt, with a completion of at most `n_more` tokens. Results and edits of more
    /// than `limit` bytes are refused.
    pub(super) fn compiled(
        &self,
        points: &Points,
        (n_prompt, n_more): (usize, usize),
        n_vocab: usize,
        limit: u64,
    ) -> Result<Compiled, Rejected> {
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let n = Lengths {
            prompt: length(n_prompt),
            all: length(n_prompt.saturating_add(n_more)),
        };
        let found = |pattern: &str| {
            let found = points.find(pattern);
            found.or_else(|error| refuse(error.to_string()))
        };
        let mut n_bytes = 0u64;
        let within = |n_bytes: u64| match n_bytes <= limit {
            true => Ok(()),
            false => refuse(format!(
                "the results and edits take up to {n_bytes} bytes, the limit is {limit} (`--lab-bytes`); \
                 fewer points or positions, or a `reduce`, take fewer"
            )),
        };
        let mut captures = Vec::new();
        for (of, capture) in self.captures.iter().enumerate() {
            let positions = capture.positions.resolved(n)?;
            for point in found(&capture.point)? {
                let positions = positions.clone();
                let own = &points.all[point];
                let is_pairs = own.spec.parts == Parts::Pairs;
                if !own.is_capturable() || is_pairs && capture.reduce != Reduce::None {
                    let path = &own.path;
                    return refuse(match (own.is_capturable(), own.spec.name) {
                        (true, _) => format!("`{path}` cannot be reduced"),
                        (false, "weights") => format!(
                            "`{path}` cannot be captured: keys are selected, scores have a bias by distance, or the model reads a source; \
                             `bench compare` has the weights"
                        ),
                        (false, _) => {
                            format!(
                                "`{path}` cannot be captured: it is a value of `bench compare` only"
                            )
                        }
                    });
                }
                let n_rows = positions.n_below(n.all) as u64;
                // Of attention weights for each position that may be seen.
                let n_rows = n_rows.saturating_mul(if is_pairs { u64::from(n.all) } else { 1 });
                let numbers = match capture.reduce {
                    Reduce::None => n_rows.saturating_mul(own.width()),
                    Reduce::Mean | Reduce::Max => own.width(),
                    Reduce::Norm => n_rows,
                    Reduce::TopK(k) => n_rows.saturating_mul(2).saturating_mul(k as u64),
                };
                n_bytes = n_bytes.saturating_add(numbers.saturating_mul(4));
                let name = own.name_by(&capture.point).to_owned();
                captures.push((of, name, LabCapture { point, positions }, capture.reduce));
            }
        }
        let mut lens = Vec::new();
        if let Some(wanted) = &self.lens {
            if let Some(id) = wanted.targets.iter().find(|id| **id as usize >= n_vocab) {
                return refuse(format!("lens: {id} is not a token id below {n_vocab}"));
            }
            let width = points.find(LOGITS).ok().and(points.find("embed.x").ok());
            let Some(width) = width.map(|at| points.all[at[0]].width()) else {
                return refuse("lens: the model has no logits".into());
            };
            let translated = wanted.translators.as_ref().map(|all| all.width() as u64);
            for pattern in &wanted.points {
                for point in found(pattern)? {
                    let own = &points.all[point];
                    let is_all = points.read_width() == Some(own.width() as usize);
                    if (own.width() != width && !is_all) || own.path.starts_with("head.") {
                        let path = &own.path;
                        return refuse(format!(
                            "lens: `{path}` is not a hidden state that the head reads"
                        ));
                    }
                    if let Some(size) = translated.filter(|size| *size != own.width()) {
                        let (path, found) = (&own.path, own.width());
                        return refuse(format!(
                            "lens: `translator` is for hidden states of {size} numbers, `{path}` has {found}"
                        ));
                    }
                    let positions = wanted.positions.resolved(n)?;
                    let per_row = 16 * (wanted.top_k + wanted.targets.len()) as u64;
                    // The rows wait for their logits.
                    let per_row = per_row.saturating_add(4 * own.width());
                    let n_rows = positions.n_below(n.all) as u64;
                    n_bytes = n_bytes.saturating_add(n_rows.saturating_mul(per_row));
                    let name = own.name_by(pattern).to_owned();
                    lens.push((name, LabCapture { point, positions }, layer_into(own)));
                }
            }
        }
        let attribution = match &self.attribution {
            Some(wanted) => Some(wanted.compiled(points, n, n_vocab)?),
            None => None,
        };
        for capture in attribution.iter().flat_map(Split::captures) {
            let n_rows = capture.positions.n_below(n.all) as u64;
            let numbers = n_rows.saturating_mul(points.all[capture.point].width());
            n_bytes = n_bytes.saturating_add(numbers.saturating_mul(4));
        }
        within(n_bytes)?;
        let mut edits = Vec::new();
        for edit in &self.edits {
            let positions = edit.positions.resolved(n)?;
            let positions = positions.within(&edit.when.resolved(n)?);
            let tokens = edit.sorted_tokens(n_vocab)?;
            let before = edits.len();
            for point in found(&edit.point)? {
                let own = &points.all[point];
                let Some(rows) = edit.vector.of(own) else {
                    continue;
                };
                let n_rows = 1 + rows.len().max(1) as u64;
                let numbers = own.width().saturating_mul(n_rows);
                n_bytes = n_bytes.saturating_add(numbers.saturating_mul(4));
                within(n_bytes)?;
                edits.push(LabEdit {
                    point,
                    op: match edit.op {
                        EditOp::Skip if edit.parts.is_none() => skip(points, own)?,
                        _ => edit.op_of(own, &rows, positions.n_below(n.all))?,
                    },
                    positions: positions.clone(),
                    tokens: tokens.clone(),
                });
                if edits.len() > Lab::MAX_EDITS {
                    let most = Lab::MAX_EDITS;
                    return refuse(format!("more than {most} edits of points"));
                }
            }
            if let (Vector::Stored(id, all), true) = (&edit.vector, edits.len() == before) {
                let layers: Vec<u64> = all.layers().collect();
                let point = &edit.point;
                return refuse(format!(
                    "`{point}`: `{id}` has no direction for it, only for the layers {layers:?}"
                ));
            }
        }
        let (lens_k, targets, translators) = match &self.lens {
            Some(lens) => (lens.top_k, lens.targets.clone(), lens.translators.clone()),
            None => (0, Vec::new(), None),
        };
        let of_model = captures.iter().map(|(_, _, capture, _)| capture);
        let of_model = of_model.chain(lens.iter().map(|(_, capture, _)| capture));
        let of_model = of_model.chain(attribution.iter().flat_map(Split::captures));
        Ok(Compiled {
            attribution: attribution.clone(),
            lab: Arc::new(Lab::new(of_model.cloned().collect(), edits)),
            captures,
            lens,
            translators,
            top_k: lens_k,
            targets,
            n_bytes,
        })
    }
}

/// The layer that a hidden state goes into, as far as its names say.
fn layer_into(point: &Point) -> Option<u64> {
    let mut names = point.aliases.iter().filter_map(|name| {
        let (layer, end) = name.strip_prefix("layers.")?.split_once('.')?;
        let layer: u64 = layer.parse().ok()?;
        match end {
            "in" => Some(layer),
            "out" => Some(layer + 1),
            _ => None,
        }
    });
    names.next()
}

/// What leaves out the layer whose result a point is.
fn skip(points: &Points, point: &Point) -> Result<LabOp, Rejected> {
    let mut names = point.aliases.iter();
    let layer = names.find_map(|name| {
        name.strip_suffix(".out")
            .filter(|n| n.starts_with("layers."))
    });
    let from = layer.and_then(|layer| points.find(&format!("{layer}.in")).ok());
    let from = from.map(|found| found[0]);
    match from.filter(|from| points.all[*from].width() == point.width() && point.is_editable()) {
        Some(from) => Ok(LabOp::Copy { from }),
        None => {
            let path = &point.path;
            refuse(format!(
                "`{path}`: `skip` is for the hidden state after a layer, `layers.N.out`"
            ))
        }
    }
}

impl Edit {
    /// The ids of its tokens in rising order.
    fn sorted_tokens(&self, n_vocab: usize) -> Result<Option<Arc<[u32]>>, Rejected> {
        let Some(tokens) = &self.tokens else {
            return Ok(None);
        };
        let path = &self.point;
        if let Some(id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
            return refuse(format!(
                "`{path}`: {id} of `tokens` is not a token id below {n_vocab}"
            ));
        }
        let mut tokens = tokens.clone();
        tokens.sort_unstable();
        tokens.dedup();
        Ok(Some(tokens.into()))
    }

    /// What it does at a point, with a row for each of `n_positions`.
    fn op_of(
        &self,
        point: &Point,
        vector: &[Vec<f32>],
        n_positions: usize,
    ) -> Result<LabOp, Rejected> {
        let path = &point.path;
        if !point.is_editable() {
            return refuse(format!("`{path}` can be read and not changed"));
        }
        let width = usize::try_from(point.width()).unwrap_or(usize::MAX);
        let chosen = self.chosen(point, width)?;
        if !self.scale.is_finite() {
            return refuse(format!("`{path}`: `scale` is not a finite number"));
        }
        let factor = |of_chosen: f32| -> Vec<f32> {
            let all = chosen.iter().map(|c| if *c { of_chosen } else { 1.0 });
            all.collect()
        };
        let zeros = || vec![vec![0.0; width]];
        Ok(match self.op {
            EditOp::Add if self.norm_match => LabOp::Match {
                direction: self.direction(path, &chosen, vector, self.scale)?,
            },
            EditOp::Add => LabOp::Affine {
                factor: factor(1.0),
                offsets: self.rows(path, &chosen, vector, n_positions)?,
            },
            EditOp::Set => LabOp::Affine {
                factor: factor(0.0),
                offsets: self.rows(path, &chosen, vector, n_positions)?,
            },
            EditOp::Scale => LabOp::Affine {
                factor: factor(self.scale),
                offsets: zeros(),
            },
            EditOp::Zero => LabOp::Affine {
                factor: factor(0.0),
                offsets: zeros(),
            },
            EditOp::ProjectOut => LabOp::Project {
                direction: self.direction(path, &chosen, vector, 1.0)?,
                share: self.scale,
            },
            EditOp::Clamp => {
                let [low, high] = self.bounds;
                if low.is_nan() || high.is_nan() || low > high {
                    return refuse(format!("`{path}`: `low` is not below `high`"));
                }
                let bounds = self.bounds;
                match &self.vector {
                    Vector::Feature(feature) if feature.encoder.len() != width => {
                        let found = feature.encoder.len();
                        return refuse(format!(
                            "`{path}`: the features are of rows of {found} numbers, these have {width}"
                        ));
                    }
                    Vector::Feature(feature) => LabOp::Feature {
                        encoder: feature.encoder.clone(),
                        decoder: feature.decoder.clone(),
                        bias: feature.bias,
                        threshold: feature.threshold,
                        bounds,
                    },
                    _ => LabOp::Clamp { chosen, bounds },
                }
            }
            EditOp::Skip => {
                return refuse(format!(
                    "`{path}`: `skip` takes no `heads`, `neurons` or `experts`"
                ));
            }
            EditOp::Exclude | EditOp::Force => {
                let by = match self.op {
                    EditOp::Force => BEYOND,
                    _ => -BEYOND,
                };
                if point.spec.name != "ranking" || self.parts.is_none() {
                    let message =
                        "`exclude` and `force` name `experts` at a point that ends in `.ranking`";
                    return refuse(format!("`{path}`: {message}"));
                }
                let offset = chosen.iter().map(|c| if *c { by } else { 0.0 });
                LabOp::Affine {
                    factor: vec![1.0; width],
                    offsets: vec![offset.collect()],
                }
            }
        })
    }

    /// Which elements it changes.
    fn chosen(&self, point: &Point, width: usize) -> Result<Vec<bool>, Rejected> {
        let Some((parts, list)) = &self.parts else {
            return Ok(vec![true; width]);
        };
        let path = &point.path;
        let fits = point.spec.parts == *parts || *parts == Parts::Neurons;
        if !fits {
            let (asked, has) = (parts.name(), point.spec.parts.name());
            return refuse(format!("`{path}` has {has}, not {asked}"));
        }
        let size = match parts {
            Parts::Heads => point.shape.first().map_or(1, |d| *d as usize),
            _ => 1,
        };
        let n = width / size.max(1);
        let mut chosen = vec![false; width];
        for at in list {
            let at = usize::try_from(*at).ok().filter(|at| *at < n);
            let Some(at) = at else {
                let parts = parts.name();
                return refuse(format!("`{path}` has {n} {parts}, counted from 0"));
            };
            chosen[at * size..(at + 1) * size].fill(true);
        }
        Ok(chosen)
    }

    /// Its rows, zero where nothing is changed, times the factor.
    fn rows(
        &self,
        path: &str,
        chosen: &[bool],
        vector: &[Vec<f32>],
        n_positions: usize,
    ) -> Result<Vec<Vec<f32>>, Rejected> {
        let n = vector.len();
        if n != 1 && n != n_positions {
            return refuse(format!(
                "`{path}`: `vector` has {n} rows, expected 1 or {n_positions}, one for each position"
            ));
        }
        let rows = vector.iter();
        rows.map(|row| self.row(path, chosen, row)).collect()
    }

    /// A row of the width of the value, from one of that width or of the elements that are changed.
    fn row(&self, path: &str, chosen: &[bool], row: &[f32]) -> Result<Vec<f32>, Rejected> {
        let (width, n) = (chosen.len(), chosen.iter().filter(|c| **c).count());
        if row.iter().any(|e| !(e * self.scale).is_finite()) {
            return refuse(format!(
                "`{path}`: `vector` has numbers that are not finite"
            ));
        }
        if row.len() != width && row.len() != n {
            let expected = match n == width {
                true => width.to_string(),
                false => format!("{width} or {n}"),
            };
            let found = row.len();
            return refuse(format!(
                "`{path}`: `vector` has {found} numbers, expected {expected}"
            ));
        }
        let mut own = row.iter().copied();
        let number = |(at, chosen): (usize, &bool)| match (chosen, row.len() == width) {
            (true, true) => row[at] * self.scale,
            (true, false) => own.next().unwrap_or(0.0) * self.scale,
            (false, _) => 0.0,
        };
        Ok(chosen.iter().enumerate().map(number).collect())
    }

    /// The direction of its only row, with a length.
    fn direction(
        &self,
        path: &str,
        chosen: &[bool],
        vector: &[Vec<f32>],
        length: f32,
    ) -> Result<Vec<f32>, Rejected> {
        let [row] = vector else {
            let n = vector.len();
            return refuse(format!("`{path}`: `vector` has {n} rows, expected 1"));
        };
        let row = Self {
            scale: 1.0,
            ..self.clone()
        }
        .row(path, chosen, row)?;
        let norm = row.iter().map(|e| f64::from(*e).powi(2)).sum::<f64>();
        let norm = norm.sqrt();
        if norm == 0.0 {
            return refuse(format!("`{path}`: `vector` is zero, which is no direction"));
        }
        let factor = f64::from(length) / norm;
        Ok(row
            .iter()
            .map(|e| (f64::from(*e) * factor) as f32)
            .collect())
    }
}
