//! Which layers: `every layer`, `every 4th layer from layer 3`, `layers 0 to 2 and 7`, `the other 24
//! layers`.
//!
//! Layers are numbered from 0 through all stacks. What is said here can be read back exactly, but for
//! sets without any order that would take more than [`MAX_PIECES`] pieces.

use crate::wording::listed;

/// Runs of layers that are told one by one; a set of more is told by its begin and its size.
const MAX_PIECES: usize = 12;

/// A set of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Which {
    /// Rising, without repetition.
    layers: Vec<usize>,
    n_all: usize,
}

impl Which {
    /// Of `n_all` layers those in `layers`, which rise.
    pub(super) fn new(layers: Vec<usize>, n_all: usize) -> Self {
        Self { layers, n_all }
    }

    pub(super) fn layers(&self) -> &[usize] {
        &self.layers
    }

    fn is_all(&self) -> bool {
        self.layers.len() == self.n_all
    }

    /// Whether a verb stands in the singular behind the words.
    pub(super) fn is_single(&self) -> bool {
        self.is_all() || self.layers.len() == 1 || self.period().is_some()
    }

    /// Pieces that it takes to tell the set: what takes fewer is told first.
    pub(super) fn n_pieces(&self) -> usize {
        match self.period() {
            Some(_) => 1,
            None => self.runs().len(),
        }
    }

    /// The distance of layers that follow each other at the same one to the end of all.
    fn period(&self) -> Option<usize> {
        let [first, second, ..] = self.layers[..] else {
            return None;
        };
        let step = second - first;
        let is_even = self.layers.windows(2).all(|pair| pair[1] - pair[0] == step);
        let goes_on = self.layers.last()? + step >= self.n_all;
        (step > 1 && first < step && is_even && goes_on).then_some(step)
    }

    /// First and last of layers one behind the other.
    fn runs(&self) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for layer in &self.layers {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *layer => *last = *layer,
                _ => runs.push((*layer, *layer)),
            }
        }
        runs
    }

    pub(super) fn words(&self) -> String {
        if self.is_all() {
            return "every layer".into();
        }
        if let Some(step) = self.period() {
            return format!(
                "every {} layer from layer {}",
                ordinal(step),
                self.layers[0]
            );
        }
        let runs = self.runs();
        let mut pieces: Vec<String> = runs.iter().take(MAX_PIECES).map(piece).collect();
        let plural = if self.layers.len() == 1 { "" } else { "s" };
        if runs.len() > MAX_PIECES {
            pieces.push(format!("more, {} in all,", self.layers.len()));
        }
        format!("layer{plural} {}", listed(&pieces))
    }

    /// What is left, where something was told before.
    pub(super) fn rest(&self) -> String {
        match self.layers.len() {
            1 => "the other layer".into(),
            n => format!("the other {n} layers"),
        }
    }
}

fn piece((first, last): &(usize, usize)) -> String {
    match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    }
}

fn ordinal(n: usize) -> String {
    match (n % 10, n % 100) {
        (_, 11..=13) => format!("{n}th"),
        (1, _) => format!("{n}st"),
        (2, _) => format!("{n}nd"),
        (3, _) => format!("{n}rd"),
        _ => format!("{n}th"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(layers: &[usize], n_all: usize, words: &str) {
        assert_eq!(Which::new(layers.to_vec(), n_all).words(), words);
    }

    #[test]
    fn sets_are_told_in_the_shortest_way() {
        check(&[0, 1, 2], 3, "every layer");
        check(&[3, 7, 11], 12, "every 4th layer from layer 3");
        check(&[1, 3], 5, "every 2nd layer from layer 1");
        check(&[0, 12], 20, "every 12th layer from layer 0");
        check(&[0], 3, "layer 0");
        check(&[0, 1, 2, 5, 7], 9, "layers 0 to 2, 5 and 7");
    }

    #[test]
    fn a_step_that_breaks_off_is_no_pattern() {
        check(&[3, 7], 12, "layers 3 and 7");
        // Nor is one that could have begun earlier.
        check(&[5, 9], 12, "layers 5 and 9");
        check(&[0, 1], 3, "layers 0, 1");
    }

    #[test]
    fn a_set_without_order_is_cut() {
        let layers: Vec<usize> = (0..100).map(|i| 3 * i + i % 2).collect();
        let words = Which::new(layers, 400).words();
        assert!(words.ends_with(" and more, 100 in all,"), "{words}");
        assert!(words.len() < 100, "{words}");
    }
}
