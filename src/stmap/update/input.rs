//! What updates are made of: the modules of an adapter, and the model that they are for.

use std::collections::BTreeMap;
use std::path::Path;

use crate::arch::expr::Value;
use crate::weights::Bytes;
use crate::weights::safetensors::Dtype;

/// One of the two matrices of an update, as it is stored.
#[derive(Clone, Debug)]
pub struct Factor {
    /// The file.
    pub file: Bytes,
    /// Where the matrix begins in it.
    pub offset: usize,
    /// Element type.
    pub dtype: Dtype,
    /// Rows and columns.
    pub shape: [u64; 2],
}

impl PartialEq for Factor {
    /// Whether it is the same place of the same file.
    fn eq(&self, other: &Self) -> bool {
        self.file.as_ptr() == other.file.as_ptr()
            && (self.offset, self.shape) == (other.offset, other.shape)
            && self.dtype == other.dtype
    }
}

/// The update `up . down` of a module's matrix: `down [rank, n_in]`, `up [n_out, rank]`.
#[derive(Clone, Debug)]
pub struct Module {
    /// The module, by its name in the class of the model.
    pub name: String,
    /// Multiplied first.
    pub down: Factor,
    /// Multiplied second.
    pub up: Factor,
    /// Factor of the product.
    pub factor: f64,
    /// Whether the stored matrix is `[n_in, n_out]`, where its shape does not tell.
    pub is_transposed: bool,
}

/// The model that updates are for.
pub enum Updated<'a> {
    /// A folder that a map is for.
    Folder(&'a Path),
    /// A model whose tensors have the architecture's names (GGUF).
    Arch(Origin<'a>),
}

/// What is known of the folder from which a GGUF file was converted.
pub struct Origin<'a> {
    /// The architecture.
    pub arch: &'a str,
    /// Its parameters.
    pub params: &'a BTreeMap<String, Value>,
    /// The map that it was made with ([`super::super::MAP_KEY`]).
    pub map: Option<&'a str>,
    /// The class of the adapter's base model.
    pub class: Option<&'a str>,
    /// Names of the base model.
    pub names: Vec<&'a str>,
}

/// Shape in ggml order of a tensor of the architecture, and whether it is a table whose rows are looked up.
pub type ShapeOf<'a> = &'a dyn Fn(&str) -> Option<(Vec<u64>, bool)>;
