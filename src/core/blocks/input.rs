//! The input rows of a tower: patches of a picture, frames of a sound. They are the first hidden state.
//!
//! `[width, n_rows]`, f32.

use crate::arch::{Contract, RowWidth};
use crate::options;
use crate::plan::Media;

options! {
    pub(super) struct Config {
        media: Media, "what the rows are of: an `image` or `audio`";
        width: u64, "elements of an input row";
    }
}

/// The contract of `[input]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "input",
    title: "Input rows",
    noun: "input rows",
    phrase: "input rows of {=width} elements",
    summary: "The rows that a tower reads in place of tokens: patches of a picture, frames of a sound.",
    formula: "x = rows",
    options: Config::OPTIONS,
    rows: RowWidth::Any,
    ..Contract::BLOCK
};
