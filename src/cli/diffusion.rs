//! Command-line options of text diffusion, and the display of a completion while its denoising steps run.

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use lab_base::tokenizer::Tokenizer;
use lab_core::engine::{self, FixedToken, Remasking};

use super::output;

/// For models that decode by text diffusion.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Text diffusion")]
pub(super) struct DiffusionOptions {
    /// Number of denoising steps of the completion, 1 or more; each block gets at least one; default: one per token
    #[arg(long, hide_short_help = true, value_name = "N")]
    steps: Option<usize>,
    /// Block length: number of tokens that are denoised together, 1 or more; blocks go from left to right; default:
    /// 32
    #[arg(long, hide_short_help = true, value_name = "N")]
    block_length: Option<usize>,
    /// Remasking rule: how a step chooses the tokens to unmask: low_confidence, margin, entropy, random or none;
    /// default: that of the definition
    #[arg(long, hide_short_help = true, value_name = "RULE")]
    remasking: Option<Remasking>,
    /// Scale of classifier-free guidance, 0 to 100; 0 = off; default: 0
    #[arg(long, hide_short_help = true, value_name = "X")]
    cfg_scale: Option<f64>,
    /// Confidence threshold: tokens of at least this probability are unmasked at once; above 0, up to 1; default: off
    #[arg(long, hide_short_help = true, value_name = "P")]
    confidence_threshold: Option<f64>,
    /// Approximate KV cache: compute keys and values of the tokens before a block once per block; faster, but changes
    /// the results; default: off
    #[arg(long, hide_short_help = true)]
    approximate_cache: bool,
}

impl DiffusionOptions {
    pub(super) fn set(&self) -> engine::DiffusionOptions {
        engine::DiffusionOptions {
            steps: self.steps,
            block_length: self.block_length,
            remasking: self.remasking,
            cfg_scale: self.cfg_scale,
            threshold: self.confidence_threshold,
            approximate_cache: self.approximate_cache.then_some(true),
        }
    }

    /// The options that are set; `None` if there are none.
    pub(super) fn request(&self) -> Option<engine::DiffusionOptions> {
        Some(self.set()).filter(|set| *set != engine::DiffusionOptions::default())
    }

    pub(super) fn field(&self) -> Option<(String, Value)> {
        let set = self.request()?;
        let fields = json!({
            "steps": set.steps, "block_length": set.block_length,
            "remasking": set.remasking.map(|rule| rule.to_string()), "cfg_scale": set.cfg_scale,
            "threshold": set.threshold, "approximate_cache": set.approximate_cache,
        });
        Some(("diffusion".into(), fields))
    }
}

/// The character that represents a masked token.
const MASK: &str = "░";

/// Shows a completion on stderr while its tokens are fixed; hidden if stderr is not a terminal.
pub(super) struct DiffusionProgress {
    bar: ProgressBar,
    /// Tokens of the completion; `None` for a masked one.
    tokens: Vec<Option<u32>>,
}

impl DiffusionProgress {
    pub(super) fn new(is_quiet: bool) -> Self {
        let bar = match is_quiet {
            true => ProgressBar::hidden(),
            false => ProgressBar::new_spinner(),
        };
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            tokens: Vec::new(),
        }
    }

    /// Whether the completion is shown while it forms.
    pub(super) fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    pub(super) fn step(&mut self, fixed: &[FixedToken], n_masked: usize, tokenizer: &Tokenizer) {
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

    /// The text up to its end, with a box for each masked token.
    fn text(&self, tokenizer: &Tokenizer) -> String {
        let mut bytes = Vec::new();
        for token in &self.tokens {
            match token {
                Some(token) if tokenizer.is_end_of_generation(*token) => break,
                Some(token) => bytes.extend_from_slice(tokenizer.piece(*token)),
                None => bytes.extend_from_slice(MASK.as_bytes()),
            }
        }
        output::escape_controls(&String::from_utf8_lossy(&bytes))
    }

    /// Removes the display, before the text itself is written.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
