//! Checks that several operations share.

use crate::weights::TensorType;

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
