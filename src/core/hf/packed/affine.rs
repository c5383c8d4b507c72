//! Matrices of integer codes: groups of columns share a scale, and a zero point or a minimum.
//!
//! `scale * (code - zero)` (GPTQ, AWQ, compressed-tensors, bitsandbytes int8) or `scale * code + minimum` (MLX). If a
//! group covers whole blocks, the codes are copied into the blocks of a ggml type, so only the scale is rounded, to
//! f16.

use half::f16;

use lab_base::weights::TensorType;

use super::RowScratch;
use super::blocks::{self, BLOCK, SYMMETRIC};
use super::codes::{PackedCodes, ScaleGrid, StoredNumbers};

/// A matrix of codes.
#[derive(Clone, Debug)]
pub(super) struct AffineMatrix {
    pub(super) codes: PackedCodes,
    pub(super) rows: u64,
    pub(super) width: u64,
    pub(super) groups: ScaleGroups,
    pub(super) scales: ScaleGrid,
    /// The factor of all scales.
    pub(super) factor: f32,
    pub(super) zeros: ZeroPoints,
}

/// The columns that share a scale.
#[derive(Clone, Debug)]
pub(super) enum ScaleGroups {
    /// This many adjacent columns.
    Even(u64),
    /// Columns with the same group number, and the number of groups (GPTQ with `desc_act`).
    Named(StoredNumbers, u64),
}

/// The code that represents zero.
#[derive(Clone, Debug)]
pub(super) enum ZeroPoints {
    Same(i32),
    /// A code for each row and group, plus a constant.
    Codes(PackedCodes, u8),
    /// Minima, which are added to the product of a code and its scale.
    Offsets(ScaleGrid),
}

/// The function of a group from codes to numbers.
#[derive(Clone, Copy)]
enum GroupFunction {
    Steps(f32, i32),
    Offset(f32, f32),
}

impl GroupFunction {
    fn value(self, code: u8) -> f32 {
        match self {
            Self::Steps(scale, zero) => scale * (i32::from(code) - zero) as f32,
            Self::Offset(scale, offset) => scale * f32::from(code) + offset,
        }
    }
}

impl AffineMatrix {
    /// The type that represents the codes exactly, if there is one.
    pub(super) fn exact(&self) -> Option<TensorType> {
        let ScaleGroups::Even(group) = self.groups else {
            return None;
        };
        let block = BLOCK as u64;
        let is_whole = group.is_multiple_of(block) || group >= self.width;
        if !is_whole || !self.width.is_multiple_of(block) {
            return None;
        }
        let most = i32::from(self.codes.mask());
        let [lowest, highest] = match &self.zeros {
            ZeroPoints::Offsets(_) if most < 16 => return Some(TensorType::Q4_1),
            ZeroPoints::Offsets(_) if most < 32 => return Some(TensorType::Q5_1),
            ZeroPoints::Offsets(_) => return None,
            ZeroPoints::Same(zero) => [-zero, most - zero],
            ZeroPoints::Codes(codes, plus) => match codes.constant() {
                Some(code) => {
                    let zero = i32::from(code.wrapping_add(*plus) & codes.mask());
                    [-zero, most - zero]
                }
                None => [-most, most],
            },
        };
        let mut types = SYMMETRIC.iter();
        let found = types.find(|(_, low)| lowest >= *low && highest < -low);
        found.map(|(ty, _)| *ty)
    }

    /// Whether the blocks of a type represent the codes exactly.
    pub(super) fn fits(&self, ty: TensorType, exact: TensorType) -> bool {
        let place = |ty| SYMMETRIC.iter().position(|(other, _)| *other == ty);
        let is_wider = |ty, exact| place(ty).zip(place(exact)).is_some_and(|(a, b)| a >= b);
        let offsets = [TensorType::Q4_1, TensorType::Q5_1];
        is_wider(ty, exact) || offsets.contains(&exact) && offsets.contains(&ty) && ty >= exact
    }

    fn line(&self, row: u64, group: u64) -> Result<GroupFunction, String> {
        let scale = self.scales.at(row, group)? * self.factor;
        Ok(match &self.zeros {
            ZeroPoints::Same(zero) => GroupFunction::Steps(scale, *zero),
            ZeroPoints::Codes(codes, plus) => {
                let zero = codes.at(row, group)?.wrapping_add(*plus) & codes.mask();
                GroupFunction::Steps(scale, i32::from(zero))
            }
            ZeroPoints::Offsets(offsets) => GroupFunction::Offset(scale, offsets.at(row, group)?),
        })
    }

