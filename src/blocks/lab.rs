//! What a pass reads and changes at points: rows that are captured, and edits of rows.
//!
//! An edit takes the rows that it changes out of a value, computes them, and writes them into a copy of
//! the value. Other rows are copied, so they keep their bits. All numbers of edits are inputs: a graph
//! serves every pass with as many rows and edits of the same kinds.
//!
//! Invariant: a point that nothing asks for adds no operation.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::ggml::{Error, Graph, Tensor, Unary};

/// How rows `x [width, m]` are changed, with inputs `p [width, m]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// `x * p0 + p1`.
    Affine,
    /// `x * p0 + clamp(x, low, high) * p1`; the bounds are the bits of f32.
    Clamp(u32, u32),
    /// `x - p1 * sum(p0 * x)`.
    Project,
    /// `x + p1 * sqrt(sum(x * x))`; `p0` is not read.
    Match,
}

/// Edits of rows of one value at once.
pub struct Step {
    /// How.
    pub kind: StepKind,
    /// The rows, i32 `[m]`, each once.
    pub rows: Tensor,
    /// Its numbers, `[width, m]` each.
    pub numbers: [Tensor; 2],
}

/// What is asked of one point.
#[derive(Default)]
pub struct Asked {
    /// Edits, one after another.
    pub steps: Vec<Step>,
    /// The rows to capture, i32 `[m]`.
    pub rows: Option<Tensor>,
}

/// What a pass asks of its points, and what it got.
#[derive(Default)]
pub struct Lab {
    /// By the paths of the points.
    pub asked: HashMap<String, Asked>,
    /// Captured rows `[width, m]` by paths.
    pub taken: RefCell<HashMap<String, Tensor>>,
}

/// Maximum number of operations and inputs of a step.
pub(crate) const NODES_PER_STEP: usize = 20;
/// Maximum number of operations and inputs of a capture.
pub(crate) const NODES_PER_CAPTURE: usize = 6;

impl Lab {
    /// A value `x [.., n_tokens]` as it goes on after its point.
    pub(super) fn pass(
        &self,
        g: &Graph,
        path: &str,
        n_tokens: u64,
        x: Tensor,
    ) -> Result<Tensor, Error> {
        let Some(asked) = self.asked.get(path) else {
            return Ok(x);
        };
        let shape = x.shape();
        let rows = [x.elements() / n_tokens.max(1), n_tokens, 1, 1];
        let dense = match x.is_contiguous() {
            true => x.clone(),
            false => g.cont(&x)?,
        };
        let mut y = g.reshape(&dense, rows)?;
        for step in &asked.steps {
            let changed = step.changed(g, &g.get_rows(&y, &step.rows)?)?;
            y = g.put_rows(&g.cont(&y)?, &changed, &step.rows)?;
        }
        if let Some(rows) = &asked.rows {
            let taken = g.get_rows(&y, rows)?;
            // Now, so that the memory of the value need not outlive what else reads it.
            g.expand(&taken)?;
            self.taken.borrow_mut().insert(path.to_owned(), taken);
        }
        match asked.steps.is_empty() {
            true => Ok(x),
            false => g.reshape(&y, shape),
        }
    }
}

impl Step {
    /// Rows `x [width, m]` after the edit.
    fn changed(&self, g: &Graph, x: &Tensor) -> Result<Tensor, Error> {
        let [p0, p1] = &self.numbers;
        match self.kind {
            StepKind::Affine => g.add(&g.mul(x, p0)?, p1),
            StepKind::Clamp(low, high) => {
                let bounded = g.clamp(x, f32::from_bits(low), f32::from_bits(high))?;
                g.add(&g.mul(x, p0)?, &g.mul(&bounded, p1)?)
            }
            StepKind::Project => {
                let share = g.sum_rows(&g.mul(x, p0)?)?; // [1, m]
                g.sub(x, &g.mul(p1, &share)?)
            }
            StepKind::Match => {
                let length = g.unary(&g.sum_rows(&g.mul(x, x)?)?, Unary::Sqrt)?; // [1, m]
                g.add(x, &g.mul(p1, &length)?)
            }
        }
    }
}
