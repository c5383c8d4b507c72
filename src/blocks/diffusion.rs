//! Text diffusion: what a model of masked tokens states about generation.
//!
//! The graph is that of any other model; the engine reads these options.

use std::str::FromStr;

use crate::arch::{Contract, OptionKind, OptionValue, Resolved, StateSpec};
use crate::{choices, options};

choices! {
    /// Which of the masked positions are kept in a denoising step.
    pub enum Remasking {
        /// Those whose tokens are most probable.
        LowConfidence = "low_confidence",
        /// Those whose best token is furthest ahead of the second.
        Margin = "margin",
        /// Those whose distribution has the least entropy.
        Entropy = "entropy",
        /// As many, drawn at random.
        Random = "random",
        /// Each by a draw of its own, whatever the others do.
        None = "none",
    }
}

impl Remasking {
    /// The names, in the order of the language's reference.
    pub fn names() -> &'static [&'static str] {
        match Self::KIND {
            OptionKind::Choice(names) => names,
            _ => &[],
        }
    }
}

impl FromStr for Remasking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = Self::names().iter().find(|name| **name == text);
        name.and_then(|name| Self::read(&Resolved::Choice(name)))
            .ok_or_else(|| format!("expected one of {}", Self::names().join(", ")))
    }
}

options! {
    /// Options of text diffusion.
    pub(crate) struct Config {
        shift_logits: bool = "false", "whether the logits at a position are those of the next token";
        remasking: Remasking = "low_confidence", "which masked positions are masked again, where a request does not state it: `low_confidence`, `margin`, `entropy`, `random`, `none`";
    }
}

/// `[diffusion]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "diffusion",
    title: "Diffusion",
    noun: "diffusion",
    phrase: "remasking: {=remasking}",
    summary: "How denoising steps replace masked tokens; belongs to `mode = \"diffusion\"`.",
    formula: "x[p] = argmax(logits[p - shift] / temperature + noise) for the positions of a step",
    options: Config::OPTIONS,
    weights: &[],
    rows: None,
    side: None,
    state: StateSpec::None,
    rules: &[],
};
