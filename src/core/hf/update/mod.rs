//! Converts low-rank updates of stored matrices to updates of the architecture's tensors.
//!
//! A map states of which stored matrices each tensor of the architecture is made, in which order of elements
//! ([`rearrange`](super::rearrange)). An update of a stored matrix is a product `rows . cols` of a matrix with one row
//! for each of its rows and a matrix with one column for each of its columns. So the update of the architecture's
//! tensor is also a product if each of its axes is made of axes of one side: rows are rearranged in `rows`, columns in
//! `cols`. Concatenated parts have concatenated ranks; each expert has its own. An update that cannot be separated in
//! this way is refused by name. The result is two lazy tensors ([`product`]).

mod candidates;
mod found;
mod input;
mod product;
mod updates;
mod work;

pub use input::{AdapterMatrix, BaseModel, ModuleUpdate, ShapeFn, UpdateTarget};
pub use updates::{has_our_names, updates};

use found::{FoundUpdates, UpdateError};
use work::{ENDING, UpdateFinder};
