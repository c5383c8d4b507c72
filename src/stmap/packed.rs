//! Stored numbers that only mean something with others beside them: 8-bit floats with scales, 4-bit
//! floats with exponents.
//!
//! Scales of 8-bit floats belong to blocks of rows and columns, to rows, or to the whole tensor. The
//! 4-bit floats are those of the OCP Microscaling specification (MXFP4): 32 codes share an 8-bit
//! exponent; stored are the codes, two neighbours in a byte, and the exponents apart.

use crate::arch::expr::{Scope, Value};
use crate::weights::Bytes;
use crate::weights::safetensors::{Checkpoint, Dtype, Stored};

use super::config::At;
use super::recipe::read;

/// Codes that share an exponent, and the bytes they take.
const MX_CODES: u64 = 32;
const MX_BYTES: usize = 16;

/// What stored numbers mean.
#[derive(Clone, Debug)]
pub(super) enum Packing {
    /// Themselves.
    Plain,
    /// 8-bit floats times scales.
    Scaled(Scales),
    /// Codes of 4 bits with exponents: the file of these, and where they begin.
    Mxfp4(Bytes, usize),
}

/// The scales of a matrix.
#[derive(Clone, Debug)]
pub(super) struct Scales {
    file: Bytes,
    offset: usize,
    dtype: Dtype,
    /// Columns of the matrix.
    width: u64,
    /// Rows and columns that share a scale.
    block: [u64; 2],
    /// Scales in a row of scales.
    per_row: u64,
}

/// A stored tensor with its meaning, and the names of all that is stored of it.
pub(super) struct Found {
    pub(super) stored: Stored,
    pub(super) packing: Packing,
    pub(super) names: Vec<String>,
}

/// Looks for a tensor under its name, or packed under several.
pub(super) fn find(
    checkpoint: &Checkpoint,
    name: &str,
    at: &At<'_>,
) -> Result<Option<Found>, String> {
    if let Some(stored) = checkpoint.get(name) {
        if stored.shape.contains(&0) {
            return Err(format!("{name} has the shape {:?}", stored.shape));
        }
        if !is_eight_bit(stored.dtype) {
            return Ok(Some(Found {
                stored: stored.clone(),
                packing: Packing::Plain,
                names: vec![name.to_owned()],
            }));
        }
        return scaled(checkpoint, name, stored, at).map(Some);
    }
    let [blocks_name, scales_name] = ["_blocks", "_scales"].map(|ending| format!("{name}{ending}"));
    let Some(blocks) = checkpoint.get(&blocks_name) else {
        return Ok(None);
    };
    let exponents = checkpoint
        .get(&scales_name)
        .ok_or_else(|| format!("{blocks_name} is there, and {scales_name} is not"))?;
    let Some((outer, &[n, bytes])) = blocks.shape.split_last_chunk::<2>() else {
        return Err(format!("{blocks_name} has the shape {:?}", blocks.shape));
    };
    let fits = exponents.shape.split_last() == Some((&n, outer)) && bytes == MX_BYTES as u64;
    let is_bytes =
        blocks.dtype == Dtype::U8 && matches!(exponents.dtype, Dtype::U8 | Dtype::F8_E8M0);
    let fits = fits && !blocks.shape.contains(&0);
    let width = n.checked_mul(MX_CODES).filter(|_| fits && is_bytes);
    let width = width.ok_or_else(|| {
        format!(
            "{blocks_name} has the shape {:?} ({:?}) and {scales_name} {:?} ({:?}); expected bytes [.., n, {MX_BYTES}] and [.., n]",
            blocks.shape, blocks.dtype, exponents.shape, exponents.dtype
        )
    })?;
    let mut shape = outer.to_vec();
    shape.push(width);
    let file = checkpoint
        .files()
        .nth(exponents.file)
        .ok_or("a file is missing")?;
    Ok(Some(Found {
        stored: Stored {
            shape,
            ..blocks.clone()
        },
        packing: Packing::Mxfp4(file.clone(), exponents.offset),
        names: vec![blocks_name, scales_name],
    }))
}

pub(super) fn is_eight_bit(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2)
}

