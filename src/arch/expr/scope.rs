//! What names mean where an expression is evaluated.

use super::Value;

/// What names mean where an expression is evaluated. Errors say what is missing.
pub trait Scope {
    /// The value of a name. A per-layer array gives its whole list only if `whole`.
    fn name(&self, name: &str, whole: bool) -> Result<Value, String>;
    /// Whether the file has a weight.
    fn has(&self, weight: &str) -> Result<bool, String>;
    /// A dimension of a weight, 0 the fastest; 1 past the last.
    fn dim(&self, weight: &str, index: i64) -> Result<i64, String>;
    /// Number of elements of a metadata array; 0 if there is none. The key is relative to the
    /// architecture, or absolute.
    fn count(&self, key: &str) -> Result<i64, String>;
}
