//! Reads and checks definitions of architectures in TOML. Pure: no ggml, no tensors, no device.
//!
//! Text goes through `read` (keys and types of tables) and `check` (names, cycles, types of expressions). All problems
//! are returned together, each with its place. Contracts state the options and weights of blocks, stages and resources;
//! the caller passes them as a [`Registry`], so this module names no block. The planner resolves a definition to
//! numbers.

mod chains;
mod check;
mod contract;
mod definition;
mod diagnostic;
pub mod expr;
pub mod formula;
mod library;
mod parse;
mod point;
mod print;
mod read;
mod reference;
pub(crate) mod schema;
mod state;
pub(crate) mod table;

pub use contract::{
    ActRef, CacheRef, Contract, ContractRule, NormRef, OptionKind, OptionSpec, OptionValue,
    Presence, Registry, ResolvedOption, Resource, RopeRef, RowWidth, SelectionRef, SideInput,
    WeightRole, WeightSpec,
};
pub use definition::{
    ArchDef, Branch, BranchTokens, CommonDefinitions, ContractUse, DefinitionText, Head,
    IgnoreRules, IgnoredKey, Join, Mode, NEXT, OF_FILE, OR, Param, ParamSource, Reads, Resources,
    SHIFT_LOGITS, START_TOKEN, Setting, Slot, Stack, TAPS, TARGET, TargetUse, WeightUse,
    braced_param, fits_pattern,
};
pub use diagnostic::{Diagnostic, Diagnostics, Span, Spanned, nearest};
pub(crate) use library::sources_in;
pub use library::{DRAFTER_ENDING, ENDING, Library, LibraryError, SourceFile, TOWER_ENDING};
pub use parse::{parse, parse_common};
pub use point::{PointParts, PointSpec};
pub(crate) use read::syntax_problem;
pub use state::{PooledSpec, StateSpec};
