//! Reads and checks a definition, or the part that all definitions share.

use std::sync::Arc;

use toml::de::DeTable;

use super::{ArchDef, CommonDefinitions, DefinitionText, Diagnostics, Registry, check, read};

/// Reads and checks one definition. `path` names the text in messages; `common` is the part that all definitions share.
///
/// # Errors
/// The text has problems; all are returned together.
pub fn parse(
    path: &str,
    source: &str,
    registry: &'static Registry,
    common: &CommonDefinitions,
) -> Result<ArchDef, Diagnostics> {
    let (root, syntax) = DeTable::parse_recoverable(source);
    let mut reader = read::DefinitionReader::new(source, registry);
    let mut def = reader.definition(root.get_ref(), common);
    let mut problems = reader.problems();
    if !syntax.is_empty() {
        // After a syntax error the tree is incomplete: missing parts are not reported.
        problems = syntax.iter().map(read::syntax_problem).collect();
    } else if let Some(def) = &mut def {
        let found = check::check(def, problems.is_empty());
        problems.extend(found.problems);
        def.resources.extend(found.defaults);
    }
    match def {
        Some(def) if problems.is_empty() => {
            let (path, source) = (path.to_owned(), source.to_owned());
            let text = Arc::new(DefinitionText { path, source });
            Ok(ArchDef { text, ..def })
        }
        _ => Err(Diagnostics::new(path, source, problems)),
    }
}

/// Reads the part that all definitions share.
///
/// # Errors
/// The text has problems; all are returned together.
pub fn parse_common(
    path: &str,
    source: &str,
    registry: &'static Registry,
) -> Result<CommonDefinitions, Diagnostics> {
    read::common(source, registry).map_err(|problems| Diagnostics::new(path, source, problems))
}
