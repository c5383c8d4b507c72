//! Rotary position embedding (Su et al. 2021): pairs of elements are rotated by an angle that
//! grows with the position.
//!
//! Pair j is rotated by `pos * base^(-2j/dims) / factors[j] / factor`. `norm` pairs (2j, 2j+1), `neox`
//! pairs (j, j + dims/2); elements beyond `dims` pass through. Multimodal models rotate sections of the pairs by time,
//! height and width (Wang et al. 2024); in text all three are the position. YaRN (Peng et al. 2023) mixes the scaled
//! and the unscaled angle by wavelength and raises the magnitude; the bounds of the mixture are whole pairs or, without
//! `truncate`, between them. LongRoPE (Ding et al. 2024) has two tables of factors and chooses one by the length of the
//! context.

use super::grid::Axis;
use crate::arch::{Contract, RowWidth};
use crate::{choices, options, rules, weights};

choices! {
    /// The elements that form a pair.
    pub(super) enum Pairing {
        /// Neighbouring elements.
        Norm = "norm",
        /// Elements of the two halves of the rotated part.
        Neox = "neox",
        /// Elements of the two halves of the rotated part, in sections that have their own positions.
        Mrope = "mrope",
        /// As `mrope`, with interleaved sections.
        Imrope = "imrope",
    }
}

choices! {
    /// How angles are scaled for positions beyond the trained context.
    pub(super) enum Scaling {
        /// Angles are not scaled.
        None = "none",
        /// All angles are divided by the factor.
        Linear = "linear",
        /// Each frequency has its own divisor, from one of two tables.
        Longrope = "longrope",
        /// The angles of long wavelengths are divided, those of short ones are kept.
        Yarn = "yarn",
    }
}

choices! {
    /// The frequencies of the pairs of a section.
    pub(super) enum Frequencies {
        /// They go on from section to section.
        Shared = "shared",
        /// They start again in each section.
        Restart = "restart",
        /// The sections take turns, pair by pair.
        Alternate = "alternate",
        /// Height and width take turns, pair by pair, then time has the rest. The even ones of these pairs come first in a
        /// head, then the odd ones.
        Turns = "turns",
    }
}

options! {
    pub(super) struct RopeOptions {
        kind: Pairing, "which elements form a pair: `norm` (2j, 2j+1), `neox` (j, j + dims/2), or `mrope` and `imrope`, which are as `neox` in sections with positions of their own";
        dims: u64 = "n_rot", "rotated elements of a head, the first ones";
        base: f32 = "rope_base", "base of the frequencies, above 0";
        scaling: Scaling = "rope_scaling", "how positions beyond the trained context are reached";
        section_t: u64 => "rope_section_t", when "kind == 'mrope' or kind == 'imrope'", "pairs that are rotated by time, in text the position";
        section_h: u64 => "rope_section_h", when "kind == 'mrope' or kind == 'imrope'", "pairs that are rotated by height, in text the position";
        section_w: u64 => "rope_section_w", when "kind == 'mrope' or kind == 'imrope'", "pairs that are rotated by width, in text the position";
        section_e: u64 => "rope_section_e", when "kind == 'mrope' or kind == 'imrope'", "pairs that are not rotated in text";
        frequencies: Frequencies = "shared", when "kind == 'mrope'", "the frequencies of the pairs of a section: one falling row over all sections (`shared`), one that each section has from its start (`restart`), one from which the sections take turns (`alternate`), or one from which height and width take turns and time has the rest, where the even ones of these pairs come first in a head, then the odd ones (`turns`)";
        width_first: bool = "false", when "kind == 'mrope'", "in a tower: whether the sections by height and by width change places";
        start: u64 = "0", when "kind == 'mrope'", "in a tower: place of the first cell of the grid by each axis; other rows are at 0";
        factor: f32 => "rope_factor", when "scaling != 'none'", "scaling factor: divisor of the angles; 1: none";
        orig_ctx: u64 => "rope_orig_ctx", when "scaling != 'none'", "context length of the training before scaling, in tokens";
        attn: f32 = "rope_attn * if(scaling == 'yarn', yarn_attn, 1.0)", "factor of the magnitude; 1: none";
        ext: f32 => "yarn_ext", when "scaling == 'yarn'", "YaRN: share of the unscaled angle where it is mixed in, 0 to 1";
        fast: f32 => "yarn_fast", when "scaling == 'yarn'", "YaRN: rotations within `orig_ctx` above which an angle is kept, above 0";
        slow: f32 => "yarn_slow", when "scaling == 'yarn'", "YaRN: rotations within `orig_ctx` below which an angle is divided, above 0";
        truncate: bool => "yarn_truncate", when "scaling == 'yarn'", "YaRN: whether the bounds of the mixture are whole pairs";
        log_mul: f32 = "0", when "scaling == 'yarn'", "YaRN: the magnitude is divided by `1 + 0.1 * log_mul * ln(factor)`; 0: off";
    }
}

