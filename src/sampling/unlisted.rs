//! What is known of the tokens of a row that are not among its highest logits: enough to see that they decide nothing.
//!
//! All numbers are limits. Those of sums hold for every way in which a device may add up in f32.

/// Relative error of a device's sum of exponentials: larger than that of a sum of 2^18 numbers in f32, each with an
/// exponential of the fast kind.
const SUM_ERROR: f64 = 1e-3;
/// Relative error of weights that are computed from rounded logits.
const ROUNDING: f64 = 1e-4;

/// The tokens of a row that are not listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unlisted {
    /// None of them has a higher logit.
    pub(super) bound: f32,
    /// Their number.
    n: f64,
    /// Least and greatest possible sum of e^(logit - reference).
    weight: (f64, f64),
    reference: f64,
}

impl Unlisted {
    /// The `n` tokens below `bound` of a row with this logarithm of the sum of all e^logit. `listed` is the sum of
    /// e^(logit - max) over the others.
    pub(super) fn new(bound: f32, n: usize, max: f32, (log_sum, listed): (f64, f64)) -> Self {
        let reference = f64::from(max);
        let all = (log_sum - reference).exp();
        let n = n as f64;
        let most = n * (f64::from(bound) - reference).exp();
        let between = |weight: f64| weight.clamp(0.0, most);
        let weight = (
            between(all * (1.0 - SUM_ERROR) - listed),
            between(all * (1.0 + SUM_ERROR) - listed),
        );
        Self {
            bound,
            n,
            weight,
            reference,
        }
    }

    /// The limits of the sum of e^(logit - max).
    pub(super) fn weight(&self, max: f32) -> (f64, f64) {
        let factor = (self.reference - f64::from(max)).exp();
        (self.weight.0 * factor, self.weight.1 * factor)
    }

    /// Some of the tokens are not allowed.
    pub(super) fn lose_some(&mut self) {
        self.weight.0 = 0.0;
    }

    /// Changes the logit of one of the tokens, nobody knows which. `new` is linear on either side of 0.
    pub(super) fn change_one(&mut self, new: impl Fn(f64) -> f64) {
        let bound = f64::from(self.bound);
        // Such a function lowers all logits up to the bound if it lowers these.
        let at = [bound, bound.min(0.0), f64::from(f32::MIN)];
        let is_lower = at.iter().all(|logit| new(*logit) <= *logit);
        let own = (bound - self.reference).exp();
        self.weight.0 = (self.weight.0 - own).max(0.0);
        if !is_lower {
            // It may be any token now.
            self.bound = f32::MAX;
        }
    }

    /// Multiplies the distances of all logits from `max`, which becomes 0.
    pub(super) fn scale(&mut self, max: f32, factor: f64) {
        let (least, most) = self.weight(max);
        let bound = f64::from(self.bound) - f64::from(max);
        // With x = e^(logit - max) <= e^bound, each weight becomes x^factor = x * x^(factor - 1).
        let at_bound = (bound * (factor - 1.0)).exp();
        let (least, most) = match factor >= 1.0 {
            true => (0.0, most * at_bound),
            // By Jensen's inequality, the sum of n powers is at most the power of their mean, n times.
            false => (
                least * at_bound,
                self.n.powf(1.0 - factor) * most.powf(factor),
            ),
        };
        self.weight = (least * (1.0 - ROUNDING), most * (1.0 + ROUNDING));
        self.bound = scaled(self.bound, max, factor);
        self.reference = 0.0;
    }
}

/// A logit whose distance from the highest is multiplied.
pub(super) fn scaled(logit: f32, max: f32, factor: f64) -> f32 {
    ((f64::from(logit) - f64::from(max)) * factor) as f32
}
