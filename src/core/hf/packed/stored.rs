//! Matrices that are stored in blocks of ggml's types already, as in GGUF files.

use lab_base::ggml::dequantize;
use lab_base::weights::{FileBytes, TensorType};

/// A matrix in blocks of a ggml type, row after row.
#[derive(Clone, Debug)]
pub(super) struct StoredBlocks {
    pub(super) file: FileBytes,
    /// The place of the matrix in the file, in bytes.
    pub(super) offset: usize,
    pub(super) bytes: usize,
    pub(super) ty: TensorType,
}

impl StoredBlocks {
    /// The stored bytes of `n` blocks, from block `first` on.
    fn stored(&self, first: u64, n: u64) -> Result<&[u8], String> {
        let all = self.file.get(self.offset..self.offset + self.bytes);
        let size = self.ty.block_bytes();
        let range = (first * size) as usize..((first + n) * size) as usize;
        all.and_then(|all| all.get(range))
            .ok_or_else(|| "blocks outside the stored tensor".into())
    }

    /// The numbers from element `first` on.
    pub(super) fn values(&self, first: u64, out: &mut [f32]) -> Result<(), String> {
        let len = self.ty.block_len();
        let (begin, end) = (first / len, (first + out.len() as u64).div_ceil(len));
        let mut values = vec![0f32; ((end - begin) * len) as usize];
        let stored = self.stored(begin, end - begin)?;
        dequantize(stored, self.ty, &mut values).map_err(|error| error.to_string())?;
        let skipped = (first - begin * len) as usize;
        out.copy_from_slice(&values[skipped..skipped + out.len()]);
        Ok(())
    }

    /// The blocks from element `first` on, which begins one.
    pub(super) fn blocks(&self, first: u64, out: &mut [u8]) -> Result<(), String> {
        let n = out.len() as u64 / self.ty.block_bytes();
        out.copy_from_slice(self.stored(first / self.ty.block_len(), n)?);
        Ok(())
    }
}