/// The contract of `[rope.NAME]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "rope",
    title: "Rotation",
    noun: "a rotation",
    phrase: "rope: {=dims} elements of a head, base {=base}, pairs of {kind == 'norm': neighbours | halves} (`{=kind}`){scaling == 'none': , not scaled | {scaling == 'linear' and factor == 1: , not scaled | , scaling {=scaling} by {=factor}}}{has('factors'): , with frequency factors}",
    summary: "Rotates pairs of query and key elements by an angle proportional to the position.",
    formula: "angle(pos, j) = pos * base^(-2j/dims) / factors[j] / factor",
    options: RopeOptions::OPTIONS,
    // A table may be longer than the rotated part: then only its head is used.
    weights: weights! {
        factors: Factors "rope_freqs.weight" ["max(dims / 2, if(has('factors'), dim('factors', 0), 0))"] optional, "divisor of each frequency";
        long: Factors "rope_factors_long.weight" ["max(dims / 2, if(has('long'), dim('long', 0), 0))"] optional when("not has('factors')"), "divisors for contexts longer than `orig_ctx`";
        short: Factors "rope_factors_short.weight" ["max(dims / 2, if(has('short'), dim('short', 0), 0))"] optional when("not has('factors')"), "divisors for other contexts";
    },
    rows: RowWidth::Any,
    rules: rules! {
        "dims > 0 and dims % 2 == 0", "`dims` is even and positive";
        "not (kind == 'mrope' or kind == 'imrope') or section_t + section_h + section_w > 0", "some section is rotated";
        "kind != 'mrope' or frequencies != 'turns' or section_h == section_w and section_t % 2 == 0 and section_e == 0", "height and width that take turns have as many pairs, and time an even number";
        "base > 0", "`base` is positive";
        "factor > 0", "`factor` is positive";
        "truncate or scaling != 'yarn' or not has('factors')", "with bounds between pairs there is no table of divisors";
        "scaling != 'longrope' or has('long') and has('short')", "`longrope` has two tables of factors";
    },
    ..Contract::BLOCK
};

/// Frequencies that the operation does not have itself, as divisors of those that it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeDivisors {
    /// A mixture of scaled and unscaled angles with bounds between pairs.
    Mixture(AngleMixture),
    /// Frequencies of each section.
    Sections(SectionFrequencies),
}

impl RopeDivisors {
    /// Number of rotated pairs of elements.
    pub(crate) fn n_pairs(&self) -> u64 {
        match self {
            Self::Mixture(mixture) => mixture.dims / 2,
            Self::Sections(sections) => sections.dims / 2,
        }
    }

    /// The divisors `[dims / 2]`.
    pub(crate) fn values(&self) -> Vec<f32> {
        match self {
            Self::Mixture(mixture) => mixture.divisors(),
            Self::Sections(sections) => sections.divisors(),
        }
    }
}

/// The frequencies of sections that do not go on from one to the next. Pair `i` of the `n` pairs of a section turns by
/// `base^(-(i + turn) / n)`; where sections take turns, `turn` is the number of the section over that of the sections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SectionFrequencies {
    dims: u64,
    base: f32,
    sections: [u64; 3],
    frequencies: Frequencies,
}

impl SectionFrequencies {
    fn divisors(&self) -> Vec<f32> {
        let (base, dims) = (f64::from(self.base), self.dims as f64);
        if self.frequencies == Frequencies::Turns {
            let half = self.dims / 4;
            let stored = (0..half).map(|i| 2 * i).chain((0..half).map(|i| 2 * i + 1));
            let divisor = |(i, pair)| base.powf(2.0 * (pair as f64 - i as f64) / dims) as f32;
            return stored.enumerate().map(divisor).collect();
        }
        let used: Vec<u64> = self.sections.into_iter().filter(|n| *n > 0).collect();
        let mut all = Vec::with_capacity((self.dims / 2) as usize);
        for (at, n) in used.iter().enumerate() {
            let turn = match self.frequencies {
                Frequencies::Alternate => at as f64 / used.len() as f64,
                _ => 0.0,
            };
            for i in 0..*n {
                let frequency = base.powf(-(i as f64 + turn) / *n as f64);
                all.push((base.powf(-2.0 * all.len() as f64 / dims) / frequency) as f32);
            }
        }
        all.resize((self.dims / 2) as usize, 1.0);
        all
    }
}

/// A mixture of scaled and unscaled angles with bounds between pairs, as the divisor of each frequency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AngleMixture {
    dims: u64,
    base: f32,
    factor: f32,
    orig_ctx: u64,
    ext: f32,
    fast: f32,
    slow: f32,
}

