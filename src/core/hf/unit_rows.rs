//! A lazy tensor with the rows of a [`Recipe`], normalised to Euclidean length 1. This normalises weights once; it does
//! not normalise hidden states.

use std::sync::Arc;

use crate::arch::expr::Expr;
use lab_base::weights::{LazyTensor, TensorData, TensorType};

use super::recipe::{ELEMENT, Recipe, RecipePart};

/// Lower bound of the length by which a row is divided, so that a row of zeros stays zero.
const MIN_LENGTH: f64 = 1e-12;

/// The rows of a recipe in f32, each divided by its length.
#[derive(Clone, Debug)]
pub(super) struct UnitRows {
    of: Recipe,
    /// Number of elements of a row.
    width: usize,
}

impl UnitRows {
    /// The type and the data of a tensor of this shape (slowest axis first).
    pub(super) fn data(
        parts: Vec<RecipePart>,
        is_beside: bool,
        shape: &[u64],
        times: Option<RecipePart>,
        each: Option<Expr>,
    ) -> Result<(TensorType, TensorData), String> {
        // A function of the elements converts them to f32.
        let each = each.map_or_else(|| Expr::parse(ELEMENT, 0), Ok);
        let each = each.map_err(|problem| problem.message)?;
        let of = Recipe::new(parts, is_beside, shape, times, Some(each))?;
        let width = shape.last().copied().unwrap_or(1) as usize;
        let ty = of.ty();
        Ok((ty, TensorData::Lazy(Arc::new(Self { of, width }))))
    }
}

impl LazyTensor for UnitRows {
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), String> {
        self.of.rows(first, out)?;
        for row in out.chunks_mut(4 * self.width) {
            let value = |b: &[u8]| f64::from(f32::from_le_bytes(b.try_into().unwrap_or_default()));
            let squares: f64 = row.chunks(4).map(|b| value(b).powi(2)).sum();
            let length = squares.sqrt().max(MIN_LENGTH);
            for element in row.chunks_mut(4) {
                let unit = (value(element) / length) as f32;
                element.copy_from_slice(&unit.to_le_bytes());
            }
        }
        Ok(())
    }
}
