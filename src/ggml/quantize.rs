//! Rows of f32 to other element types.

use ggml_sys as sys;

use super::{Error, type_id};
use crate::weights::TensorType;

/// Converts `values`, rows of `row` elements, to `ty`.
///
/// # Errors
/// A type that cannot be made without further data, or rows that are not whole blocks.
pub fn quantize(values: &[f32], row: usize, ty: TensorType) -> Result<Vec<u8>, Error> {
    let fault = |message: String| Error::Arguments {
        op: "quantize",
        message,
    };
    if row == 0 || !values.len().is_multiple_of(row) {
        return Err(fault(format!(
            "{} values are no rows of {row}",
            values.len()
        )));
    }
    let row_bytes = ty.row_bytes(row as u64).ok_or_else(|| {
        fault(format!(
            "rows of {row} are not whole blocks of {} for {ty}",
            ty.block_len()
        ))
    })?;
    match ty {
        TensorType::F32 => return Ok(bytemuck::cast_slice(values).to_vec()),
        TensorType::F16 => {
            return Ok(values
                .iter()
                .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
                .collect());
        }
        TensorType::BF16 => {
            return Ok(values
                .iter()
                .flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())
                .collect());
        }
        TensorType::Q4_0
        | TensorType::Q4_1
        | TensorType::Q5_0
        | TensorType::Q5_1
        | TensorType::Q8_0
        | TensorType::Q2_K
        | TensorType::Q3_K
        | TensorType::Q4_K
        | TensorType::Q5_K
        | TensorType::Q6_K
        | TensorType::IQ4_NL
        | TensorType::IQ4_XS
        | TensorType::MXFP4 => {}
        other => return Err(fault(format!("{other} cannot be made from values alone"))),
    }
    let rows = values.len() / row;
    let mut out = vec![0u8; rows * row_bytes as usize];
    // SAFETY: `values` holds `rows` rows of `row` elements and `out` room for as many quantised
    // rows; none of the types above needs importances.
    let written = unsafe {
        sys::ggml_quantize_chunk(
            type_id(ty),
            values.as_ptr(),
            out.as_mut_ptr().cast(),
            0,
            rows as i64,
            row as i64,
            std::ptr::null(),
        )
    };
    if written != out.len() {
        return Err(fault(format!(
            "ggml wrote {written} bytes, expected {}",
            out.len()
        )));
    }
    Ok(out)
}
