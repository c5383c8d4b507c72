//! Elements and bytes of weights, and what is kept between passes.

use crate::common::wording;

/// Elements and bytes of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Elements.
    pub params: u64,
    /// Bytes as stored.
    pub bytes: u64,
    /// Bytes of all, over those of the model.
    pub share: f64,
}

/// What is kept between passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Bytes of each position, with 16-bit keys and values; none without a file.
    pub per_token: Option<u64>,
    /// The same where positions leave a sliding window: while it reaches them.
    pub in_window: Option<u64>,
    /// Bytes of each sequence; none without a file.
    pub per_sequence: Option<u64>,
    /// In words.
    pub text: Vec<String>,
}

impl Kept {
    /// The bytes in words.
    pub(super) fn amounts(&self) -> Vec<String> {
        let of = |amount: Option<u64>, before: &str, after: &str| {
            amount.map(|n| format!("{before}: {} {after}", wording::bytes(n)))
        };
        let all = [
            of(self.per_token, "KV cache", "per token"),
            of(self.in_window, "KV cache", "per token in the window"),
            of(self.per_sequence, "state", "per sequence"),
        ];
        all.into_iter().flatten().collect()
    }
}
