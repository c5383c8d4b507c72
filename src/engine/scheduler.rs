//! Who runs in the next step: pure, from numbers to numbers.
//!
//! Running answers come first, one token each, so that a long prompt never stalls them; what is
//! left of the step's budget goes to prompts, the earliest first.

/// A sequence as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Tokens that are not in the cache yet; of a running answer one, and those that its constraint
    /// forces behind it.
    pub(super) pending: usize,
    /// Whether its prompt is still being read.
    pub(super) is_prefill: bool,
    /// Whether its tokens must all go into one pass.
    pub(super) is_whole: bool,
}

/// How many tokens each sequence gets in the next step, at most `budget` together.
///
/// `sequences` are in the order of their arrival. A sequence that must go whole and is larger than
/// what is left waits for a step of its own.
pub(super) fn plan_step(sequences: &[Waiting], budget: usize) -> Vec<usize> {
    let mut left = budget;
    let mut share = vec![0; sequences.len()];
    let mut give = |i: usize, left: &mut usize| {
        let wanted = sequences[i].pending;
        let given = if sequences[i].is_whole && wanted > *left {
            0
        } else {
            wanted.min(*left)
        };
        share[i] = given;
        *left -= given;
    };
    let by_phase = |is_prefill: bool| {
        (0..sequences.len()).filter(move |i| sequences[*i].is_prefill == is_prefill)
    };
    for i in by_phase(false).chain(by_phase(true)) {
        give(i, &mut left);
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode() -> Waiting {
        Waiting {
            pending: 1,
            is_prefill: false,
            is_whole: false,
        }
    }

    fn prefill(pending: usize) -> Waiting {
        Waiting {
            pending,
            is_prefill: true,
            is_whole: false,
        }
    }

    fn whole(pending: usize) -> Waiting {
        Waiting {
            is_whole: true,
            ..prefill(pending)
        }
    }

    fn check(sequences: &[Waiting], budget: usize, expected: &[usize]) {
        assert_eq!(plan_step(sequences, budget), expected);
    }

    #[test]
    fn answers_come_before_prompts_and_prompts_share_what_is_left() {
        check(&[], 8, &[]);
        check(&[decode(), decode()], 8, &[1, 1]);
        check(&[prefill(100), decode()], 8, &[7, 1]);
        check(&[prefill(3), prefill(100), decode()], 8, &[3, 4, 1]);
        check(&[prefill(100), prefill(2)], 8, &[8, 0]);
        check(&[decode(), decode(), decode()], 2, &[1, 1, 0]);
    }

    #[test]
    fn a_whole_sequence_waits_for_room() {
        check(&[whole(5), whole(5), whole(3)], 8, &[5, 0, 3]);
    }
}
