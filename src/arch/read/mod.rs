//! TOML text to a definition: keys, types and shapes of tables.
//!
//! Reading goes on after a problem, so that all of them are reported together. What needs the
//! definition as a whole (names, cycles, types of expressions) is `check`'s work.

mod common;
mod definition;
mod instances;
mod params;
mod reader;
mod stacks;
mod weights;

pub(super) use common::common;
pub(super) use reader::Reader;
pub(crate) use reader::syntax_problem;
