//! Arrays as they stand in the JSON of lab requests and responses: numbers in a list, or their bytes in base64.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use half::f16;
use serde::Deserialize;

use super::arrays::Elements;

/// The type of numbers in base64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// f32 values.
    #[default]
    F32,
    /// f16 values.
    F16,
}

impl Dtype {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }

    /// Numbers that are written in this type.
    pub fn of(self, elements: &[f32]) -> Elements<'_> {
        match self {
            Self::F32 => Elements::F32(elements),
            Self::F16 => Elements::F16(elements),
        }
    }
}

/// Numbers with their dimensions, slowest first, in the form of captured values in a response.
#[derive(Debug, Deserialize)]
pub struct PackedArray {
    data: Numbers,
    shape: Vec<usize>,
    dtype: Option<Dtype>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`data`: expected base64 or a list of numbers")]
enum Numbers {
    Base64(String),
    List(Vec<f32>),
}

impl Numbers {
    /// The numbers; `dtype` is their type in base64.
    fn read(self, dtype: Dtype) -> Result<Vec<f32>, String> {
        let text = match self {
            Self::List(numbers) => return Ok(numbers),
            Self::Base64(text) => text,
        };
        let bytes = BASE64_STANDARD
            .decode(text)
            .map_err(|error| format!("`data`: {error}"))?;
        let (n, size) = (bytes.len(), dtype.size());
        if !n.is_multiple_of(size) {
            return Err(format!(
                "`data` has {n} bytes, expected {size} for each number of `shape`"
            ));
        }
        Ok(match dtype {
            Dtype::F32 => {
                let (numbers, _) = bytes.as_chunks::<4>();
                numbers.iter().map(|b| f32::from_le_bytes(*b)).collect()
            }
            Dtype::F16 => {
                let (numbers, _) = bytes.as_chunks::<2>();
                let numbers = numbers.iter().map(|b| f16::from_le_bytes(*b).to_f32());
                numbers.collect()
            }
        })
    }
}

impl PackedArray {
    /// The dimensions, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The numbers as rows, at least one number in all. With two or more dimensions, the first one counts the rows;
    /// otherwise there is one row.
    ///
    /// # Errors
    /// The data is not base64, or its size does not match `shape`.
    pub fn rows(self) -> Result<Vec<Vec<f32>>, String> {
        let shape = self.shape;
        let numbers = self.data.read(self.dtype.unwrap_or_default())?;
        let n = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim));
        if n != Some(numbers.len()) || numbers.is_empty() {
            let found = numbers.len();
            return Err(format!(
                "`data` has {found} numbers, which is not `shape` {shape:?}"
            ));
        }
        let n_rows = match shape.as_slice() {
            [n, _, ..] => *n,
            _ => 1,
        };
        let width = numbers.len() / n_rows.max(1);
        Ok(numbers.chunks(width.max(1)).map(<[f32]>::to_vec).collect())
    }
}
