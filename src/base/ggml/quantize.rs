//! Converts rows of f32 to other element types, and back.

use ggml_sys as sys;

use super::error::Error;
use crate::weights::TensorType;

/// The quantised types that can be made of values.
pub const MADE_TYPES: [TensorType; 25] = [
    TensorType::Q1_0,
    TensorType::Q2_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ1_S,
    TensorType::IQ1_M,
    TensorType::IQ2_XXS,
    TensorType::IQ2_XS,
    TensorType::IQ2_S,
    TensorType::IQ3_XXS,
    TensorType::IQ3_S,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::TQ1_0,
    TensorType::TQ2_0,
    TensorType::MXFP4,
    TensorType::NVFP4,
];

/// Magnitudes above this do not fit the scale of any type with a grid.
const GRID_LIMIT: f32 = 1e7;
/// Importances above this could overflow sums of products with squared values.
pub const IMPORTANCE_LIMIT: f32 = 1e12;

/// Whether values become a type only with the importance of their columns.
pub const fn needs_importance(ty: TensorType) -> bool {
    matches!(
        ty,
        TensorType::IQ2_XXS | TensorType::IQ2_XS | TensorType::IQ1_S
    )
}

/// Whether a type is a search in a grid, which ends the process where numbers overflow.
const fn has_grid(ty: TensorType) -> bool {
    matches!(
        ty,
        TensorType::IQ1_S
            | TensorType::IQ1_M
            | TensorType::IQ2_XXS
            | TensorType::IQ2_XS
            | TensorType::IQ2_S
            | TensorType::IQ3_XXS
            | TensorType::IQ3_S
    )
}

/// Values and importances for which the search in a grid finds a point: where products underflow to zero, ggml takes a point of which
/// it knows nothing, and ends the process if that is not on the grid. Values that a scale in f16 rounds to zero become zero. Importances
/// are multiplied with a power of two, which changes no bit of the result, and are then 1 or more: below the rounding of sums with the
/// largest, which is near 10^12.
fn for_grid(values: &[f32], importance: Option<&[f32]>) -> (Vec<f32>, Option<Vec<f32>>) {
    let kept = |v: &f32| if v.abs() < 1e-7 { 0.0 } else { *v };
    let values = values.iter().map(kept).collect();
    let importance = importance.map(|all| {
        let most = all.iter().copied().fold(0.0, f32::max);
        let exponent = match most >= f32::MIN_POSITIVE {
            true => 39 - most.log2().ceil() as i32,
            false => 0,
        };
        // In two steps, since the factor itself may be too large for a float.
        let half = exponent / 2;
        let factors = [half, exponent - half].map(|n| (n as f32).exp2());
        let scaled = all.iter().map(|v| (v * factors[0] * factors[1]).max(1.0));
        scaled.collect()
    });
    (values, importance)
}

/// Converts `values`, rows of `row` elements, to `ty`.
///
/// # Errors
/// The type needs further data, or the rows are not whole blocks.
pub fn quantize(values: &[f32], row: usize, ty: TensorType) -> Result<Vec<u8>, Error> {
    let row_bytes = ty.row_bytes(row as u64).unwrap_or(0) as usize;
    let mut out = vec![0; values.len().checked_div(row).unwrap_or(0) * row_bytes];
    quantize_into(values, row, ty, None, &mut out)?;
    Ok(out)
}

