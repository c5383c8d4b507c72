//! How answers are filled in, on the command line, and how that looks while it happens.

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::engine::{Diffusion, Fixed, Remasking};
use crate::text::tokenizer::Tokenizer;

/// For models that fill in masked tokens.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Text diffusion")]
pub(super) struct DiffusionOptions {
    /// Steps in which an answer is filled in; default: one for each token
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Tokens that are filled in together, block by block from the left; default: 32
    #[arg(long, value_name = "N")]
    block_length: Option<usize>,
    /// Which tokens a step keeps: low_confidence, margin, entropy, random, none; default: as the
    /// definition has it
    #[arg(long, value_name = "RULE")]
    remasking: Option<Remasking>,
    /// Weight of classifier-free guidance; 0: none
    #[arg(long, value_name = "X")]
    cfg_scale: Option<f64>,
    /// Keep tokens at least this probable, beyond the number of a step
    #[arg(long, value_name = "P")]
    confidence_threshold: Option<f64>,
    /// Keep keys and values of what is before a block, which is quicker and not the same
    #[arg(long)]
    approximate_cache: bool,
}

impl DiffusionOptions {
    /// What was said.
    pub(super) fn said(&self) -> Diffusion {
        Diffusion {
            steps: self.steps,
            block_length: self.block_length,
            remasking: self.remasking,
            cfg_scale: self.cfg_scale,
            threshold: self.confidence_threshold,
            approximate_cache: self.approximate_cache.then_some(true),
        }
    }

    /// What was said, if anything.
    pub(super) fn request(&self) -> Option<Diffusion> {
        Some(self.said()).filter(|said| *said != Diffusion::default())
    }
}

/// What stands for a masked token.
const MASK: &str = "░";

/// A text that forms, on stderr; hidden where that is no terminal.
pub(super) struct Forming {
    bar: ProgressBar,
    /// Tokens of the answer; none where it is still masked.
    tokens: Vec<Option<u32>>,
}

impl Forming {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            tokens: Vec::new(),
        }
    }

    /// Whether anybody sees it.
    pub(super) fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Shows what a step fixed.
    pub(super) fn step(&mut self, fixed: &[Fixed], n_masked: usize, tokenizer: &Tokenizer) {
        if self.tokens.is_empty() {
            self.tokens = vec![None; n_masked + fixed.len()];
        }
        for one in fixed {
            if let Some(place) = self.tokens.get_mut(one.position) {
                *place = Some(one.token);
            }
        }
        self.bar.set_message(self.text(tokenizer));
        self.bar.tick();
    }

    /// The text up to its end, masked tokens as boxes.
    fn text(&self, tokenizer: &Tokenizer) -> String {
        let mut bytes = Vec::new();
        for token in &self.tokens {
            match token {
                Some(token) if tokenizer.is_end_of_generation(*token) => break,
                Some(token) => bytes.extend_from_slice(tokenizer.piece(*token)),
                None => bytes.extend_from_slice(MASK.as_bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Takes it away, for the text itself.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
