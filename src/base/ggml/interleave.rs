//! Rows of weights that are interleaved for products on the processor: a copy that is read at the speed of memory.
//!
//! Kernels multiply sixteen rows side by side. Where the rows lie one after another, their words have to be gathered, which
//! takes longer than memory does. Results have the same bits with and without a copy. The exception is a single column that
//! need not be batch-invariant: without a copy some types have another function for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ggml_sys as sys;
use memmap2::MmapMut;

use super::error::Error;
use crate::util::parallel;
use crate::weights::{FileBytes, TensorType};

/// Bytes of a piece, which one thread makes at a time.
const PIECE_BYTES: usize = 2 << 20;

/// Weights of a file whose rows are to be interleaved.
#[derive(Clone, Debug)]
pub struct RowsInFile {
    /// The file.
    pub file: FileBytes,
    /// Where the rows begin.
    pub offset: usize,
    /// Their type.
    pub ty: TensorType,
    /// Dimensions, in ggml order.
    pub shape: [u64; 4],
}

impl RowsInFile {
    /// Whether rows of a type and shape are interleaved.
    pub fn are_interleaved(ty: TensorType, shape: [u64; 4]) -> bool {
        Self::tile_rows(ty, shape) > 0
    }

    /// Number of rows of a tile; 0: rows of this type and shape are not interleaved.
    fn tile_rows(ty: TensorType, shape: [u64; 4]) -> usize {
        // SAFETY: the function reads its arguments and tables.
        let rows = unsafe { sys::shim_interleaved_rows(ty.id() as i32, shape[0] as i64) };
        let is_one = shape[2] == 1 && shape[3] == 1;
        match u64::try_from(rows) {
            // The rows after the last whole tile of one matrix stay as they are.
            Ok(rows)
                if rows > 0 && shape[1] >= rows && (is_one || shape[1].is_multiple_of(rows)) =>
            {
                rows as usize
            }
            _ => 0,
        }
    }

    /// Bytes of the rows, if they are in the file.
    fn bytes(&self) -> Option<&[u8]> {
        let bytes = usize::try_from(self.ty.tensor_bytes(&self.shape)?).ok()?;
        self.file.get(self.offset..self.offset.checked_add(bytes)?)
    }
}

/// Interleaved rows. A clone shares the memory.
#[derive(Clone)]
pub struct InterleavedRows(Arc<SharedRows>);

struct SharedRows {
    memory: MmapMut,
    /// What they were made of. It stays mapped, so that no other file gets its address.
    of: FileBytes,
}

/// The rows that models in this process have, by the address of what they were made of.
static SHARED: Mutex<Option<HashMap<usize, Weak<SharedRows>>>> = Mutex::new(None);

fn shared<T>(f: impl FnOnce(&mut HashMap<usize, Weak<SharedRows>>) -> T) -> T {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    f(shared.get_or_insert_default())
}

impl InterleavedRows {
    /// Interleaves rows on all cores. Rows that another model in this process has are shared with it. `done` gets the number of
    /// bytes of each piece that is made.
    ///
    /// # Errors
    /// Rows are not in their file, or of a type or shape that is not interleaved. There is no memory.
    pub fn of(all: &[RowsInFile], mut done: impl FnMut(u64)) -> Result<Vec<Self>, Error> {
        let refuse = |message: String| Error::Arguments {
            op: "interleave",
            message,
        };
        let mut found: Vec<Option<Self>> = Vec::with_capacity(all.len());
        let mut made: Vec<(usize, MmapMut)> = Vec::new();
        for (at, rows) in all.iter().enumerate() {
            let (ty, shape) = (rows.ty, rows.shape);
            let bytes = rows
                .bytes()
                .filter(|_| RowsInFile::are_interleaved(ty, shape));
            let bytes = bytes.ok_or_else(|| refuse(format!("{shape:?} of {ty}")))?;
            let address = bytes.as_ptr() as usize;
            let other = shared(|shared| shared.get(&address).and_then(Weak::upgrade));
            let other = other.filter(|other| other.memory.len() == bytes.len());
            if other.is_none() {
                let memory = MmapMut::map_anon(bytes.len());
                let memory = memory.map_err(|_| Error::OutOfMemory {
                    device: "host".into(),
                    bytes: bytes.len(),
                    what: "interleaved weights",
                })?;
                #[cfg(target_os = "linux")]
                if let Err(error) = memory.advise(memmap2::Advice::HugePage) {
                    tracing::debug!(%error, "interleaved weights are in small pages");
                }
                made.push((at, memory));
            }
            found.push(other.map(Self));
        }
        let mut pieces = Vec::new();
        for (at, memory) in &mut made {
            let rows = &all[*at];
            let tile = RowsInFile::tile_rows(rows.ty, rows.shape) as u64;
            let row_bytes = rows.ty.row_bytes(rows.shape[0]).unwrap_or(0);
            let tile_bytes = (tile * row_bytes) as usize;
            let piece = (PIECE_BYTES / tile_bytes).max(1) * tile_bytes;
            let from = rows.bytes().unwrap_or_default().chunks(piece);
            for (from, out) in from.zip(memory.chunks_mut(piece)) {
                pieces.push((rows, row_bytes, from, Mutex::new(out)));
            }
        }
        let make = |i: usize| {
            let (rows, row_bytes, from, out) = &pieces[i];
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            let n_rows = (from.len() as u64 / row_bytes) as i64;
            let k = rows.shape[0] as i64;
            // SAFETY: the type and `k` have tiles; `from` and `out` are rows of as many bytes.
            unsafe {
                let (from, out) = (from.as_ptr().cast(), out.as_mut_ptr().cast());
                sys::shim_interleave(rows.ty.id() as i32, k, from, n_rows, out);
            }
            Ok(from.len() as u64)
        };
        parallel::in_order(pieces.len(), make, |bytes| {
            done(bytes);
            Ok::<_, Error>(())
        })?;
        drop(pieces);
        for (at, memory) in made {
            let of = all[at].file.clone();
            let address = all[at].file.as_ptr().wrapping_add(all[at].offset) as usize;
            let rows = Arc::new(SharedRows { memory, of });
            shared(|shared| {
                shared.retain(|_, rows| rows.strong_count() > 0);
                shared.insert(address, Arc::downgrade(&rows));
            });
            found[at] = Some(Self(rows));
        }
        Ok(found.into_iter().flatten().collect())
    }
}

impl InterleavedRows {
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.0.memory.as_ptr()
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.memory.len()
    }
}

impl std::fmt::Debug for InterleavedRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, of) = (self.0.memory.len(), &self.0.of);
        write!(f, "{bytes} interleaved bytes of {of:?}")
    }
}
