//! Finds weights that are NaN or infinite, as a damaged file may have.
//!
//! Floats are checked one by one. The elements of a quantised block are scales times small integers, so only the scales
//! are checked. The result states what was checked. The check runs only on request, because it reads every byte.

use std::cmp::Ordering;

use crate::util::parallel;

use super::{Error, NotFinite, TensorInfo, TensorType, Weights};

const PIECE_BYTES: u64 = 1 << 23;

/// The part of a tensor that was checked and is finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiniteCheck {
    /// Every value.
    Values,
    /// The scales and minima of every block.
    Scales,
    /// No values: all bit patterns of the type are finite numbers.
    AlwaysFinite,
    /// No values: the file has no tensor of this name.
    Missing,
}

/// Checks the tensors of these names, on all cores. The results are in the order of `names`.
///
/// # Errors
/// A value is not finite ([`Error::NotFinite`]: the first one in the order of `names`), or data cannot be computed.
pub fn check(weights: &Weights, names: &[&str]) -> Result<Vec<FiniteCheck>, Error> {
    let tensors: Vec<Option<&TensorInfo>> = names.iter().map(|n| weights.tensor(n)).collect();
    let in_pieces = |tensor| TensorInfo::pieces(tensor, PIECE_BYTES).map(move |p| (tensor, p));
    let pieces: Vec<_> = tensors
        .iter()
        .flatten()
        .copied()
        .flat_map(in_pieces)
        .collect();
    let search = |i: usize| {
        let (tensor, (first_row, n_rows)) = pieces[i];
        if matches!(rule(tensor.ty), FiniteRule::AlwaysFinite) {
            return Ok(());
        }
        let bytes = weights.some_rows(tensor, first_row, n_rows)?;
        let piece = RowPiece {
            tensor,
            first_row,
            bytes: &bytes,
        };
        piece
            .search()
            .map_or(Ok(()), |place| Err(place.into_error()))
    };
    parallel::in_order(pieces.len(), search, Ok)?;
    Ok(tensors.into_iter().map(checked).collect())
}

fn checked(tensor: Option<&TensorInfo>) -> FiniteCheck {
    match tensor.map(|tensor| rule(tensor.ty)) {
        None => FiniteCheck::Missing,
        Some(FiniteRule::AlwaysFinite) => FiniteCheck::AlwaysFinite,
        Some(FiniteRule::F16 | FiniteRule::Bf16 | FiniteRule::F32 | FiniteRule::F64) => {
            FiniteCheck::Values
        }
        Some(
            FiniteRule::F16Scales(_)
            | FiniteRule::F32Scale
            | FiniteRule::ExponentScale
            | FiniteRule::SpreadScale,
        ) => FiniteCheck::Scales,
    }
}

