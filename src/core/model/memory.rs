//! The available memory, checked before any is taken.

use super::error::{Error, MemoryPurpose, Result};
use super::memory_use::DeviceUse;
use lab_base::util::granted_memory::available;

/// Refuses to take `needed` bytes if the machine does not have them available.
pub(super) fn check(what: MemoryPurpose, needed: u64) -> Result<()> {
    match available() {
        Some(available) if needed > available => Err(Error::Memory {
            what,
            needed,
            available,
        }),
        _ => Ok(()),
    }
}

/// Refuses a use of a device other than the processor that exceeds its free memory. `free` is `None` if the device
/// does not report it.
pub(super) fn check_device(used: &DeviceUse, free: Option<u64>) -> Result<()> {
    match free {
        Some(free) if used.taken() > free => Err(Error::DeviceMemory {
            used: Box::new(used.clone()),
            free,
            advice: String::new(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_advice() {
        // If the system does not report the available memory, nothing is refused.
        if available().is_none() {
            return;
        }
        let refused = [
            (MemoryPurpose::Weights, "--type"),
            (MemoryPurpose::Cache, "--kv-type"),
            (MemoryPurpose::Scratch, "--ctx"),
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
