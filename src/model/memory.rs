//! How much memory there is, asked before any is taken.

use super::Error;

/// Refuses to take `needed` bytes if the machine does not have them.
pub(super) fn check(what: &'static str, needed: u64) -> Result<(), Error> {
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
pub(super) fn available() -> Option<u64> {
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

/// Both numbers for people.
pub(super) fn sentence(needed: u64, available: u64) -> String {
    format!(
        "{} needed, {} available; try a smaller --ctx or a smaller --kv-type",
        mib(needed),
        mib(available)
    )
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}
