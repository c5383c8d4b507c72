//! Finds the stored tensors that form one packed matrix, and the role of each.
//!
//! Names and types distinguish the layouts. Every shape is checked here, so that reading needs no further checks.

mod integers;
mod small_floats;

use lab_base::weights::TensorType;
use lab_base::weights::safetensors::{Checkpoint, Dtype, StoredTensor};

use super::affine::AffineMatrix;
use super::codes::StoredNumbers;
use super::method::QuantConfig;
use super::{Packed, PackedFormat};

/// The stored codes of a matrix, its dimensions (the slowest first), and its other stored tensors.
type Matrix = (StoredTensor, Vec<u64>, PackedFormat);

impl AffineMatrix {
    fn matrix(self, codes: &StoredTensor, shape: Vec<u64>) -> Matrix {
        (codes.clone(), shape, PackedFormat::Affine(self))
    }
}

/// The types of scales.
const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];
/// Number of codes of 4-bit floats that share an exponent.
const MX_CODES: u64 = 32;
/// Number of codes of 4-bit floats that share an 8-bit scale.
const NV_CODES: u64 = 16;

/// A packed matrix and the stored tensors of which it is made.
pub(super) struct FoundMatrix {
    /// Dimensions, the slowest first.
    pub(super) shape: Vec<u64>,
    pub(super) packed: Packed,
    pub(super) codes: StoredTensor,
}

/// The search for packed matrices.
pub(super) struct MatrixFinder<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) settings: &'a QuantConfig,
}

/// The layouts, which follow from the name of the stored tensor with the codes and from the tensors next to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackedLayout {
    Words,
    CompressedWords,
    CompressedFloats,
    Mlx,
    Bnb4,
    Bnb8,
    Nvfp4,
    Mxfp4,
    Int8,
    Float8,
    Blocks,
}

/// Suffixes of the tensors that belong to a packed matrix, after the name of the matrix or its module.
pub(super) const PARTS: [&str; 32] = [
    ".qweight",
    ".qzeros",
    ".scale",
    ".scales",
    ".g_idx",
    ".biases",
    ".weight",
    ".weight_packed",
    ".weight_shape",
    ".weight_scale",
    ".weight_scale_2",
    ".weight_scale_inv",
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight_global_scale",
    ".weight_format",
    ".SCB",
    ".weight.absmax",
    ".weight.quant_map",
    ".weight.nested_absmax",
    ".weight.nested_quant_map",
    ".weight.quant_state.bitsandbytes__nf4",
    ".weight.quant_state.bitsandbytes__fp4",
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".input_scale_ub",
    ".activation_scale",
];

