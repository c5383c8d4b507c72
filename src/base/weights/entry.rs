//! A tensor from any source, before it is part of a weight file.
//!
//! Its shape and its range are checked when it is added to a weight file.

use super::data::DataSource;
use super::{Error, MAX_DIMS, TensorData, TensorInfo, TensorType};

/// A tensor for [`super::Weights::of`].
#[derive(Clone, Debug)]
pub struct TensorEntry {
    pub name: String,
    pub ty: TensorType,
    /// Dimensions in ggml order, 1 to 4 of them.
    pub shape: Vec<u64>,
    pub data: TensorData,
}

impl TensorEntry {
    pub(super) fn place(self, source: usize) -> Result<(TensorInfo, DataSource), Error> {
        let refuse = |message: String| Error::NotComputed {
            tensor: self.name.clone(),
            message,
        };
        let is_sound = (1..=MAX_DIMS).contains(&self.shape.len()) && !self.shape.contains(&0);
        let bytes = self.ty.tensor_bytes(&self.shape).filter(|_| is_sound);
        let bytes = bytes.ok_or_else(|| {
            refuse(format!(
                "{} cannot have the shape {:?}",
                self.ty, self.shape
            ))
        })?;
        let (data, offset) = match self.data {
            TensorData::Mapped(file, offset) => {
                let end = (offset as u64).checked_add(bytes);
                if end.is_none_or(|end| end > file.len() as u64) {
                    return Err(refuse(format!(
                        "{bytes} bytes at {offset} are not in a file of {}",
                        file.len()
                    )));
                }
                (DataSource::File(file), offset as u64)
            }
            TensorData::Lazy(lazy) => (DataSource::Lazy(lazy), 0),
        };
        let tensor = TensorInfo {
            name: self.name,
            ty: self.ty,
            shape: self.shape,
            bytes,
            source,
            offset,
        };
        Ok((tensor, data))
    }
}
