//! Checks that several operations share.

use super::super::error::Error;
use crate::weights::TensorType;

pub(super) fn fault<T>(op: &'static str, message: String) -> Result<T, Error> {
    Err(Error::Arguments { op, message })
}

/// Whether a matrix product can read weights of a type.
pub(super) fn is_matrix_type(ty: TensorType) -> bool {
    !matches!(
        ty,
        TensorType::I8
            | TensorType::I16
            | TensorType::I32
            | TensorType::I64
            | TensorType::F64
            | TensorType::Q8_1
            | TensorType::Q8_K
    )
}
