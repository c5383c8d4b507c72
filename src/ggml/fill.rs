//! Filling tensors from several threads at a time.
//!
//! Handles stay on one thread, so the threads see addresses only, and only while [`Device::fill`]
//! runs: it holds the one thread that could do something else with these tensors.

use std::collections::HashSet;

use ggml_sys as sys;

use super::arena::Tensor;
use super::device::Device;
use super::error::Error;
use crate::common::parallel;

/// Bytes that are made at a time; a row is never cut.
const PIECE_BYTES: usize = 4 << 20;

/// Whole rows of a tensor.
struct Piece {
    /// Place of the tensor in the list.
    at: usize,
    ptr: *mut sys::ggml_tensor,
    first_row: u64,
    offset: usize,
    bytes: usize,
}

// SAFETY: a piece is the right to write a range of a tensor that no other piece covers; see `fill`.
unsafe impl Sync for Piece {}

impl Piece {
    fn write(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.bytes, "a piece is written whole");
        // SAFETY: the range lies in the tensor, which has memory (`cut`), no other piece covers it,
        // and the tensor's handles are all on the thread that waits in `fill`.
        unsafe {
            sys::ggml_backend_tensor_set(self.ptr, bytes.as_ptr().cast(), self.offset, self.bytes);
        }
    }
}

impl Device {
    /// Fills tensors, all cores at a time: `make(i, row, out)` makes whole rows of `tensors[i]` from
    /// `row` on, rows being counted over all dimensions above the first. `done` hears of the bytes
    /// of each piece that is written.
    ///
    /// # Errors
    /// A tensor without contiguous memory of its own, or one that is named twice: then nothing is
    /// written. The first error of `make`.
    pub fn fill<E: From<Error> + Send>(
        tensors: &[&Tensor],
        make: impl Fn(usize, u64, &mut [u8]) -> Result<(), E> + Sync,
        mut done: impl FnMut(u64),
    ) -> Result<(), E> {
        let pieces = cut(tensors, PIECE_BYTES)?;
        let fill = |i: usize| {
            // The whole of it is captured, not its parts, since only the whole may be shared.
            let piece: &Piece = &pieces[i];
            let mut bytes = vec![0; piece.bytes];
            make(piece.at, piece.first_row, &mut bytes)?;
            piece.write(&bytes);
            Ok(piece.bytes as u64)
        };
        parallel::in_order(pieces.len(), fill, |bytes| {
            done(bytes);
            Ok(())
        })
    }
}

/// The tensors in pieces of about `piece_bytes`, none of which covers another.
fn cut(tensors: &[&Tensor], piece_bytes: usize) -> Result<Vec<Piece>, Error> {
    let mut pieces = Vec::new();
    let mut seen = HashSet::new();
    for (at, tensor) in tensors.iter().enumerate() {
        // SAFETY: the description lives as long as the handle.
        let is_view = !unsafe { sys::shim_tensor_view_src(tensor.as_ptr()) }.is_null();
        let is_ours = tensor.has_memory() && !tensor.arena.is_host_memory() && !is_view;
        if !is_ours || !tensor.is_contiguous() || !seen.insert(tensor.key()) {
            let message = format!(
                "`{}` has no contiguous memory of its own, or is named twice",
                tensor.name()
            );
            return Err(Error::Arguments {
                op: "fill",
                message,
            });
        }
        let row_bytes = tensor
            .ty()
            .row_bytes(tensor.shape()[0])
            .map_or(0, |bytes| bytes as usize);
        let n_rows = (piece_bytes / row_bytes.max(1)).max(1);
        for offset in (0..tensor.bytes()).step_by(n_rows * row_bytes.max(1)) {
            pieces.push(Piece {
                at,
                ptr: tensor.as_ptr(),
                first_row: (offset / row_bytes.max(1)) as u64,
                offset,
                bytes: (n_rows * row_bytes).min(tensor.bytes() - offset),
            });
        }
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::Arena;
    use crate::weights::TensorType;

    fn made(shape: &[u64]) -> (Arena, Tensor) {
        let arena = Arena::new(4, 0).expect("a small arena");
        let tensor = arena
            .tensor("t", TensorType::F32, shape)
            .expect("a small tensor");
        (arena, tensor)
    }

    #[test]
    fn every_row_is_made_once_and_written_where_it_belongs() {
        let (arena, tensor) = made(&[300, 71, 5, 11]);
        let cpu = Device::cpu().expect("the processor");
        cpu.allocate(&arena, "a test").expect("a megabyte");
        let value = |row: u64, column: u64| (row * 1000 + column) as f32;
        let make = |i: usize, first: u64, out: &mut [u8]| {
            assert_eq!(i, 0);
            for (row, out) in (first..).zip(out.chunks_exact_mut(300 * 4)) {
                for (column, out) in (0..).zip(out.chunks_exact_mut(4)) {
                    out.copy_from_slice(&value(row, column).to_ne_bytes());
                }
            }
            Ok::<_, Error>(())
        };
        let mut written = 0;
        Device::fill(&[&tensor], make, |bytes| written += bytes).expect("it has memory");
        assert_eq!(written, tensor.bytes() as u64);
        let mut found = vec![0f32; tensor.elements() as usize];
        // SAFETY: the tensor has memory for as many floats.
        unsafe {
            let to = found.as_mut_ptr().cast();
            sys::ggml_backend_tensor_get(tensor.as_ptr(), to, 0, tensor.bytes());
        }
        for (i, found) in (0..).zip(&found) {
            assert_eq!(*found, value(i / 300, i % 300));
        }
    }

    #[test]
    fn pieces_are_whole_rows_and_cover_everything() {
        let (arena, tensor) = made(&[100, 7]);
        let cpu = Device::cpu().expect("the processor");
        cpu.allocate(&arena, "a test").expect("a kilobyte");
        let pieces = cut(&[&tensor], 1000).expect("it has memory");
        let ranges: Vec<_> = pieces
            .iter()
            .map(|p| (p.first_row, p.offset, p.bytes))
            .collect();
        assert_eq!(
            ranges,
            [(0, 0, 800), (2, 800, 800), (4, 1600, 800), (6, 2400, 400)]
        );
        // A row that is larger than a piece is not cut.
        assert_eq!(cut(&[&tensor], 8).expect("it has memory").len(), 7);
    }

    #[test]
    fn memory_that_is_not_there_or_named_twice_is_refused() {
        let nothing = |_: usize, _: u64, _: &mut [u8]| Ok::<_, Error>(());
        let (arena, tensor) = made(&[8, 2]);
        assert!(Device::fill(&[&tensor], nothing, |_| {}).is_err());
        let cpu = Device::cpu().expect("the processor");
        cpu.allocate(&arena, "a test").expect("some bytes");
        assert!(Device::fill(&[&tensor], nothing, |_| {}).is_ok());
        assert!(Device::fill(&[&tensor, &tensor], nothing, |_| {}).is_err());
        let fails = |_: usize, _: u64, _: &mut [u8]| Err(Error::Compute("no rows".into()));
        let error = Device::fill(&[&tensor], fails, |_| {}).expect_err("no rows");
        assert_eq!(error.to_string(), "computation failed: no rows");
    }
}
