//! The captures and edits of rows at the points of a pass.
//!
//! An edit takes its rows out of a value, changes them, and writes them into a copy of the value. Other rows are
//! copied, so they keep their bits. All numbers of edits are inputs: one graph serves every pass with as many rows and
//! edits of the same kinds.
//!
//! Invariant: a point without captures and edits adds no operation.

use super::grid::RowGrid;
use super::refused;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use lab_base::ggml::{Graph, Result, Tensor, Unary};
use lab_base::weights::TensorType;

use crate::arch::PointSpec;

/// How an edit changes rows `x [width, m]`, with inputs `p0 [width, 1]` and `p1 [width, 1 or m]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditKind {
    /// `x * p0 + p1`.
    Affine,
    /// `x * p0 + clamp(x, low, high) * p1`; the bounds are the bits of f32.
    Clamp(u32, u32),
    /// `x - p1 * sum(p0 * x)`.
    Project,
    /// `x + p1 * sqrt(sum(x * x))`; `p0` is not read.
    Match,
    /// The rows of an earlier value of the same width, by the place of its point.
    Copy(usize),
    /// `x + p1 * (clamp(f, low, high) - f)`, where `f` is `sum(p0 * x) + bias`, or 0 if that is not above the
    /// threshold. The numbers are the bits of f32.
    Feature {
        bias: u32,
        threshold: u32,
        bounds: [u32; 2],
    },
}

/// An edit of rows of one value.
pub struct RowEdits {
    pub kind: EditKind,
    /// The rows to change, i32 `[m]`, each once.
    pub rows: Tensor,
    /// The inputs `p0 [width, 1]` and `p1 [width, 1 or m]`.
    pub numbers: [Tensor; 2],
    /// The path of the value to copy, with [`EditKind::Copy`].
    pub from: Option<String>,
}

/// The captures and edits of a pass at one point.
#[derive(Default)]
pub struct PointActions {
    /// The edits, in the order in which they apply.
    pub edits: Vec<RowEdits>,
    /// The rows to capture, i32 `[m]`.
    pub rows: Option<Tensor>,
}

/// The tokens whose attention weights are captured, and the keys that at least one of them attends to.
#[derive(Clone)]
pub struct AttentionCapture {
    /// The tokens, i32 `[m]`.
    pub rows: Tensor,
    /// The rows of the keys, i32 `[n_keys]`.
    pub keys: Tensor,
    /// f32 `[n_keys, m]`: 0 or a bias where a key is visible, -inf where not.
    pub mask: Tensor,
}

/// A value with a name.
pub struct NamedTensor {
    /// The path, such as `layers.3.attn.q`.
    pub path: String,
    /// The description of the value in its contract.
    pub spec: &'static PointSpec,
    /// The value.
    pub tensor: Tensor,
    /// The grid of its rows, in a tower.
    pub grid: Option<RowGrid>,
}

/// The captures and edits of a pass, and its captured and named values.
#[derive(Default)]
pub struct GraphLab {
    /// Captures of attention weights, by the paths of their points.
    pub pairs: HashMap<String, AttentionCapture>,
    /// Captures and edits, by the paths of the points.
    pub uses: HashMap<String, PointActions>,
    /// The paths of values that edits at later points copy.
    pub copied: HashSet<String>,
    /// The values to copy, `[width, n_tokens]`, by their paths.
    pub values_to_copy: RefCell<HashMap<String, Tensor>>,
    /// Captured rows `[width, m]` by paths, or all rows `[width, n_tokens]` where these are not many more.
    pub captured: RefCell<HashMap<String, Tensor>>,
    /// The values that have got a name, in the order of computation.
    pub named: RefCell<Vec<NamedTensor>>,
}

/// All rows of a value are kept if they are at most this many times the captured ones.
const MOST_KEPT: u64 = 4;

/// Maximum number of operations and inputs of an edit.
pub(crate) const NODES_PER_EDIT: usize = 28;
/// Maximum number of operations and inputs of a capture.
pub(crate) const NODES_PER_CAPTURE: usize = 24;

