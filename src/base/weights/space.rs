//! Checks the free space of a disk before a model is written.

use std::path::Path;

use crate::util::atomic_file::folder_of;

use super::Error;

/// Checks that the disk of `target` has `needed` free bytes.
pub fn check_space(target: &Path, needed: u64) -> Result<(), Error> {
    match free(folder_of(target)) {
        Some(free) if free < needed => Err(Error::File {
            path: target.to_owned(),
            message: format!("{needed} bytes needed, {free} are free on this disk"),
        }),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(not(unix))]
fn free(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_disk_holds_is_refused_first() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("m.gguf");
        assert!(check_space(&target, 1).is_ok());
        let error = check_space(&target, u64::MAX).expect_err("no such disk");
        let message = error.to_string();
        assert!(
            message.contains("18446744073709551615 bytes needed"),
            "{message}"
        );
        assert!(message.contains("are free on this disk"), "{message}");
    }
}
