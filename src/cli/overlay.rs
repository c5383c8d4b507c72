//! The file of `bench diagram --overlay`, read within bounds.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::common::wording;
use crate::inspect::diagram::overlay::Overlay;
use crate::inspect::diagram::{Drawing, Sample};

use super::Failure;

/// Largest file that is read: a profile of a thousand layers is a few MB.
const MOST: u64 = 64 << 20;

/// Adds the numbers of a file to a drawing of `model`, with a warning if they may be another model's.
pub(super) fn put(
    file: &Path,
    quantity: Option<&str>,
    drawing: &mut Drawing,
    sample: &Sample,
    model: &str,
) -> Result<(), Failure> {
    let added = read(file).and_then(|bytes| {
        let overlay = Overlay::read(&bytes, quantity)?;
        Ok(overlay.put(drawing, sample, model)?)
    });
    for doubt in added.map_err(|e| anyhow::anyhow!("{}: {e}", file.display()))? {
        tracing::warn!("{}: {doubt}", file.display());
    }
    Ok(())
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    File::open(file)?.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        anyhow::bail!("expected at most {}, found more", wording::bytes(MOST));
    }
    Ok(bytes)
}
