//! Tokens that switch between the adapters in a model file.

/// Tokens that switch between the adapters in a model file. The adapter of a token is the rounded mean of the adapters
/// of the switches up to it, weighted by attention.
#[derive(Debug, PartialEq)]
pub struct AdapterSwitches {
    /// The token that switches to each adapter. Adapters count from 1; 0 is the adapter before the first switch.
    pub tokens: Vec<u64>,
    /// The token whose table row each switch uses, in the same order.
    pub stand_ins: Vec<u64>,
    /// The score of a switch; that of any other token is its negative.
    pub gain: f32,
}

/// The counts of a sequence's tokens up to one of them, for [`AdapterSwitches`].
#[derive(Default)]
pub struct SwitchCounts {
    /// Sum of the numbers of the adapters that are switched to.
    sum: f64,
    switches: f64,
    others: f64,
}

impl AdapterSwitches {
    /// Number of adapters, including the one before the first switch.
    pub fn count(&self) -> u64 {
        self.tokens.len() as u64 + 1
    }

    /// The place of a switch; the last one of a token that is listed more than once.
    fn place(&self, token: u32) -> Option<usize> {
        let token = u64::from(token);
        self.tokens.iter().rposition(|own| *own == token)
    }

    /// The token whose table row a token uses.
    pub fn stand_in(&self, token: u32) -> u64 {
        let place = self.place(token);
        place.map_or(u64::from(token), |place| self.stand_ins[place])
    }

    /// Counts the next token of a sequence.
    pub fn read(&self, seen: &mut SwitchCounts, token: u32) {
        match self.place(token) {
            Some(place) => {
                seen.sum += (place + 1) as f64;
                seen.switches += 1.0;
            }
            None => seen.others += 1.0,
        }
    }

    /// The adapter of the last counted token.
    pub fn adapter(&self, seen: &SwitchCounts) -> u64 {
        let weight_of_others = (-2.0 * f64::from(self.gain)).exp();
        // In f32, the weights of a few other tokens do not decide the rounding of a half.
        let mean = (seen.sum / (seen.switches + seen.others * weight_of_others)) as f32;
        // Without a switch the mean is 0, or NaN, which becomes 0.
        (mean.round() as u64).min(self.tokens.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The adapters of the tokens of a text.
    fn adapters(gain: f32, text: &[u32]) -> Vec<u64> {
        let switches = AdapterSwitches {
            tokens: vec![7, 8, 9],
            stand_ins: vec![1, 2, 3],
            gain,
        };
        let mut seen = SwitchCounts::default();
        let next = |token: &u32| {
            switches.read(&mut seen, *token);
            switches.adapter(&seen)
        };
        text.iter().map(next).collect()
    }

    #[test]
    fn tokens_have_the_mean_of_the_adapters_switched_to() {
        assert_eq!(adapters(15.0, &[0, 9, 0, 0]), [0, 3, 3, 3]);
        assert_eq!(adapters(15.0, &[9, 7, 0]), [3, 2, 2]);
        // One and a half is rounded up.
        assert_eq!(adapters(15.0, &[7, 8, 0]), [1, 2, 2]);
        // If all tokens have equal weight, later tokens outweigh a switch.
        assert_eq!(adapters(0.0, &[8, 0, 0, 0, 0]), [2, 1, 1, 1, 0]);
    }
}
