//! Reads TOML text as a definition: keys, types and shapes of tables.
//!
//! Reading continues after a problem, so that all problems are reported together. `check` handles what needs the
//! definition as a whole (names, cycles, types of expressions).

mod common;
mod definition;
mod instances;
mod params;
mod reader;
mod stacks;
mod weights;

pub(super) use common::common;
pub(super) use reader::DefinitionReader;
pub(crate) use reader::syntax_problem;
