//! A lazy tensor that an expression over the indices of its elements gives: a vector, or a matrix such as a table of
//! sinusoids. Rows are computed when they are read.

use crate::arch::expr::{Expr, Scope, Value};
use lab_base::weights::LazyTensor;

use super::config::ConfigScope;
use super::recipe::INDEX;

/// The index of an element along the fastest axis of a matrix.
const COLUMN: &str = "j";
/// Maximum number of elements, which takes seconds to compute.
const MAX_ELEMENTS: u64 = 1 << 24;

#[derive(Clone, Debug)]
pub(super) struct ComputedTensor {
    each: Expr,
    /// Rows and elements of a row; a vector has one row.
    n_rows: u64,
    row_len: u64,
    is_matrix: bool,
}

impl ComputedTensor {
    /// A tensor of this shape, slowest axis first.
    pub(super) fn new(shape: &[u64], each: &Expr, at: &ConfigScope<'_>) -> Result<Self, String> {
        let (n_rows, row_len) = match *shape {
            [n] => (1, n),
            [n_rows, row_len] => (n_rows, row_len),
            _ => {
                let n = shape.len();
                return Err(format!(
                    "{n} axes, but a computed tensor is a vector or a matrix"
                ));
            }
        };
        let n = n_rows.saturating_mul(row_len);
        if n > MAX_ELEMENTS {
            return Err(format!("{n} elements, expected at most {MAX_ELEMENTS}"));
        }
        let is_matrix = shape.len() == 2;
        let free: &[&str] = if is_matrix {
            &[INDEX, COLUMN]
        } else {
            &[INDEX]
        };
        let computed = Self {
            each: at.bind(each, free)?,
            n_rows,
            row_len,
            is_matrix,
        };
        if n > 0 {
            computed.element(0, 0)?;
        }
        Ok(computed)
    }

    fn element(&self, row: u64, column: u64) -> Result<f32, String> {
        let place = match self.is_matrix {
            true => ElementIndices {
                i: row,
                j: Some(column),
            },
            false => ElementIndices { i: column, j: None },
        };
        match self.each.evaluate(&place)? {
            Value::Float(v) => Ok(v as f32),
            Value::Int(v) => Ok(v as f32),
            other => Err(format!("an element is {other}, expected a number")),
        }
    }
}

impl LazyTensor for ComputedTensor {
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), String> {
        let row_bytes = 4 * self.row_len as usize;
        if row_bytes == 0 {
            return Ok(());
        }
        for (row, out) in (first..).zip(out.chunks_mut(row_bytes)) {
            if row >= self.n_rows {
                return Err(format!("there are only {} rows", self.n_rows));
            }
            for (column, out) in (0..).zip(out.chunks_mut(4)) {
                out.copy_from_slice(&self.element(row, column)?.to_le_bytes());
            }
        }
        Ok(())
    }
}

struct ElementIndices {
    i: u64,
    j: Option<u64>,
}

impl Scope for ElementIndices {
    fn name(&self, name: &str, _: bool) -> Result<Value, String> {
        let index = match name {
            INDEX => Some(self.i),
            COLUMN => self.j,
            _ => None,
        };
        let index = index.ok_or_else(|| format!("an element has no `{name}`"))?;
        Ok(Value::Int(index as i64))
    }
}