impl RopeOptions {
    /// The mixture, where the operation does not make it itself.
    pub(super) fn mixture(&self) -> Option<AngleMixture> {
        (self.scaling == Scaling::Yarn && !self.truncate).then_some(AngleMixture {
            dims: self.dims,
            base: self.base,
            factor: self.factor,
            orig_ctx: self.orig_ctx,
            ext: self.ext,
            fast: self.fast,
            slow: self.slow,
        })
    }
}

impl RopeOptions {
    /// The axes of a grid by which the sections are rotated.
    pub(super) fn axes(&self) -> [Axis; 3] {
        match self.width_first {
            true => [Axis::Time, Axis::Width, Axis::Height],
            false => [Axis::Time, Axis::Height, Axis::Width],
        }
    }

    /// Whether the sections are height, time, width and time.
    pub(super) fn takes_turns(&self) -> bool {
        self.kind == Pairing::Mrope && self.frequencies == Frequencies::Turns
    }

    /// The numbers of pairs of the sections, in the order of the pairs.
    pub(super) fn sections(&self) -> [u64; 4] {
        match self.takes_turns() {
            true => [
                self.section_h,
                self.section_t / 2,
                self.section_w,
                self.section_t / 2,
            ],
            false => [
                self.section_t,
                self.section_h,
                self.section_w,
                self.section_e,
            ],
        }
    }

    /// The divisors of frequencies that the operation does not have itself.
    pub(super) fn divisors(&self) -> Option<RopeDivisors> {
        let sections = || SectionFrequencies {
            dims: self.dims,
            base: self.base,
            sections: [self.section_t, self.section_h, self.section_w],
            frequencies: self.frequencies,
        };
        let has_own = self.kind == Pairing::Mrope && self.frequencies != Frequencies::Shared;
        let of_sections = has_own.then(|| RopeDivisors::Sections(sections()));
        of_sections.or_else(|| self.mixture().map(RopeDivisors::Mixture))
    }
}

impl AngleMixture {
    /// The divisors `[dims / 2]`. Pair `j` makes `orig_ctx / 2 pi * base^(-2j/dims)` rotations in the original
    /// context. A pair of at least `slow` rotations is mixed, a pair of at least `fast` rotations is not scaled.
    fn divisors(&self) -> Vec<f32> {
        let (dims, factor) = (self.dims as f64, f64::from(self.factor));
        let pairs_per_log = dims / (2.0 * f64::from(self.base).ln());
        let rotations_of_first = self.orig_ctx as f64 / std::f64::consts::TAU;
        let pair =
            |rotations: f32| pairs_per_log * (rotations_of_first / f64::from(rotations)).ln();
        let low = pair(self.fast).max(0.0);
        let high = pair(self.slow).min(dims - 1.0);
        let width = if high == low { 0.001 } else { high - low };
        (0..self.dims / 2)
            .map(|j| {
                let kept = 1.0 - ((j as f64 - low) / width).clamp(0.0, 1.0);
                let kept = kept * f64::from(self.ext);
                (1.0 / ((1.0 - kept) / factor + kept)) as f32
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frequencies by the formula of YaRN (Peng et al. 2023, section 3.3), with the number of wavelengths in the
    /// original context; the share between the bounds is linear in the pair.
    fn frequency(mixture: &AngleMixture, j: usize) -> f64 {
        let base = f64::from(mixture.base);
        let plain = base.powf(-2.0 * j as f64 / mixture.dims as f64);
        // The pair, with a fraction, that has this number of rotations.
        let pair_of = |rotations: f32| {
            let frequency = f64::from(rotations) * std::f64::consts::TAU / mixture.orig_ctx as f64;
            -frequency.log(base) * mixture.dims as f64 / 2.0
        };
        let (low, high) = (pair_of(mixture.fast), pair_of(mixture.slow));
        let share = match j as f64 {
            j if j <= low => 0.0,
            j if j >= high => 1.0,
            j => (j - low) / (high - low),
        };
        plain * (1.0 - share) + plain / f64::from(mixture.factor) * share
    }

    #[test]
    fn bounds_between_pairs() {
        let mixture = AngleMixture {
            dims: 64,
            base: 150_000.0,
            factor: 32.0,
            orig_ctx: 4096,
            ext: 1.0,
            fast: 32.0,
            slow: 1.0,
        };
        let divisors = mixture.divisors();
        assert_eq!(divisors.len(), 32);
        for (j, divisor) in divisors.iter().enumerate() {
            let found = 150_000f64.powf(-(j as f64) / 32.0) / f64::from(*divisor);
            let expected = frequency(&mixture, j);
            assert!(
                (found / expected - 1.0).abs() < 1e-6,
                "pair {j}: {found} and {expected}"
            );
        }
        // The bounds: the ninth pair is the first that is mixed, the eighteenth the last.
        assert_eq!((divisors[8], divisors[18]), (1.0, 32.0));
        assert!(divisors[9] > 1.0 && divisors[17] < 32.0);
    }
}
