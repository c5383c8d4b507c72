//! Matrix products.

use ggml_sys as sys;

use super::super::Error;
use super::super::arena::Tensor;
use super::{Graph, fault, is_matrix_type};
use crate::weights::TensorType;

impl Graph {
    /// `a [k, n, ..] . b [k, m, ..] -> [n, m, ..]`, f32. Batches of `b` may be multiples of `a`'s.
    ///
    /// # Errors
    /// Shapes that do not go together, types that are not numbers.
    pub fn mul_mat(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        let (sa, sb, nb) = (a.shape(), b.shape(), a.strides());
        if sa[0] != sb[0] || sb[2] % sa[2] != 0 || sb[3] % sa[3] != 0 {
            return fault("mul_mat", format!("{a:?} does not multiply {b:?}"));
        }
        let typed = is_matrix_type(a.ty()) && matches!(b.ty(), TensorType::F32);
        if !typed || nb[0] > nb[1] || !a.has_dense_rows() || !b.has_dense_rows() {
            return fault(
                "mul_mat",
                format!("{a:?} and {b:?}: expected dense rows of numbers, the second f32"),
            );
        }
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked above.
        let ptr = unsafe { sys::ggml_mul_mat(ctx, a.as_ptr(), b.as_ptr()) };
        self.node("mul_mat", ptr, &[a, b])
    }

    /// Asks for f32 accumulation in a matrix product, which some devices otherwise do in f16.
    ///
    /// # Errors
    /// The tensor is no matrix product.
    pub fn exact(&self, product: &Tensor) -> Result<(), Error> {
        // SAFETY: the tensor is alive.
        if unsafe { sys::shim_tensor_op(product.as_ptr()) } as sys::ggml_op != sys::GGML_OP_MUL_MAT
        {
            return fault("exact", format!("{product:?} is no matrix product"));
        }
        // SAFETY: the node is a matrix product.
        unsafe { sys::ggml_mul_mat_set_prec(product.as_ptr(), sys::GGML_PREC_F32) };
        Ok(())
    }
}
