//! Why a model could not be planned.

use std::fmt;

use crate::common::wording;

/// Why a model could not be planned: everything that does not fit, together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The definition.
    pub arch: String,
    /// The problems, in the order of the layers.
    pub problems: Vec<String>,
}

/// Problems shown; every layer tends to repeat the first one's.
pub(super) const SHOWN: usize = 12;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the model does not fit the architecture `{}`:",
            self.arch
        )?;
        let problems = self.once();
        for problem in problems.iter().take(SHOWN) {
            write!(f, "\n  {problem}")?;
        }
        if problems.len() > SHOWN {
            write!(f, "\n  and {} more", problems.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// A problem without the parts that differ between layers: their numbers, and the place that reads a key.
fn without_layer(problem: &str) -> (String, Option<usize>) {
    const KEY: &str = "missing metadata key";
    match problem.find(KEY) {
        Some(at) => (problem[at..].to_owned(), None),
        None => wording::without_layer(problem),
    }
}

impl std::error::Error for Error {}

impl Error {
    /// The problems, each once for all layers.
    pub fn once(&self) -> Vec<String> {
        wording::by_layer(&self.problems, &without_layer)
    }
}
