//! The text on which a model is measured, in windows of tokens, and the model that reads them.

use std::path::Path;

use clap::Args;

use lab_core::model::{Model, Options};
use lab_core::models::{OpenedModel, tokenizer_of};
use lab_inspect::evaluate::{PASS, windows};

use super::Failure;
use super::input_file::read_text;
use super::options::{LoadDefaults, LoadOptions};

/// Tokens of a window where the options do not say: as many as llama-perplexity reads.
const WINDOW: usize = 512;

/// Refuses a model that does not predict the next token of a text.
pub(super) fn check_predicts(opened: &OpenedModel) -> Result<(), Failure> {
    let plan = &opened.plan;
    if plan.head.is_none() || plan.diffusion.is_some() || plan.source.is_some() {
        anyhow::bail!(
            "{}: expected a model that predicts the next token of a text",
            opened.name
        );
    }
    Ok(())
}

/// The tokens of a window: `asked`, or 512, or the context length of a model with a shorter one.
pub(super) fn window_size(opened: &OpenedModel, asked: Option<usize>) -> usize {
    let trained = usize::try_from(opened.plan.n_ctx_train).unwrap_or(usize::MAX);
    let own = if trained == 0 { WINDOW } else { trained };
    asked.unwrap_or(WINDOW.min(own)).max(2)
}

/// How a text becomes tokens.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct TextOptions {
    /// Read the names of special tokens in texts as these tokens, as in conversations that a chat template wrote
    #[arg(long)]
    parse_special: bool,
}

/// At most `most` windows of a text, in the order of the text. Takes the vocabulary of a folder.
pub(super) fn read_windows(
    opened: &mut OpenedModel,
    path: &Path,
    size: usize,
    (most, options): (usize, TextOptions),
) -> Result<Vec<Vec<u32>>, Failure> {
    let text = read_text(path)?;
    let tokenizer = tokenizer_of(opened.vocabulary.take(), &opened.weights)?;
    let tokens = tokenizer.encode(&text, false, options.parse_special)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let mut windows = windows(&tokens, size, bos);
    windows.retain(|window| window.len() > 1);
    if windows.is_empty() {
        anyhow::bail!("{}: expected a text of 2 tokens or more", path.display());
    }
    windows.truncate(most);
    Ok(windows)
}

/// The options of a model that reads windows of `size` tokens.
pub(super) fn window_options(
    load: &LoadOptions,
    opened: &OpenedModel,
    size: usize,
) -> Result<Options, Failure> {
    Ok(Options {
        n_ctx: size.next_multiple_of(256),
        n_ctx_seq: size,
        ..load.resolve(opened, LoadDefaults::exact(PASS))?
    })
}

/// Loads a model that reads windows of `size` tokens.
pub(super) fn load(
    load: &LoadOptions,
    mut opened: OpenedModel,
    size: usize,
) -> Result<Model, Failure> {
    opened.drafter = None;
    let options = window_options(load, &opened, size)?;
    load.load(opened, options)
}
