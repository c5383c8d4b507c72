//! What a stage of the chain is, and the table of all of them.
//!
//! A stage narrows or reweighs the candidates of one step, knowing the tokens so far; it may
//! keep state, which it changes only when tokens are accepted. A new one is a file with a
//! `build` function, its `mod` line, and a line in the table below; the file name is the name
//! that users write. The pick that ends every chain is no stage.

use std::fmt;
use std::str::FromStr;

use super::candidates::Candidates;
use super::history::{History, Origin};
use super::random::Random;
use super::select::Cut;
use super::{ParamError, Params, SampleError};

/// What a stage may know of the step beside its candidates.
#[derive(Debug)]
pub(super) struct Step<'a> {
    /// The tokens so far, given and generated.
    pub(super) history: &'a History,
    /// The random numbers of this choice.
    pub(super) rng: &'a Random,
    /// Which of them.
    pub(super) draw: u64,
}

impl Step<'_> {
    /// A number in `[0, 1)`, the same in every call of this step with this `lane`. Who draws has
    /// a lane of its own, so that one stage's draws leave those of all others as they were.
    pub(super) fn uniform(&self, lane: u32) -> f64 {
        self.rng.uniform(self.draw, lane)
    }
}

/// One stage of the chain.
pub(super) trait Stage: fmt::Debug + Send {
    /// Narrows or reweighs the candidates.
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        step: &Step<'_>,
    ) -> Result<(), SampleError>;

    /// Learns that the last `n_new` tokens of `history` came in.
    fn accept(&mut self, _history: &History, _n_new: usize, _origin: Origin) {}

    /// Learns what was drawn behind the chain, and how probable it was among the candidates left.
    /// Until that token is accepted nothing may follow from it: it may be drawn again.
    fn drawn(&mut self, _token: u32, _probability: f64) {}

    /// Whether the best candidate always stays the best, so that a greedy pick right after this
    /// stage can do without it.
    fn keeps_best(&self) -> bool {
        false
    }
}

/// What a cut keeps of logits whose largest is known; the buffer is scratch.
pub(super) type CutFn = fn(&[f32], f32, f64, &mut Vec<f32>) -> Cut;

/// Keeps a part of the candidates that a number from 0 to 1 decides, the best among them.
struct CutByShare {
    field: &'static str,
    share: f64,
    cut: CutFn,
}

impl fmt::Debug for CutByShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.share)
    }
}

impl Stage for CutByShare {
    fn apply(
        &mut self,
        candidates: &mut Candidates<'_>,
        _step: &Step<'_>,
    ) -> Result<(), SampleError> {
        let max = candidates.max()?;
        let (logits, scratch) = candidates.logits_and_scratch();
        let cut = (self.cut)(logits, max, self.share, &mut scratch.values);
        candidates.keep(cut);
        Ok(())
    }

    fn keeps_best(&self) -> bool {
        true
    }
}

/// The stage of such a cut, unless it would keep all.
pub(super) fn cut_by_share(
    field: &'static str,
    share: f64,
    cut: CutFn,
) -> Result<Option<Box<dyn Stage>>, ParamError> {
    ParamError::unless(
        (0.0..=1.0).contains(&share),
        field,
        &share,
        "a number from 0 to 1",
    )?;
    if share == 1.0 {
        return Ok(None);
    }
    Ok(Some(Box::new(CutByShare { field, share, cut })))
}

macro_rules! stages {
    ($($(#[$doc:meta])* $variant:ident = $module:ident;)*) => {
        /// A stage of the chain, as [`Params::order`] lists it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum StageName {
            $($(#[$doc])* $variant,)*
        }

        impl StageName {
            /// Every stage, in the order that a chain has unless asked otherwise.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name that users write.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($module),)*
                }
            }

            /// The stage with its parameters checked; `None` where they make it do nothing.
            pub(super) fn build(
                self,
                params: &Params,
            ) -> Result<Option<Box<dyn Stage>>, ParamError> {
                match self {
                    $(Self::$variant => super::$module::build(params),)*
                }
            }
        }
    };
}

impl StageName {
    /// Whether the stage takes tokens away by their probabilities, so that what is left is its
    /// decision.
    pub(super) fn is_cut(self) -> bool {
        match self {
            Self::TopNSigma
            | Self::TopK
            | Self::TfsZ
            | Self::TypicalP
            | Self::TopP
            | Self::MinP
            | Self::Xtc
            | Self::Mirostat => true,
            Self::LogitBias | Self::Penalties | Self::Dry | Self::Temperature => false,
        }
    }
}

// The order is that of llama.cpp's default chain.
stages! {
    /// Adds a number to the logits of chosen tokens.
    LogitBias = logit_bias;
    /// Lowers the logits of tokens that occurred before.
    Penalties = penalties;
    /// Lowers the logits of tokens that would prolong a repetition.
    Dry = dry;
    /// Keeps the tokens whose logits are within `top_n_sigma` deviations of the best.
    TopNSigma = top_n_sigma;
    /// Keeps the `top_k` most probable tokens.
    TopK = top_k;
    /// Cuts where the curve of the sorted probabilities has become flat.
    TfsZ = tfs_z;
    /// Keeps the tokens of the most expected surprise that together reach `typical_p`.
    TypicalP = typical_p;
    /// Keeps the most probable tokens that together reach `top_p`.
    TopP = top_p;
    /// Keeps the tokens at least `min_p` times as probable as the best.
    MinP = min_p;
    /// Excludes the most probable tokens where there is a choice.
    Xtc = xtc;
    /// Divides the logits by `temperature`.
    Temperature = temperature;
    /// Cuts so that what is drawn surprises by `mirostat_tau` bits on average.
    Mirostat = mirostat;
}

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for StageName {
    type Err = ParamError;

    fn from_str(name: &str) -> Result<Self, ParamError> {
        // What llama-server's clients write.
        let name = if name == "typ_p" { "typical_p" } else { name };
        let known = Self::ALL.iter().find(|stage| stage.as_str() == name);
        known.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|stage| stage.as_str()).collect();
            ParamError::new(
                "samplers",
                &name,
                format!("one of `{}`", names.join("`, `")),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for &stage in StageName::ALL {
            assert_eq!(stage.as_str().parse(), Ok(stage));
        }
        assert_eq!("typ_p".parse(), Ok(StageName::TypicalP));
        let error = "top_q".parse::<StageName>().expect_err("no such stage");
        assert_eq!(
            error.to_string(),
            "`samplers`: found `top_q`, expected one of `logit_bias`, `penalties`, `dry`, \
             `top_n_sigma`, `top_k`, `tfs_z`, `typical_p`, `top_p`, `min_p`, `xtc`, `temperature`, \
             `mirostat`"
        );
    }
}
