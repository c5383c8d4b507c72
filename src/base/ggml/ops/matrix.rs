//! Matrix products.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault, is_matrix_type};
use crate::weights::TensorType;

impl Graph {
    /// `a [k, n, ..] . b [k, m, ..] -> [n, m, ..]`, f32. The batches of `b` may be a multiple of those of `a`.
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
        // SAFETY: shapes, types and layout were checked above.
        let product = append!(self, "mul_mat", sys::ggml_mul_mat, [a, b])?;
        // SAFETY: the node is a matrix product.
        unsafe { sys::shim_product_in_bf16(product.as_ptr()) };
        Ok(product)
    }

    /// Requests f32 accumulation in a matrix product; some devices otherwise accumulate in f16.
    pub fn exact(&self, product: &Tensor) -> Result<(), Error> {
        // SAFETY: the tensor is alive.
        if unsafe { sys::shim_tensor_op(product.as_ptr()) } as sys::ggml_op != sys::GGML_OP_MUL_MAT
        {
            return fault("exact", format!("{product:?} is not a matrix product"));
        }
        // SAFETY: the node is a matrix product.
        unsafe { sys::ggml_mul_mat_set_prec(product.as_ptr(), sys::GGML_PREC_F32) };
        Ok(())
    }

    /// The products with the matrices that `ids` selects: `a [k, n, experts]`, `b [k, 1 or used, m]`, `ids [used, m]`
    /// -> `[n, used, m]`, f32.
    pub fn mul_mat_id(&self, a: &Tensor, b: &Tensor, ids: &Tensor) -> Result<Tensor, Error> {
        let (sa, sb, si) = (a.shape(), b.shape(), ids.shape());
        let fits = sa[0] == sb[0]
            && sa[3] == 1
            && sb[3] == 1
            && si[2..] == [1, 1]
            && si[1] == sb[2]
            && si[0] % sb[1] == 0;
        let typed = is_matrix_type(a.ty()) && b.ty() == TensorType::F32;
        let dense = a.is_contiguous() && b.has_dense_rows() && ids.has_dense_rows();
        if !fits || !typed || !dense || ids.ty() != TensorType::I32 {
            return fault(
                "mul_mat_id",
                format!("{a:?} by {ids:?} does not multiply {b:?}"),
            );
        }
        self.bounded("mul_mat_id", ids, sa[2])?;
        // SAFETY: shapes, types and layout were checked; the values of `ids` are bounded.
        let product = append!(self, "mul_mat_id", sys::ggml_mul_mat_id, [a, b, ids])?;
        // SAFETY: the node is a matrix product.
        unsafe { sys::shim_product_in_bf16(product.as_ptr()) };
        Ok(product)
    }

    /// `a [n, used, m]` plus the columns of `b [n, experts]` that `ids [used, m]` selects; f32.
    pub fn add_id(&self, a: &Tensor, b: &Tensor, ids: &Tensor) -> Result<Tensor, Error> {
        let (sa, sb, si) = (a.shape(), b.shape(), ids.shape());
        let fits = sa[0] == sb[0]
            && sb[2..] == [1, 1]
            && sa[3] == 1
            && sa[1] == si[0]
            && sa[2] == si[1]
            && si[2..] == [1, 1];
        let typed = a.ty() == TensorType::F32 && b.ty() == TensorType::F32;
        let dense = a.has_dense_rows() && b.has_dense_rows() && ids.has_dense_rows();
        if !fits || !typed || !dense || ids.ty() != TensorType::I32 {
            return fault("add_id", format!("{b:?} by {ids:?} to {a:?}"));
        }
        self.bounded("add_id", ids, sb[1])?;
        // SAFETY: shapes, types and layout were checked; the values of `ids` are bounded.
        append!(self, "add_id", sys::ggml_add_id, [a, b, ids])
    }
}
