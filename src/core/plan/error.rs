//! The problems of a model that could not be planned.

use std::fmt;

use lab_base::util::wording;

/// All problems of a model that could not be planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The name of the definition.
    pub arch: String,
    /// The problems, in the order of the layers.
    pub problems: Vec<String>,
}

/// Number of problems shown; every layer tends to repeat those of the first one.
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

/// A problem without the parts that differ between layers: the layers' numbers, and the place that reads a missing key.
fn without_layer(problem: &str) -> (String, Option<usize>) {
    const KEY: &str = "missing metadata key";
    match problem.find(KEY) {
        Some(at) => (problem[at..].to_owned(), None),
        None => wording::without_layer(problem),
    }
}

impl std::error::Error for Error {}

impl Error {
    /// The problems, merged over layers.
    pub fn once(&self) -> Vec<String> {
        wording::by_layer(&self.problems, &without_layer)
    }
}
