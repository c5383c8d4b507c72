//! Packed matrices: matrices stored in several tensors, as codes of a few bits with scales.
//!
//! [`Table::take`] finds packed matrices when a folder is opened ([`find`]) and puts one tensor with the matrix's name
//! and shape in their place, so maps are independent of the packing. The stored codes become blocks of the ggml type
//! that represents them ([`Packed::exact`]), or numbers. Formats: the OCP specifications of 8-bit floats and of
//! microscaling, and the documents of each method (docs/quantised-folders.md). Recipes call this module row by row.

mod affine;
mod blocks;
mod codes;
mod find;
mod floats;
mod method;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use lab_base::weights::safetensors::{Checkpoint, Dtype, StoredTensor};
use lab_base::weights::{Error, TensorType, Weights};

use affine::{AffineMatrix, TileCache};
use find::{MatrixFinder, PARTS, rounded};
use floats::{Fp4Matrix, Fp8Matrix};
use method::QuantConfig;
use stored::StoredBlocks;

pub(super) use blocks::encode;

/// The meaning of a stored tensor.
#[derive(Clone, Debug)]
pub(super) enum Packing {
    /// Plain numbers.
    Plain,
    /// Codes of a packed matrix.
    Packed(Arc<Packed>),
}

/// A packed matrix.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    kind: PackedFormat,
    width: u64,
    exact: Option<TensorType>,
}

#[derive(Clone, Debug)]
enum PackedFormat {
    Affine(AffineMatrix),
    Fp8(Fp8Matrix),
    Fp4(Fp4Matrix),
    Blocks(StoredBlocks),
}

/// Memory for reading rows.
#[derive(Debug)]
pub(super) struct RowScratch {
    tiles: TileCache,
    few: Vec<u8>,
}

impl RowScratch {
    /// Memory for a matrix of which at most `n_rows` rows are read.
    pub(super) fn new(n_rows: u64) -> Self {
        Self {
            tiles: TileCache::new(n_rows),
            few: Vec::new(),
        }
    }
}

impl Packed {
    fn new(kind: PackedFormat, width: u64) -> Self {
        let exact = match &kind {
            PackedFormat::Affine(affine) => affine.exact(),
            PackedFormat::Fp8(_) => None,
            PackedFormat::Fp4(four) => four.exact(width),
            PackedFormat::Blocks(blocks) => Some(blocks.ty),
        };
        Self { kind, width, exact }
    }

    /// The type whose blocks represent the codes exactly; its scales are f16.
    pub(super) fn exact(&self) -> Option<TensorType> {
        self.exact
    }

    pub(super) fn width(&self) -> u64 {
        self.width
    }

    /// The type of the numbers, in rows of this length, if no blocks represent the codes.
    pub(super) fn rounded(&self, row: u64) -> TensorType {
        match (&self.kind, self.exact) {
            // bf16 represents every 4-bit and 8-bit float, and powers of two as their scales.
            (PackedFormat::Fp8(_), _) | (_, Some(TensorType::MXFP4)) => TensorType::BF16,
            _ => rounded(row),
        }
    }

    /// Whether the numbers are rounded in their type.
    fn is_rounded(&self) -> bool {
        match &self.kind {
            // A scale that is a power of two keeps the bits of the code.
            PackedFormat::Fp8(eight) => eight.scales.dtype != Dtype::F8_E8M0,
            _ => self.exact.is_none(),
        }
    }

    /// Whether blocks of a type represent the codes exactly.
    pub(super) fn fits(&self, ty: TensorType) -> bool {
        match (&self.kind, self.exact) {
            (_, None) => false,
            (PackedFormat::Affine(affine), Some(exact)) => affine.fits(ty, exact),
            (_, Some(exact)) => ty == exact,
        }
    }

    /// The numbers from element `first` on; they may continue in further rows.
    pub(super) fn values(
        &self,
        mut first: u64,
        mut out: &mut [f32],
        scratch: &mut RowScratch,
    ) -> Result<(), String> {
        while !out.is_empty() {
            let [row, column] = [first / self.width, first % self.width];
            let n = (self.width - column).min(out.len() as u64);
            let (here, rest) = std::mem::take(&mut out).split_at_mut(n as usize);
            match &self.kind {
                PackedFormat::Affine(affine) => affine.values(row, column, here, scratch)?,
                PackedFormat::Fp8(eight) => eight.values(self.width, row, column, here)?,
                PackedFormat::Fp4(four) => four.values(first, here)?,
                PackedFormat::Blocks(blocks) => blocks.values(first, here)?,
            }
            (first, out) = (first + n, rest);
        }
        Ok(())
    }

    /// `n` elements from `first` on, as blocks of a type that fits.
    pub(super) fn blocks(
        &self,
        ty: TensorType,
        mut first: u64,
        mut n: u64,
        mut out: &mut [u8],
        scratch: &mut RowScratch,
    ) -> Result<(), String> {
        while n > 0 {
            let [row, column] = [first / self.width, first % self.width];
            let here = (self.width - column).min(n);
            let bytes = here / ty.block_len() * ty.block_bytes();
            let (to, rest) = std::mem::take(&mut out).split_at_mut(bytes as usize);
            match &self.kind {
                PackedFormat::Affine(affine) => {
                    affine.blocks(ty, [row, column], here as usize, to, scratch)?;
                }
                PackedFormat::Fp4(four) => four.blocks(ty, first, to)?,
                PackedFormat::Blocks(blocks) => blocks.blocks(first, to)?,
                PackedFormat::Fp8(_) => return Err("8-bit floats are not stored in blocks".into()),
            }
            (first, n, out) = (first + here, n - here, rest);
        }
        Ok(())
    }
}

