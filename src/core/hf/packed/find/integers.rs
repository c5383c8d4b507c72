//! Finds matrices of integer codes in the layout of each method.

use lab_base::weights::safetensors::Dtype;

use super::super::affine::{AffineMatrix, ScaleGroups, ZeroPoints};
use super::super::codes::{CodeLayout, PackedCodes, ScaleGrid};
use super::super::method::MlxGrouping;
use super::{FLOATS, MX_CODES, Matrix, MatrixFinder, NV_CODES};

impl MatrixFinder<'_> {
    /// The columns that share a scale.
    fn group(&self, scales: &str, width: u64, n_groups: u64) -> Result<ScaleGroups, String> {
        match self.settings.group() {
            Some(group) if group > 0 && width.div_ceil(group) == n_groups => {
                Ok(ScaleGroups::Even(group))
            }
            _ if n_groups > 0 && width.is_multiple_of(n_groups) => {
                Ok(ScaleGroups::Even(width / n_groups))
            }
            _ => {
                let expected = format!("groups that divide {width} columns");
                Err(self.fault(scales, self.get(scales)?, &expected))
            }
        }
    }

    /// Groups of scattered columns, or even groups if the columns are not scattered.
    fn named_groups(&self, name: &str, width: u64, n_groups: u64) -> Result<ScaleGroups, String> {
        let place = self.part(name, &[width], &[Dtype::I32, Dtype::I64])?;
        let names = (0..width).map(|column| place.number(column));
        let names: Vec<f32> = names.collect::<Result<_, _>>()?;
        if let Some(column) = names
            .iter()
            .position(|n| !(0.0..n_groups as f32).contains(n))
        {
            return Err(format!(
                "`{name}` in {} gives column {column} the group {}, expected one below {n_groups}",
                self.file(self.get(name)?),
                names[column]
            ));
        }
        let group = width.div_ceil(n_groups);
        let is_even = (0..)
            .zip(&names)
            .all(|(column, n)| column / group == *n as u64);
        Ok(match is_even {
            true => ScaleGroups::Even(group),
            false => ScaleGroups::Named(place, n_groups),
        })
    }

    /// GPTQ, and AWQ's `gemm`: each word holds codes of one column, or of eight rows.
    pub(super) fn words(&self, base: &str) -> Result<Matrix, String> {
        let [codes_name, zeros_name, scales_name, index_name] =
            ["qweight", "qzeros", "scales", "g_idx"].map(|ending| format!("{base}.{ending}"));
        let (stored, n_words, columns) = self.matrix(&codes_name, &[Dtype::I32])?;
        let (scales, n_groups, rows) = self.matrix(&scales_name, FLOATS)?;
        let is_awq = columns.checked_mul(8) == Some(rows);
        if !is_awq && columns != rows {
            let expected = format!(
                "[.., {columns}] (GPTQ) or [.., {}] (AWQ)",
                columns.saturating_mul(8)
            );
            return Err(self.fault(&scales_name, scales, &expected));
        }
        let index = self.checkpoint.get(&index_name);
        let n_bits = n_words.checked_mul(32).ok_or("more bits than there are")?;
        let width = match index {
            _ if is_awq => n_words,
            Some(index) => index.shape.first().copied().unwrap_or(0),
            None => match self.settings.bits() {
                Some(bits) if bits > 0 => n_bits / bits,
                _ => {
                    return Err(format!(
                        "nothing says how many bits a code of `{codes_name}` has"
                    ));
                }
            },
        };
        let bits = if is_awq {
            4
        } else {
            n_bits.checked_div(width).unwrap_or(0)
        };
        if !(2..=8).contains(&bits) || !is_awq && n_bits != bits * width {
            let expected = format!("codes of 2 to 8 bits of {width} columns");
            return Err(self.fault(&codes_name, stored, &expected));
        }
        let groups = match index {
            Some(_) if !is_awq => self.named_groups(&index_name, width, n_groups)?,
            _ => self.group(&scales_name, width, n_groups)?,
        };
        let line = (rows * bits).div_ceil(32);
        let zeros = self.part(&zeros_name, &[n_groups, line], &[Dtype::I32])?;
        let (layout, zero_layout, plus) = match is_awq {
            true => (
                CodeLayout::Awq { line: columns },
                CodeLayout::Awq { line },
                0,
            ),
            false => (
                CodeLayout::Rows {
                    line: 1,
                    step: rows,
                },
                CodeLayout::Columns { line, step: 1 },
                u8::from(!self.settings.is_second_version()),
            ),
        };
        let affine = AffineMatrix {
            codes: PackedCodes::new(self.numbers(stored)?, layout, bits),
            rows,
            width,
            groups,
            scales: ScaleGrid {
                place: self.numbers(scales)?,
                strides: [1, rows],
            },
            factor: 1.0,
            zeros: ZeroPoints::Codes(PackedCodes::new(zeros, zero_layout, bits), plus),
        };
        Ok(affine.matrix(stored, vec![rows, width]))
    }

    /// AWQ's `gemv`: each word holds codes of one row.
    pub(super) fn gemv(&self, base: &str) -> Result<Matrix, String> {
        let [codes_name, zeros_name, scales_name] =
            ["qweight", "qzeros", "scales"].map(|ending| format!("{base}.{ending}"));
        let (stored, rows, line) = self.matrix(&codes_name, &[Dtype::I32])?;
        let (_, _, n_scales) = self.matrix(&scales_name, FLOATS)?;
        let width = line.checked_mul(8).ok_or("more columns than there are")?;
        let group = self
            .settings
            .group()
            .filter(|group| *group > 0)
            .unwrap_or(width);
        let n_zeros = n_scales / 8;
        if width.div_ceil(group) > n_zeros * 8 {
            let expected = format!("[{rows}, at least {}]", width.div_ceil(group));
            return Err(self.fault(&scales_name, self.get(&scales_name)?, &expected));
        }
        let zeros = self.part(&zeros_name, &[rows, n_zeros], &[Dtype::I32])?;
        let rows_of = |line| CodeLayout::Rows { line, step: 1 };
        let place = self.numbers(stored)?;
        let affine = AffineMatrix {
            codes: PackedCodes::new(place, rows_of(line), 4),
            rows,
            width,
            groups: ScaleGroups::Even(group),
            scales: ScaleGrid {
                place: self.part(&scales_name, &[rows, n_zeros * 8], FLOATS)?,
                strides: [n_zeros * 8, 1],
            },
            factor: 1.0,
            zeros: ZeroPoints::Codes(PackedCodes::new(zeros, rows_of(n_zeros), 4), 0),
        };
        Ok(affine.matrix(stored, vec![rows, width]))
    }

    /// compressed-tensors, `pack-quantized`.
    pub(super) fn compressed_words(&self, base: &str) -> Result<Matrix, String> {
        let codes_name = format!("{base}.weight_packed");
        let (stored, outer, rows, line) = self.rows(&codes_name, Dtype::I32)?;
        let shape_name = format!("{base}.weight_shape");
        let width = match self.checkpoint.get(&shape_name) {
            None => None,
            Some(_) => {
                let n = outer.len() as u64 + 1;
                let place = self.part(&shape_name, &[n], &[Dtype::I64, Dtype::I32])?;
                Some(place.number(n - 1)? as u64)
            }
        };
        let n_bits = line.checked_mul(32).ok_or("more bits than there are")?;
        let said = self.settings.bits();
        let (bits, width) = match width {
            Some(width) => {
                let fits =
                    |bits: &u64| width.checked_mul(*bits).map(|n| n.div_ceil(32)) == Some(line);
                // One number for all matrices is that of this one: words of 4 padded 7-bit codes have the size of words
                // of 8-bit codes.
                let bits = match said {
                    Some(bits) => Some(bits).filter(fits),
                    None => [4, 8, 2, 3, 5, 6, 7].into_iter().find(fits),
                };
                (bits.unwrap_or(0), width)
            }
            None => (
                said.unwrap_or(0),
                n_bits / said.filter(|n| *n > 0).unwrap_or(u64::MAX),
            ),
        };
        if !(2..=8).contains(&bits) || width == 0 {
            let expected = format!("codes of 2 to 8 bits of {width} columns");
            return Err(self.fault(&codes_name, stored, &expected));
        }
        let zero_name = format!("{base}.weight_zero_point");
        let (scales, groups) = self.scales(base, outer, rows, width)?;
        let zeros = match self.checkpoint.get(&zero_name) {
            None => ZeroPoints::Same(1 << (bits - 1)),
            Some(_) if outer.len() == 1 => {
                let n_groups = self.n_groups(&zero_name)?;
                let shape = [(rows * bits).div_ceil(32), n_groups];
                if scales.strides != [n_groups, 1] && scales.strides != [n_groups, 0] {
                    let expected = "as many groups as there are scales";
                    return Err(self.fault(&zero_name, self.get(&zero_name)?, expected));
                }
                let place = self.part(&zero_name, &shape, &[Dtype::I32])?;
                let step = n_groups;
                ZeroPoints::Codes(
                    PackedCodes::new(place, CodeLayout::Columns { line: 1, step }, bits),
                    0,
                )
            }
            Some(zeros) => {
                return Err(self.fault(&zero_name, zeros, "no zero points of stacked matrices"));
            }
        };
        let affine = AffineMatrix {
            codes: PackedCodes::new(
                self.numbers(stored)?,
                CodeLayout::Rows { line, step: 1 },
                bits,
            ),
            rows,
            width,
            groups,
            scales,
            factor: 1.0,
            zeros,
        };
        Ok(affine.matrix(stored, [outer, &[width]].concat()))
    }

    /// `weight_scale`: one scale for the tensor, for each row, or for each row and group.
    fn scales(
        &self,
        base: &str,
        outer: &[u64],
        rows: u64,
        width: u64,
    ) -> Result<(ScaleGrid, ScaleGroups), String> {
        let name = format!("{base}.weight_scale");
        let stored = self.get(&name)?;
        let (strides, groups) = match stored.shape.as_slice() {
            [] | [1] => ([0, 0], ScaleGroups::Even(width)),
            [n] if *n == rows => ([1, 0], ScaleGroups::Even(width)),
            [head @ .., n_groups] if head == outer && *n_groups > 0 => {
                let index = format!("{base}.weight_g_idx");
                let groups = match self.checkpoint.get(&index) {
                    Some(_) => self.named_groups(&index, width, *n_groups)?,
                    None => self.group(&name, width, *n_groups)?,
                };
                ([*n_groups, 1], groups)
            }
            _ => {
                let expected =
                    format!("one scale, or {outer:?} of them, or groups of {width} columns");
                return Err(self.fault(&name, stored, &expected));
            }
        };
        if !FLOATS.contains(&stored.dtype) {
            return Err(self.fault(&name, stored, "F32, F16 or BF16"));
        }
        let place = self.numbers(stored)?;
        Ok((ScaleGrid { place, strides }, groups))
    }

    /// compressed-tensors, `int-quantized`.
    pub(super) fn int8(&self, base: &str) -> Result<Matrix, String> {
        let codes_name = format!("{base}.weight");
        let (stored, outer, rows, width) = self.rows(&codes_name, Dtype::I8)?;
        let (scales, groups) = self.scales(base, outer, rows, width)?;
        let zero_name = format!("{base}.weight_zero_point");
        let zeros = match self.checkpoint.get(&zero_name) {
            None => ZeroPoints::Same(128),
            Some(_) => {
                let shape = &self.get(&format!("{base}.weight_scale"))?.shape;
                let place = self.part(&zero_name, shape, &[Dtype::I8])?;
                // With one zero point for a row or the tensor there is one group.
                match scales.strides {
                    [0, 0] => ZeroPoints::Same(place.number(0)? as i32 + 128),
                    [n, _] => ZeroPoints::Codes(PackedCodes::signed_bytes(place, n), 0),
                }
            }
        };
        let affine = AffineMatrix {
            codes: PackedCodes::signed_bytes(self.numbers(stored)?, width),
            rows,
            width,
            groups,
            scales,
            factor: 1.0,
            zeros,
        };
        Ok(affine.matrix(stored, stored.shape.clone()))
    }

    /// bitsandbytes, 8 bits: a number is its code times the 127th part of the largest number of its row.
    pub(super) fn bnb8(&self, base: &str) -> Result<Matrix, String> {
        let codes_name = format!("{base}.weight");
        let (stored, rows, width) = self.matrix(&codes_name, &[Dtype::I8])?;
        let format_name = format!("{base}.weight_format");
        if let Some(format) = self.checkpoint.get(&format_name)
            && self.numbers(format)?.number(0)? != 0.0
        {
            return Err(format!(
                "`{format_name}` in {} is not 0: the rows are not in order",
                self.file(format)
            ));
        }
        let affine = AffineMatrix {
            codes: PackedCodes::signed_bytes(self.numbers(stored)?, width),
            rows,
            width,
            groups: ScaleGroups::Even(width),
            scales: ScaleGrid {
                place: self.part(&format!("{base}.SCB"), &[rows], FLOATS)?,
                strides: [1, 0],
            },
            factor: 1.0 / 127.0,
            zeros: ZeroPoints::Same(128),
        };
        Ok(affine.matrix(stored, vec![rows, width]))
    }

    /// MLX: a stream of bits for each row, with scales and minima of groups.
    pub(super) fn mlx(&self, base: &str) -> Result<Matrix, String> {
        let [codes_name, scales_name, offsets_name] =
            ["weight", "scales", "biases"].map(|ending| format!("{base}.{ending}"));
        let stored_name = self.checkpoint.stored_name(&codes_name);
        let module = stored_name.strip_suffix(".weight").unwrap_or(base);
        let (mode, grouping) = self.settings.grouping(module);
        match mode {
            "affine" => {}
            "mxfp4" => {
                return self.four(&codes_name, &scales_name, [MX_CODES, 8], &[Dtype::U8], 1.0);
            }
            "nvfp4" => {
                return self.four(&codes_name, &scales_name, [NV_CODES, 8], &[Dtype::U8], 1.0);
            }
            mode => {
                return Err(format!(
                    "`{base}` has the mode `{mode}`, expected affine, mxfp4 or nvfp4"
                ));
            }
        }
        let Some(MlxGrouping { bits, group }) = grouping else {
            return Err(format!(
                "nothing says how many bits a code of `{codes_name}` has"
            ));
        };
        let (stored, outer, rows, line) = self.rows(&codes_name, Dtype::U32)?;
        let n_groups = self.n_groups(&scales_name)?;
        let width = n_groups.checked_mul(group);
        let is_sound = (2..=8).contains(&bits) && bits != 7 && group > 0;
        let Some(width) =
            width.filter(|width| is_sound && width.checked_mul(bits) == line.checked_mul(32))
        else {
            let expected = format!("codes of {bits} bits of {n_groups} groups of {group} columns");
            return Err(self.fault(&codes_name, stored, &expected));
        };
        let shape = [outer, &[n_groups]].concat();
        let grid = |name: &str| -> Result<ScaleGrid, String> {
            Ok(ScaleGrid {
                place: self.part(name, &shape, FLOATS)?,
                strides: [n_groups, 1],
            })
        };
        let affine = AffineMatrix {
            codes: PackedCodes::new(
                self.numbers(stored)?,
                CodeLayout::Rows { line, step: 1 },
                bits,
            ),
            rows,
            width,
            groups: ScaleGroups::Even(group),
            scales: grid(&scales_name)?,
            factor: 1.0,
            zeros: ZeroPoints::Offsets(grid(&offsets_name)?),
        };
        Ok(affine.matrix(stored, [outer, &[width]].concat()))
    }
}