impl MatrixFinder<'_> {
    /// The layout of the matrix whose codes have this name, and the name of the matrix.
    pub(super) fn family(
        &self,
        name: &str,
        stored: &StoredTensor,
    ) -> Option<(PackedLayout, String)> {
        let has = |name: &str| self.checkpoint.get(name).is_some();
        let of = |base: &str, family| Some((family, format!("{base}.weight")));
        if let Some(base) = name.strip_suffix(".qweight") {
            return of(base, PackedLayout::Words);
        }
        if let Some(base) = name.strip_suffix(".weight_packed") {
            return match stored.dtype {
                Dtype::U8 => of(base, PackedLayout::CompressedFloats),
                _ => of(base, PackedLayout::CompressedWords),
            };
        }
        if let Some(base) = name.strip_suffix("_blocks")
            && has(&format!("{base}_scales"))
        {
            return Some((PackedLayout::Blocks, base.to_owned()));
        }
        let has_part = |ending: &str| has(&format!("{}{ending}", name.trim_end_matches(".weight")));
        let family = match stored.dtype {
            Dtype::F8_E4M3 | Dtype::F8_E5M2 if !is_scale(name) => PackedLayout::Float8,
            _ if !name.ends_with(".weight") => return None,
            Dtype::U32 if has_part(".scales") => PackedLayout::Mlx,
            Dtype::U8 if self.state(name).is_some() => PackedLayout::Bnb4,
            Dtype::U8 if has_part(".weight_scale_2") => PackedLayout::Nvfp4,
            Dtype::I8 if has_part(".SCB") => PackedLayout::Bnb8,
            Dtype::I8 if has_part(".weight_scale") => PackedLayout::Int8,
            Dtype::I8 | Dtype::U8 if has_part(".scale") => PackedLayout::Mxfp4,
            _ => return None,
        };
        Some((family, name.to_owned()))
    }

    pub(super) fn find(&self, family: PackedLayout, name: &str) -> Result<FoundMatrix, String> {
        let base = name.strip_suffix(".weight").unwrap_or(name);
        let (codes, shape, kind) = match family {
            PackedLayout::Words if self.settings.is_gemv() => self.gemv(base),
            PackedLayout::Words => self.words(base),
            PackedLayout::CompressedWords => self.compressed_words(base),
            PackedLayout::CompressedFloats => self.compressed_floats(base),
            PackedLayout::Mlx => self.mlx(base),
            PackedLayout::Bnb4 => self.bnb4(name),
            PackedLayout::Bnb8 => self.bnb8(base),
            PackedLayout::Nvfp4 => self.nvfp4(base),
            PackedLayout::Mxfp4 => self.mxfp4(base),
            PackedLayout::Int8 => self.int8(base),
            PackedLayout::Float8 => self.float8(name),
            PackedLayout::Blocks => self.blocks(base),
        }?;
        let (Some(&width), false) = (shape.last(), shape.contains(&0)) else {
            return Err(format!("`{name}` has the shape {shape:?}"));
        };
        Ok(FoundMatrix {
            shape,
            packed: Packed::new(kind, width),
            codes,
        })
    }

    fn file(&self, stored: &StoredTensor) -> String {
        let file = self.checkpoint.path(stored).file_name();
        file.unwrap_or_default().display().to_string()
    }

    fn fault(&self, name: &str, stored: &StoredTensor, expected: &str) -> String {
        let name = self.checkpoint.stored_name(name);
        format!(
            "`{name}` in {} has the shape {:?} ({:?}), expected {expected}",
            self.file(stored),
            stored.shape,
            stored.dtype
        )
    }

    fn get(&self, name: &str) -> Result<&StoredTensor, String> {
        self.checkpoint
            .get(name)
            .ok_or_else(|| format!("`{name}` is missing; the matrix cannot be unpacked without it"))
    }

    /// A tensor of this shape and of one of these types.
    fn part(&self, name: &str, shape: &[u64], types: &[Dtype]) -> Result<StoredNumbers, String> {
        let stored = self.get(name)?;
        if stored.shape != shape || !types.contains(&stored.dtype) {
            let types: Vec<String> = types.iter().map(|ty| format!("{ty:?}")).collect();
            let expected = format!("{shape:?} ({})", types.join(" or "));
            return Err(self.fault(name, stored, &expected));
        }
        self.numbers(stored)
    }

    fn numbers(&self, stored: &StoredTensor) -> Result<StoredNumbers, String> {
        StoredNumbers::new(self.checkpoint, stored)
    }

    /// A tensor of codes with two axes.
    fn matrix(&self, name: &str, types: &[Dtype]) -> Result<(&StoredTensor, u64, u64), String> {
        let stored = self.get(name)?;
        match stored.shape.as_slice() {
            &[rows, columns] if types.contains(&stored.dtype) && rows > 0 && columns > 0 => {
                Ok((stored, rows, columns))
            }
            _ => Err(self.fault(name, stored, &format!("a matrix of {:?}", types[0]))),
        }
    }

    /// A tensor of codes with two or more axes: the outer axes, the number of all rows, the last axis.
    fn rows<'s>(
        &'s self,
        name: &str,
        ty: Dtype,
    ) -> Result<(&'s StoredTensor, &'s [u64], u64, u64), String> {
        let stored = self.get(name)?;
        match stored.shape.split_last() {
            Some((&last, outer)) if !outer.is_empty() && stored.dtype == ty && last > 0 => {
                Ok((stored, outer, outer.iter().product(), last))
            }
            _ => Err(self.fault(name, stored, &format!("a matrix of {ty:?}"))),
        }
    }

    /// The length of the last axis of scales, which is the number of groups.
    fn n_groups(&self, name: &str) -> Result<u64, String> {
        let stored = self.get(name)?;
        match stored.shape.last() {
            Some(&n) if n > 0 => Ok(n),
            _ => Err(self.fault(name, stored, "groups in the last axis")),
        }
    }

    /// Name of the tensor in which bitsandbytes describes a 4-bit matrix.
    fn state(&self, name: &str) -> Option<String> {
        let names = ["nf4", "fp4"].map(|ty| format!("{name}.quant_state.bitsandbytes__{ty}"));
        names
            .into_iter()
            .find(|name| self.checkpoint.get(name).is_some())
    }
}

/// Whether 8-bit floats are the scales of other tensors.
fn is_scale(name: &str) -> bool {
    ["_scale", "_scale_inv", ".scale", ".scales"]
        .iter()
        .any(|ending| name.ends_with(ending))
}

/// The type of numbers to which no other rule applies.
pub(super) fn rounded(width: u64) -> TensorType {
    match width.is_multiple_of(TensorType::Q8_0.block_len()) {
        true => TensorType::Q8_0,
        false => TensorType::BF16,
    }
}
