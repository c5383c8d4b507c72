//! The sizes to which the rows of a pass are padded where a device computes it, so that few graphs serve all passes.

/// Numbers of rows. Above the last, numbers are rounded up to multiples of it.
const BUCKETS: [usize; 19] = [
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
];

/// The smallest bucket that holds `n` rows.
pub(super) fn bucket(n: usize) -> usize {
    let found = BUCKETS.into_iter().find(|bucket| *bucket >= n);
    found.unwrap_or_else(|| n.next_multiple_of(BUCKETS[BUCKETS.len() - 1]))
}

/// The numbers of rows to which up to `most` are padded, at most `most` each.
pub(super) fn buckets_to(most: usize) -> impl Iterator<Item = usize> {
    let smaller = BUCKETS.into_iter().take_while(move |bucket| *bucket < most);
    smaller.chain([most])
}

/// The number of rows to which `n` tokens of a prompt are padded: few, because passes mix prompts with any number of
/// decoding sequences.
pub(super) fn prompt_bucket(n: usize) -> usize {
    const LEAST: usize = 16;
    let most = BUCKETS[BUCKETS.len() - 1];
    match n {
        0..=1 => n,
        n if n > most => bucket(n),
        n => n.next_power_of_two().max(LEAST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_rows_and_at_most_as_many_again() {
        assert_eq!(bucket(0), 1);
        for n in 1..10_000 {
            assert!(
                (n..2 * n.max(1)).contains(&bucket(n)) || n == bucket(n),
                "{n}"
            );
            assert_eq!(bucket(bucket(n)), bucket(n));
            assert!(bucket(n) <= prompt_bucket(n), "{n}");
            assert_eq!(prompt_bucket(prompt_bucket(n)), prompt_bucket(n));
        }
    }
}
