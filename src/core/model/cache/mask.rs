//! Attention masks `[n_kv, n_tokens]`: 0 or a bias for keys that a token attends to, minus infinity for others.

use std::ops::Range;

use half::f16;

use crate::blocks::cache::CacheOptions as Visibility;

use super::{BLOCK, SequenceId};

/// An element of a mask. In f16, 0, minus infinity and distances up to 2048 are exact.
pub(crate) trait MaskValue: Copy + bytemuck::Pod {
    const SEEN: Self;
    const HIDDEN: Self;

    fn of(bias: f32) -> Self;
}

impl MaskValue for f32 {
    const SEEN: Self = 0.0;
    const HIDDEN: Self = Self::NEG_INFINITY;

    fn of(bias: f32) -> Self {
        bias
    }
}

impl MaskValue for f16 {
    const SEEN: Self = Self::ZERO;
    const HIDDEN: Self = Self::NEG_INFINITY;

    fn of(bias: f32) -> Self {
        Self::from_f32(bias)
    }
}

/// The mask of keys in slots: `slot(i, position)` is the slot of a position in the sequence of query `i`, which attends to the
/// positions `visible(i)`. The positions of a block have consecutive slots.
pub(super) fn mask_of_slots<T: MaskValue>(
    n_kv: usize,
    queries: &[(SequenceId, u32)],
    rule: &Visibility,
    visible: impl Fn(usize) -> Range<u32>,
    slot: impl Fn(usize, u32) -> usize,
) -> Vec<T> {
    let mut values = vec![T::HIDDEN; n_kv * queries.len()];
    for (i, (row, query)) in values.chunks_exact_mut(n_kv).zip(queries).enumerate() {
        let Range { mut start, end } = visible(i);
        while start < end {
            let positions = start..(start + 1).next_multiple_of(BLOCK as u32).min(end);
            let first = slot(i, start);
            let values = &mut row[first..first + positions.len()];
            start = positions.end;
            if !rule.is_biased() {
                values.fill(T::SEEN);
                continue;
            }
            for (value, position) in values.iter_mut().zip(positions) {
                *value = T::of(rule.mask(query.1, position));
            }
        }
    }
    values
}

/// The mask of queries over keys of the same pass: `keys(i)` are those of the run of query `i`, which attends to what the
/// rule says, and to the positions `around` it of its medium.
pub(crate) fn mask_of_tokens<'k>(
    queries: &[(SequenceId, u32)],
    keys: impl Fn(usize) -> &'k [(SequenceId, u32)],
    rule: &Visibility,
    around: impl Fn((SequenceId, u32)) -> Option<Range<u32>>,
) -> Vec<f32> {
    let value = |q: &(SequenceId, u32), k: &(SequenceId, u32), around: &Option<Range<u32>>| {
        let is_around = || around.as_ref().is_some_and(|around| around.contains(&k.1));
        if q.0 == k.0 && (rule.is_visible(q.1, k.1) || is_around()) {
            rule.mask(q.1, k.1)
        } else {
            f32::NEG_INFINITY
        }
    };
    let values = queries.iter().enumerate().flat_map(|(i, q)| {
        let around = around(*q);
        keys(i).iter().map(move |k| value(q, k, &around))
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::cache::Window;

    fn rule(causal: bool, window: Window, size: u64) -> Visibility {
        Visibility {
            causal,
            size,
            window,
            span: 0,
            alibi: 0.0,
            grid_height: 0,
            grid_width: 0,
            grid_filled: false,
            causal_after: false,
        }
    }

    fn visible(mask: &[f32], n_kv: usize) -> Vec<String> {
        let row = |row: &[f32]| {
            row.iter()
                .map(|v| if *v == 0.0 { '#' } else { '.' })
                .collect()
        };
        mask.chunks(n_kv).map(row).collect()
    }

    #[test]
    fn a_query_attends_to_its_own_sequence_up_to_its_position() {
        let tokens = [(0, 0), (1, 0), (0, 1), (1, 1)];
        let causal = rule(true, Window::Standard, 0);
        let rows = ["#...", ".#..", "#.#.", ".#.#"];
        assert_eq!(
            visible(&mask_of_tokens(&tokens, |_| &tokens, &causal, |_| None), 4),
            rows
        );
        // The second sequence has the slots after the first one.
        let slot = |i: usize, position: u32| position as usize + 2 * tokens[i].0 as usize;
        let mask = mask_of_slots(
            4,
            &tokens,
            &causal,
            |i| causal.visible(tokens[i].1, 2),
            slot,
        );
        assert_eq!(visible(&mask, 4), ["#...", "..#.", "##..", "..##"]);
        let open = rule(false, Window::Standard, 0);
        let mask = mask_of_slots(
            6,
            &tokens[..1],
            &open,
            |i| open.visible(tokens[i].1, 2),
            slot,
        );
        assert_eq!(visible(&mask, 6), ["##...."]);
    }

    #[test]
    fn windows_end_at_starts_at_or_surround_the_query() {
        let tokens: Vec<_> = (0..6).map(|position| (0, position)).collect();
        let rows = |rule: &Visibility| {
            let of_tokens = visible(&mask_of_tokens(&tokens, |_| &tokens, rule, |_| None), 6);
            let seen = |i: usize| rule.visible(tokens[i].1, 6);
            let slots = mask_of_slots(6, &tokens, rule, seen, |_, position| position as usize);
            assert_eq!(visible(&slots, 6), of_tokens);
            of_tokens
        };
        assert_eq!(
            rows(&rule(true, Window::Standard, 2))[2..5],
            [".##...", "..##..", "...##."]
        );
        assert_eq!(
            rows(&rule(true, Window::Chunked, 3))[2..5],
            ["###...", "...#..", "...##."]
        );
        assert_eq!(
            rows(&rule(false, Window::Symmetric, 2))[2..5],
            [".###..", "..###.", "...###"]
        );
    }

    #[test]
    fn a_linear_bias_is_minus_the_distance() {
        let tokens: Vec<_> = (0..3).map(|position| (0, position)).collect();
        let rule = Visibility {
            alibi: 8.0,
            ..rule(true, Window::Standard, 0)
        };
        let mask = mask_of_tokens(&tokens, |_| &tokens, &rule, |_| None);
        assert_eq!(mask[6..], [-2.0, -1.0, 0.0]);
    }
}
