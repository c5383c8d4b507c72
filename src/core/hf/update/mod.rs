//! Converts low-rank updates of stored matrices to updates of the architecture's tensors.
//!
//! A map states of which stored matrices each tensor of the architecture is made, in which order of elements
//! ([`rearrange`](super::rearrange)). An update of a stored matrix is a product `rows . cols` of a matrix with one row
//! for each of its rows and a matrix with one column for each of its columns. So the update of the architecture's
//! tensor is also a product if each of its axes is made of axes of one side: rows are rearranged in `rows`, columns in
//! `cols`. Concatenated parts have concatenated ranks; each expert has its own. An update that cannot be separated in
//! this way is refused by name. The result is two lazy tensors ([`product`]).

mod candidates;
mod finder;
mod product;

use std::collections::BTreeMap;
use std::path::Path;

use super::error::left_out_parts;
use super::{CONFIG, Error, Maps, folder_of, read_config};
use crate::arch::expr::Value;
use candidates::{MapAttempts, candidates};
use finder::{ENDING, FoundUpdates, TensorUpdate, UpdateError, UpdateFinder};
use lab_base::weights::safetensors::Dtype;
use lab_base::weights::{FileBytes, TensorEntry, folder};

/// One of the two stored matrices of an update.
#[derive(Clone, Debug)]
pub struct AdapterMatrix {
    pub file: FileBytes,
    /// The offset of the matrix in the file.
    pub offset: usize,
    pub dtype: Dtype,
    /// Rows and columns.
    pub shape: [u64; 2],
}

impl PartialEq for AdapterMatrix {
    /// Whether both are the same place of the same file.
    fn eq(&self, other: &Self) -> bool {
        self.file.as_ptr() == other.file.as_ptr()
            && (self.offset, self.shape) == (other.offset, other.shape)
            && self.dtype == other.dtype
    }
}

/// The update `up . down` of a module's matrix: `down [rank, n_in]`, `up [n_out, rank]`.
#[derive(Clone, Debug)]
pub struct ModuleUpdate {
    /// The module, by its name in the class of the model.
    pub name: String,
    /// The matrix that is multiplied first.
    pub down: AdapterMatrix,
    /// The matrix that is multiplied second.
    pub up: AdapterMatrix,
    /// Factor of the product.
    pub factor: f64,
    /// Whether the stored matrix is `[n_in, n_out]`, if its shape does not decide.
    pub is_transposed: bool,
}

/// The model that updates are for.
pub enum UpdateTarget<'a> {
    /// A folder that has a map.
    Folder(&'a Path),
    /// A model whose tensors have the architecture's names (GGUF).
    Arch(BaseModel<'a>),
}

/// The known facts about the folder from which a GGUF file was converted.
pub struct BaseModel<'a> {
    pub arch: &'a str,
    /// The parameters of the model.
    pub params: &'a BTreeMap<String, Value>,
    /// The map with which the file was made ([`super::super::MAP_KEY`]).
    pub map: Option<&'a str>,
    /// The class of the adapter's base model.
    pub class: Option<&'a str>,
    /// Names of the base model.
    pub names: Vec<&'a str>,
}

/// The shape of a tensor of the architecture in ggml order, and whether it is a table whose rows are looked up.
pub type ShapeFn<'a> = &'a dyn Fn(&str) -> Option<(Vec<u64>, bool)>;

/// The updates of the architecture's tensors that the modules of the folder at `path` give: `NAME.lora_a` and
/// `NAME.lora_b`, f32. Modules of parts that are not needed for text are left out, with a warning.
///
/// # Errors
/// The map of the model does not have a module, shapes do not fit, an update is no product after the map has rearranged
/// it, or maps differ and the right one is not known.
pub fn updates(
    path: &Path,
    model: &UpdateTarget<'_>,
    maps: &Maps,
    modules: &[ModuleUpdate],
    shape_of: ShapeFn<'_>,
) -> Result<Vec<TensorEntry>, Error> {
    let refuse = |message: String| Error::Config {
        path: path.to_owned(),
        message,
    };
    let mut tried = MapAttempts::default();
    for candidate in candidates(path, model, maps)? {
        let found = candidate.updates(maps.common(), modules, shape_of);
        tried.add(candidate, found);
    }
    let found = match model {
        UpdateTarget::Folder(_) => tried.only(),
        UpdateTarget::Arch(origin) => tried.settle(origin, path),
    };
    let found = found.map_err(refuse)?;
    if !found.left_out.is_empty() {
        let (parts, n) = left_out_parts(&found.left_out);
        let path = path.display();
        tracing::warn!(
            "{path}: applied without its updates of the {parts} ({n} modules), which a text model does not have"
        );
    }
    Ok(found
        .updates
        .into_iter()
        .flat_map(TensorUpdate::entries)
        .collect())
}

/// Whether a folder's tensors have the architecture's names.
pub fn has_our_names(path: &Path) -> bool {
    let json = read_config(&folder_of(path).join(CONFIG));
    json.is_ok_and(|json| folder::is_config(&json))
}
