//! The interface by which a plan reads the existing tensors.

use lab_base::weights::{TensorType, Weights};

/// The existing tensors, as a plan reads them.
pub trait TensorSet {
    /// Whether a tensor exists. `required` states whether the definition requires it.
    fn has(&self, name: &str, required: bool) -> bool;
    /// Type, shape and bytes as stored; `None` if the tensor does not exist or there is no file.
    fn stored(&self, name: &str) -> Option<(TensorType, &[u64], u64)>;
    /// The names of all tensors.
    fn names(&self) -> Vec<&str>;
    /// Whether shapes and absences are checked against a file.
    fn is_file(&self) -> bool;
    /// The sources of a tensor, or of a missing one; for messages.
    fn origin(&self, _name: &str) -> Option<&str> {
        None
    }
}

impl TensorSet for Weights {
    fn has(&self, name: &str, _required: bool) -> bool {
        self.tensor(name).is_some()
    }

    fn stored(&self, name: &str) -> Option<(TensorType, &[u64], u64)> {
        self.tensor(name)
            .map(|t| (t.ty, t.shape.as_slice(), t.bytes))
    }

    fn names(&self) -> Vec<&str> {
        self.tensors().iter().map(|t| t.name.as_str()).collect()
    }

    fn is_file(&self) -> bool {
        true
    }

    fn origin(&self, name: &str) -> Option<&str> {
        self.origin(name)
    }
}