impl GraphLab {
    /// The value that later operations read, for a value `x [.., n_tokens]` at the point `path`.
    pub(super) fn pass(&self, g: &Graph, path: &str, n_tokens: u64, x: Tensor) -> Result<Tensor> {
        let is_copied = self.copied.contains(path);
        let nothing = PointActions::default();
        let uses = match self.uses.get(path) {
            Some(uses) => uses,
            None if is_copied => &nothing,
            None => return Ok(x),
        };
        let shape = x.shape();
        let rows = [x.elements() / n_tokens.max(1), n_tokens, 1, 1];
        let dense = match x.is_contiguous() {
            true => x.clone(),
            false => g.cont(&x)?,
        };
        let mut y = g.reshape(&dense, rows)?;
        for step in &uses.edits {
            let from = step
                .from
                .as_ref()
                .map(|path| self.values_to_copy.borrow().get(path).cloned());
            let changed = match from {
                // The value is an earlier one: points are in the order of computation.
                Some(from) => {
                    let from = from.ok_or_else(|| {
                        refused(
                            "copy",
                            format!("what is copied at `{path}` is not computed before it"),
                        )
                    })?;
                    g.get_rows(&from, &step.rows)?
                }
                None => step.changed(g, &g.get_rows(&y, &step.rows)?)?,
            };
            y = g.put_rows(&g.copy(&y)?, &changed, &step.rows)?;
        }
        if let Some(rows) = &uses.rows {
            let is_whole = rows.elements().saturating_mul(MOST_KEPT) >= n_tokens
                && matches!(y.ty(), TensorType::F32 | TensorType::I32)
                && g.is_scratch(&y);
            let taken = match is_whole {
                // A view costs nothing. A further operation costs time even for one token, for all threads wait for it.
                true => g.reshape(&y, [y.shape()[0], n_tokens, 1, 1])?,
                false => g.get_rows(&y, rows)?,
            };
            // Expand now: the memory of the value need not outlive its other readers, unless the value is kept.
            g.expand(&taken)?;
            self.captured.borrow_mut().insert(path.to_owned(), taken);
        }
        if is_copied {
            self.values_to_copy
                .borrow_mut()
                .insert(path.to_owned(), y.clone());
        }
        match uses.edits.is_empty() {
            true => Ok(x),
            false => g.reshape(&y, shape),
        }
    }
}

impl RowEdits {
    /// The rows `x [width, m]` after the edit.
    fn changed(&self, g: &Graph, x: &Tensor) -> Result<Tensor> {
        let [p0, p1] = &self.numbers;
        // `p1 [width, 1]` times a number for each row.
        let outer = |by: Tensor| g.mul(&g.repeat(p1, x.shape())?, &by);
        match self.kind {
            // The caller copies the rows of the other value.
            EditKind::Copy(_) => Ok(x.clone()),
            EditKind::Affine => g.add(&g.mul(x, p0)?, p1),
            EditKind::Clamp(low, high) => {
                let bounded = g.clamp(x, f32::from_bits(low), f32::from_bits(high))?;
                g.add(&g.mul(x, p0)?, &g.mul(&bounded, p1)?)
            }
            EditKind::Project => {
                let share = g.sum_rows(&g.mul(x, p0)?)?; // [1, m]
                g.sub(x, &outer(share)?)
            }
            EditKind::Match => {
                let length = g.unary(&g.sum_rows(&g.mul(x, x)?)?, Unary::Sqrt)?; // [1, m]
                g.add(x, &outer(length)?)
            }
            EditKind::Feature {
                bias,
                threshold,
                bounds,
            } => {
                let [bias, threshold] = [bias, threshold].map(f32::from_bits);
                let [low, high] = bounds.map(f32::from_bits);
                let product = g.sum_rows(&g.mul(x, p0)?)?; // [1, m]
                // Clamping to `[by, by]` gives a tensor in which every number is `by`.
                let plus = |by: f32| g.add(&product, &g.clamp(&product, by, by)?);
                let is_there = g.unary(&plus(bias - threshold)?, Unary::Step)?;
                let feature = g.mul(&plus(bias)?, &is_there)?;
                let change = g.sub(&g.clamp(&feature, low, high)?, &feature)?;
                g.add(x, &outer(change)?)
            }
        }
    }
}
