//! Tensors as dense arrays of f64 that are decoded from memory and written back.

use ggml_sys as sys;

use super::super::c_text::text;
use super::super::error::Error;
use super::super::quantize::{dequantize, quantize};
use crate::weights::TensorType;

/// Elements in ggml's order: the first dimension is the fastest.
#[derive(Clone)]
pub(super) struct PlainArray {
    pub(super) shape: [usize; 4],
    pub(super) values: Vec<f64>,
}

impl PlainArray {
    pub(super) fn zeros(shape: [usize; 4]) -> Self {
        let values = vec![0.0; shape.iter().product()];
        Self { shape, values }
    }

    pub(super) fn reshaped(self, shape: [usize; 4]) -> Result<Self, Error> {
        if shape.iter().product::<usize>() != self.values.len() {
            return Err(Error::Computation(format!("{:?} as {shape:?}", self.shape)));
        }
        let values = self.values;
        Ok(Self { shape, values })
    }

    pub(super) fn row_at(&self, [i, j, k]: [usize; 3]) -> usize {
        self.shape[0] * (i + self.shape[1] * (j + self.shape[2] * k))
    }

    pub(super) fn row(&self, at: [usize; 3]) -> &[f64] {
        let start = self.row_at(at);
        &self.values[start..start + self.shape[0]]
    }

    pub(super) fn row_mut(&mut self, at: [usize; 3]) -> &mut [f64] {
        let start = self.row_at(at);
        &mut self.values[start..start + self.shape[0]]
    }

    pub(super) fn at(&self, first: usize, rest: [usize; 3]) -> f64 {
        self.values[self.row_at(rest) + first]
    }

    pub(super) fn index(&self, first: usize, rest: [usize; 3]) -> usize {
        self.at(first, rest) as usize
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let [_, n, m, l] = self.shape;
        (0..l).flat_map(move |k| (0..m).flat_map(move |j| (0..n).map(move |i| [i, j, k])))
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) struct PlainNode {
    ptr: *mut sys::ggml_tensor,
    shape: [usize; 4],
    strides: [usize; 4],
    ty: TensorType,
}

impl PlainNode {
    pub(super) fn new(ptr: *mut sys::ggml_tensor) -> Result<Self, Error> {
        // SAFETY: tensors of a loaded graph and their sources are alive; dimensions are below four.
        unsafe {
            let ty = sys::shim_tensor_type(ptr) as u32;
            let ty = TensorType::from_id(ty);
            Ok(Self {
                ptr,
                shape: std::array::from_fn(|dim| sys::shim_tensor_ne(ptr, dim as i32) as usize),
                strides: std::array::from_fn(|dim| sys::shim_tensor_nb(ptr, dim as i32)),
                ty: ty.ok_or_else(|| Error::Computation("a tensor of an unknown type".into()))?,
            })
        }
    }

    pub(super) fn shape(&self) -> [usize; 4] {
        self.shape
    }

    pub(super) fn ty(&self) -> TensorType {
        self.ty
    }

    /// The name of the operation; activations have their own names.
    pub(super) fn op(&self) -> String {
        // SAFETY: every operation has a name.
        unsafe { text(sys::shim_tensor_op_name(self.ptr)) }
    }

    pub(super) fn name(&self) -> String {
        // SAFETY: the tensor is alive.
        unsafe { text(sys::ggml_get_name(self.ptr)) }
    }

    pub(super) fn fault(&self, message: &str) -> Error {
        Error::Computation(format!("{}: {message}", self.op()))
    }

    pub(super) fn param(&self, at: i32) -> f64 {
        // SAFETY: callers pass places below the number of parameters.
        f64::from(unsafe { sys::shim_tensor_op_param(self.ptr, at) })
    }

    pub(super) fn int(&self, at: i32) -> i32 {
        // SAFETY: callers pass places below the number of parameters.
        unsafe { sys::shim_tensor_op_param(self.ptr, at) }.to_bits() as i32
    }

    pub(super) fn source(&self, at: i32) -> Result<Option<Self>, Error> {
        // SAFETY: callers pass places below the number of sources.
        let source = unsafe { sys::shim_tensor_src(self.ptr, at) };
        match source.is_null() {
            true => Ok(None),
            false => Self::new(source).map(Some),
        }
    }

    pub(super) fn input(&self, at: i32) -> Result<PlainArray, Error> {
        let input = self.optional(at)?;
        input.ok_or_else(|| self.fault(&format!("`{}` has no source {at}", self.name())))
    }

    pub(super) fn inputs<const N: usize>(&self, at: [i32; N]) -> Result<[PlainArray; N], Error> {
        let read: Vec<PlainArray> = at
            .into_iter()
            .map(|at| self.input(at))
            .collect::<Result<_, _>>()?;
        read.try_into()
            .map_err(|_| self.fault("the number of sources"))
    }

