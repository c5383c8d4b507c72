//! Rotary position embedding (Su et al. 2021): pairs of elements are rotated by an angle that
//! grows with the position.
//!
//! Pair j turns by `pos * base^(-2j/dims) / factors[j] / factor`. `norm` pairs (2j, 2j+1), `neox`
//! pairs (j, j + dims/2); elements beyond `dims` pass through. YaRN (Peng et al. 2023) mixes the
//! scaled and the unscaled angle by wavelength and raises the magnitude.

use crate::arch::{Contract, Rule, StateSpec, WeightRole, WeightSpec};
use crate::{choices, options};

choices! {
    /// Which elements form a pair.
    pub(super) enum Pairing {
        /// Neighbours.
        Norm = "norm",
        /// Halves of the rotated part.
        Neox = "neox",
    }
}

choices! {
    /// How positions beyond the trained context are reached.
    pub(super) enum Scaling {
        /// They are not.
        None = "none",
        /// All angles are divided by the factor.
        Linear = "linear",
        /// Long wavelengths are divided, short ones kept.
        Yarn = "yarn",
    }
}

options! {
    /// Options of a rope.
    pub(super) struct Rope {
        kind: Pairing, "which elements form a pair: `norm` (2j, 2j+1) or `neox` (j, j + dims/2)";
        dims: u64 = "n_rot", "rotated elements at the head of each row";
        base: f32 = "rope_base", "base of the frequencies";
        scaling: Scaling = "rope_scaling", "how positions beyond the trained context are reached";
        factor: f32 = "rope_factor", "divisor of the angles";
        orig_ctx: u64 = "rope_orig_ctx", "context length before scaling";
        attn: f32 = "rope_attn * yarn_attn", "factor of the magnitude";
        ext: f32 = "yarn_ext", "share of the mixed angle (yarn)";
        fast: f32 = "yarn_fast", "rotations above which an angle is kept (yarn)";
        slow: f32 = "yarn_slow", "rotations below which an angle is divided (yarn)";
        log_mul: f32 = "yarn_log_mul", "strength of the magnitude's correction (yarn)";
    }
}

/// `[rope.NAME]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "rope",
    summary: "Rotates pairs of query and key elements by an angle proportional to the position.",
    formula: "angle(pos, j) = pos * base^(-2j/dims) / factors[j] / factor",
    options: Rope::OPTIONS,
    weights: &[WeightSpec {
        key: "factors",
        tensor: "rope_freqs.weight",
        shape: &["dims / 2"],
        when: "true",
        optional: true,
        role: WeightRole::Factors,
        doc: "divisor of each frequency",
    }],
    side: None,
    state: StateSpec::None,
    rules: &[
        Rule {
            holds: "dims > 0 and dims % 2 == 0",
            message: "`dims` is even and positive",
        },
        Rule {
            holds: "base > 0",
            message: "`base` is positive",
        },
        Rule {
            holds: "factor > 0",
            message: "`factor` is positive",
        },
    ],
};