/// The packed matrices of a folder by name, with an error for each malformed one.
#[derive(Debug, Default)]
pub(super) struct PackedMatrices {
    matrices: BTreeMap<String, Result<Arc<Packed>, String>>,
    settings: QuantConfig,
}

impl PackedMatrices {
    /// The tensors of an opened file that are stored as blocks of quantised numbers.
    pub(super) fn of_blocks(weights: &Weights) -> Self {
        let packed = weights.tensors().iter().filter_map(|tensor| {
            let (file, offset) = weights.place(tensor)?;
            let blocks = StoredBlocks {
                file: file.clone(),
                offset,
                bytes: tensor.bytes as usize,
                ty: tensor.ty,
            };
            let packed = Packed::new(PackedFormat::Blocks(blocks), tensor.shape[0]);
            let is_packed = tensor.ty.block_len() > 1;
            is_packed.then(|| (tensor.name.clone(), Ok(Arc::new(packed))))
        });
        Self {
            matrices: packed.collect(),
            settings: QuantConfig::default(),
        }
    }

    /// Finds the packed matrices, and changes the checkpoint and the configuration as if the matrices were stored
    /// unpacked.
    pub(super) fn take(
        json: &mut Json,
        folder: &Path,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, Error> {
        let settings = QuantConfig::take(json, folder)?;
        let refuse = |message: String| Error::File {
            path: folder.to_owned(),
            message,
        };
        if let Some(form) = settings.foreign() {
            return Err(refuse(refusal(&form, "")));
        }
        let finder = MatrixFinder {
            checkpoint,
            settings: &settings,
        };
        let mut matrices = BTreeMap::new();
        let mut changes = Vec::new();
        let mut unread = None;
        for (name, stored) in checkpoint.tensors() {
            let Some((family, matrix)) = finder.family(name, stored) else {
                let is_part = unread.is_some() || !is_code(stored);
                if !is_part && settings.method.is_some() && !settings.is_known {
                    unread = Some(name.to_owned());
                }
                continue;
            };
            let found = finder.find(family, &matrix);
            let (place, found) = match found {
                Ok(found) => {
                    let place = StoredTensor {
                        shape: found.shape,
                        ..found.codes
                    };
                    (place, Ok(Arc::new(found.packed)))
                }
                Err(error) => (stored.clone(), Err(error)),
            };
            changes.push((name.to_owned(), matrix.clone(), place));
            matrices.insert(matrix, found);
        }
        let parts: BTreeSet<String> = changes
            .iter()
            .flat_map(|(codes, matrix, _)| parts(codes, matrix))
            .collect();
        if let (Some(method), Some(unread)) = (
            &settings.method,
            unread.filter(|name| !parts.contains(name)),
        ) {
            return Err(refuse(refusal(
                &format!("`{method}`"),
                &format!(" (`{unread}`)"),
            )));
        }
        if let Some(Err(error)) = matrices.values().find(|found| found.is_err())
            && matrices.values().all(Result::is_err)
        {
            let method = settings.method.as_deref().unwrap_or("packed weights");
            let n = matrices.len();
            return Err(refuse(format!(
                "quantised with {method}, and none of {n} packed matrices can be read: {error}"
            )));
        }
        for part in parts {
            checkpoint.remove(&part);
        }
        for (_, matrix, stored) in changes {
            checkpoint.insert(matrix, stored);
        }
        Ok(Self { matrices, settings })
    }

    /// The meaning of the tensor of this name.
    pub(super) fn packing(&self, name: &str) -> Result<Packing, String> {
        match self.matrices.get(name) {
            None => Ok(Packing::Plain),
            Some(Ok(packed)) => Ok(Packing::Packed(packed.clone())),
            Some(Err(error)) => Err(error.clone()),
        }
    }

    /// Logs in one line the types that the folder's matrices become.
    pub(super) fn log(&self, folder: &Path) {
        let mut tally = method::TypeCounts::new();
        let is_stored = |packed: &&Arc<Packed>| matches!(packed.kind, PackedFormat::Blocks(_));
        let packed = self.matrices.values().flatten();
        for packed in packed.filter(|packed| !is_stored(packed)) {
            let ty = packed.exact.unwrap_or_else(|| packed.rounded(packed.width));
            let key = (ty.name().to_owned(), packed.is_rounded());
            *tally.entry(key).or_insert(0) += 1;
        }
        if tally.is_empty() {
            return;
        }
        let (line, is_rounded) = method::line(&self.settings, &tally);
        match is_rounded {
            true => tracing::warn!("{}: {line}", folder.display()),
            false => tracing::info!("{}: {line}", folder.display()),
        }
    }
}

/// The error for a method whose tensors cannot be read.
fn refusal(method: &str, place: &str) -> String {
    format!(
        "quantised with {method}, whose tensors this program does not read{place}; the methods that open are {}; \
         take the model without quantisation, by one of these, or as GGUF",
        QuantConfig::known()
    )
}

/// Whether a tensor contains codes, not numbers.
fn is_code(stored: &StoredTensor) -> bool {
    let is_plain = matches!(
        stored.dtype,
        Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64 | Dtype::BOOL
    );
    !is_plain && stored.shape.len() > 1
}

/// Names of all tensors that may belong to a packed matrix.
fn parts(codes: &str, matrix: &str) -> Vec<String> {
    let base = matrix.strip_suffix(".weight").unwrap_or(matrix);
    let parts = PARTS.iter().map(|ending| format!("{base}{ending}"));
    let own = ["_scale_inv", "_scale", "_scales"].map(|ending| format!("{matrix}{ending}"));
    parts.chain(own).chain([codes.to_owned()]).collect()
}