fn scaled(
    checkpoint: &Checkpoint,
    name: &str,
    stored: &Stored,
    at: &At<'_>,
) -> Result<Found, String> {
    let names = ["_scale_inv", "_scale"].map(|ending| format!("{name}{ending}"));
    let found = names
        .iter()
        .find_map(|name| Some((name, checkpoint.get(name)?)));
    let (scale_name, scale) = found
        .ok_or_else(|| format!("{name} has 8 bits, and there is no {}", names.join(" or ")))?;
    let &[rows, width] = stored.shape.as_slice() else {
        return Err(format!(
            "{name} has 8 bits and the shape {:?}, expected a matrix",
            stored.shape
        ));
    };
    let [down, across] = match *scale.shape.as_slice() {
        [] | [1] => [1, 1],
        [n] => [n, 1],
        [down, across] => [down, across],
        _ => return Err(format!("{scale_name} has the shape {:?}", scale.shape)),
    };
    let block = match block_size(at) {
        Some(block) if down * across > 1 => block,
        _ => [rows.div_ceil(down.max(1)), width.div_ceil(across.max(1))],
    };
    let fits = block[0] > 0
        && block[1] > 0
        && rows.div_ceil(block[0]) == down
        && width.div_ceil(block[1]) == across;
    if !fits || !matches!(scale.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
        return Err(format!(
            "{scale_name} has the shape {:?} ({:?}), and {name} {:?} in blocks of {block:?}",
            scale.shape, scale.dtype, stored.shape
        ));
    }
    let file = checkpoint
        .files()
        .nth(scale.file)
        .ok_or("a file is missing")?;
    Ok(Found {
        stored: stored.clone(),
        packing: Packing::Scaled(Scales {
            file: file.clone(),
            offset: scale.offset,
            dtype: scale.dtype,
            width,
            block,
            per_row: across,
        }),
        names: vec![name.to_owned(), scale_name.clone()],
    })
}

/// Rows and columns that share a scale, where the configuration says so.
fn block_size(at: &At<'_>) -> Option<[u64; 2]> {
    match at
        .name("quantization_config.weight_block_size", true)
        .ok()?
    {
        Value::List(items) => match items.as_slice() {
            [Value::Int(rows), Value::Int(columns)] => {
                Some([u64::try_from(*rows).ok()?, u64::try_from(*columns).ok()?])
            }
            _ => None,
        },
        _ => None,
    }
}

impl Scales {
    /// The scale of an element of the matrix.
    fn of(&self, element: u64) -> Result<f32, String> {
        let [row, column] = [element / self.width, element % self.width];
        let at = row / self.block[0] * self.per_row + column / self.block[1];
        let width = self.dtype.bitsize() / 8;
        let start = self.offset + at as usize * width;
        let bytes = self.file.get(start..start + width);
        let bytes = bytes.ok_or("a scale outside the file")?;
        Ok(read(self.dtype, bytes) as f32)
    }

    /// The numbers behind 8-bit floats, from the element `first` on, as f32.
    pub(super) fn decode(
        &self,
        dtype: Dtype,
        first: u64,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), String> {
        for ((element, code), to) in (first..).zip(from).zip(to.chunks_mut(4)) {
            let value = eight_bits(dtype, *code) * self.of(element)?;
            to.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }
}

/// An 8-bit float (OCP OFP8): E4M3 has no infinities, E5M2 is the upper half of a half float.
fn eight_bits(dtype: Dtype, code: u8) -> f32 {
    if dtype == Dtype::F8_E5M2 {
        return half::f16::from_bits(u16::from(code) << 8).to_f32();
    }
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// Codes from element `first` on as blocks of ours: the exponent, then codes `i` and `i + 16` in a
/// byte.
pub(super) fn repack(
    first: u64,
    codes: &[u8],
    exponents: &[u8],
    to: &mut [u8],
) -> Result<(), String> {
    let blocks = codes
        .chunks_exact(MX_BYTES)
        .zip(to.chunks_exact_mut(MX_BYTES + 1));
    for ((codes, to), block) in blocks.zip(first / MX_CODES..) {
        let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
        to[0] = *exponents
            .get(block as usize)
            .ok_or("an exponent outside the file")?;
        for (i, byte) in to[1..].iter_mut().enumerate() {
            *byte = code(i) | code(i + MX_BYTES) << 4;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_have_their_values() {
        let e4m3 = |code| eight_bits(Dtype::F8_E4M3, code);
        assert_eq!(
            [e4m3(0x38), e4m3(0x7e), e4m3(0x01), e4m3(0x88), e4m3(0xc0)],
            [1.0, 448.0, 1.0 / 512.0, -1.0 / 64.0, -2.0]
        );
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        let e5m2 = |code| eight_bits(Dtype::F8_E5M2, code);
        assert_eq!(
            [e5m2(0x3c), e5m2(0x7b), e5m2(0x01), e5m2(0xfc)],
            [1.0, 57344.0, 2f32.powi(-16), f32::NEG_INFINITY]
        );
    }

    #[test]
    fn codes_are_put_where_blocks_have_them() {
        let codes: Vec<u8> = (0..16)
            .map(|i| (2 * i % 16) | ((2 * i + 1) % 16) << 4)
            .collect();
        let mut out = vec![0; 17];
        repack(32, &codes, &[1, 130], &mut out).expect("it fits");
        assert_eq!(out[0], 130);
        let expected: Vec<u8> = (0..16).map(|i| (i % 16) | ((i % 16) << 4)).collect();
        assert_eq!(out[1..], expected);
        assert!(repack(64, &codes, &[1, 130], &mut out).is_err());
    }
}