#[derive(Clone, Copy, Debug)]
enum FiniteRule {
    AlwaysFinite,
    F16,
    Bf16,
    F32,
    F64,
    /// f16 scales at these offsets of each block.
    F16Scales(&'static [usize]),
    /// An f32 scale at the start of each block.
    F32Scale,
    /// An 8-bit exponent at the start of each block; 255 is NaN.
    ExponentScale,
    /// An f16 scale in the top four bits of the last four 16-bit words of each block.
    SpreadScale,
}

const fn rule(ty: TensorType) -> FiniteRule {
    use TensorType as T;
    match ty {
        // ggml reads every byte of an NVFP4 scale as a finite number.
        T::I8 | T::I16 | T::I32 | T::I64 | T::NVFP4 => FiniteRule::AlwaysFinite,
        T::F16 => FiniteRule::F16,
        T::BF16 => FiniteRule::Bf16,
        T::F32 => FiniteRule::F32,
        T::F64 => FiniteRule::F64,
        T::Q1_0 | T::Q2_0 | T::Q4_0 | T::Q5_0 | T::Q8_0 => FiniteRule::F16Scales(&[0]),
        T::IQ1_S | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S => FiniteRule::F16Scales(&[0]),
        T::IQ3_XXS | T::IQ3_S | T::IQ4_NL | T::IQ4_XS => FiniteRule::F16Scales(&[0]),
        T::Q4_1 | T::Q5_1 | T::Q8_1 | T::Q4_K | T::Q5_K => FiniteRule::F16Scales(&[0, 2]),
        T::Q2_K => FiniteRule::F16Scales(&[80, 82]),
        T::Q3_K => FiniteRule::F16Scales(&[108]),
        T::Q6_K => FiniteRule::F16Scales(&[208]),
        T::TQ1_0 => FiniteRule::F16Scales(&[52]),
        T::TQ2_0 => FiniteRule::F16Scales(&[64]),
        T::Q8_K => FiniteRule::F32Scale,
        T::MXFP4 => FiniteRule::ExponentScale,
        T::IQ1_M => FiniteRule::SpreadScale,
    }
}

/// Checks whole rows of a tensor that are computed in type `ty`, from row `first` on, as [`check`] does.
///
/// # Errors
/// A value or a scale is not finite ([`Error::NotFinite`]: the first one).
pub fn check_rows(
    tensor: &TensorInfo,
    ty: TensorType,
    first: u64,
    bytes: &[u8],
) -> Result<(), Error> {
    let tensor = TensorInfo {
        ty,
        ..tensor.clone()
    };
    let piece = RowPiece {
        tensor: &tensor,
        first_row: first,
        bytes,
    };
    match piece.search() {
        None => Ok(()),
        Some(place) => Err(place.into_error()),
    }
}

struct RowPiece<'a, 't> {
    tensor: &'t TensorInfo,
    first_row: u64,
    bytes: &'a [u8],
}

/// A block with a float that is not finite. A plain value is a block of one element.
struct ValuePosition<'a> {
    tensor: &'a TensorInfo,
    block: u64,
    found: NotFinite,
}

impl<'t> RowPiece<'_, 't> {
    fn search(&self) -> Option<ValuePosition<'t>> {
        let (block, found) = match rule(self.tensor.ty) {
            FiniteRule::AlwaysFinite => None,
            FiniteRule::F16 => first_value(self.bytes, f16),
            FiniteRule::Bf16 => first_value(self.bytes, bf16),
            FiniteRule::F32 => first_value(self.bytes, f32),
            FiniteRule::F64 => first_value(self.bytes, f64),
            FiniteRule::F16Scales(offsets) => self.first_scale(|block| {
                let scales = offsets.iter().map(|&at| f16([block[at], block[at + 1]]));
                scales.flatten().next()
            }),
            FiniteRule::F32Scale => self.first_scale(|b| f32([b[0], b[1], b[2], b[3]])),
            FiniteRule::ExponentScale => {
                self.first_scale(|block| (block[0] == u8::MAX).then_some(NotFinite::Nan))
            }
            FiniteRule::SpreadScale => self.first_scale(|block| {
                let top = |word: usize| block[block.len() - 8 + 2 * word + 1] >> 4;
                f16([top(0) | top(1) << 4, top(2) | top(3) << 4])
            }),
        }?;
        let blocks_per_row = self.tensor.shape[0] / self.tensor.ty.block_len();
        Some(ValuePosition {
            tensor: self.tensor,
            block: self.first_row * blocks_per_row + block as u64,
            found,
        })
    }

    fn first_scale(
        &self,
        judge: impl Fn(&[u8]) -> Option<NotFinite>,
    ) -> Option<(usize, NotFinite)> {
        let blocks = self
            .bytes
            .chunks_exact(self.tensor.ty.block_bytes() as usize);
        blocks
            .enumerate()
            .find_map(|(i, block)| Some((i, judge(block)?)))
    }
}

impl ValuePosition<'_> {
    fn into_error(self) -> Error {
        let ty = self.tensor.ty;
        let blocks_per_row = self.tensor.shape[0] / ty.block_len();
        Error::NotFinite {
            tensor: self.tensor.name.clone(),
            row: self.block / blocks_per_row,
            column: self.block % blocks_per_row * ty.block_len(),
            in_scale: !ty.is_plain(),
            found: self.found,
        }
    }
}

