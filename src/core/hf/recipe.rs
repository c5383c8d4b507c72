//! A lazy tensor made of stored tensors: parts are rearranged, concatenated and converted element by element. Rows are
//! computed from the mapped file when they are read.

use crate::arch::expr::{Expr, Scope, Value};
use lab_base::weights::safetensors::Dtype;
use lab_base::weights::{FileBytes, LazyTensor, TensorType};

use super::packed::{Packed, Packing, RowScratch, encode};
use super::rearrange::{Axis, View};

/// Elements of a stored tensor in a new order.
#[derive(Clone, Debug)]
pub(super) struct RecipePart {
    /// The file, and the range of the stored tensor in it.
    pub(super) file: FileBytes,
    pub(super) offset: usize,
    pub(super) bytes: usize,
    pub(super) dtype: Dtype,
    pub(super) packing: Packing,
    pub(super) view: View,
}

impl RecipePart {
    /// The element type that the part alone has in memory.
    pub(super) fn ty(&self) -> Result<TensorType, String> {
        if let Packing::Packed(packed) = &self.packing {
            let row = self.view.shape().last().copied().unwrap_or(1);
            let exact = packed.exact().filter(|ty| self.keeps_blocks(packed, *ty));
            return Ok(exact.unwrap_or_else(|| packed.rounded(row)));
        }
        Ok(match self.dtype {
            Dtype::F32 | Dtype::F64 => TensorType::F32,
            Dtype::BF16 => TensorType::BF16,
            Dtype::F16 => TensorType::F16,
            Dtype::I32 | Dtype::I64 => TensorType::I32,
            dtype => return Err(format!("element type {dtype:?} is not supported")),
        })
    }

    fn is_packed(&self) -> bool {
        matches!(self.packing, Packing::Packed(_))
    }

    /// Whether the blocks of a type stay whole in the order of the view.
    fn keeps_blocks(&self, packed: &Packed, ty: TensorType) -> bool {
        let n = ty.block_len();
        let Some((inner, outer)) = self.view.axes.split_last() else {
            return false;
        };
        let is_whole = |at: u64| at.is_multiple_of(n);
        let strides = || outer.iter().flatten().filter(|axis| axis.size > 1);
        is_whole(packed.width())
            && is_whole(self.view.offset)
            && strides().all(|axis| is_whole(axis.stride))
            && runs(inner)
                .iter()
                .all(|(at, len)| is_whole(*at) && is_whole(*len))
    }

    /// The numbers of adjacent elements, from the stored element `first` on.
    fn values(&self, first: u64, out: &mut [f32], scratch: &mut RowScratch) -> Result<(), String> {
        if let Packing::Packed(packed) = &self.packing {
            return packed.values(first, out, scratch);
        }
        let from = self.stored(first, out.len() as u64)?;
        let width = self.dtype.bitsize() / 8;
        for (from, out) in from.chunks(width).zip(out) {
            *out = read(self.dtype, from) as f32;
        }
        Ok(())
    }

    /// The bytes of adjacent elements of a tensor that is not packed.
    fn stored(&self, first: u64, n: u64) -> Result<&[u8], String> {
        let width = self.dtype.bitsize() / 8;
        let all = self.file.get(self.offset..self.offset + self.bytes);
        let start = first as usize * width;
        all.ok_or("the file is shorter than it was")?
            .get(start..start + n as usize * width)
            .ok_or_else(|| "a row outside the stored tensor".into())
    }
}

/// The type of a tensor of two parts with these types, at least one of which is packed, with rows of this length.
fn common(a: TensorType, b: TensorType, row: u64) -> TensorType {
    use TensorType as T;
    match (a.min(b), a.max(b)) {
        (a, b) if a == b => a,
        (T::F32, _) => T::F32,
        (a, b) if a.is_plain() && b.is_plain() => T::F32,
        (a, _) if a.is_plain() => a,
        (_, b) if b.is_plain() => b,
        (T::Q4_0, T::Q5_0) => T::Q5_0,
        (T::Q4_1, T::Q5_1) => T::Q5_1,
        _ if row.is_multiple_of(T::Q8_0.block_len()) => T::Q8_0,
        _ => T::BF16,
    }
}

