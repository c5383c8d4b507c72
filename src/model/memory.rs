//! How much memory there is, asked before any is taken.

use std::fmt;

use super::Error;
use crate::wording::bytes;

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Weights that the file does not hold as they are computed with.
    Weights,
    /// Keys and values, and states.
    Cache,
    /// Values of one pass.
    Scratch,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights that are copied",
            Self::Cache => "the key/value cache",
            Self::Scratch => "scratch memory",
        })
    }
}

/// Refuses to take `needed` bytes if the machine does not have them.
pub(super) fn check(what: Purpose, needed: u64) -> Result<(), Error> {
    match available() {
        Some(available) if needed > available => Err(Error::Memory {
            what,
            needed,
            available,
        }),
        _ => Ok(()),
    }
}

/// Bytes that can be taken without swapping; `None` where the system does not say.
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// Both numbers for people, and what takes less.
pub(super) fn sentence(what: Purpose, needed: u64, available: u64) -> String {
    let advice = match what {
        Purpose::Weights => "try a smaller --type",
        Purpose::Cache => "try a smaller --ctx or a smaller --kv-type",
        Purpose::Scratch => "try a smaller --ctx",
    };
    let (needed, available) = (bytes(needed), bytes(available));
    format!("{needed} needed, {available} available; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_advice() {
        // Where the system does not say how much there is nothing is refused.
        if available().is_none() {
            return;
        }
        let refused = [
            (Purpose::Weights, "--type"),
            (Purpose::Cache, "--kv-type"),
            (Purpose::Scratch, "--ctx"),
        ];
        for (purpose, advice) in refused {
            let said = check(purpose, u64::MAX).expect_err("too much").to_string();
            assert!(said.contains(&purpose.to_string()), "{said}");
            assert!(said.contains("16.0 EiB needed"), "{said}");
            assert!(said.contains(advice), "{said}");
            assert!(check(purpose, 0).is_ok());
        }
    }
}
