//! A cursor that finds marks, with any white space before them, in text that may be incomplete.

use super::json::Parsed;

pub(super) struct Cursor<'a> {
    text: &'a str,
    pub(super) at: usize,
}

/// The value of a `Parsed::Yes`. Otherwise the enclosing function returns `Parsed::No` or `Parsed::More`.
macro_rules! get {
    ($found:expr) => {
        match $found {
            Parsed::Yes(value) => value,
            Parsed::More => return Parsed::More,
            Parsed::No => return Parsed::No,
        }
    };
}
pub(super) use get;

impl<'a> Cursor<'a> {
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

    /// Consumes white space and a mark. A mark that is only white space always matches.
    pub(super) fn mark(&mut self, mark: &str) -> Parsed<()> {
        let mark = mark.trim();
        self.space();
        let rest = self.rest();
        if rest.starts_with(mark) {
            self.at += mark.len();
            return Parsed::Yes(());
        }
        match mark.starts_with(rest) {
            true => Parsed::More,
            false => Parsed::No,
        }
    }

    /// Consumes the first of these marks that matches.
    pub(super) fn any(&mut self, marks: &[String]) -> Parsed<()> {
        let mut may_come = false;
        for mark in marks {
            match self.mark(mark) {
                Parsed::Yes(()) => return Parsed::Yes(()),
                Parsed::More => may_come = true,
                Parsed::No => {}
            }
        }
        match may_come {
            true => Parsed::More,
            false => Parsed::No,
        }
    }
}