/// The function that makes a tensor's elements.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    parts: Vec<PreparedPart>,
    /// Whether the parts stand side by side in each row.
    is_beside: bool,
    /// Factors of the elements, in the order of the elements.
    times: Option<RecipePart>,
    each: Option<ElementFn>,
    ty: TensorType,
    /// Number of elements of a row.
    row_len: u64,
    /// Number of elements that have the same index along the slowest axis.
    n_per_index: u64,
}

/// The function of each element `x` with the index `i` along the slowest axis.
#[derive(Clone, Debug)]
pub(super) struct ElementFn {
    expr: Expr,
    /// Whether the expression uses the index.
    has_index: bool,
    /// `a` and `b`, if the function is `a * x + b` and does not use the index.
    linear: Option<(f64, f64)>,
}

impl ElementFn {
    pub(super) fn new(expr: Expr) -> Self {
        let mut has_index = false;
        expr.for_each_name(&mut |name, _| has_index |= name == INDEX);
        let linear = match has_index {
            true => None,
            false => expr
                .linear(ELEMENT, &ElementScope { x: 0.0, i: 0 })
                .unwrap_or_default(),
        };
        Self {
            expr,
            has_index,
            linear,
        }
    }

    /// The factors `a`, if each element with an index below `n` along the slowest axis becomes `a * x + b`: one for
    /// each index, or one for all. None if another function applies to any element.
    pub(super) fn slopes(&self, n: u64) -> Result<Option<Vec<f64>>, String> {
        let n = if self.has_index { n } else { 1 };
        let slope = |i: u64| match self.of(i)? {
            IndexFn::Linear(a, _) => Ok(Some(a)),
            IndexFn::Any(..) => Ok(None),
        };
        (0..n).map(slope).collect()
    }

    /// The function of all elements with this index.
    fn of(&self, i: u64) -> Result<IndexFn<'_>, String> {
        let linear = match self.has_index {
            true => self.expr.linear(ELEMENT, &ElementScope { x: 0.0, i })?,
            false => self.linear,
        };
        Ok(linear.map_or(IndexFn::Any(&self.expr, i), |(a, b)| IndexFn::Linear(a, b)))
    }
}

/// A function of an element.
enum IndexFn<'a> {
    Linear(f64, f64),
    Any(&'a Expr, u64),
}

impl IndexFn<'_> {
    fn apply(&self, x: f64) -> Result<f32, String> {
        let (expr, i) = match self {
            Self::Linear(a, b) => return Ok((a * x + b) as f32),
            Self::Any(expr, i) => (expr, *i),
        };
        match expr.evaluate(&ElementScope { x, i })? {
            Value::Float(v) => Ok(v as f32),
            Value::Int(v) => Ok(v as f32),
            other => Err(format!(
                "`{expr}` gives {}, expected a number",
                other.type_name()
            )),
        }
    }
}

/// A part, prepared for reading.
#[derive(Clone, Debug)]
struct PreparedPart {
    part: RecipePart,
    /// The axes above the row, slowest first.
    outer: Vec<Axis>,
    n_rows: u64,
    /// The places of a row's elements: runs of adjacent elements, relative to the row's first element.
    runs: Vec<(u64, u64)>,
    /// Whether the stored bytes are converted to the tensor's type without dequantisation.
    is_direct: bool,
}

impl PreparedPart {
    /// A part of a tensor of type `ty`, with or without a function of its elements.
    fn new(part: RecipePart, ty: TensorType, has_each: bool) -> Result<Self, String> {
        let (inner, outer) = match part.view.axes.split_last() {
            Some((inner, outer)) => (inner.clone(), outer.concat()),
            None => (Vec::new(), Vec::new()),
        };
        let is_direct = match &part.packing {
            Packing::Packed(packed) => {
                !has_each && packed.fits(ty) && part.keeps_blocks(packed, ty)
            }
            Packing::Plain => has_each || part.ty()? == ty,
        };
        Ok(Self {
            runs: runs(&inner),
            n_rows: outer.iter().map(|axis| axis.size).product(),
            is_direct,
            part,
            outer,
        })
    }

