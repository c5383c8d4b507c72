//! How much memory there is, asked before any is taken.

use super::error::{Error, Purpose};
use super::memory_use::DeviceUse;

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

/// Refuses what a device other than the processor has no memory for; `free` is `None` where it does not say.
pub(super) fn check_device(used: &DeviceUse, free: Option<u64>) -> Result<(), Error> {
    match free {
        Some(free) if used.taken() > free => Err(Error::DeviceMemory {
            used: Box::new(used.clone()),
            free,
            advice: String::new(),
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
