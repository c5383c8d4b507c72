//! Fills tensors from several threads at a time.
//!
//! Where the host addresses the memory, rows are made in place; elsewhere they are made in a few slots, and are copied
//! while the next ones are made (`staging`). Handles stay on one thread, so the other threads use only addresses, and
//! only while [`Device::fill`] runs: it blocks the one thread that could use the tensors otherwise.

use std::collections::HashSet;

use ggml_sys as sys;

use super::arena::Tensor;
use super::device::{Device, of_tensor};
use super::error::{Error, fault};
use super::staging::Staging;
use crate::util::parallel;

/// Bytes of a piece, which is made at a time; a row is never split.
const PIECE_BYTES: usize = 2 << 20;

/// A piece: whole rows of a tensor.
struct FillPiece {
    at: usize,
    ptr: *mut sys::ggml_tensor,
    device: Option<Device>,
    first_row: u64,
    offset: usize,
    bytes: usize,
}

// SAFETY: a piece is the right to write a range of a tensor that no other piece covers; see `fill`.
unsafe impl Sync for FillPiece {}

impl FillPiece {
    /// Lets `make` write the bytes to the memory of the tensor.
    fn fill<E>(
        &self,
        stagings: &[Staging],
        make: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(staging) = self
            .device
            .and_then(|device| stagings.iter().find(|s| s.device == device))
        else {
            // SAFETY: the host addresses the tensor's memory, which is initialised when it is taken; the range
            // lies in it (`cut`), no other piece covers it, and the tensor's handles are all on the thread that
            // waits in `fill`.
            let bytes = unsafe {
                let data = sys::shim_tensor_data(self.ptr).cast::<u8>();
                std::slice::from_raw_parts_mut(data.add(self.offset), self.bytes)
            };
            return make(bytes);
        };
        let mut slot = staging.slot();
        make(slot.bytes(self.bytes))?;
        // SAFETY: as above, but for the memory, which is the device's; `fill` drops the staging before it returns.
        unsafe { slot.send(self.ptr, self.offset, self.bytes) };
        Ok(())
    }
}

fn stagings(pieces: &[FillPiece]) -> Result<Vec<Staging>, Error> {
    // A thread makes one piece while another one of its pieces is copied.
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut devices: Vec<(Device, usize)> = Vec::new();
    for piece in pieces {
        let Some(of) = piece.device else { continue };
        match devices.iter_mut().find(|(device, _)| *device == of) {
            Some((_, bytes)) => *bytes = piece.bytes.max(*bytes),
            None => devices.push((of, piece.bytes)),
        }
    }
    let of = |(device, bytes)| Staging::new(device, 2 * n_threads, bytes);
    devices.into_iter().map(of).collect()
}

impl Device {
    /// Fills tensors on all cores: `make(i, row, out)` makes whole rows of `tensors[i]` from `row` on; rows are counted
    /// over all dimensions above the first. The initial content of `out` has no meaning. `done` gets the number of
    /// bytes of each piece that is made.
    ///
    /// # Errors
    /// A tensor has no contiguous memory of its own or occurs twice, or there is no memory for staging: then nothing is
    /// written. `make` fails: its first error is returned. A worker is lost.
    pub fn fill<E: From<Error> + Send>(
        tensors: &[&Tensor],
        make: impl Fn(usize, u64, &mut [u8]) -> Result<(), E> + Sync,
        mut done: impl FnMut(u64),
    ) -> Result<(), E> {
        let pieces = cut(tensors, PIECE_BYTES)?;
        let stagings = stagings(&pieces)?;
        let fill = |i: usize| -> Result<u64, E> {
            // The piece is captured as a whole, since only the whole is `Sync`.
            let piece: &FillPiece = &pieces[i];
            piece.fill(&stagings, |out| make(piece.at, piece.first_row, out))?;
            Ok(piece.bytes as u64)
        };
        parallel::in_order(pieces.len(), fill, |bytes| {
            done(bytes);
            Ok::<_, E>(())
        })?;
        let devices: Vec<Self> = stagings.iter().map(|staging| staging.device).collect();
        // Dropping the stagings waits for their copies.
        drop(stagings);
        let mut devices = devices.into_iter();
        devices.try_for_each(Self::check).map_err(E::from)
    }
}

fn cut(tensors: &[&Tensor], piece_bytes: usize) -> Result<Vec<FillPiece>, Error> {
    let mut pieces = Vec::new();
    let mut seen = HashSet::new();
    for (at, tensor) in tensors.iter().enumerate() {
        // SAFETY: the description lives as long as the handle.
        let is_view = !unsafe { sys::shim_tensor_view_src(tensor.as_ptr()) }.is_null();
        let is_ours = tensor.has_memory() && !tensor.arena.is_host_memory() && !is_view;
        if !is_ours || !tensor.is_contiguous() || !seen.insert(tensor.key()) {
            return fault(
                "fill",
                format!(
                    "`{}` has no contiguous memory of its own, or is named twice",
                    tensor.name()
                ),
            );
        }
        let row_bytes = tensor
            .ty()
            .row_bytes(tensor.shape()[0])
            .map_or(0, |bytes| bytes as usize);
        let n_rows = (piece_bytes / row_bytes.max(1)).max(1);
        let device = of_tensor(tensor)?;
        for offset in (0..tensor.bytes()).step_by(n_rows * row_bytes.max(1)) {
            pieces.push(FillPiece {
                at,
                ptr: tensor.as_ptr(),
                device,
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
        // A row larger than a piece is not split.
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
        let fails = |_: usize, _: u64, _: &mut [u8]| Err(Error::Computation("no rows".into()));
        let error = Device::fill(&[&tensor], fails, |_| {}).expect_err("no rows");
        assert_eq!(error.to_string(), "computation failed: no rows");
    }
}