    /// The codes of a part of a row.
    fn codes<'s>(
        &self,
        row: u64,
        column: u64,
        n: usize,
        scratch: &'s mut RowScratch,
    ) -> Result<&'s [u8], String> {
        if (n as u64) < self.width {
            scratch.few.clear();
            for column in (column..).take(n) {
                scratch.few.push(self.codes.at(row, column)?);
            }
            return Ok(&scratch.few);
        }
        scratch.tiles.row(self, row)
    }

    /// The numbers of a part of a row.
    pub(super) fn values(
        &self,
        row: u64,
        column: u64,
        out: &mut [f32],
        scratch: &mut RowScratch,
    ) -> Result<(), String> {
        let codes = self.codes(row, column, out.len(), scratch)?;
        match &self.groups {
            ScaleGroups::Even(group) => {
                let mut at = 0;
                while at < out.len() {
                    let here = column + at as u64;
                    let n = (group - here % group).min((out.len() - at) as u64) as usize;
                    let line = self.line(row, here / group)?;
                    for (out, code) in out[at..at + n].iter_mut().zip(&codes[at..]) {
                        *out = line.value(*code);
                    }
                    at += n;
                }
            }
            ScaleGroups::Named(names, n_groups) if out.len() as u64 >= *n_groups => {
                let lines = (0..*n_groups).map(|group| self.line(row, group));
                let lines: Vec<GroupFunction> = lines.collect::<Result<_, _>>()?;
                for ((column, out), code) in (column..).zip(out).zip(codes) {
                    let line = lines.get(names.number(column)? as usize);
                    *out = line
                        .ok_or("a group outside the stored scales")?
                        .value(*code);
                }
            }
            ScaleGroups::Named(names, _) => {
                for ((column, out), code) in (column..).zip(out).zip(codes) {
                    *out = self.line(row, names.number(column)? as u64)?.value(*code);
                }
            }
        }
        Ok(())
    }

    /// Whole blocks of a part of a row, in a type that fits.
    pub(super) fn blocks(
        &self,
        ty: TensorType,
        [row, column]: [u64; 2],
        n: usize,
        out: &mut [u8],
        scratch: &mut RowScratch,
    ) -> Result<(), String> {
        let ScaleGroups::Even(group) = self.groups else {
            return Err("groups of scattered columns are not stored in blocks".into());
        };
        let codes = self.codes(row, column, n, scratch)?;
        let outs = out.chunks_exact_mut(ty.block_bytes() as usize);
        let mut last = None;
        for (i, (codes, out)) in codes.chunks_exact(BLOCK).zip(outs).enumerate() {
            let at = (column + (i * BLOCK) as u64) / group;
            let line = match last {
                Some((other, line)) if other == at => line,
                _ => self.line(row, at)?,
            };
            last = Some((at, line));
            let fits = |number: f32| f16::from_f32(number).is_finite();
            match line {
                GroupFunction::Steps(scale, zero) if fits(scale) => {
                    blocks::symmetric(ty, scale, zero, codes, out);
                }
                GroupFunction::Offset(scale, offset) if fits(scale) && fits(offset) => {
                    blocks::offset(ty, scale, offset, codes, out);
                }
                GroupFunction::Steps(scale, _) | GroupFunction::Offset(scale, _) => {
                    return Err(format!(
                        "row {row} has the scale {scale}, which {ty} cannot represent; use --type bf16"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Cached rows of codes that were decoded together.
#[derive(Debug)]
pub(super) struct TileCache {
    /// First row, number of rows, codes.
    kept: Vec<(u64, u64, Vec<u8>)>,
    oldest: usize,
    /// The number of rows that are read.
    n_rows: u64,
}

/// Maximum number of cached tiles: reordered rows come from this many parts of the matrix.
const MAX_TILES: usize = 4;

impl TileCache {
    /// A cache for a matrix of which at most `n_rows` rows are read.
    pub(super) fn new(n_rows: u64) -> Self {
        Self {
            kept: Vec::new(),
            oldest: 0,
            n_rows: n_rows.max(1),
        }
    }

    fn row(&mut self, matrix: &AffineMatrix, row: u64) -> Result<&[u8], String> {
        let holds = |(first, n, _): &(u64, u64, Vec<u8>)| (*first..first + n).contains(&row);
        let at = match self.kept.iter().position(holds) {
            Some(at) => at,
            None => self.read(matrix, row)?,
        };
        let (first, _, codes) = &self.kept[at];
        let start = ((row - first) * matrix.width) as usize;
        codes
            .get(start..start + matrix.width as usize)
            .ok_or_else(|| "a row outside its tile".into())
    }

    fn read(&mut self, matrix: &AffineMatrix, row: u64) -> Result<usize, String> {
        let at_once = matrix.codes.rows_at_once();
        let end = (row / at_once + 1) * at_once;
        let n = (end.min(matrix.rows) - row).min(self.n_rows);
        let at = match self.kept.len() {
            n if n < MAX_TILES => {
                self.kept.push((0, 0, Vec::new()));
                n
            }
            _ => {
                self.oldest = (self.oldest + 1) % MAX_TILES;
                self.oldest
            }
        };
        let (first, n_rows, codes) = &mut self.kept[at];
        (*first, *n_rows) = (row, 0);
        codes.resize((n * matrix.width) as usize, 0);
        matrix.codes.rows(row, matrix.width, codes)?;
        *n_rows = n;
        Ok(at)
    }
}
