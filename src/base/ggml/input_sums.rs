//! Sums of squares of the values that weights are multiplied with, column by column: the importance of the columns.
//!
//! A product of experts adds the rows of each expert to the sums of its matrix. Products with a part of a weight whose rows
//! are shorter, and products of values of other types than f32, are left out.

use std::collections::{HashMap, HashSet};

use ggml_sys as sys;

use super::arena::Tensor;
use super::quantize::IMPORTANCE_LIMIT;
use crate::weights::TensorType;

/// Sums of squares by weight.
pub struct InputSums {
    weights: HashSet<usize>,
    sums: HashMap<usize, ColumnSums>,
    buffer: Vec<u8>,
    ids: Vec<u8>,
}

/// Sums over the rows that a weight was multiplied with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnSums {
    /// For each matrix of the weight, for each column.
    pub sums: Vec<f32>,
    /// Rows: for each matrix of experts; one number for all matrices of other weights.
    pub counts: Vec<f32>,
}

impl ColumnSums {
    /// Mean squares for the columns of each matrix, at most [`IMPORTANCE_LIMIT`]. A matrix that no row met has ones.
    pub fn means(&self) -> Vec<f32> {
        let width = self.sums.len() / self.counts.len().max(1);
        let columns = self.sums.chunks(width.max(1)).zip(&self.counts);
        let mean = |(sums, count): (&[f32], &f32)| -> Vec<f32> {
            let mean = |sum: &f32| if *count > 0.0 { sum / count } else { 1.0 };
            let mut means: Vec<f32> = sums.iter().map(mean).collect();
            // Only ratios matter; a factor that is a power of two changes no ratio.
            let largest = means.iter().copied().fold(0.0, f32::max);
            if largest > IMPORTANCE_LIMIT {
                let factor = (IMPORTANCE_LIMIT / largest).log2().floor().exp2();
                means.iter_mut().for_each(|mean| *mean *= factor);
            }
            means
        };
        columns.flat_map(mean).collect()
    }
}

/// Sides and distances of a tensor.
struct Layout {
    ne: [usize; 4],
    nb: [usize; 4],
}

impl Layout {
    /// # Safety
    /// The tensor is alive.
    unsafe fn new(tensor: *const sys::ggml_tensor) -> Self {
        // SAFETY: the caller vouches for the tensor; ggml's tensors have four dimensions.
        let ne = [0, 1, 2, 3].map(|d| unsafe { sys::shim_tensor_ne(tensor, d) } as usize);
        // SAFETY: as above.
        let nb = [0, 1, 2, 3].map(|d| unsafe { sys::shim_tensor_nb(tensor, d) });
        Self { ne, nb }
    }

    /// The first `n` bytes of the element at these indices of the dimensions above the first.
    fn row<'b>(&self, bytes: &'b [u8], at: [usize; 3], n: usize) -> &'b [u8] {
        let from = at[0] * self.nb[1] + at[1] * self.nb[2] + at[2] * self.nb[3];
        &bytes[from..from + n]
    }
}

impl InputSums {
    pub(super) fn new(weights: HashSet<usize>) -> Self {
        Self {
            weights,
            sums: HashMap::new(),
            buffer: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// The sums of a weight; none if no product read it.
    pub fn of(&self, weight: &Tensor) -> Option<&ColumnSums> {
        self.sums.get(&weight.key())
    }

    /// Adds what a node has multiplied with a weight, if it has.
    ///
    /// # Safety
    /// The node has been computed, and its sources are alive and hold their values.
    pub(super) unsafe fn add(&mut self, node: *mut sys::ggml_tensor) {
        // SAFETY: the caller vouches for the node; a source that is not there is null.
        let (op, weight, input, ids) = unsafe {
            (
                sys::shim_tensor_op(node) as sys::ggml_op,
                sys::shim_tensor_src(node, 0),
                sys::shim_tensor_src(node, 1),
                sys::shim_tensor_src(node, 2),
            )
        };
        let is_experts = op == sys::GGML_OP_MUL_MAT_ID;
        if !(is_experts || op == sys::GGML_OP_MUL_MAT) || weight.is_null() || input.is_null() {
            return;
        }
        // SAFETY: `weight` and `input` are sources of the node.
        let (root, ty) = unsafe {
            let of = sys::shim_tensor_view_src(weight);
            let root = if of.is_null() { weight } else { of };
            (root, sys::shim_tensor_type(input) as u32)
        };
        if ty != TensorType::F32.id() || !self.weights.contains(&(root as usize)) {
            return;
        }
        // SAFETY: all three are alive.
        let (root_at, of_weight, of_input) =
            unsafe { (Layout::new(root), Layout::new(weight), Layout::new(input)) };
        let (width, n_matrices) = (root_at.ne[0], root_at.ne[2] * root_at.ne[3]);
        let is_part = of_weight.ne[0] != width || of_weight.ne[2] * of_weight.ne[3] != n_matrices;
        if is_part || of_input.ne[0] != width || of_input.nb[0] != size_of::<f32>() {
            return;
        }
        // SAFETY: the tensors are computed, and the buffers have their sizes.
        unsafe {
            read(input, &mut self.buffer);
            if is_experts {
                read(ids, &mut self.ids);
            }
        }
        let all = self
            .sums
            .entry(root as usize)
            .or_insert_with(|| ColumnSums {
                sums: vec![0.0; width * n_matrices],
                counts: vec![0.0; if is_experts { n_matrices } else { 1 }],
            });
        let mut add = |matrix: usize, at: [usize; 3]| {
            let row = of_input.row(&self.buffer, at, width * size_of::<f32>());
            let sums = &mut all.sums[matrix * width..][..width];
            for (sum, value) in sums.iter_mut().zip(row.as_chunks::<4>().0) {
                let value = f32::from_le_bytes(*value);
                *sum += value * value;
            }
        };
        let [_, n1, n2, n3] = of_input.ne;
        if is_experts {
            // Ids [n_used, n_tokens] of the rows [width, n_used or 1, n_tokens].
            // SAFETY: an operation on experts has ids.
            let of_ids = unsafe { Layout::new(ids) };
            for token in 0..of_ids.ne[1] {
                for used in 0..of_ids.ne[0] {
                    let from = token * of_ids.nb[1] + used * of_ids.nb[0];
                    let Some(id) = self
                        .ids
                        .get(from..)
                        .and_then(|rest| rest.first_chunk::<4>())
                    else {
                        continue;
                    };
                    let expert = i32::from_le_bytes(*id);
                    let Some(count) = all.counts.get_mut(expert as usize) else {
                        continue;
                    };
                    *count += 1.0;
                    add(expert as usize, [used % n1, token, 0]);
                }
            }
            return;
        }
        let [_, _, w2, w3] = of_weight.ne;
        for i3 in 0..n3 {
            for i2 in 0..n2 {
                for i1 in 0..n1 {
                    add((i3 % w3) * w2 + i2 % w2, [i1, i2, i3]);
                }
            }
        }
        all.counts[0] += (n1 * n2 * n3) as f32 / n_matrices as f32;
    }
}

/// The bytes of a tensor, from its first to its last element.
///
/// # Safety
/// The tensor is alive and computed.
unsafe fn read(tensor: *mut sys::ggml_tensor, into: &mut Vec<u8>) {
    // SAFETY: the caller vouches for the tensor; the buffer has its size.
    unsafe {
        into.resize(sys::ggml_nbytes(tensor), 0);
        sys::ggml_backend_tensor_get(tensor, into.as_mut_ptr().cast(), 0, into.len());
    }
}
