//! Elements and bytes of weights, and memory that is kept between passes.

use crate::common::wording;

/// Elements and bytes of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Number of elements.
    pub params: u64,
    /// Bytes as stored.
    pub bytes: u64,
    /// Bytes as a share of all bytes of the model.
    pub share: f64,
}

/// The memory that is kept between passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Bytes per position, with 16-bit keys and values, for caches without a window; `None` without a file or if there
    /// are none.
    pub per_token: Option<u64>,
    /// Bytes per position while a sliding window reaches it, for caches that drop older positions; `None` without a
    /// file or if there are none.
    pub in_window: Option<u64>,
    /// Bytes per sequence; `None` without a file or if there are none.
    pub per_sequence: Option<u64>,
    /// The description in words.
    pub text: Vec<String>,
}

impl Kept {
    /// The numbers of bytes in words.
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
