//! TOML text to a checked definition of an architecture. Pure: no ggml, no tensors, no device.
//!
//! Text goes through `read` (keys and types of tables) and `check` (names, cycles, types of
//! expressions); all problems come back together, each with its place. What a block, stage or
//! resource takes is stated by contracts, which the caller passes as a [`Registry`], so this module
//! names no block. The planner gives a definition its numbers.

mod chains;
mod check;
mod contract;
mod definition;
mod diagnostic;
pub mod expr;
pub mod formula;
mod library;
mod point;
mod print;
mod read;
mod reference;
pub(crate) mod schema;
mod state;
pub(crate) mod table;

use std::sync::Arc;

use toml::de::DeTable;

pub use contract::{
    ActRef, CacheRef, Contract, NormRef, OptionKind, OptionSpec, OptionValue, Presence, QuantClass,
    Registry, Resolved, Resource, RopeRef, Rows, Rule, SelectionRef, Side, WeightRole, WeightSpec,
};
pub use definition::{
    ArchDef, Branch, Common, Head, Ignore, Ignored, Instance, Join, Mode, OF_FILE, Param,
    ParamSource, Reads, Resources, SHIFT_LOGITS, START_TOKEN, Setting, Slot, Stack, TAPS, Text,
    WeightUse, fits_pattern,
};
pub use diagnostic::{Diagnostic, Diagnostics, Span, Spanned, nearest};
pub(crate) use library::sources_in;
pub use library::{ENDING, Library, LibraryError, Source};
pub use point::{Parts, PointSpec};
pub(crate) use read::syntax_problem;
pub use state::{PooledSpec, StateSpec};

/// Reads and checks one definition. `path` names the text in messages; `common` is what all definitions
/// share.
///
/// # Errors
/// All problems of the text together.
pub fn parse(
    path: &str,
    source: &str,
    registry: &'static Registry,
    common: &Common,
) -> Result<ArchDef, Diagnostics> {
    let (root, syntax) = DeTable::parse_recoverable(source);
    let mut reader = read::Reader::new(source, registry);
    let mut def = reader.definition(root.get_ref(), common);
    let mut problems = reader.problems();
    if !syntax.is_empty() {
        // After a syntax error the tree is incomplete, and missing parts need no message.
        problems = syntax.iter().map(read::syntax_problem).collect();
    } else if let Some(def) = &mut def {
        let found = check::check(def, problems.is_empty());
        problems.extend(found.problems);
        def.resources.extend(found.defaults);
    }
    match def {
        Some(def) if problems.is_empty() => {
            let (path, source) = (path.to_owned(), source.to_owned());
            let text = Arc::new(Text { path, source });
            Ok(ArchDef { text, ..def })
        }
        _ => Err(Diagnostics::new(path, source, problems)),
    }
}

/// Reads what all definitions share.
///
/// # Errors
/// All problems of the text together.
pub fn parse_common(
    path: &str,
    source: &str,
    registry: &'static Registry,
) -> Result<Common, Diagnostics> {
    read::common(source, registry).map_err(|problems| Diagnostics::new(path, source, problems))
}
