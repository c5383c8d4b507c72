//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! The key is the request's seed; the counter is (index of the draw, choice, lane). There is no state: every number is
//! a pure function of these four.

#[derive(Clone, Debug)]
pub(super) struct Random {
    key: [u32; 2],
    choice: u32,
}

impl Random {
    /// The numbers for choice number `choice` under `seed`.
    pub(super) fn new(seed: u64, choice: u32) -> Self {
        Self {
            key: halves(seed),
            choice,
        }
    }

    /// The random number of draw `index` in a lane: a multiple of 2^-53 in `[0, 1)`.
    pub(super) fn uniform(&self, index: u64, lane: u32) -> f64 {
        let [low, high] = halves(index);
        let [a, b, ..] = philox4x32_10([low, high, self.choice, lane], self.key);
        let bits = (u64::from(b) << 32 | u64::from(a)) >> 11;
        // The value has at most 53 bits, so the conversion is exact.
        bits as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key[0] = key[0].wrapping_add(0x9E37_79B9);
            key[1] = key[1].wrapping_add(0xBB67_AE85);
        }
        let [low_0, high_0] = halves(u64::from(counter[0]) * 0xD251_1F53);
        let [low_1, high_1] = halves(u64::from(counter[2]) * 0xCD9E_8D57);
        counter = [
            high_1 ^ counter[1] ^ key[0],
            low_1,
            high_0 ^ counter[3] ^ key[1],
            low_0,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123 (`tests/kat_vectors`).
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(
            philox4x32_10([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn seed_choice_index_and_lane_all_matter() {
        let base = Random::new(1, 0).uniform(0, 0);
        assert_eq!(Random::new(1, 0).uniform(0, 0), base);
        assert_ne!(Random::new(2, 0).uniform(0, 0), base);
        assert_ne!(Random::new(1 | 1 << 32, 0).uniform(0, 0), base);
        assert_ne!(Random::new(1, 1).uniform(0, 0), base);
        assert_ne!(Random::new(1, 0).uniform(1, 0), base);
        assert_ne!(Random::new(1, 0).uniform(1 << 32, 0), base);
        assert_ne!(Random::new(1, 0).uniform(0, 1), base);
    }

    #[test]
    fn numbers_fill_the_unit_interval_evenly() {
        let rng = Random::new(42, 7);
        let mut counts = [0u32; 16];
        for index in 0..160_000 {
            let u = rng.uniform(index, 0);
            assert!((0.0..1.0).contains(&u));
            counts[(u * 16.0) as usize] += 1;
        }
        let chi_square: f64 = counts
            .iter()
            .map(|&count| (f64::from(count) - 1e4).powi(2) / 1e4)
            .sum();
        // 15 degrees of freedom: one seed in a thousand exceeds 37.7.
        assert!(chi_square < 37.7, "{chi_square}");
    }
}
