//! Random numbers that nobody can predict.

use std::hash::{BuildHasher, RandomState};

/// A random number for ids and seeds: the standard library keys its hashers from the system's randomness.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}