fn first_value<const N: usize>(
    bytes: &[u8],
    judge: impl Fn([u8; N]) -> Option<NotFinite>,
) -> Option<(usize, NotFinite)> {
    const RUN: usize = 1024;
    let (values, _) = bytes.as_chunks::<N>();
    // The loop over a run has no exit, so the compiler vectorises it.
    let has_any = |run: &[[u8; N]]| run.iter().fold(false, |any, v| any | judge(*v).is_some());
    let (i, run) = values
        .chunks(RUN)
        .enumerate()
        .find(|(_, run)| has_any(run))?;
    run.iter()
        .enumerate()
        .find_map(|(j, value)| Some((i * RUN + j, judge(*value)?)))
}

fn f16(bytes: [u8; 2]) -> Option<NotFinite> {
    judge(u16::from_le_bytes(bytes) & 0x7fff, 0x7c00)
}

fn bf16(bytes: [u8; 2]) -> Option<NotFinite> {
    judge(u16::from_le_bytes(bytes) & 0x7fff, 0x7f80)
}

fn f32(bytes: [u8; 4]) -> Option<NotFinite> {
    judge(u32::from_le_bytes(bytes) & 0x7fff_ffff, 0x7f80_0000)
}

fn f64(bytes: [u8; 8]) -> Option<NotFinite> {
    judge(u64::from_le_bytes(bytes) & (u64::MAX >> 1), 0x7ff << 52)
}

