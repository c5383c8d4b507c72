//! Matrices of small floats: a table turns codes of 8 or 4 bits into numbers, which are multiplied by scales.

use lab_base::weights::TensorType;
use lab_base::weights::safetensors::Dtype;

use super::blocks::nibbles;
use super::codes::{StoredNumbers, eight_bits};

/// The numbers of E2M1 codes (OCP Microscaling) in ascending order, then the negative ones.
pub(super) const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

#[derive(Clone, Debug)]
pub(super) struct Fp8Matrix {
    pub(super) codes: StoredNumbers,
    pub(super) scales: StoredNumbers,
    /// Number of rows and columns that share a scale.
    pub(super) block: [u64; 2],
    /// Number of scales in a row of scales.
    pub(super) per_row: u64,
}

impl Fp8Matrix {
    pub(super) fn values(
        &self,
        width: u64,
        row: u64,
        column: u64,
        out: &mut [f32],
    ) -> Result<(), String> {
        let start = (row * width + column) as usize;
        let codes = self.codes.data().get(start..start + out.len());
        let codes = codes.ok_or("codes outside the stored tensor")?;
        let mut at = 0;
        while at < out.len() {
            let here = column + at as u64;
            let n = (self.block[1] - here % self.block[1]).min((out.len() - at) as u64) as usize;
            let scale = row / self.block[0] * self.per_row + here / self.block[1];
            let scale = self.scales.number(scale)?;
            for (out, code) in out[at..at + n].iter_mut().zip(&codes[at..]) {
                *out = number(self.codes.dtype, *code) * scale;
            }
            at += n;
        }
        Ok(())
    }
}

/// [`eight_bits`] for E4M3 without branches: the bits of the code become bits of a 32-bit float.
fn number(dtype: Dtype, code: u8) -> f32 {
    if dtype != Dtype::F8_E4M3 || code & 0x7f == 0x7f {
        return eight_bits(dtype, code);
    }
    let bits = u32::from(code & 0x80) << 24 | u32::from(code & 0x7f) << 20;
    f32::from_bits(bits) * 2f32.powi(120)
}

/// 4-bit floats, two in a byte.
#[derive(Clone, Debug)]
pub(super) struct Fp4Matrix {
    pub(super) codes: StoredNumbers,
    /// Whether the first of two codes is in the upper half of the byte.
    pub(super) is_high_first: bool,
    pub(super) table: [f32; 16],
    /// Number of elements that share a scale, counted over the whole tensor.
    pub(super) block: u64,
    pub(super) scales: Fp4Scales,
    pub(super) factor: f32,
}

#[derive(Clone, Debug)]
pub(super) enum Fp4Scales {
    Stored(StoredNumbers),
    /// Codes of 8 bits: entries of a table times their own scales, plus a constant.
    Nested {
        codes: StoredNumbers,
        table: StoredNumbers,
        scales: StoredNumbers,
        block: u64,
        offset: f32,
    },
}

impl Fp4Scales {
    fn at(&self, block: u64) -> Result<f32, String> {
        match self {
            Self::Stored(place) => place.number(block),
            Self::Nested {
                codes,
                table,
                scales,
                block: n,
                offset,
            } => {
                let code = codes.number(block)? as u64;
                Ok(table.number(code)? * scales.number(block / n)? + offset)
            }
        }
    }
}

impl Fp4Matrix {
    fn code(&self, at: u64) -> Result<u8, String> {
        let byte = self.codes.data().get((at / 2) as usize);
        let byte = byte.ok_or("a code outside the stored tensor")?;
        Ok(match at.is_multiple_of(2) == self.is_high_first {
            true => byte >> 4,
            false => byte & 15,
        })
    }

    /// The numbers from element `first` of the tensor on.
    pub(super) fn values(&self, first: u64, out: &mut [f32]) -> Result<(), String> {
        let mut at = 0;
        while at < out.len() {
            let here = first + at as u64;
            let n = (self.block - here % self.block).min((out.len() - at) as u64) as usize;
            let scale = self.scales.at(here / self.block)? * self.factor;
            for (element, out) in (here..).zip(&mut out[at..at + n]) {
                *out = self.table[usize::from(self.code(element)?)] * scale;
            }
            at += n;
        }
        Ok(())
    }

    /// The type that represents codes and scales exactly, if there is one.
    pub(super) fn exact(&self, width: u64) -> Option<TensorType> {
        let Fp4Scales::Stored(scales) = &self.scales else {
            return None;
        };
        let ty = match (scales.dtype, self.block) {
            (Dtype::F8_E8M0, 32) => TensorType::MXFP4,
            (Dtype::F8_E4M3, 16) => TensorType::NVFP4,
            _ => return None,
        };
        let is_plain = self.factor == 1.0 && self.table == E2M1;
        (is_plain && width.is_multiple_of(ty.block_len())).then_some(ty)
    }

    /// Whole blocks of the exact type, from element `first` on: scales, then codes. Elements `i` and `i + n / 2` of the
    /// `n` elements with one scale share a byte.
    pub(super) fn blocks(&self, ty: TensorType, first: u64, out: &mut [u8]) -> Result<(), String> {
        let Fp4Scales::Stored(scales) = &self.scales else {
            return Err("scales with scales are not stored in blocks".into());
        };
        let n_scales = (ty.block_len() / self.block) as usize;
        let half = (self.block / 2) as usize;
        let mut at = first;
        for out in out.chunks_exact_mut(ty.block_bytes() as usize) {
            let (heads, quants) = out.split_at_mut(n_scales);
            for (head, quants) in heads.iter_mut().zip(quants.chunks_exact_mut(half)) {
                let scale = scales.data().get((at / self.block) as usize);
                *head = *scale.ok_or("a scale outside the stored tensor")?;
                if ty == TensorType::NVFP4 && *head >= 0x7f {
                    return Err(format!("the scale {:#04x} is not a positive number", *head));
                }
                let mut codes = [0; 32];
                for (element, code) in (at..).zip(&mut codes[..2 * half]) {
                    *code = self.code(element)?;
                }
                nibbles(quants, |i| codes[i]);
                at += self.block;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_floats_are_their_numbers() {
        for code in 0..=255u8 {
            for dtype in [Dtype::F8_E4M3, Dtype::F8_E5M2] {
                let (found, expected) = (number(dtype, code), eight_bits(dtype, code));
                assert!(
                    found == expected || found.is_nan() && expected.is_nan(),
                    "{code}"
                );
            }
        }
    }
}
