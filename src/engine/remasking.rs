//! Remasking rules of text diffusion: which masked positions a denoising step fixes.

use std::fmt;
use std::str::FromStr;

/// Which of the masked positions are fixed in a denoising step; the others are masked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remasking {
    /// Those whose tokens are most probable.
    LowConfidence,
    /// Those whose best token is furthest ahead of the second.
    Margin,
    /// Those whose distribution has the least entropy.
    Entropy,
    /// As many, drawn at random.
    Random,
    /// Each by a draw of its own, whatever the others do.
    None,
}

impl Remasking {
    const NAMES: [(&'static str, Self); 5] = [
        ("low_confidence", Self::LowConfidence),
        ("margin", Self::Margin),
        ("entropy", Self::Entropy),
        ("random", Self::Random),
        ("none", Self::None),
    ];

    /// The rule where neither the request nor the server sets one: the vendors' own. Models adapted from
    /// autoregressive ones (Ye et al. 2025, arXiv 2508.15487), whose logits are those of the next token, fix
    /// the lowest entropy first; others (Nie et al. 2025, arXiv 2502.09992) the most probable tokens.
    pub fn usual(shift_logits: bool) -> Self {
        match shift_logits {
            true => Self::Entropy,
            false => Self::LowConfidence,
        }
    }
}

impl fmt::Display for Remasking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, rule)| rule == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for Remasking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, rule)| *rule).ok_or_else(|| {
            let names = Self::NAMES.map(|(name, _)| name);
            format!("expected one of {}", names.join(", "))
        })
    }
}
