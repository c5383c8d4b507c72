//! The input rows of a tower: patches of a picture, frames of a sound. They are the first hidden state.
//!
//! `[width, n_rows]`, f32.

use crate::arch::{Contract, RowWidth};
use crate::options;
use crate::plan::{Media, MediaAttention, MediaPositions};

options! {
    pub(super) struct Config {
        media: Media, "what the rows are of: an `image` or `audio`";
        width: u64, "elements of an input row";
        attention: MediaAttention = "causal", "how the tokens that the tower's rows stand for attend to each other in the text model: as those of a text (`causal`), those of one medium in both directions, in all layers (`both`) or in those with a window (`window`), or all up to the end of the prompt in both directions (`prefix`)";
        positions: MediaPositions = "text", "by which positions those tokens are rotated in a text model whose tokens have several: as those of a text (`text`), or time, height and width on the grid of their rows (`grid`)";
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
