//! Damaged files are refused without a panic, and files of other programs come back as they were.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::builder::{GgufBuilder, array, open, sound};
use super::{NewTensor, write};
use crate::util::atomic_file::OutputPath;
use crate::weights;

fn try_everything(bytes: Vec<u8>) {
    let Ok(weights) = open(bytes) else { return };
    for tensor in weights.tensors() {
        let data = weights.data(tensor).expect("it lies in the file");
        assert_eq!(data.len() as u64, tensor.bytes);
        assert!(tensor.elements() > 0);
        let (file, offset) = weights.place(tensor).expect("it lies in the file");
        assert!(offset + tensor.bytes as usize <= file.len());
    }
    let names: Vec<&str> = weights.tensors().iter().map(|t| t.name.as_str()).collect();
    let _ = weights::check(&weights, &names);
}

fn rich() -> Vec<u8> {
    let nested = [
        array(9, 2),
        array(7, 2),
        vec![0, 1],
        array(12, 1),
        vec![0; 8],
    ]
    .concat();
    sound()
        .key("nested", 9, &nested)
        .key("floats", 9, &[array(6, 3), vec![0; 12]].concat())
        .key("fact", 7, &[1])
        .u32("general.alignment", 32)
        .bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutations_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        words in prop::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![
                Just(0), Just(1), Just(u64::MAX), Just(1 << 42), Just((1 << 42) + 1),
                Just(i64::MIN as u64), 0u64..100, any::<u64>(),
            ]),
            0..2,
        ),
        len in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = rich();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for (at, word) in words {
            let at = at.index(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(len) = len {
            bytes.truncate(len.index(bytes.len()));
        }
        try_everything(bytes);
    }

    #[test]
    fn noise_does_not_panic(noise in prop::collection::vec(any::<u8>(), 0..256)) {
        let head = GgufBuilder { n_tensors: 2, n_keys: 2, ..GgufBuilder::new() }.bytes();
        try_everything([&head[..24], &noise].concat());
    }
}

/// Files of other programs, in `../shared`: they open, and written again they are the same.
#[test]
#[expect(clippy::print_stdout, reason = "says what was not run")]
fn files_of_other_programs_come_back_as_they_were() {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let named = std::env::var_os("BENCH_SHARED").map(PathBuf::from);
    if named.is_none() && !default.is_dir() {
        assert!(std::env::var_os("CI").is_none(), "no ../shared in CI");
        println!("NOT RUN: there is no shared folder beside the checkout");
        return;
    }
    let shared = named.unwrap_or(default);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut n_files, again) = (0, folder.path().join("again.gguf"));
    for part in ["zoo/dev", "golden/tokenizers/vocab"] {
        let entries = std::fs::read_dir(shared.join(part));
        let entries = entries.unwrap_or_else(|error| panic!("{part}: {error}"));
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.extension().is_none_or(|ending| ending != "gguf") {
                continue;
            }
            n_files += 1;
            let weights = weights::open(&path).expect("a sound file");
            let tensors: Vec<NewTensor> = weights
                .tensors()
                .iter()
                .map(|t| NewTensor {
                    name: t.name.clone(),
                    ty: t.ty,
                    shape: t.shape.clone(),
                })
                .collect();
            let data = |i: usize| {
                let data = weights.data(&weights.tensors()[i]);
                data.map_err(std::io::Error::other)
            };
            write(
                OutputPath::replacing(&again),
                weights.metadata(),
                &tensors,
                data,
            )
            .expect("a sound file");
            let (before, after) = (std::fs::read(&path), std::fs::read(&again));
            assert_eq!(before.ok(), after.ok(), "{}", path.display());
        }
    }
    println!("{n_files} files");
}