    fn row_len(&self) -> usize {
        self.runs.iter().map(|(_, n)| *n as usize).sum()
    }

    fn row_bytes(&self, ty: TensorType) -> usize {
        ty.row_bytes(self.row_len() as u64).unwrap_or(0) as usize
    }

    fn n_rows_of(&self, bytes: usize, ty: TensorType) -> u64 {
        bytes.div_ceil(self.row_bytes(ty).max(1)) as u64
    }

    /// The place of a row's first stored element.
    fn begin(&self, mut row: u64) -> u64 {
        let mut at = self.part.view.offset;
        for axis in self.outer.iter().rev() {
            at += row % axis.size * axis.stride;
            row /= axis.size;
        }
        at
    }
}

/// Whether all elements of axes (slowest first) are contiguous.
fn are_neighbours(axes: &[Axis]) -> bool {
    let mut n = 1;
    axes.iter().rev().filter(|axis| axis.size > 1).all(|axis| {
        let follows = axis.stride == n;
        n *= axis.size;
        follows
    })
}

/// The runs of adjacent elements of an axis.
fn runs(axes: &[Axis]) -> Vec<(u64, u64)> {
    let mut out = vec![(0, 1)];
    for axis in axes.iter().rev().filter(|axis| axis.size > 1) {
        let is_joined = out.len() == 1 && out[0].1 == axis.stride;
        out = match is_joined {
            true => vec![(0, out[0].1 * axis.size)],
            false => (0..axis.size)
                .flat_map(|i| out.iter().map(move |(at, n)| (at + i * axis.stride, *n)))
                .collect(),
        };
    }
    out
}

impl Recipe {
    /// The parts concatenated along the slowest axis, or along the fastest one, as a tensor of this shape (slowest axis
    /// first). With `times`, factors of the elements, or `each`, a function of them, the type is f32.
    ///
    /// If parts are packed, the type is the nearest one that represents all of them.
    pub(super) fn new(
        parts: Vec<RecipePart>,
        is_beside: bool,
        shape: &[u64],
        times: Option<RecipePart>,
        each: Option<Expr>,
    ) -> Result<Self, String> {
        let is_packed = parts.iter().any(RecipePart::is_packed);
        let row = shape.last().copied().unwrap_or(1);
        let mut types = parts.iter().map(RecipePart::ty);
        let mut first = types.next().ok_or("nothing to be made of")??;
        for ty in types {
            let ty = ty?;
            if ty != first && !is_packed {
                return Err(format!("parts of the types {first} and {ty}"));
            }
            first = common(first, ty, row);
        }
        let ty = if times.is_some() || each.is_some() {
            TensorType::F32
        } else {
            first
        };
        let sources = parts.into_iter().map(|part| {
            let mut source = PreparedPart::new(part, ty, each.is_some())?;
            source.is_direct &= times.is_none();
            Ok(source)
        });
        Ok(Self {
            parts: sources.collect::<Result<_, String>>()?,
            is_beside,
            times,
            ty,
            each: each.map(ElementFn::new),
            row_len: row,
            n_per_index: shape.iter().skip(1).product::<u64>().max(1),
        })
    }

    pub(super) fn ty(&self) -> TensorType {
        self.ty
    }

    /// The file and offset of the tensor, if it is a stored tensor without changes.
    pub(super) fn in_place(&self) -> Option<(&FileBytes, usize)> {
        let [source] = self.parts.as_slice() else {
            return None;
        };
        let part = &source.part;
        let is_whole = are_neighbours(&part.view.axes.concat());
        let is_same = self.each.is_none() && self.times.is_none();
        let is_same = is_same && is_same_element(part, self.ty);
        let at = part.offset + part.view.offset as usize * part.dtype.bitsize() / 8;
        (is_whole && is_same).then_some((&part.file, at))
    }
}

