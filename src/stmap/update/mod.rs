//! Low-rank updates of stored matrices, as updates of the architecture's tensors.
//!
//! A map says of which stored matrices each tensor of the architecture is made, in which order of elements
//! ([`rearrange`](super::rearrange)). An update of a stored matrix is a product `rows . cols` of a
//! matrix with one row for each of its rows and one with one column for each of its columns. So the
//! update of the architecture's tensor is a product again as long as each of its axes is made of axes of
//! one side: rows are rearranged in `rows`, columns in `cols`. Concatenated parts have concatenated
//! ranks; experts have one each. An update that does not separate like this is refused by name.
//! The result is two lazy tensors ([`product`]).

mod candidates;
mod found;
mod input;
mod product;
mod updates;
mod work;

pub use input::{Factor, Module, Origin, ShapeOf, Updated};
pub use updates::{has_our_names, updates};

use found::{Fault, Found};
use work::{ENDING, Work};