    pub(super) fn optional(&self, at: i32) -> Result<Option<PlainArray>, Error> {
        self.source(at)?.map(|source| source.read()).transpose()
    }

    fn memory(&self) -> Result<(*mut u8, usize), Error> {
        // SAFETY: the tensor is alive.
        let (data, is_host, n_bytes) = unsafe {
            (
                sys::shim_tensor_data(self.ptr).cast::<u8>(),
                sys::shim_tensor_in_host_memory(self.ptr),
                sys::ggml_nbytes(self.ptr),
            )
        };
        match is_host && !data.is_null() {
            true => Ok((data, n_bytes)),
            false => Err(self.fault(&format!("`{}` is not in the host's memory", self.name()))),
        }
    }

    fn offset(&self, [i, j, k]: [usize; 3]) -> usize {
        i * self.strides[1] + j * self.strides[2] + k * self.strides[3]
    }

    pub(super) fn read(&self) -> Result<PlainArray, Error> {
        let (data, n_bytes) = self.memory()?;
        // SAFETY: a tensor with memory has this many bytes in it, and nothing else runs meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(data, n_bytes) };
        let mut array = PlainArray::zeros(self.shape);
        let size = self.ty.block_bytes() as usize;
        let row_bytes = self.ty.row_bytes(self.shape[0] as u64).unwrap_or(0) as usize;
        let mut decoded = vec![0.0f32; self.shape[0]];
        for at in array.rows() {
            let offset = self.offset(at);
            if self.ty.is_plain() {
                let row = array.row_mut(at);
                for (i, value) in row.iter_mut().enumerate() {
                    let element = &bytes[offset + i * self.strides[0]..][..size];
                    *value = self.decode(element)?;
                }
            } else {
                dequantize(&bytes[offset..offset + row_bytes], self.ty, &mut decoded)?;
                for (value, decoded) in array.row_mut(at).iter_mut().zip(&decoded) {
                    *value = f64::from(*decoded);
                }
            }
        }
        Ok(array)
    }

    fn decode(&self, bytes: &[u8]) -> Result<f64, Error> {
        let four = || bytes.try_into().map(u32::from_le_bytes);
        let two = || bytes.try_into().map(u16::from_le_bytes);
        let eight = || bytes.try_into().map(i64::from_le_bytes);
        let value = match self.ty {
            TensorType::F32 => four().map(|bits| f64::from(f32::from_bits(bits))),
            TensorType::I32 => four().map(|bits| f64::from(bits as i32)),
            TensorType::I64 => eight().map(|value| value as f64),
            TensorType::F16 => two().map(|bits| half::f16::from_bits(bits).to_f64()),
            TensorType::BF16 => two().map(|bits| half::bf16::from_bits(bits).to_f64()),
            other => return Err(self.fault(&format!("elements of {other}"))),
        };
        value.map_err(|_| self.fault(&format!("{} bytes of {}", bytes.len(), self.ty)))
    }

    fn encode(&self, value: f64) -> Result<([u8; 4], usize), Error> {
        let short = |[a, b]: [u8; 2]| ([a, b, 0, 0], 2);
        Ok(match self.ty {
            TensorType::F32 => ((value as f32).to_le_bytes(), 4),
            TensorType::I32 => ((value as i32).to_le_bytes(), 4),
            TensorType::F16 => short(half::f16::from_f32(value as f32).to_le_bytes()),
            TensorType::BF16 => short(half::bf16::from_f32(value as f32).to_le_bytes()),
            other => return Err(self.fault(&format!("elements of {other} are not written"))),
        })
    }

    pub(super) fn write(&self, array: &PlainArray) -> Result<(), Error> {
        if array.shape != self.shape {
            let message = format!("{:?} into `{}` {:?}", array.shape, self.name(), self.shape);
            return Err(self.fault(&message));
        }
        for at in array.rows() {
            self.write_row(at, array.row(at))?;
        }
        Ok(())
    }

    pub(super) fn write_row(&self, at: [usize; 3], row: &[f64]) -> Result<(), Error> {
        let (data, n_bytes) = self.memory()?;
        let inside = (0..3).all(|dim| at[dim] < self.shape[dim + 1]) && row.len() == self.shape[0];
        if !inside {
            return Err(self.fault(&format!("row {at:?} of `{}` {:?}", self.name(), self.shape)));
        }
        // SAFETY: a tensor with memory has this many bytes in it, and nothing else uses them meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(data, n_bytes) };
        let offset = self.offset(at);
        if !self.ty.is_plain() {
            let row: Vec<f32> = row.iter().map(|value| *value as f32).collect();
            let blocks = quantize(&row, row.len(), self.ty)?;
            bytes[offset..offset + blocks.len()].copy_from_slice(&blocks);
            return Ok(());
        }
        for (i, value) in row.iter().enumerate() {
            let (element, size) = self.encode(*value)?;
            bytes[offset + i * self.strides[0]..][..size].copy_from_slice(&element[..size]);
        }
        Ok(())
    }
}
