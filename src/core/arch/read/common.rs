//! Reads the part that all definitions share, `common.toml`.

use std::sync::Arc;

use toml::de::DeTable;

use super::definition::PARAMS;
use super::reader::{DefinitionReader, syntax_problem};
use crate::arch::check;
use crate::arch::contract::Registry;
use crate::arch::definition::{CommonDefinitions, IgnoreRules};
use crate::arch::diagnostic::Diagnostic;
use crate::arch::table::TableFields;

/// The parameters, resources and ignored keys of all definitions, from `common.toml`.
pub(crate) fn common(
    source: &str,
    registry: &'static Registry,
) -> Result<CommonDefinitions, Vec<Diagnostic>> {
    let (root, errors) = DeTable::parse_recoverable(source);
    let mut reader = DefinitionReader::new(source, registry);
    reader.problems.extend(errors.iter().map(syntax_problem));
    let mut common = CommonDefinitions::default();
    let mut fields = TableFields::new(root.get_ref(), 0..0, "the common part");
    if let Some(item) = fields.take("params", PARAMS) {
        common.params = reader.params(item);
    }
    let mut resources = reader.plain_resources();
    resources.extend(reader.resources(&mut fields));
    common.resources = Arc::new(resources);
    common.ignore = reader.ignore(&mut fields, IgnoreRules::default(), true);
    reader.finish(fields);
    let mut problems = reader.problems();
    if problems.is_empty() {
        problems = check::check_common(&common);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    for param in common.params.values_mut() {
        param.span = None;
    }
    Ok(common)
}
