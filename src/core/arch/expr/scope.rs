//! The values of names where an expression is evaluated.

use super::Value;

/// The values of names where an expression is evaluated. Errors state what is missing.
pub trait Scope {
    /// The value of a name. The value of a per-layer array is the whole list only if `whole`.
    fn name(&self, name: &str, whole: bool) -> Result<Value, String>;
    /// Whether the file has a weight.
    fn has(&self, weight: &str) -> Result<bool, String> {
        Err(format!("`{weight}`: tensors are not known here"))
    }
    /// A dimension of a weight; dimension 0 is the fastest one. Dimensions past the last are 1.
    fn dim(&self, weight: &str, _index: i64) -> Result<i64, String> {
        Err(format!("`{weight}`: tensors are not known here"))
    }
    /// Number of elements of a metadata array; 0 if there is none. The key is relative to the architecture, or
    /// absolute.
    fn count(&self, key: &str) -> Result<i64, String> {
        Err(format!("`{key}`: arrays are not known here"))
    }
}
