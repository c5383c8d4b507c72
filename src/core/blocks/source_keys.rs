//! Keys and values of the source, for each kind of block that makes them.

use super::{GraphBuilder, attention};
use crate::plan::Unit;
use lab_base::ggml::{Error, Tensor};

/// The keys and values that a block makes of rows of the source.
pub(super) fn keys_of_source(
    build: &GraphBuilder<'_>,
    unit: &Unit,
    x: &Tensor,
) -> Result<(Tensor, Tensor), Error> {
    match unit.contract.0.takes_source() {
        true => attention::keys_of_source(build, unit, x),
        false => Err(Error::Arguments {
            op: "block",
            message: format!("`{}` makes no keys of a source", unit.contract.0.name),
        }),
    }
}
