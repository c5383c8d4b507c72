//! Cases that must be refused.

use std::fmt::{Debug, Display};

/// Checks of many refusals. A failure of the test names every case that differs.
#[derive(Default)]
pub struct Refusals(Vec<String>);

impl Refusals {
    /// Adds a case: its error must contain the expected text.
    pub fn expect<T: Debug, E: Display>(
        &mut self,
        case: &str,
        found: Result<T, E>,
        expected: &str,
    ) {
        let found = match found {
            Ok(found) => format!("accepted as {found:.80?}"),
            Err(error) => error.to_string(),
        };
        if !found.contains(expected) {
            self.0
                .push(format!("{case}: {found}\n  expected {expected}"));
        }
    }

    /// Fails if a case differs.
    #[track_caller]
    pub fn check(self) {
        assert!(self.0.is_empty(), "{}", self.0.join("\n"));
    }
}