fn is_same_element(part: &RecipePart, ty: TensorType) -> bool {
    matches!(
        (&part.packing, part.dtype, ty),
        (Packing::Plain, Dtype::F32, TensorType::F32)
            | (Packing::Plain, Dtype::F16, TensorType::F16)
            | (Packing::Plain, Dtype::BF16, TensorType::BF16)
            | (Packing::Plain, Dtype::I32, TensorType::I32)
    )
}

impl LazyTensor for Recipe {
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), String> {
        self.make(first, self.ty, out)
    }

    fn values(&self, first: u64, out: &mut [f32]) -> Result<bool, String> {
        let is_rounded =
            self.ty != TensorType::F32 && self.parts.iter().any(|s| s.part.is_packed());
        if is_rounded {
            self.make(first, TensorType::F32, bytemuck::cast_slice_mut(out))?;
        }
        Ok(is_rounded)
    }
}

impl Recipe {
    /// Makes rows as type `ty`, which is the tensor's type or f32.
    fn make(&self, first: u64, ty: TensorType, out: &mut [u8]) -> Result<(), String> {
        let mut row = first;
        let mut element = first * self.row_len;
        let mut out = out;
        if self.is_beside {
            let mut scratches: Vec<RowScratch> =
                self.parts.iter().map(|_| RowScratch::new(1)).collect();
            while !out.is_empty() {
                for (source, scratch) in self.parts.iter().zip(&mut scratches) {
                    out = self.row(source, [row, element], ty, out, scratch)?;
                    element += source.row_len() as u64;
                }
                row += 1;
            }
            return Ok(());
        }
        for source in &self.parts {
            if row >= source.n_rows {
                row -= source.n_rows;
                continue;
            }
            let mut scratch = RowScratch::new(source.n_rows_of(out.len(), ty));
            while row < source.n_rows && !out.is_empty() {
                out = self.row(source, [row, element], ty, out, &mut scratch)?;
                row += 1;
                element += source.row_len() as u64;
            }
            row = 0;
        }
        match out.is_empty() {
            true => Ok(()),
            false => Err(format!("{} bytes more than there are rows", out.len())),
        }
    }

    /// Writes one row of a part, whose first element has the given place in the tensor, and returns the rest of `out`.
    fn row<'o>(
        &self,
        source: &PreparedPart,
        [row, mut element]: [u64; 2],
        ty: TensorType,
        out: &'o mut [u8],
        scratch: &mut RowScratch,
    ) -> Result<&'o mut [u8], String> {
        let part = &source.part;
        let begin = source.begin(row);
        let (to, left) = out
            .split_at_mut_checked(source.row_bytes(ty))
            .ok_or("a part of a row was requested")?;
        if ty != self.ty || !source.is_direct {
            self.row_of_values(source, [begin, element], ty, to, scratch)?;
            return Ok(left);
        }
        let mut to = to;
        for (at, n) in &source.runs {
            let (first, n) = (begin + at, *n);
            let n_bytes = n / ty.block_len() * ty.block_bytes();
            let (here, rest) = std::mem::take(&mut to).split_at_mut(n_bytes as usize);
            match (&part.packing, &self.each) {
                (Packing::Packed(packed), _) => packed.blocks(ty, first, n, here, scratch)?,
                (Packing::Plain, None) => {
                    convert_plain(part.dtype, ty, part.stored(first, n)?, here)?;
                }
                (Packing::Plain, Some(each)) => {
                    self.apply(each, part.dtype, element, part.stored(first, n)?, here)?;
                }
            }
            element += n;
            to = rest;
        }
        Ok(left)
    }

    /// Writes a row by way of its numbers in f32.
    fn row_of_values(
        &self,
        source: &PreparedPart,
        [begin, element]: [u64; 2],
        ty: TensorType,
        out: &mut [u8],
        scratch: &mut RowScratch,
    ) -> Result<(), String> {
        let mut values = vec![0f32; source.row_len()];
        let mut to = values.as_mut_slice();
        for (at, n) in &source.runs {
            let (here, rest) = to.split_at_mut(*n as usize);
            source.part.values(begin + at, here, scratch)?;
            to = rest;
        }
        if let Some(times) = &self.times {
            let mut factors = vec![0f32; values.len()];
            // The cache of one packed matrix cannot be used for another.
            times.values(element, &mut factors, &mut RowScratch::new(1))?;
            for (value, factor) in values.iter_mut().zip(factors) {
                *value *= factor;
            }
        }
        match &self.each {
            None => encode(&values, ty, out),
            Some(each) => {
                let values = bytemuck::cast_slice(&values);
                self.apply(each, Dtype::F32, element, values, out)
            }
        }
    }

    fn apply(
        &self,
        each: &ElementFn,
        dtype: Dtype,
        first: u64,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), String> {
        let mut index = first / self.n_per_index;
        let mut function = each.of(index)?;
        let elements = from.chunks(dtype.bitsize() / 8).zip(to.chunks_mut(4));
        for (element, (from, to)) in (first..).zip(elements) {
            if each.has_index && element / self.n_per_index != index {
                index = element / self.n_per_index;
                function = each.of(index)?;
            }
            let value = function.apply(read(dtype, from))?;
            to.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }
}

