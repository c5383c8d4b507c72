//! What is drafted, with which limits, and how many draft tokens were read and accepted. Plain data.

use std::ops::AddAssign;
use std::str::FromStr;

use super::StepDraft;
use super::acceptance::N_POSITIONS;

/// What makes drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrafterKind {
    /// Looks the last tokens of a sequence up in the sequence (prompt lookup).
    Lookup,
    /// Looks them up in recent answers to the same client.
    Shared,
    /// A drafter with weights: a draft model, or heads of the model.
    Model,
}

/// Maximum number of draft tokens of a step, over all sequences.
pub(in crate::engine) const N_DRAFTED: usize = 32;

/// Number of drafters.
pub const N_DRAFTERS: usize = 3;

impl DrafterKind {
    pub const ALL: [Self; N_DRAFTERS] = [Self::Lookup, Self::Shared, Self::Model];

    /// Its name in options and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Shared => "shared",
            Self::Model => "model",
        }
    }
}

/// The drafters of an engine and their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftOptions {
    /// Whether each drafter is on, in the order of [`DrafterKind::ALL`].
    pub drafters: [bool; N_DRAFTERS],
    /// Maximum number of draft tokens of a sequence per step, unless the request sets one; 0: no drafts.
    pub most: usize,
    /// Whether the drafters were named, so that requests get no others.
    pub are_named: bool,
}

impl DraftOptions {
    /// No drafts, unless a request asks for them.
    pub const OFF: Self = Self {
        drafters: [true; N_DRAFTERS],
        most: 0,
        are_named: false,
    };

    /// A drafter with weights, if the model has one. Requests that ask for drafts get all drafters.
    pub const WEIGHTS: Self = Self {
        drafters: [false, false, true],
        ..Self::ON
    };

    /// The drafters of a request that sets a maximum number of draft tokens.
    pub(super) fn of_asking(self) -> Self {
        match self.drafters == Self::WEIGHTS.drafters && !self.are_named {
            true => Self::ON,
            false => self,
        }
    }

    /// All drafters.
    pub const ON: Self = Self {
        drafters: [true; N_DRAFTERS],
        most: 16,
        are_named: false,
    };
}

impl FromStr for DraftOptions {
    type Err = String;

    /// Reads `off`, `auto`, or names of drafters and a number of tokens, in any order, separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut this = Self::ON;
        let mut named = [false; N_DRAFTERS];
        for word in text.split(',').map(str::trim) {
            let kind = DrafterKind::ALL.iter().position(|of| of.name() == word);
            match (word, kind, word.parse()) {
                (_, Some(kind), _) => named[kind] = true,
                ("off", ..) if text.trim() == word => return Ok(Self::OFF),
                ("auto", ..) => named = [true; N_DRAFTERS],
                (_, _, Ok(most)) => this.most = most,
                _ => {
                    let names = DrafterKind::ALL.map(DrafterKind::name).join(", ");
                    return Err(format!(
                        "found `{word}`, expected a number of tokens, `auto`, `off`, or drafters: {names}"
                    ));
                }
            }
        }
        if named != [false; N_DRAFTERS] {
            this.drafters = named;
            this.are_named = true;
        }
        Ok(this)
    }
}

/// What a request says of its drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftLimits {
    /// Maximum number of draft tokens per step, 0 = off; none: the engine's setting.
    pub n_max: Option<usize>,
    /// A draft of fewer tokens is not read.
    pub n_min: usize,
    /// Least probability of a token by a drafter with weights: a draft ends before a token with less.
    pub p_min: f32,
}

/// Draft tokens that were read and accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Tokens that were read, by drafter in the order of [`DrafterKind::ALL`].
    pub drafted: [usize; N_DRAFTERS],
    /// Of these, tokens that were accepted.
    pub accepted: [usize; N_DRAFTERS],
}

impl DraftCounts {
    /// Tokens that were read, and of these those that were accepted.
    pub fn totals(&self) -> (usize, usize) {
        (self.drafted.iter().sum(), self.accepted.iter().sum())
    }

    /// Each drafter with tokens that were read, by its name, with the numbers of those read and accepted.
    pub fn by_drafter(&self) -> impl Iterator<Item = (&'static str, usize, usize)> {
        let all = DrafterKind::ALL
            .into_iter()
            .zip(self.drafted)
            .zip(self.accepted);
        let all = all.map(|((kind, drafted), accepted)| (kind.name(), drafted, accepted));
        all.filter(|(_, drafted, _)| *drafted > 0)
    }

    pub(in crate::engine) fn count(&mut self, step: StepDraft) {
        self.drafted[step.kind as usize] += step.n_drafted;
        self.accepted[step.kind as usize] += step.n_accepted;
    }
}

impl AddAssign for DraftCounts {
    fn add_assign(&mut self, other: Self) {
        let drafted = self.drafted.iter_mut().zip(other.drafted);
        let accepted = self.accepted.iter_mut().zip(other.accepted);
        drafted.chain(accepted).for_each(|(own, n)| *own += n);
    }
}

/// Draft tokens of an engine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftTotals {
    pub counts: DraftCounts,
    /// Tokens that were read and those that were accepted, by their positions in a draft; the last position stands for all from it on.
    pub by_position: [[u64; 2]; N_POSITIONS],
    /// Seconds that drafts saved, by the measured times of passes; below 0 if they cost more than they brought.
    pub seconds_saved: f64,
}

impl DraftTotals {
    pub(in crate::engine) fn count(&mut self, step: StepDraft) {
        self.counts.count(step);
        for at in 0..step.n_drafted {
            let [drafted, accepted] = &mut self.by_position[at.min(N_POSITIONS - 1)];
            *drafted += 1;
            *accepted += u64::from(at < step.n_accepted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafters_and_a_number_are_read_in_any_order() {
        let read = |text: &str| text.parse::<DraftOptions>();
        assert_eq!(read("auto").map(|of| of.drafters), Ok([true; N_DRAFTERS]));
        // Requests get no drafters but those that are named.
        let asking = |text: &str| read(text).map(|of| of.of_asking().drafters);
        assert_eq!(asking("model"), Ok(DraftOptions::WEIGHTS.drafters));
        assert_eq!(DraftOptions::WEIGHTS.of_asking(), DraftOptions::ON);
        assert_eq!(read("off"), Ok(DraftOptions::OFF));
        let of = |drafters, most| {
            Ok(DraftOptions {
                drafters,
                most,
                are_named: drafters != [true; N_DRAFTERS],
            })
        };
        assert_eq!(read("0").map(|of| of.most), Ok(0));
        assert_eq!(read("6"), of([true; 3], 6));
        assert_eq!(
            read("lookup"),
            of([true, false, false], DraftOptions::ON.most)
        );
        assert_eq!(read("8, model,lookup"), of([true, false, true], 8));
        for wrong in [
            "",
            "of",
            "lookup,off",
            "-1",
            "lookup,,3",
            "99999999999999999999999",
        ] {
            let error = read(wrong).expect_err(wrong);
            assert!(error.contains("expected"), "{error}");
        }
    }
}
