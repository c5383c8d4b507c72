//! Marks in text that is not complete, with any white space before them.

use super::json::Found;

/// A place in a text.
pub(super) struct Cursor<'a> {
    text: &'a str,
    pub(super) at: usize,
}

/// The value that is there; the function returns if it is not, or if more text is needed.
macro_rules! get {
    ($found:expr) => {
        match $found {
            Found::Yes(value) => value,
            Found::More => return Found::More,
            Found::No => return Found::No,
        }
    };
}
pub(super) use get;

impl<'a> Cursor<'a> {
    /// The start of a text.
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Takes a mark after white space; one that is only white space is always there.
    pub(super) fn mark(&mut self, mark: &str) -> Found<()> {
        let mark = mark.trim();
        self.space();
        let rest = self.rest();
        if rest.starts_with(mark) {
            self.at += mark.len();
            return Found::Yes(());
        }
        match mark.starts_with(rest) {
            true => Found::More,
            false => Found::No,
        }
    }

    /// Takes the first of these marks that is there.
    pub(super) fn any(&mut self, marks: &[String]) -> Found<()> {
        let mut may_come = false;
        for mark in marks {
            match self.mark(mark) {
                Found::Yes(()) => return Found::Yes(()),
                Found::More => may_come = true,
                Found::No => {}
            }
        }
        match may_come {
            true => Found::More,
            false => Found::No,
        }
    }
}
