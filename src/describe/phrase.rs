//! A phrase with its numbers apart, so that phrases which differ in numbers only can be told as one.

use std::fmt;

/// Text with whole numbers in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Phrase {
    /// What stands before each number, and behind the last.
    texts: Vec<String>,
    /// Each from its least to its largest value.
    numbers: Vec<(u64, u64)>,
}

impl Phrase {
    pub(super) fn new(text: &str) -> Self {
        Self::default().text(text)
    }

    /// More text.
    pub(super) fn text(mut self, text: &str) -> Self {
        if self.texts.len() == self.numbers.len() {
            self.texts.push(String::new());
        }
        if let Some(last) = self.texts.last_mut() {
            last.push_str(text);
        }
        self
    }

    /// A number.
    pub(super) fn number(self, value: u64) -> Self {
        let mut padded = self.text("");
        padded.numbers.push((value, value));
        padded
    }

    /// Things that are counted: their name in the singular, to which an `s` is added.
    pub(super) fn counted(self, value: u64, name: &str) -> Self {
        let ending = if value == 1 { "" } else { "s" };
        self.number(value).text(&format!(" {name}{ending}"))
    }

    /// Whether another one differs in numbers only.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.texts == other.texts && self.numbers.len() == other.numbers.len()
    }

    /// Takes over the numbers of one that is alike.
    pub(super) fn widen(&mut self, other: &Self) {
        for (own, more) in self.numbers.iter_mut().zip(&other.numbers) {
            *own = (own.0.min(more.0), own.1.max(more.1));
        }
    }
}

impl fmt::Display for Phrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.numbers.iter();
        for text in &self.texts {
            f.write_str(text)?;
            match numbers.next() {
                Some((least, most)) if least == most => write!(f, "{least}")?,
                Some((least, most)) => write!(f, "{least} to {most}")?,
                None => {}
            }
        }
        f.write_str("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_phrases_become_one_with_bounds() {
        let phrase = |n: u64| Phrase::new("with ").counted(n, "head").text(", wide");
        let mut all = phrase(4);
        for n in [9, 2] {
            assert!(all.is_like(&phrase(n)));
            all.widen(&phrase(n));
        }
        assert_eq!(all.to_string(), "with 2 to 9 heads, wide");
        assert!(!phrase(1).is_like(&phrase(2)), "one head is no heads");
        assert_eq!(phrase(1).to_string(), "with 1 head, wide");
    }
}
