//! The attention view of a group of layers: the positions that a query attends to.
//!
//! The model stores keys and values; a definition states only which of them are visible.

use crate::arch::{Contract, RowWidth};
use crate::{choices, options, rules};

choices! {
    /// The positions within a window.
    pub enum Window {
        /// The `size` positions that end with the query's own.
        Standard = "standard",
        /// The positions from the last multiple of `size` on.
        Chunked = "chunked",
        /// The positions at most `size / 2` before or after.
        Symmetric = "symmetric",
    }
}

options! {
    pub struct CacheOptions {
        causal: bool = "causal", "whether a query attends only to its own and earlier positions";
        size: u64 = "0", "sliding window in positions; 0: none";
        window: Window = "standard", when "size > 0", "which positions are within the window: `standard` (the `size` last positions), `chunked` (from the last multiple of `size` on) or `symmetric` (at most `size / 2` away)";
        span: u64 = "0", "positions of a span: besides the positions in its window, a query attends to one key for each whole span so far, counted from position 0; 0: no spans";
        alibi: f32 = "0", "ALiBi: largest slope of the bias by distance; 0: none";
        grid_height: u64 = "0", when "grid_height > 0", "in a tower: cells of a window by height, in which alone a row attends; 0: no such windows";
        grid_width: u64 = "0", when "grid_width > 0", "in a tower: cells of a window by width, as `grid_height`";
        grid_filled: bool = "false", when "grid_height > 0 and grid_width > 0", "in a tower: whether windows at the ends of the grid are filled up with rows of zeros before the projections, to which their rows attend too";
        causal_after: bool = "false", "in a tower: whether a row after the grid is visible to itself and to later rows alone; all attend to the rows before it";
    }
}

/// The contract of `[cache.NAME]`.
pub(super) static CONTRACT: Contract = Contract {
    name: "cache",
    title: "Cache",
    noun: "a cache",
    phrase: "{size > 0: {window == 'symmetric': a band of {=size} tokens around it | {window == 'chunked': its chunk of {=size} tokens | the last {=size} tokens}{not causal:  and all that follow}} | {causal: all tokens so far | all tokens}}{span > 0:  and one key for every {=span} tokens so far}{alibi > 0: , ALiBi slope {=alibi}}",
    summary: "Defines which keys a query attends to.",
    formula: "visible(q, k) = same sequence and (pos_k <= pos_q or not causal) and within the window{span > 0: , or k of a whole span of {=span} that ends at pos_q or before}",
    options: CacheOptions::OPTIONS,
    rows: RowWidth::Any,
    rules: rules! {
        "alibi >= 0", "`alibi` is not negative";
        "grid_height == 0 and grid_width == 0 or size == 0 and not causal", "windows of a grid are the only windows of their cache, which is not causal";
        "span == 0 or causal and alibi == 0 and (size == 0 or window == 'standard')", "a cache with keys of spans is causal, without ALiBi, and its window ends with the query";
        "span == 0 or span > 1 and span <= 1024 and if(span < 16, 16 % max(span, 1), span % 16) == 0", "`span` is 2, 4, 8 or a multiple of 16 up to 1024";
    },
    ..Contract::BLOCK
};

impl CacheOptions {
    /// Number of positions of the window; 0: no window. Where spans have keys, no position leaves the window:
    /// [`Self::is_near`] alone limits which keys of single positions are visible.
    pub fn kept(&self) -> u64 {
        if self.span > 0 { 0 } else { self.size }
    }

    /// Whether a query at position `q` attends to the key of position `k` itself, where spans have keys too.
    pub fn is_near(&self, q: u32, k: u32) -> bool {
        k <= q && u64::from(q - k) < self.near()
    }

    /// Number of positions whose own keys a query attends to, where spans have keys too.
    pub fn near(&self) -> u64 {
        if self.size > 0 { self.size } else { u64::MAX }
    }

    /// Whether a query at position `q` attends to the key of its sequence at position `k`.
    pub fn is_visible(&self, q: u32, k: u32) -> bool {
        let (q, k) = (u64::from(q), u64::from(k));
        if self.causal && k > q {
            return false;
        }
        if self.kept() == 0 {
            return true;
        }
        match self.window {
            Window::Standard => k > q || q - k < self.size,
            Window::Chunked => k >= q - q % self.size,
            Window::Symmetric => q.abs_diff(k) <= self.size / 2,
        }
    }

    /// The first position that a query at position `q` attends to. No later query attends to an earlier
    /// one.
    pub fn first_visible(&self, q: u32) -> u32 {
        let (q, size) = (u64::from(q), self.kept());
        let first = match self.window {
            _ if size == 0 => 0,
            Window::Standard => (q + 1).saturating_sub(size),
            Window::Chunked => q - q % size,
            Window::Symmetric => q.saturating_sub(size / 2),
        };
        first as u32
    }

    /// The positions that a query at position `q` of a sequence of `len` positions attends to. They are contiguous.
    pub fn visible(&self, q: u32, len: u32) -> std::ops::Range<u32> {
        let end = match self.window {
            _ if self.causal => q.saturating_add(1),
            Window::Symmetric if self.kept() > 0 => {
                let end = u64::from(q) + self.size / 2 + 1;
                u32::try_from(end).unwrap_or(u32::MAX)
            }
            _ => len,
        };
        let end = end.min(len);
        self.first_visible(q).min(end)..end
    }

    /// Whether the mask values of visible keys differ: with a linear bias (ALiBi).
    pub fn is_biased(&self) -> bool {
        self.alibi != 0.0
    }

    /// The mask value of a visible key: 0, or minus the distance for a linear bias.
    pub fn mask(&self, q: u32, k: u32) -> f32 {
        match self.is_biased() {
            true => -(q.abs_diff(k) as f32),
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All kinds of windows, with sizes up to 6.
    fn rules() -> impl Iterator<Item = CacheOptions> {
        let windows = [Window::Standard, Window::Chunked, Window::Symmetric];
        let pairs = windows
            .into_iter()
            .flat_map(|window| [(window, true), (window, false)]);
        pairs.flat_map(|(window, causal)| {
            (0..7).map(move |size| CacheOptions {
                causal,
                size,
                window,
                span: 0,
                alibi: 0.0,
                grid_height: 0,
                grid_width: 0,
                grid_filled: false,
                causal_after: false,
            })
        })
    }

    #[test]
    fn nothing_before_the_first_visible_position_is_visible_and_it_is() {
        for cache in rules() {
            for q in 0..20 {
                let first = (0..=q).find(|k| cache.is_visible(q, *k));
                assert_eq!(first, Some(cache.first_visible(q)), "{cache:?} {q}");
            }
        }
    }

    #[test]
    fn what_is_visible_is_an_interval() {
        for cache in rules() {
            for (q, len) in (0..20).flat_map(|q| (q + 1..24).map(move |len| (q, len))) {
                let seen: Vec<u32> = (0..len).filter(|k| cache.is_visible(q, *k)).collect();
                let interval: Vec<u32> = cache.visible(q, len).collect();
                assert_eq!(interval, seen, "{cache:?} {q} of {len}");
            }
        }
    }
}
