//! Rotation of cached rows, so that quantised caches lose less: `H x` for parts of each head, where H is the Hadamard
//! matrix of an order n, `H[i][j] = (-1)^(number of ones in i AND j) / sqrt(n)`, which is its own inverse.
//!
//! A part of which few elements are large becomes one whose elements are alike, so a block's scale fits all of them.
//! Queries are rotated as the keys are, which leaves their products; what is summed of rotated values is rotated back.

use crate::plan::KeyValuePlan;
use lab_base::ggml::{Result, Tensor};

use super::build::UnitBuilder;
use super::context::DerivedInput;

/// The largest order.
const MOST: u64 = 128;
/// Orders below it are not worth a rotation.
const LEAST: u64 = 8;

/// The orders by which the keys and the values of a unit are rotated; 1: they are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turns {
    pub(super) keys: u64,
    pub(super) values: u64,
}

impl Turns {
    /// The rotation of heads of keys of `dk` elements and values of `dv`, of which `is_quantised` says what is stored
    /// quantised.
    pub(super) fn of(rows: &KeyValuePlan, (dk, dv): (u64, u64), is_quantised: [bool; 2]) -> Self {
        let order = |is_quantised: bool, d: u64| {
            // The lowest bit that is set.
            let order = (d & d.wrapping_neg()).min(MOST);
            if is_quantised && order >= LEAST {
                order
            } else {
                1
            }
        };
        let [keys, values] = is_quantised;
        if rows.v_in_k {
            // A part of a key row is a value or is not.
            let both = order(keys, dk | dv);
            return Self {
                keys: both,
                values: both,
            };
        }
        Self {
            keys: order(keys, dk),
            values: order(values, dv),
        }
    }
}

impl UnitBuilder<'_, '_> {
    /// Rotates each part of `order` elements of `x [d, ...]`, d a multiple of `order`; the shape stays.
    pub(super) fn turn(&self, x: &Tensor, order: u64) -> Result<Tensor> {
        if order == 1 {
            return Ok(x.clone());
        }
        let (g, shape) = (self.g, x.shape());
        let matrix = self.input(DerivedInput::Hadamard(order))?;
        let x = if x.is_contiguous() {
            x.clone()
        } else {
            g.cont(x)?
        };
        let parts = g.reshape(&x, [order, x.elements() / order, 1, 1])?;
        let turned = g.mul_mat(&matrix, &parts)?;
        g.exact(&turned)?;
        g.reshape(&turned, shape)
    }
}

/// The elements of the matrix of an order, a power of two.
pub(crate) fn hadamard(order: u64) -> Vec<f32> {
    let size = 1.0 / (order as f32).sqrt();
    let at = |i: u64| {
        let ones = ((i / order) & (i % order)).count_ones();
        if ones.is_multiple_of(2) { size } else { -size }
    };
    (0..order * order).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_its_own_inverse() {
        for order in [1, 2, 8, 128] {
            let (n, h) = (order as usize, hadamard(order));
            for i in 0..n {
                for j in 0..n {
                    let product: f32 = (0..n).map(|k| h[i * n + k] * h[k * n + j]).sum();
                    let expected = if i == j { 1.0 } else { 0.0 };
                    assert!((product - expected).abs() < 1e-5, "{order}: {i} {j}");
                }
            }
        }
    }

    #[test]
    fn parts_of_heads_are_rotated_that_divide_them() {
        let rows = |v_in_k| KeyValuePlan {
            cache: 0,
            k: 0,
            v: 0,
            heads: 1,
            v_in_k,
            owner: None,
            index: 0,
            pooled: None,
        };
        let of = |v_in_k, dims, is_quantised| {
            let turns = Turns::of(&rows(v_in_k), dims, is_quantised);
            (turns.keys, turns.values)
        };
        assert_eq!(of(false, (128, 96), [true; 2]), (128, 32));
        assert_eq!(of(false, (256, 64), [false, true]), (1, 64));
        assert_eq!(of(false, (20, 64), [true; 2]), (1, 64));
        // The values are the first elements of the keys.
        assert_eq!(of(true, (576, 512), [true, false]), (64, 64));
        assert_eq!(of(true, (576, 512), [false, true]), (1, 1));
    }
}
