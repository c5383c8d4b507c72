//! A further part of the rows of media: `y = part of the row` where a token is one of a medium, zeros elsewhere.
//!
//! The rows of a tower hold the embeddings of the text model and then parts that layers add (Meng et al. 2024, DeepStack).
//! `[n_embd, n_tokens]` in and out. A pass without media leaves the slot out.

use super::build::UnitBuilder;
use super::refused;
use crate::arch::Contract;
use crate::{options, rules};
use lab_base::ggml::{Result, Tensor};

options! {
    pub(super) struct Config {
        part: u64, "which part of the row, counted from 1 after the embedding";
    }
}

pub(super) static CONTRACT: Contract = Contract {
    name: "media_rows",
    title: "Part of media rows",
    noun: "rows of media",
    phrase: "part {=part} of the rows of media",
    summary: "Returns a further part of the rows of a tower, at the tokens of a medium.",
    formula: "y = part(rows of the tower)",
    options: Config::OPTIONS,
    rules: rules! {
        "part > 0", "the first part is the embedding";
    },
    is_of_media: true,
    ..Contract::BLOCK
};

pub(super) fn build(b: &mut UnitBuilder<'_, '_>, x: &Tensor) -> Result<Tensor> {
    let c = Config::read(&b.unit.options);
    let Some(media) = &b.media else {
        return Err(refused(
            "media_rows",
            format!("{}: the pass has no media", b.unit.path),
        ));
    };
    let n_embd = x.shape()[0];
    let part = b.columns(&media.rows, c.part * n_embd, n_embd)?;
    let zeros = b.g.fill(&b.g.cont(x)?, 0.0)?;
    b.g.put_rows(&zeros, &part, &media.places)
}
