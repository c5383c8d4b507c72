//! The places of stored numbers, and how they are read: single numbers, and codes of a few bits in words of 32 bits.
//!
//! Invariant: a place outside the tensor gives an error, never a panic.

use lab_base::weights::FileBytes;
use lab_base::weights::safetensors::{Checkpoint, Dtype, StoredTensor};

/// Number of bits of a word of codes.
const WORD: u64 = 32;
/// The place in a word of each of eight neighbouring codes in AWQ's order: those with an even index come first.
const AWQ_PLACES: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The numbers of a stored tensor.
#[derive(Clone, Debug)]
pub(super) struct StoredNumbers {
    file: FileBytes,
    offset: usize,
    bytes: usize,
    pub(super) dtype: Dtype,
}

impl StoredNumbers {
    pub(super) fn new(checkpoint: &Checkpoint, stored: &StoredTensor) -> Result<Self, String> {
        let file = checkpoint.files().nth(stored.file);
        Ok(Self {
            file: file.ok_or("a file is missing")?.clone(),
            offset: stored.offset,
            bytes: stored.bytes,
            dtype: stored.dtype,
        })
    }

    pub(super) fn data(&self) -> &[u8] {
        let end = self.offset + self.bytes;
        self.file.get(self.offset..end).unwrap_or_default()
    }

    /// The number at a place.
    pub(super) fn number(&self, at: u64) -> Result<f32, String> {
        let width = self.dtype.bitsize() / 8;
        let start = usize::try_from(at)
            .ok()
            .and_then(|at| at.checked_mul(width));
        let bytes = start.and_then(|start| self.data().get(start..start.checked_add(width)?));
        let bytes = bytes.ok_or("a number outside the stored tensor")?;
        Ok(match (self.dtype, bytes) {
            (Dtype::U8, [b]) => f32::from(*b),
            (Dtype::I8, [b]) => f32::from(*b as i8),
            (Dtype::F8_E8M0, [b]) => power_of_two(*b),
            (Dtype::F8_E4M3 | Dtype::F8_E5M2, [b]) => eight_bits(self.dtype, *b),
            (dtype, bytes) => super::super::recipe::read(dtype, bytes) as f32,
        })
    }

    /// A word of codes.
    fn word(&self, at: u64) -> Result<u32, String> {
        let start = usize::try_from(at).ok().and_then(|at| at.checked_mul(4));
        let bytes = start.and_then(|start| self.data().get(start..)?.first_chunk::<4>());
        let bytes = bytes.ok_or("a word outside the stored tensor")?;
        Ok(u32::from_le_bytes(*bytes))
    }
}

