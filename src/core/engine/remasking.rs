//! Remasking rules of text diffusion: which masked positions a denoising step fixes.

use std::fmt;
use std::str::FromStr;

/// Rules for the masked positions that a denoising step fixes. The others are masked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remasking {
    /// The positions with the most probable tokens.
    LowConfidence,
    /// The positions with the largest difference in probability between the two best tokens.
    Margin,
    /// The positions whose distribution has the least entropy.
    Entropy,
    /// The same number of positions, drawn at random.
    Random,
    /// Each position by a random draw of its own, independent of the others.
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

    /// The default rule, that of the models' publishers. Models adapted from autoregressive ones (Ye et al. 2025,
    /// arXiv 2508.15487), whose logits are those of the next token, fix the lowest entropy first; others (Nie et
    /// al. 2025, arXiv 2502.09992) the most probable tokens.
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
