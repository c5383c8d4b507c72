//! Encodes numbers and codes as blocks of ggml's types.

use half::{bf16, f16};

use lab_base::weights::TensorType;

/// Number of elements of a block of the types that codes become.
pub(super) const BLOCK: usize = 32;

/// Types with a scale and no minimum, each with its lowest code; the highest code is the negated lowest less one. Each
/// type represents the codes of those before it.
pub(super) const SYMMETRIC: [(TensorType, i32); 3] = [
    (TensorType::Q4_0, -8),
    (TensorType::Q5_0, -16),
    (TensorType::Q8_0, -128),
];

/// Writes a block of 32 numbers `scale * (code - zero)`.
pub(super) fn symmetric(ty: TensorType, scale: f32, zero: i32, codes: &[u8], out: &mut [u8]) {
    let (head, quants) = out.split_at_mut(2);
    head.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    let step = |i: usize| i32::from(codes[i]) - zero;
    match ty {
        TensorType::Q4_0 => nibbles(quants, |i| (step(i) + 8) as u8),
        TensorType::Q5_0 => five_bits(quants, |i| (step(i) + 16) as u8),
        _ => {
            for (i, out) in quants.iter_mut().enumerate() {
                *out = step(i) as i8 as u8;
            }
        }
    }
}

/// Writes a block of 32 numbers `scale * code + offset`.
pub(super) fn offset(ty: TensorType, scale: f32, offset: f32, codes: &[u8], out: &mut [u8]) {
    let (head, quants) = out.split_at_mut(4);
    head[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    head[2..].copy_from_slice(&f16::from_f32(offset).to_le_bytes());
    match ty {
        TensorType::Q4_1 => nibbles(quants, |i| codes[i]),
        _ => five_bits(quants, |i| codes[i]),
    }
}

/// Writes `2 n` codes into `n` bytes: codes `i` and `i + n` share byte `i`.
pub(super) fn nibbles(out: &mut [u8], code: impl Fn(usize) -> u8) {
    let n = out.len();
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = (code(i) & 15) | code(i + n) << 4;
    }
}

/// Writes the fifth bits of all codes, then the other bits.
fn five_bits(out: &mut [u8], code: impl Fn(usize) -> u8) {
    let (high, low) = out.split_at_mut(4);
    let bits = (0..BLOCK).fold(0u32, |bits, i| bits | u32::from(code(i) >> 4 & 1) << i);
    high.copy_from_slice(&bits.to_le_bytes());
    nibbles(low, code);
}

/// Writes numbers as a type of single numbers or as q8_0, rounded as ggml rounds them.
pub(crate) fn encode(values: &[f32], ty: TensorType, out: &mut [u8]) -> Result<(), String> {
    match ty {
        TensorType::F32 => out.copy_from_slice(bytemuck::cast_slice(values)),
        TensorType::BF16 => {
            for (out, value) in out.chunks_exact_mut(2).zip(values) {
                out.copy_from_slice(&bf16::from_f32(*value).to_le_bytes());
            }
        }
        TensorType::F16 => {
            for (out, value) in out.chunks_exact_mut(2).zip(values) {
                out.copy_from_slice(&finite(f16::from_f32(*value), ty)?.to_le_bytes());
            }
        }
        TensorType::Q8_0 => {
            for (out, values) in out.chunks_exact_mut(2 + BLOCK).zip(values.chunks(BLOCK)) {
                eight_bits(values, out)?;
            }
        }
        _ => return Err(format!("cannot encode as {ty}")),
    }
    Ok(())
}

fn eight_bits(values: &[f32], out: &mut [u8]) -> Result<(), String> {
    if let Some(value) = values.iter().find(|value| !value.is_finite()) {
        return Err(format!("{value} does not fit q8_0"));
    }
    let largest = values
        .iter()
        .fold(0f32, |most, value| most.max(value.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let (head, quants) = out.split_at_mut(2);
    head.copy_from_slice(&finite(f16::from_f32(scale), TensorType::Q8_0)?.to_le_bytes());
    for (out, value) in quants.iter_mut().zip(values) {
        *out = (value * inverse).round() as i8 as u8;
    }
    Ok(())
}

fn finite(value: f16, ty: TensorType) -> Result<f16, String> {
    match value.is_finite() {
        true => Ok(value),
        false => Err(format!("a number beyond 65504 does not fit {ty}")),
    }
}
