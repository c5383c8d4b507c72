//! Finds matrices of 8-bit and 4-bit floats in the layout of each method.

use lab_base::weights::safetensors::{Dtype, StoredTensor};

use super::super::PackedFormat;
use super::super::codes::StoredNumbers;
use super::super::floats::{E2M1, Fp4Matrix, Fp4Scales, Fp8Matrix};
use super::{FLOATS, MX_CODES, Matrix, MatrixFinder, NV_CODES};

/// Number of bytes of the codes that share an exponent, where these form an axis.
const MX_BYTES: u64 = 16;

impl MatrixFinder<'_> {
    /// bitsandbytes, 4 bits: codes of a table, and the largest number of each block.
    pub(super) fn bnb4(&self, name: &str) -> Result<Matrix, String> {
        let stored = self.get(name)?;
        let state_name = self.state(name).ok_or("the state is missing")?;
        let state_stored = self.get(&state_name)?;
        let bad = |what: &str| format!("`{state_name}` in {} {what}", self.file(state_stored));
        let state: serde_json::Value = serde_json::from_slice(self.numbers(state_stored)?.data())
            .map_err(|error| bad(&format!("is not JSON: {error}")))?;
        let number = |key: &str| state.get(key).and_then(serde_json::Value::as_u64);
        let shape = state.get("shape").and_then(serde_json::Value::as_array);
        let shape = shape.and_then(|axes| axes.iter().map(serde_json::Value::as_u64).collect());
        let shape: Vec<u64> = shape.ok_or_else(|| bad("has no `shape`"))?;
        let n = shape.iter().try_fold(1u64, |n, axis| n.checked_mul(*axis));
        let n_bytes = n.map(|n| n.div_ceil(2));
        if n_bytes != Some(stored.bytes as u64) || shape.len() < 2 || shape.contains(&0) {
            return Err(self.fault(
                name,
                stored,
                &format!("the codes of a matrix {shape:?}, two in a byte"),
            ));
        }
        let n = n.unwrap_or(0);
        let block = number("blocksize").filter(|block| *block > 0);
        let block = block.ok_or_else(|| bad("has no `blocksize`"))?;
        let n_blocks = n.div_ceil(block);
        let map = self.part(&format!("{name}.quant_map"), &[16], FLOATS)?;
        let mut table = [0.0; 16];
        for (at, entry) in (0..).zip(&mut table) {
            *entry = map.number(at)?;
        }
        let largest = format!("{name}.absmax");
        let scales = match number("nested_blocksize") {
            None => Fp4Scales::Stored(self.part(&largest, &[n_blocks], FLOATS)?),
            Some(0) => return Err(bad("has a `nested_blocksize` of 0")),
            Some(outer) => Fp4Scales::Nested {
                codes: self.part(&largest, &[n_blocks], &[Dtype::U8])?,
                table: self.part(&format!("{name}.nested_quant_map"), &[256], FLOATS)?,
                scales: self.part(
                    &format!("{name}.nested_absmax"),
                    &[n_blocks.div_ceil(outer)],
                    FLOATS,
                )?,
                block: outer,
                offset: state
                    .get("nested_offset")
                    .and_then(serde_json::Value::as_f64)
                    .ok_or_else(|| bad("has no `nested_offset`"))? as f32,
            },
        };
        let four = Fp4Matrix {
            codes: self.numbers(stored)?,
            is_high_first: true,
            table,
            block,
            scales,
            factor: 1.0,
        };
        Ok((stored.clone(), shape, PackedFormat::Fp4(four)))
    }

    /// 4-bit floats, two neighbours in a byte, of which this many share a scale.
    pub(super) fn four(
        &self,
        name: &str,
        scales: &str,
        [share, per]: [u64; 2],
        types: &[Dtype],
        factor: f32,
    ) -> Result<Matrix, String> {
        let stored = self.get(name)?;
        let Some((&last, outer)) = stored.shape.split_last() else {
            return Err(self.fault(name, stored, "a matrix"));
        };
        let width = last
            .checked_mul(per)
            .filter(|width| !outer.is_empty() && width.is_multiple_of(share));
        let width = width
            .ok_or_else(|| self.fault(name, stored, &format!("whole groups of {share} columns")))?;
        let shape = [outer, &[width / share]].concat();
        let mut place = self.part(scales, &shape, types)?;
        if place.dtype == Dtype::U8 {
            place.dtype = if share == MX_CODES {
                Dtype::F8_E8M0
            } else {
                Dtype::F8_E4M3
            };
        }
        self.e2m1(stored, [outer, &[width]].concat(), share, place, factor)
    }

    /// Codes of E2M1, of which `block` share a scale.
    fn e2m1(
        &self,
        stored: &StoredTensor,
        shape: Vec<u64>,
        block: u64,
        scales: StoredNumbers,
        factor: f32,
    ) -> Result<Matrix, String> {
        let four = Fp4Matrix {
            codes: self.numbers(stored)?,
            is_high_first: false,
            table: E2M1,
            block,
            scales: Fp4Scales::Stored(scales),
            factor,
        };
        Ok((stored.clone(), shape, PackedFormat::Fp4(four)))
    }

    /// The number in a tensor of one element.
    fn one(&self, name: &str) -> Result<f32, String> {
        let stored = self.get(name)?;
        let is_one = stored.shape.iter().product::<u64>() == 1 && FLOATS.contains(&stored.dtype);
        if !is_one {
            return Err(self.fault(name, stored, "one number"));
        }
        self.numbers(stored)?.number(0)
    }

    /// ModelOpt: the scale of the tensor multiplies the scales of groups.
    pub(super) fn nvfp4(&self, base: &str) -> Result<Matrix, String> {
        let factor = self.one(&format!("{base}.weight_scale_2"))?;
        let [name, scales] = ["weight", "weight_scale"].map(|ending| format!("{base}.{ending}"));
        self.four(&name, &scales, [NV_CODES, 2], &[Dtype::F8_E4M3], factor)
    }

    /// compressed-tensors, `nvfp4-pack-quantized` (the scale of the tensor divides the scales of groups) and
    /// `mxfp4-pack-quantized`.
    pub(super) fn compressed_floats(&self, base: &str) -> Result<Matrix, String> {
        let [name, scales, all] = ["weight_packed", "weight_scale", "weight_global_scale"]
            .map(|ending| format!("{base}.{ending}"));
        if self.checkpoint.get(&all).is_none() {
            return self.four(
                &name,
                &scales,
                [MX_CODES, 2],
                &[Dtype::U8, Dtype::F8_E8M0],
                1.0,
            );
        }
        let factor = 1.0 / self.one(&all)?;
        self.four(&name, &scales, [NV_CODES, 2], &[Dtype::F8_E4M3], factor)
    }

    /// MXFP4 with two codes in a byte, in matrices next to 8-bit floats whose exponents have the same name.
    pub(super) fn mxfp4(&self, base: &str) -> Result<Matrix, String> {
        let [name, scales] = ["weight", "scale"].map(|ending| format!("{base}.{ending}"));
        let types = [Dtype::F8_E8M0, Dtype::U8];
        self.four(&name, &scales, [MX_CODES, 2], &types, 1.0)
    }

    /// MXFP4 with an axis of blocks.
    pub(super) fn blocks(&self, base: &str) -> Result<Matrix, String> {
        let [codes_name, scales_name] =
            ["blocks", "scales"].map(|ending| format!("{base}_{ending}"));
        let (codes, exponents) = (self.get(&codes_name)?, self.get(&scales_name)?);
        let shape = match codes.shape.split_last_chunk::<2>() {
            Some((outer, &[n, MX_BYTES])) if !outer.is_empty() => n
                .checked_mul(MX_CODES)
                .map(|width| ([outer, &[width]].concat(), [outer, &[n]].concat())),
            _ => None,
        };
        let is_bytes =
            codes.dtype == Dtype::U8 && matches!(exponents.dtype, Dtype::U8 | Dtype::F8_E8M0);
        let Some((shape, _)) = shape.filter(|(_, scales)| is_bytes && exponents.shape == *scales)
        else {
            return Err(format!(
                "{codes_name} in {} has the shape {:?} ({:?}) and {scales_name} {:?} ({:?}); expected bytes [.., n, {MX_BYTES}] and [.., n]",
                self.file(codes),
                codes.shape,
                codes.dtype,
                exponents.shape,
                exponents.dtype
            ));
        };
        let mut scales = self.numbers(exponents)?;
        scales.dtype = Dtype::F8_E8M0;
        self.e2m1(codes, shape, MX_CODES, scales, 1.0)
    }

    /// 8-bit floats with scales of blocks of rows and columns, of rows, or of the tensor.
    pub(super) fn float8(&self, name: &str) -> Result<Matrix, String> {
        let stored = self.get(name)?;
        let base = name.strip_suffix(".weight").unwrap_or(name);
        let names = [
            format!("{name}_scale_inv"),
            format!("{name}_scale"),
            format!("{base}.scale"),
        ];
        let scale_name = names
            .iter()
            .find(|name| self.checkpoint.get(name).is_some());
        let scale_name = scale_name
            .ok_or_else(|| format!("{name} has 8 bits, and there is no {}", names.join(" or ")))?;
        let scale = self.get(scale_name)?;
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
        let block = match self.settings.block() {
            Some(block) if down.saturating_mul(across) > 1 => block,
            _ => [rows.div_ceil(down.max(1)), width.div_ceil(across.max(1))],
        };
        let fits = block[0] > 0
            && block[1] > 0
            && rows.div_ceil(block[0]) == down
            && width.div_ceil(block[1]) == across;
        let is_scale =
            FLOATS.contains(&scale.dtype) || matches!(scale.dtype, Dtype::U8 | Dtype::F8_E8M0);
        if !fits || !is_scale {
            return Err(format!(
                "{scale_name} has the shape {:?} ({:?}), and {name} {:?} in blocks of {block:?}",
                scale.shape, scale.dtype, stored.shape
            ));
        }
        let mut scales = self.numbers(scale)?;
        if scales.dtype == Dtype::U8 {
            scales.dtype = Dtype::F8_E8M0;
        }
        let eight = Fp8Matrix {
            codes: self.numbers(stored)?,
            scales,
            block,
            per_row: across,
        };
        Ok((
            stored.clone(),
            stored.shape.clone(),
            PackedFormat::Fp8(eight),
        ))
    }
}
