//! The input of updates: the modules of an adapter, and the model that they update.

use std::collections::BTreeMap;
use std::path::Path;

use crate::arch::expr::Value;
use lab_base::weights::FileBytes;
use lab_base::weights::safetensors::Dtype;

/// One of the two stored matrices of an update.
#[derive(Clone, Debug)]
pub struct AdapterMatrix {
    /// The file.
    pub file: FileBytes,
    /// The offset of the matrix in the file.
    pub offset: usize,
    /// Element type.
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
    /// The architecture.
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
