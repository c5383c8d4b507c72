//! Sounds against other programs: files, sampling rates, features and rows; and what a stranger may send.
#![expect(clippy::unwrap_used, reason = "a failure is a failed test")]

mod files;
mod hostile;
mod processors;
mod rates;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::rules::*;
use super::*;

pub(super) const LIMITS: SoundLimits = SoundLimits { samples: 4_000_000 };

/// The rules of a processor, and with what they are compared.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: String,
    /// Its folder among the references.
    pub(super) folder: Option<String>,
    pub(super) rules: toml::Value,
}

impl Case {
    pub(super) fn rules(&self) -> SoundRules {
        self.rules
            .clone()
            .try_into()
            .unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

/// A folder of this repository.
fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/media")
        .join(name)
}

pub(super) fn cases() -> Vec<Case> {
    #[derive(Deserialize)]
    struct Cases {
        cases: Vec<Case>,
    }
    let text = std::fs::read_to_string(stored("sounds.toml")).unwrap();
    toml::from_str::<Cases>(&text).unwrap().cases
}

/// The folder of references beside the checkout. None, with a line that says so, if there are no references at all.
pub(super) fn references() -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let named = std::env::var_os("BENCH_SHARED").map(PathBuf::from);
    if named.is_none() && !default.is_dir() {
        assert!(std::env::var_os("CI").is_none(), "no ../shared in CI");
        writeln!(std::io::stderr(), "NOT RUN: there is no ../shared").unwrap();
        return None;
    }
    let folder = named.unwrap_or(default).join("media");
    assert!(folder.is_dir(), "there is no {}", folder.display());
    Some(folder)
}

/// An array of NumPy: its shape and its elements, whatever their type.
pub(super) struct Array {
    pub(super) shape: Vec<usize>,
    pub(super) elements: Vec<f32>,
}

fn array(bytes: &[u8]) -> Array {
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..start]).unwrap();
    let shape = header.split(['(', ')']).nth(1).unwrap();
    let shape = shape
        .split(',')
        .filter_map(|size| size.trim().parse().ok())
        .collect();
    let elements = &bytes[start..];
    let words = elements
        .chunks_exact(4)
        .map(|word| <[u8; 4]>::try_from(word).unwrap());
    let elements = if header.contains("<f4") {
        words.map(f32::from_le_bytes).collect()
    } else {
        assert!(header.contains("<i4"), "{header}");
        words.map(|word| i32::from_le_bytes(word) as f32).collect()
    };
    Array { shape, elements }
}

pub(super) fn read_array(path: &Path) -> Array {
    array(&std::fs::read(path).unwrap())
}

pub(super) fn read_archive(path: &Path, name: &str) -> Array {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut bytes = Vec::new();
    archive
        .by_name(&format!("{name}.npy"))
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    array(&bytes)
}

/// The square of the error by the square of the deviation of what is expected.
pub(super) fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let mean = expected.iter().map(|&value| f64::from(value)).sum::<f64>() / expected.len() as f64;
    let pairs = || {
        found
            .iter()
            .zip(expected)
            .map(|(&a, &b)| (f64::from(a), f64::from(b)))
    };
    let error: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    error / pairs().map(|(_, b)| (b - mean).powi(2)).sum::<f64>()
}

/// A WAV file of the format `code` (1 for integers, 3 for floating point) with samples of `bits` bits.
pub(super) fn wav(code: u16, bits: u16, channels: u16, rate: u32, data: &[u8]) -> Vec<u8> {
    let block = channels * bits / 8;
    let mut file = Vec::new();
    file.extend(b"RIFF");
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend(code.to_le_bytes());
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend((rate * u32::from(block)).to_le_bytes());
    file.extend(block.to_le_bytes());
    file.extend(bits.to_le_bytes());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}
