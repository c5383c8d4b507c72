//! Edits of a plan, and the operation of each at a point of a model.

use std::sync::Arc;

use serde::Deserialize;

use crate::arch::PointParts;
use crate::model::{LabOp, Point, Points};

use super::super::rejected::Rejected;
use super::{EditVector, PositionSelector, refuse};

/// The operation of an edit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EditOp {
    /// Adds the vector to the value.
    Add,
    /// Replaces the value with the vector. Mean ablation is this with a mean as the vector.
    #[serde(alias = "mean")]
    Set,
    /// Multiplies the value by a factor.
    Scale,
    /// Replaces the value with zeros.
    Zero,
    /// Removes the component along the vector.
    ProjectOut,
    /// Clamps elements, or a feature.
    Clamp,
    /// Replaces the hidden state after a layer with the one before it.
    Skip,
    /// Prevents experts from being selected.
    Exclude,
    /// Makes the router select experts.
    Force,
}

/// An edit of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// A point, or a pattern of points.
    pub point: String,
    /// The operation.
    pub op: EditOp,
    /// The positions whose rows are edited.
    pub positions: PositionSelector,
    /// Only those positions that are in this set too.
    pub when: PositionSelector,
    /// Only those positions whose token has one of these ids; none: any token.
    pub tokens: Option<Vec<u32>>,
    /// The vector that is added or set.
    pub vector: EditVector,
    /// The edited heads, elements or experts; none: all.
    pub parts: Option<(PointParts, Vec<u64>)>,
    /// The factor of the vector or of the value.
    pub scale: f32,
    /// Lower and upper bound of elements.
    pub bounds: [f32; 2],
    /// Whether the vector is scaled to the norm of the value that it is added to, times the factor.
    pub norm_match: bool,
}

/// Larger than every score by which experts are selected.
const BEYOND: f32 = 1e30;

impl Edit {
    /// The token ids of the edit in ascending order, without duplicates.
    pub(super) fn sorted_tokens(&self, n_vocab: usize) -> Result<Option<Arc<[u32]>>, Rejected> {
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

    /// The operation at a point, with `vector` of one row, or of a row for each of `n_positions`.
    pub(super) fn op_of(
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
                    EditVector::Feature(feature) if feature.encoder.len() != width => {
                        let found = feature.encoder.len();
                        return refuse(format!(
                            "`{path}`: the features are of rows of {found} numbers, these have {width}"
                        ));
                    }
                    EditVector::Feature(feature) => LabOp::Feature {
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

    /// For each element of a row, whether it is edited.
    fn chosen(&self, point: &Point, width: usize) -> Result<Vec<bool>, Rejected> {
        let Some((parts, list)) = &self.parts else {
            return Ok(vec![true; width]);
        };
        let path = &point.path;
        let fits = point.spec.parts == *parts || *parts == PointParts::Neurons;
        if !fits {
            let (asked, has) = (parts.name(), point.spec.parts.name());
            return refuse(format!("`{path}` has {has}, not {asked}"));
        }
        let size = match parts {
            PointParts::Heads => point.shape.first().map_or(1, |d| *d as usize),
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

    /// The rows times the factor, with zeros at elements that are not edited.
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

    /// A row of the width of the value, from a row of that width or of the edited elements alone.
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

    /// The only row, scaled to a norm of `length`.
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
            return refuse(format!(
                "`{path}`: `vector` is zero, which is not a direction"
            ));
        }
        let factor = f64::from(length) / norm;
        Ok(row
            .iter()
            .map(|e| (f64::from(*e) * factor) as f32)
            .collect())
    }
}

/// The operation that skips the layer whose result is at the point.
pub(super) fn skip(points: &Points, point: &Point) -> Result<LabOp, Rejected> {
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
