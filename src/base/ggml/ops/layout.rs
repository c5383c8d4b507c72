//! Operations that change the shape, order or type of elements.

use ggml_sys as sys;

use super::super::arena::Tensor;
use super::super::error::Error;
use super::{Graph, fault, is_matrix_type};
use crate::weights::TensorType;

impl Graph {
    /// A tensor with the same elements in another shape; the tensor itself if it has the shape. A node that changes
    /// nothing would keep backends from computing the nodes before and after it together.
    pub fn reshape(&self, a: &Tensor, shape: [u64; 4]) -> Result<Tensor, Error> {
        let elements = shape.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim));
        if elements != Some(a.elements())
            || !a.is_contiguous()
            || a.ty().row_bytes(shape[0]).is_none()
        {
            return fault("reshape", format!("{a:?} to {shape:?}"));
        }
        if a.shape() == shape && a.has_whole_strides() {
            return Ok(a.clone());
        }
        let n = shape.map(|dim| dim as i64);
        // SAFETY: contiguity and the number of elements were checked.
        let reshaped = append!(
            self,
            "reshape",
            sys::ggml_reshape_4d,
            [a],
            n[0],
            n[1],
            n[2],
            n[3]
        )?;
        self.bound_as(&reshaped, a);
        Ok(reshaped)
    }

    /// A view: `shape` elements, with steps of `strides` bytes for dimensions 1 to 3, from `offset` bytes on.
    pub fn view(
        &self,
        a: &Tensor,
        shape: [u64; 4],
        strides: [usize; 3],
        offset: usize,
    ) -> Result<Tensor, Error> {
        let block = a.ty().block_bytes() as usize;
        let end = a.ty().row_bytes(shape[0]).and_then(|row| {
            (1..4).try_fold(row, |end, dim| {
                end.checked_add((strides[dim - 1] as u64).checked_mul(shape[dim].checked_sub(1)?)?)
            })
        });
        // ggml counts the elements of overlapping rows once for each row.
        let end = end.zip(a.ty().tensor_bytes(&shape));
        let inside = end
            .map(|(end, dense)| end.max(dense))
            .and_then(|end| end.checked_add(offset as u64))
            .is_some_and(|end| end <= a.bytes() as u64);
        let whole = a.has_dense_rows()
            && offset.is_multiple_of(block)
            && strides.iter().all(|s| s.is_multiple_of(block));
        if shape.contains(&0) || !inside || !whole {
            return fault(
                "view",
                format!("{a:?}: {shape:?} by {strides:?} from byte {offset}"),
            );
        }
        let n = shape.map(|dim| dim as i64);
        // SAFETY: the window lies inside the tensor's bytes (checked above).
        append!(
            self,
            "view",
            sys::ggml_view_4d,
            [a],
            n[0],
            n[1],
            n[2],
            n[3],
            strides[0],
            strides[1],
            strides[2],
            offset
        )
    }

    /// A view in which dimension `i` of the tensor is dimension `axes[i]`.
    pub fn permute(&self, a: &Tensor, axes: [usize; 4]) -> Result<Tensor, Error> {
        let mut sorted = axes;
        sorted.sort_unstable();
        if sorted != [0, 1, 2, 3] {
            return fault("permute", format!("{axes:?} is not a permutation"));
        }
        let x = axes.map(|axis| axis as i32);
        // SAFETY: the axes are a permutation of the four dimensions.
        append!(
            self,
            "permute",
            sys::ggml_permute,
            [a],
            x[0],
            x[1],
            x[2],
            x[3]
        )
    }

    /// The elements in contiguous memory that no operation writes to before their last reader: a copy, if they are
    /// elsewhere. Rows are written into a [`Self::copy`].
    ///
    /// # Errors
    /// A quantised tensor is permuted.
    pub fn cont(&self, a: &Tensor) -> Result<Tensor, Error> {
        match a.is_contiguous() && self.is_scratch(a) {
            // Operations may expect the strides of contiguous elements in dimensions of one element, too.
            true => self.reshape(a, a.shape()),
            false => self.copy(a),
        }
    }

    /// A contiguous copy.
    ///
    /// # Errors
    /// The errors of [`Self::cont`].
    pub fn copy(&self, a: &Tensor) -> Result<Tensor, Error> {
        if !a.ty().is_plain() && !a.has_dense_rows() {
            return fault(
                "cont",
                format!("{a:?} has rows of blocks that are not dense"),
            );
        }
        // SAFETY: any tensor of plain elements or dense rows can be copied.
        append!(self, "cont", sys::ggml_cont, [a])
    }

    /// A contiguous copy of another type.
    ///
    /// # Errors
    /// ggml does not convert between the two types.
    pub fn cast(&self, a: &Tensor, ty: TensorType) -> Result<Tensor, Error> {
        let from = is_matrix_type(a.ty()) && a.has_dense_rows();
        let to = matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16);
        // Quantised rows can only become f32.
        if !from || !to || (!a.ty().is_plain() && ty != TensorType::F32) {
            return fault("cast", format!("{a:?} to {ty}"));
        }
        // SAFETY: the pair of types was checked.
        append!(self, "cast", sys::ggml_cast, [a], ty.id())
    }

    /// `b` after `a` in dimension `dim`; same type, other dimensions equal.
    pub fn concat(&self, a: &Tensor, b: &Tensor, dim: usize) -> Result<Tensor, Error> {
        let (sa, sb) = (a.shape(), b.shape());
        let same = (0..4).all(|i| i == dim || sa[i] == sb[i]);
        let typed = a.ty() == b.ty() && matches!(a.ty(), TensorType::F32 | TensorType::F16);
        if dim > 3 || !same || !typed {
            return fault("concat", format!("{b:?} after {a:?} in dimension {dim}"));
        }
        // SAFETY: shapes, types and the dimension were checked.
        append!(self, "concat", sys::ggml_concat, [a, b], dim as i32)
    }

    /// `a` repeated to the given shape; f32.
    pub fn repeat(&self, a: &Tensor, shape: [u64; 4]) -> Result<Tensor, Error> {
        let sa = a.shape();
        if (0..4).any(|i| shape[i] == 0 || !shape[i].is_multiple_of(sa[i]))
            || a.ty() != TensorType::F32
        {
            return fault("repeat", format!("{a:?} to {shape:?}"));
        }
        let n = shape.map(|dim| dim as i64);
        // SAFETY: the shape is a multiple of the tensor's.
        append!(
            self,
            "repeat",
            sys::ggml_repeat_4d,
            [a],
            n[0],
            n[1],
            n[2],
            n[3]
        )
    }
}