/// Classifies a float by its bits without the sign. They have the order of the numbers: finite, then infinity, then
/// NaN.
fn judge<T: Copy + Ord>(magnitude: T, infinity: T) -> Option<NotFinite> {
    match magnitude.cmp(&infinity) {
        Ordering::Less => None,
        Ordering::Equal => Some(NotFinite::Infinity),
        Ordering::Greater => Some(NotFinite::Nan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::gguf::builder::GgufBuilder;

    fn holding(ty: TensorType, shape: &[u64], data: &[u8]) -> Weights {
        let file = GgufBuilder::new()
            .tensor("sound", &[1], TensorType::I8.id(), 0)
            .tensor("t", shape, ty.id(), 32)
            .data(&[0xff; 32])
            .data(data);
        file.open().expect("a sound file")
    }

    /// Three rows of two blocks, all zeros except for `bytes` at `offset` of the last block of row 1.
    fn with_bytes(ty: TensorType, offset: usize, bytes: &[u8]) -> Result<FiniteCheck, String> {
        let block = ty.block_bytes() as usize;
        let mut data = vec![0; 6 * block];
        data[3 * block + offset..][..bytes.len()].copy_from_slice(bytes);
        let weights = holding(ty, &[2 * ty.block_len(), 3], &data);
        match check(&weights, &["sound", "t", "absent"]) {
            Ok(results) => {
                assert_eq!(results[0], FiniteCheck::AlwaysFinite);
                assert_eq!(results[2], FiniteCheck::Missing);
                Ok(results[1])
            }
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn plain_floats_are_checked_one_by_one() {
        let at = |found| Err(format!("tensor `t`: {found} at row 1, column 1"));
        for (ty, nan, infinity, largest) in [
            (
                TensorType::F32,
                &f32::NAN.to_le_bytes()[..],
                &f32::NEG_INFINITY.to_le_bytes()[..],
                &f32::MAX.to_le_bytes()[..],
            ),
            (
                TensorType::F64,
                &f64::NAN.to_le_bytes(),
                &f64::INFINITY.to_le_bytes(),
                &f64::MIN.to_le_bytes(),
            ),
            (
                TensorType::F16,
                &half::f16::NAN.to_le_bytes(),
                &half::f16::INFINITY.to_le_bytes(),
                &half::f16::MAX.to_le_bytes(),
            ),
            (
                TensorType::BF16,
                &half::bf16::NAN.to_le_bytes(),
                &half::bf16::NEG_INFINITY.to_le_bytes(),
                &half::bf16::MIN.to_le_bytes(),
            ),
        ] {
            assert_eq!(with_bytes(ty, 0, nan), at("NaN"), "{ty}");
            assert_eq!(with_bytes(ty, 0, infinity), at("infinity"), "{ty}");
            assert_eq!(with_bytes(ty, 0, largest), Ok(FiniteCheck::Values), "{ty}");
        }
    }

    #[test]
    fn integers_are_always_finite() {
        for ty in [
            TensorType::I8,
            TensorType::I16,
            TensorType::I32,
            TensorType::I64,
        ] {
            assert_eq!(with_bytes(ty, 0, &[0xff]), Ok(FiniteCheck::AlwaysFinite));
        }
    }

    /// The check finds every scale of every quantised type at its place in ggml, and takes no other bytes for a scale.
    #[test]
    fn scales_of_blocks_are_checked() {
        use TensorType as T;
        let halves: &[(&[T], &[usize])] = &[
            (&[T::Q1_0, T::Q2_0, T::Q4_0, T::Q5_0, T::Q8_0], &[0]),
            (&[T::IQ1_S, T::IQ2_XXS, T::IQ2_XS, T::IQ2_S], &[0]),
            (&[T::IQ3_XXS, T::IQ3_S, T::IQ4_NL, T::IQ4_XS], &[0]),
            (&[T::Q4_1, T::Q5_1, T::Q8_1, T::Q4_K, T::Q5_K], &[0, 2]),
            (&[T::Q2_K], &[16 + 64, 16 + 64 + 2]),
            (&[T::Q3_K], &[32 + 64 + 12]),
            (&[T::Q6_K], &[128 + 64 + 16]),
            (&[T::TQ1_0], &[48 + 4]),
            (&[T::TQ2_0], &[64]),
        ];
        for (types, offsets) in halves {
            for &ty in *types {
                let last = ty.block_bytes() as usize - 2;
                for offset in (0..=last).step_by(2) {
                    let found = with_bytes(ty, offset, &half::f16::INFINITY.to_le_bytes());
                    let expected = if offsets.contains(&offset) {
                        let column = ty.block_len();
                        Err(format!(
                            "tensor `t`: infinity in the scale of the block at row 1, column {column}"
                        ))
                    } else {
                        Ok(FiniteCheck::Scales)
                    };
                    assert_eq!(found, expected, "{ty} at {offset}");
                }
            }
        }
    }

    #[test]
    fn scales_of_other_forms_are_checked() {
        let nan = Err("tensor `t`: NaN in the scale of the block at row 1, column 32".to_owned());
        assert_eq!(with_bytes(TensorType::MXFP4, 0, &[0xff]), nan);
        assert_eq!(
            with_bytes(TensorType::MXFP4, 0, &[0xfe, 0xff]),
            Ok(FiniteCheck::Scales)
        );

        let at_256 = |found| {
            Err(format!(
                "tensor `t`: {found} in the scale of the block at row 1, column 256"
            ))
        };
        let infinity = f32::INFINITY.to_le_bytes();
        assert_eq!(
            with_bytes(TensorType::Q8_K, 0, &infinity),
            at_256("infinity")
        );
        // 0x7c01 in the top bits of four words, lowest first.
        let words = [0x0f, 0x1f, 0x0f, 0x0f, 0x0f, 0xcf, 0x0f, 0x7f];
        assert_eq!(with_bytes(TensorType::IQ1_M, 48, &words), at_256("NaN"));
        let words = [0xff, 0x1f, 0xff, 0x0f, 0xff, 0xbf, 0xff, 0x7f];
        assert_eq!(
            with_bytes(TensorType::IQ1_M, 48, &words),
            Ok(FiniteCheck::Scales)
        );
        assert_eq!(
            with_bytes(TensorType::NVFP4, 0, &[0xff; 4]),
            Ok(FiniteCheck::AlwaysFinite)
        );
    }

    #[test]
    fn the_first_of_many_is_reported_however_the_work_is_cut() {
        let n = 3 * PIECE_BYTES as usize / 4;
        let mut data = vec![0; n * 4];
        for i in [n - 1, n / 2 + 5, n / 2 + 9] {
            data[4 * i..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        let columns = 1 << 10;
        let weights = holding(TensorType::F32, &[columns, n as u64 / columns], &data);
        let error = check(&weights, &["t"]).expect_err("three values are NaN");
        let first = n as u64 / 2 + 5;
        let (row, column) = (first / columns, first % columns);
        assert_eq!(
            error.to_string(),
            format!("tensor `t`: NaN at row {row}, column {column}")
        );
    }
}