/// An 8-bit exponent (OCP E8M0).
fn power_of_two(code: u8) -> f32 {
    match code {
        0xff => f32::NAN,
        // 2^-127 is subnormal: its exponent bits are 0.
        0 => f32::from_bits(1 << 22),
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// An 8-bit float (OCP OFP8): E4M3 has no infinities, E5M2 is the upper half of an f16.
pub(super) fn eight_bits(dtype: Dtype, code: u8) -> f32 {
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

/// One number for each row and group of columns.
#[derive(Clone, Debug)]
pub(super) struct ScaleGrid {
    pub(super) place: StoredNumbers,
    /// Distance between the numbers of neighbouring rows, and of neighbouring groups.
    pub(super) strides: [u64; 2],
}

impl ScaleGrid {
    pub(super) fn at(&self, row: u64, group: u64) -> Result<f32, String> {
        self.place
            .number(row * self.strides[0] + group * self.strides[1])
    }
}

#[derive(Clone, Debug)]
pub(super) struct PackedCodes {
    pub(super) place: StoredNumbers,
    pub(super) layout: CodeLayout,
    pub(super) bits: u32,
}

/// The place of the code of a row and a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum CodeLayout {
    /// One byte for each code, in rows of `width` codes; signed codes count from -128.
    Bytes { width: u64, is_signed: bool },
    /// A stream of bits for each row, from the lowest bit of a word on; a code may continue in the next word. `line` is
    /// the distance of the streams in words, `step` the distance of the words of one stream.
    Rows { line: u64, step: u64 },
    /// A stream of bits for each column, otherwise as `Rows`.
    Columns { line: u64, step: u64 },
    /// Words with codes of eight rows, in lines of `line` words for each column (AWQ).
    Awq { line: u64 },
}

impl PackedCodes {
    pub(super) fn new(place: StoredNumbers, layout: CodeLayout, bits: u64) -> Self {
        let bits = bits as u32;
        Self {
            place,
            layout,
            bits,
        }
    }

    /// Signed bytes, in rows of `width`.
    pub(super) fn signed_bytes(place: StoredNumbers, width: u64) -> Self {
        let is_signed = true;
        Self::new(place, CodeLayout::Bytes { width, is_signed }, 8)
    }

    /// The code of one element.
    pub(super) fn at(&self, row: u64, column: u64) -> Result<u8, String> {
        let (start, step, index) = match self.layout {
            CodeLayout::Bytes { width, is_signed } => {
                let code = self.place.data().get((row * width + column) as usize);
                let code = code.ok_or("a code outside the stored tensor")?;
                return Ok(code ^ if is_signed { 0x80 } else { 0 });
            }
            CodeLayout::Awq { line } => {
                let word = self.place.word(column * line + row / 8)?;
                return Ok(awq_code(word, row));
            }
            CodeLayout::Rows { line, step } => (row * line, step, column),
            CodeLayout::Columns { line, step } => (column * line, step, row),
        };
        let bit = index * u64::from(self.bits);
        let (at, shift) = (start + bit / WORD * step, bit % WORD);
        let mut bits = u64::from(self.place.word(at)?);
        if shift + u64::from(self.bits) > WORD {
            bits |= u64::from(self.place.word(at + step)?) << WORD;
        }
        Ok((bits >> shift) as u8 & self.mask())
    }

    /// The highest code.
    pub(super) fn mask(&self) -> u8 {
        0xff >> (8 - self.bits.clamp(1, 8))
    }

    /// Number of rows that share words, so that reading them together is cheap.
    pub(super) fn rows_at_once(&self) -> u64 {
        match self.layout {
            CodeLayout::Rows { step: 1, .. } | CodeLayout::Bytes { .. } => 1,
            CodeLayout::Rows { .. } => 32,
            CodeLayout::Awq { .. } | CodeLayout::Columns { .. } => 128,
        }
    }

    /// The codes of whole rows of `width` from row `first` on.
    pub(super) fn rows(&self, first: u64, width: u64, out: &mut [u8]) -> Result<(), String> {
        let n = width as usize;
        match self.layout {
            CodeLayout::Rows { line, step } if WORD.is_multiple_of(u64::from(self.bits)) => {
                let in_word = (WORD / u64::from(self.bits)) as usize;
                let n_rows = (out.len() / n) as u64;
                // Where the codes of rows are in columns, the words of neighbouring rows are neighbours.
                for (k, column) in (0..).zip((0..n).step_by(in_word)) {
                    for row in 0..n_rows {
                        let mut word = self.place.word((first + row) * line + k * step)?;
                        let at = row as usize * n;
                        for code in &mut out[at + column..at + n.min(column + in_word)] {
                            *code = word as u8 & self.mask();
                            word = word.checked_shr(self.bits).unwrap_or(0);
                        }
                    }
                }
            }
            CodeLayout::Awq { line } => {
                let n_rows = (out.len() / n) as u64;
                for column in 0..width {
                    let mut row = 0;
                    while row < n_rows {
                        let at = first + row;
                        let word = self.place.word(column * line + at / 8)?;
                        let end = n_rows.min(row + 8 - at % 8);
                        for row in row..end {
                            out[(row * width + column) as usize] = awq_code(word, first + row);
                        }
                        row = end;
                    }
                }
            }
            CodeLayout::Bytes { is_signed, .. } => {
                let start = (first * width) as usize;
                let codes = self.place.data().get(start..start + out.len());
                let codes = codes.ok_or("codes outside the stored tensor")?;
                let flip = if is_signed { 0x80 } else { 0 };
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = code ^ flip;
                }
            }
            CodeLayout::Rows { .. } | CodeLayout::Columns { .. } => {
                for (row, out) in (first..).zip(out.chunks_mut(n)) {
                    for (column, out) in (0..).zip(out) {
                        *out = self.at(row, column)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The common code of all elements, if all words are equal; only for codes whose bits divide a word.
    pub(super) fn constant(&self) -> Option<u8> {
        let data = self.place.data();
        let code = self.at(0, 0).ok()?;
        let mut word = 0u32;
        let bits = if matches!(self.layout, CodeLayout::Bytes { .. }) {
            let flip = matches!(
                self.layout,
                CodeLayout::Bytes {
                    is_signed: true,
                    ..
                }
            );
            word = u32::from(code ^ if flip { 0x80 } else { 0 });
            8
        } else {
            word |= u32::from(code);
            self.bits
        };
        if !WORD.is_multiple_of(u64::from(bits)) {
            return None;
        }
        let mut have = bits;
        while have < 32 {
            word |= word << have;
            have *= 2;
        }
        let bytes = word.to_le_bytes();
        let is_same = data.chunks(4).all(|chunk| bytes.starts_with(chunk));
        is_same.then_some(code)
    }
}

fn awq_code(word: u32, row: u64) -> u8 {
    (word >> (4 * AWQ_PLACES[(row % 8) as usize])) as u8 & 15
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
        assert_eq!(
            [power_of_two(127), power_of_two(1), power_of_two(0)],
            [1.0, 2f32.powi(-126), 2f32.powi(-127)]
        );
        assert!(power_of_two(255).is_nan());
    }
}
