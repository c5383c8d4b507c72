//! Rows taken from and written to tables by index.

use ggml_sys as sys;

use super::super::Error;
use super::super::arena::Tensor;
use super::{Graph, fault, is_matrix_type};
use crate::weights::TensorType;

impl Graph {
    /// Rows of `table [n, rows]` named by `ids [m]` -> `[n, m]`, f32.
    ///
    /// # Errors
    /// Ids that are not an index tensor bounded by the number of rows.
    pub fn get_rows(&self, table: &Tensor, ids: &Tensor) -> Result<Tensor, Error> {
        let (st, si) = (table.shape(), ids.shape());
        if st[2] != 1
            || st[3] != 1
            || si[1] != 1
            || si[2] != 1
            || si[3] != 1
            || !table.has_dense_rows()
        {
            return fault(
                "get_rows",
                format!("{table:?} by {ids:?}: expected a matrix and a vector"),
            );
        }
        if ids.ty() != TensorType::I32 || !(is_matrix_type(table.ty())) {
            return fault(
                "get_rows",
                format!("{table:?} by {ids:?}: expected numbers by i32"),
            );
        }
        self.bounded("get_rows", ids, st[1])?;
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes and types were checked; the values of `ids` are bounded when written.
        let ptr = unsafe { sys::ggml_get_rows(ctx, table.as_ptr(), ids.as_ptr()) };
        self.node("get_rows", ptr, &[table, ids])
    }

    /// Writes rows `values [n, m]` (f32) into `target [n, rows]` at `ids [m]` (i64); the result is
    /// the target after writing.
    ///
    /// # Errors
    /// Ids that are not an index tensor bounded by the number of rows; a target of the host's
    /// read-only memory is never f32 state, so only tensors of an arena that was allocated qualify.
    pub fn set_rows(
        &self,
        target: &Tensor,
        values: &Tensor,
        ids: &Tensor,
    ) -> Result<Tensor, Error> {
        let (st, sv, si) = (target.shape(), values.shape(), ids.shape());
        let flat = st[2] == 1 && st[3] == 1 && sv[2] == 1 && sv[3] == 1 && si[1..] == [1, 1, 1];
        if !flat
            || st[0] != sv[0]
            || sv[1] != si[0]
            || !target.has_dense_rows()
            || !values.has_dense_rows()
        {
            return fault("set_rows", format!("{values:?} into {target:?} at {ids:?}"));
        }
        let stored = matches!(
            target.ty(),
            TensorType::F32
                | TensorType::F16
                | TensorType::BF16
                | TensorType::Q8_0
                | TensorType::Q4_0
                | TensorType::Q4_1
                | TensorType::Q5_0
                | TensorType::Q5_1
                | TensorType::IQ4_NL
        );
        if values.ty() != TensorType::F32 || ids.ty() != TensorType::I64 || !stored {
            return fault(
                "set_rows",
                format!("{values:?} into {target:?} at {ids:?}: unsupported types"),
            );
        }
        if target.arena.is_host_memory() {
            return fault("set_rows", format!("{target:?} is read-only"));
        }
        self.bounded("set_rows", ids, st[1])?;
        let ctx = self.arena.reserve()?;
        // SAFETY: shapes, types and layout were checked; the values of `ids` are bounded when
        // written, and the target's memory is our own.
        let ptr =
            unsafe { sys::ggml_set_rows(ctx, target.as_ptr(), values.as_ptr(), ids.as_ptr()) };
        self.node("set_rows", ptr, &[target, values, ids])
    }

    fn bounded(&self, op: &'static str, ids: &Tensor, rows: u64) -> Result<(), Error> {
        match ids.arena.0.bounds.borrow().get(&ids.key()) {
            Some(&bound) if bound <= rows => Ok(()),
            Some(&bound) => fault(
                op,
                format!("`{}` goes up to {bound}, there are {rows} rows", ids.name()),
            ),
            None => fault(op, format!("`{}` is not an index tensor", ids.name())),
        }
    }
}
