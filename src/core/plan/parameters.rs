//! The parameters of a definition that have values in a file.

use std::collections::BTreeMap;

use super::TensorSet;
use super::facts::FileFacts;
use crate::arch::ArchDef;
use crate::arch::expr::Value;
use lab_base::weights::Metadata;

/// The parameters of a definition that have values in a file, whether they are used or not. A parameter with a value
/// for each layer is a list.
pub fn parameters(
    def: &ArchDef,
    metadata: &Metadata,
    tensors: &dyn TensorSet,
) -> BTreeMap<String, Value> {
    let facts = FileFacts::new(def, metadata, tensors);
    let scope = facts.global();
    let value = |name: &String| Some((name.clone(), facts.param(name, &scope, true).ok()?));
    def.params.keys().filter_map(value).collect()
}
