//! A tensor in memory, as of a file that is read by rows.

use lab_base::weights::LazyTensor;

/// A tensor whose rows are in memory.
#[derive(Debug)]
pub(crate) struct MemoryTensor {
    row: u64,
    bytes: Vec<u8>,
}

impl MemoryTensor {
    pub(crate) fn new(row: u64, bytes: Vec<u8>) -> Self {
        Self { row, bytes }
    }
}

impl LazyTensor for MemoryTensor {
    fn rows(&self, first: u64, out: &mut [u8]) -> Result<(), String> {
        let begin = (first * self.row) as usize;
        out.copy_from_slice(&self.bytes[begin..begin + out.len()]);
        Ok(())
    }
}