/// [`quantize`] into memory of exactly the right size. `importance` has a weight for each column, by which its errors count.
pub fn quantize_into(
    values: &[f32],
    row: usize,
    ty: TensorType,
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), Error> {
    let fault = |message: String| Error::Arguments {
        op: "quantize",
        message,
    };
    if row == 0 || !values.len().is_multiple_of(row) {
        return Err(fault(format!(
            "{} values are not rows of {row}",
            values.len()
        )));
    }
    let row_bytes = ty.row_bytes(row as u64).ok_or_else(|| {
        fault(format!(
            "rows of {row} are not whole blocks of {} for {ty}",
            ty.block_len()
        ))
    })?;
    let rows = values.len() / row;
    if out.len() as u64 != rows as u64 * row_bytes {
        let expected = rows as u64 * row_bytes;
        return Err(fault(format!("{} bytes, expected {expected}", out.len())));
    }
    match ty {
        TensorType::F32 => {
            out.copy_from_slice(bytemuck::cast_slice(values));
            return Ok(());
        }
        TensorType::F16 => {
            for (out, value) in out.chunks_exact_mut(2).zip(values) {
                out.copy_from_slice(&half::f16::from_f32(*value).to_le_bytes());
            }
            return Ok(());
        }
        TensorType::BF16 => {
            for (out, value) in out.chunks_exact_mut(2).zip(values) {
                out.copy_from_slice(&half::bf16::from_f32(*value).to_le_bytes());
            }
            return Ok(());
        }
        ty if MADE_TYPES.contains(&ty) => {}
        other => return Err(fault(format!("{other} cannot be made from values"))),
    }
    if importance.is_none() && needs_importance(ty) {
        return Err(fault(format!("{ty} needs the importance of the columns")));
    }
    if let Some(importance) = importance {
        if importance.len() != row {
            return Err(fault(format!(
                "{} importances for rows of {row}",
                importance.len()
            )));
        }
        let fits = |v: &f32| (0.0..=IMPORTANCE_LIMIT).contains(v);
        if let Some(v) = importance.iter().find(|v| !fits(v)) {
            return Err(fault(format!("{v} is no importance")));
        }
    }
    let fits = |all: bool, v: &f32| all & (v.abs() <= GRID_LIMIT);
    if has_grid(ty) && !values.iter().fold(true, fits) {
        return Err(fault(format!(
            "a value above {GRID_LIMIT:e} does not fit {ty}"
        )));
    }
    let safe = has_grid(ty).then(|| for_grid(values, importance));
    let (values, importance) = match &safe {
        Some((values, importance)) => (values.as_slice(), importance.as_deref()),
        None => (values, importance),
    };
    // SAFETY: `values` holds `rows` rows of `row` elements and `out` room for as many quantised
    // rows; `importance` is there where the type needs it, and has `row` elements.
    let written = unsafe {
        sys::ggml_quantize_chunk(
            ty.id(),
            values.as_ptr(),
            out.as_mut_ptr().cast(),
            0,
            rows as i64,
            row as i64,
            importance.map_or(std::ptr::null(), <[f32]>::as_ptr),
        )
    };
    if written != out.len() {
        return Err(fault(format!(
            "ggml wrote {written} bytes, expected {}",
            out.len()
        )));
    }
    Ok(())
}

/// Converts whole blocks of `ty` to floats; `out` must have exactly as many elements.
///
/// # Errors
/// The type has no values of its own, or the sizes do not fit each other.
pub fn dequantize(bytes: &[u8], ty: TensorType, out: &mut [f32]) -> Result<(), Error> {
    let fault = |message: String| Error::Arguments {
        op: "dequantize",
        message,
    };
    if ty.row_bytes(out.len() as u64) != Some(bytes.len() as u64) {
        return Err(fault(format!(
            "{} bytes of {ty} are not {} elements",
            bytes.len(),
            out.len()
        )));
    }
    match ty {
        TensorType::F32 => {
            bytemuck::cast_slice_mut::<_, u8>(out).copy_from_slice(bytes);
            return Ok(());
        }
        TensorType::F16 => {
            for (out, half) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = half::f16::from_le_bytes([half[0], half[1]]).to_f32();
            }
            return Ok(());
        }
        TensorType::BF16 => {
            for (out, half) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = half::bf16::from_le_bytes([half[0], half[1]]).to_f32();
            }
            return Ok(());
        }
        _ => {}
    }
    // Blocks hold 16-bit numbers, and in a mapped file they may start at any address.
    let aligned: Vec<u64>;
    let mut from = bytes.as_ptr();
    if !from.cast::<u64>().is_aligned() {
        let mut copy = vec![0u64; bytes.len().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut::<_, u8>(&mut copy)[..bytes.len()].copy_from_slice(bytes);
        aligned = copy;
        from = aligned.as_ptr().cast();
    }
    // SAFETY: `from` holds as many aligned bytes of `ty` as `out` has elements (checked above).
    let is_done = unsafe {
        sys::shim_dequantize(
            ty.id() as i32,
            from.cast(),
            out.as_mut_ptr(),
            out.len() as i64,
        )
    };
    match is_done {
        true => Ok(()),
        false => Err(fault(format!("{ty} has no values of its own"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_values_wherever_they_begin() {
        // The scale is 0.5 and the numbers are -16 to 15.
        let mut block = half::f16::from_f32(0.5).to_le_bytes().to_vec();
        block.extend((-16i8..16).map(i8::cast_unsigned));
        let expected: Vec<f32> = (-16i8..16).map(|v| 0.5 * f32::from(v)).collect();
        for shift in 0..8 {
            let shifted = [&vec![0xff; shift][..], &block].concat();
            let mut values = [0.0; 32];
            dequantize(&shifted[shift..], TensorType::Q8_0, &mut values).expect("one block");
            assert_eq!(values[..], expected);
        }
    }

    #[test]
    fn sizes_that_do_not_go_together_are_refused() {
        let mut values = [0.0; 32];
        assert!(dequantize(&[0; 33], TensorType::Q8_0, &mut values).is_err());
        assert!(dequantize(&[0; 34], TensorType::Q8_0, &mut values[..31]).is_err());
        assert!(dequantize(&[0; 128], TensorType::I32, &mut values).is_err());
        assert!(quantize_into(&values, 32, TensorType::Q8_0, None, &mut [0; 33]).is_err());
        assert!(quantize_into(&values, 0, TensorType::F32, None, &mut [0; 128]).is_err());
    }
}