/// Converts adjacent elements to the type of the tensor.
fn convert_plain(dtype: Dtype, ty: TensorType, from: &[u8], to: &mut [u8]) -> Result<(), String> {
    match (dtype, ty) {
        (Dtype::F64, TensorType::F32) => {
            for (from, to) in from.chunks(8).zip(to.chunks_mut(4)) {
                to.copy_from_slice(&(read(dtype, from) as f32).to_le_bytes());
            }
        }
        (Dtype::I64, TensorType::I32) => {
            for (from, to) in from.chunks(8).zip(to.chunks_mut(4)) {
                let value = i64::from_le_bytes(from.try_into().unwrap_or_default());
                let value = i32::try_from(value)
                    .map_err(|_| format!("{value} does not fit into 32 bits"))?;
                to.copy_from_slice(&value.to_le_bytes());
            }
        }
        _ => to.copy_from_slice(from),
    }
    Ok(())
}

/// One stored number.
pub(super) fn read(dtype: Dtype, bytes: &[u8]) -> f64 {
    let two = |b: &[u8]| [b[0], b[1]];
    match (dtype, bytes.len()) {
        (Dtype::F32, 4) => f64::from(f32::from_le_bytes(bytes.try_into().unwrap_or_default())),
        (Dtype::F64, 8) => f64::from_le_bytes(bytes.try_into().unwrap_or_default()),
        (Dtype::F16, 2) => f64::from(half::f16::from_le_bytes(two(bytes))),
        (Dtype::BF16, 2) => f64::from(half::bf16::from_le_bytes(two(bytes))),
        (Dtype::I32, 4) => f64::from(i32::from_le_bytes(bytes.try_into().unwrap_or_default())),
        (Dtype::I64, 8) => i64::from_le_bytes(bytes.try_into().unwrap_or_default()) as f64,
        _ => f64::NAN,
    }
}

/// One stored number as a value; integers stay exact. None if it is not finite.
pub(super) fn number(dtype: Dtype, bytes: &[u8]) -> Option<Value> {
    Some(match (dtype, bytes.len()) {
        (Dtype::I32, 4) => Value::Int(i32::from_le_bytes(bytes.try_into().ok()?).into()),
        (Dtype::I64, 8) => Value::Int(i64::from_le_bytes(bytes.try_into().ok()?)),
        _ => Value::Float(Some(read(dtype, bytes)).filter(|value| value.is_finite())?),
    })
}

/// The names in an expression over elements.
pub(super) const ELEMENT: &str = "x";
pub(super) const INDEX: &str = "i";

struct ElementScope {
    x: f64,
    i: u64,
}

impl Scope for ElementScope {
    fn name(&self, name: &str, _: bool) -> Result<Value, String> {
        match name {
            ELEMENT => Ok(Value::Float(self.x)),
            INDEX => Ok(Value::Int(self.i as i64)),
            _ => Err(format!(
                "unknown name `{name}`; the element is `x`, its index `i`"
            )),
        }
    }
}
