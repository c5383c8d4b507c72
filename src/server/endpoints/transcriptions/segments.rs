//! The segments of a window of sound, and where the next window begins: the sequential rule of openai/whisper's `transcribe.py`.

use std::ops::Range;

use lab_core::models::transcription::TIMESTAMP_SECONDS;
use lab_sampling::Timestamps;

/// A window of sound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Its first frame.
    pub(super) from: usize,
    /// The number of its frames that are sound, at least 1.
    pub(super) n: usize,
    /// The time from one frame to the next.
    pub(super) frame_seconds: f64,
}

/// A segment as a part of the tokens of a window.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cut {
    pub(super) tokens: Range<usize>,
    /// In seconds from the beginning of the sound.
    pub(super) start: f64,
    pub(super) end: f64,
}

/// The segments that the tokens of a window make, and the number of frames to the next window, at least 1. What follows the last complete
/// segment is heard again in the next window, unless no time says where that is.
pub(super) fn cut(tokens: &[u32], times: Option<&Timestamps>, window: Window) -> (Vec<Cut>, usize) {
    let offset = window.from as f64 * window.frame_seconds;
    let seconds = |at: u32| f64::from(at) * TIMESTAMP_SECONDS;
    let number = |at: usize| times.and_then(|times| times.number(tokens[at]));
    let is_time = |at: usize| number(at).is_some();
    let n = tokens.len();
    let ends_alone = n > 1 && is_time(n - 1) && !is_time(n - 2);
    let mut ends: Vec<usize> = (1..n)
        .filter(|at| is_time(*at) && is_time(at - 1))
        .collect();
    if ends.is_empty() {
        let last = (0..n).rev().find_map(number).filter(|at| *at > 0);
        let length = last.map_or(window.n as f64 * window.frame_seconds, seconds);
        let all = Cut {
            tokens: 0..n,
            start: offset,
            end: offset + length,
        };
        return (vec![all], window.n);
    }
    ends.extend(ends_alone.then_some(n));
    let (mut start, mut cuts) = (0, Vec::with_capacity(ends.len()));
    for end in ends {
        let time = |at: usize| offset + number(at).map_or(0.0, seconds);
        cuts.push(Cut {
            tokens: start..end,
            start: time(start),
            end: time(end - 1),
        });
        start = end;
    }
    let last = number(start - 1).filter(|_| !ends_alone);
    let step = last.map(|at| (seconds(at) / window.frame_seconds).round() as usize);
    // Where the last segment ends at the begin of the window, the same would be heard again and again.
    let step = step.filter(|step| *step > 0).unwrap_or(window.n);
    (cuts, step.min(window.n))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Timestamps = Timestamps {
        first: 100,
        n: 1501,
        most_initial: None,
    };

    fn of(tokens: &[u32]) -> (Vec<(Range<usize>, f64, f64)>, usize) {
        let window = Window {
            from: 1000,
            n: 3000,
            frame_seconds: 0.01,
        };
        let (cuts, step) = cut(tokens, Some(&TIMES), window);
        let round = |time: f64| (time * 1000.0).round() / 1000.0;
        let cuts = cuts
            .into_iter()
            .map(|cut| (cut.tokens, round(cut.start), round(cut.end)));
        (cuts.collect(), step)
    }

    #[test]
    fn the_next_window_begins_after_the_last_complete_segment() {
        // 0 to 1.5 s, 1.5 to 4 s, and a begin at 4 s that has no end.
        let found = of(&[100, 1, 2, 175, 175, 3, 300, 300, 4]);
        assert_eq!(found, (vec![(0..4, 10.0, 11.5), (4..7, 11.5, 14.0)], 400));
    }

    #[test]
    fn a_single_time_at_the_end_is_the_end_of_all_speech() {
        let found = of(&[100, 1, 175, 175, 2, 300]);
        assert_eq!(found, (vec![(0..3, 10.0, 11.5), (3..6, 11.5, 14.0)], 3000));
    }

    #[test]
    fn without_pairs_the_window_is_one_segment() {
        assert_eq!(of(&[100, 1, 2]), (vec![(0..3, 10.0, 40.0)], 3000));
        assert_eq!(of(&[100, 1, 2, 200]), (vec![(0..4, 10.0, 12.0)], 3000));
        assert_eq!(of(&[1, 2]), (vec![(0..2, 10.0, 40.0)], 3000));
        assert_eq!(of(&[]), (vec![(0..0, 10.0, 40.0)], 3000));
    }

    #[test]
    fn the_next_window_is_never_the_same_one() {
        assert_eq!(of(&[100, 100]).1, 3000);
        assert_eq!(of(&[100, 1, 101, 101, 2]).1, 2);
        // A time beyond the sound.
        assert_eq!(of(&[100, 1, 1601, 1601, 2]).1, 3000);
    }
}
