//! Model files with some bytes changed, computed with: an error, or logits. A signal would end the test.
//!
//! `MUTATIONS=10000` makes more of them (`make mutate`), and keeps the file of each until the next one: the one that ended
//! the process is at `target/mutated.gguf`.

use std::path::Path;

use lab_base::weights;
use lab_base::weights::gguf;
use lab_base::weights::gguf::NewTensor;
use lab_base::weights::{Array, Value, Weights};
use lab_core::arch::ArchDef;
use lab_core::models::synth::{SynthRequest, synth};

use crate::goldens::library;
use crate::support::command::scratch;
use crate::support::{InputTokens, PATHS, logits};

/// Numbers without end (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// One architecture for each kind of what a model keeps and computes.
const ARCHS: [&str; 6] = ["llama", "qwen3moe", "deepseek2", "mamba2", "t5", "gemma3n"];

/// Numbers at which something begins or ends.
const NUMBERS: [u64; 10] = [
    0,
    1,
    2,
    3,
    255,
    1 << 16,
    1 << 31,
    u32::MAX as u64,
    1 << 62,
    u64::MAX,
];

/// Changes some bytes, most of them of the header.
fn mutate(file: &mut Vec<u8>, n_header: usize, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let n = match random.below(8) {
            0 => file.len(),
            _ => n_header.min(file.len()),
        };
        let at = random.below(n.saturating_sub(8).max(1));
        match random.below(5) {
            0 => file[at] ^= 1 << random.below(8),
            1 => file[at] = random.next() as u8,
            2 => {
                let number = (NUMBERS[random.below(NUMBERS.len())] as u32).to_le_bytes();
                file[at..at + 4].copy_from_slice(&number);
            }
            3 => {
                let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                file[at..at + 8].copy_from_slice(&number);
            }
            _ => {
                let from = random.below(n.saturating_sub(8).max(1));
                file.copy_within(from..from + 8, at);
            }
        }
    }
    if random.below(40) == 0 {
        file.truncate(random.below(file.len()));
    }
}

/// The file with other values of some keys: sound as a file, and odd as a model.
fn alter(weights: &Weights, path: &Path, random: &mut Random) {
    let mut metadata = weights.metadata().clone();
    let keys: Vec<String> = metadata.iter().map(|(key, _)| key.to_owned()).collect();
    for _ in 0..=random.below(2) {
        let key = &keys[random.below(keys.len())];
        let number = match random.below(2) {
            0 => NUMBERS[random.below(NUMBERS.len())],
            _ => random.below(9) as u64,
        };
        let float = [0.0, -1.0, 0.5, 1e-30, 1e30, f32::NAN, f32::INFINITY][random.below(7)];
        let other = match metadata.get(key) {
            Some(Value::U32(_)) => Value::U32(number as u32),
            Some(Value::F32(_)) => Value::F32(float),
            Some(Value::Bool(is)) => Value::Bool(!is),
            Some(Value::Array(_)) => Value::Array(Array::U32(vec![number as u32; random.below(4)])),
            _ => continue,
        };
        metadata.insert(key.clone(), other);
    }
    let tensors = weights.tensors().iter().map(|tensor| NewTensor {
        name: tensor.name.clone(),
        ty: tensor.ty,
        shape: tensor.shape.clone(),
    });
    let data = |i: usize| {
        let data = weights.data(&weights.tensors()[i]);
        data.map_err(std::io::Error::other)
    };
    // An alignment that cannot be is refused by the writer, and leaves no file.
    let _ = gguf::write(path, &metadata, &tensors.collect::<Vec<_>>(), data);
}

#[test]
fn a_changed_model_gives_an_error_or_logits() {
    let wanted = std::env::var("MUTATIONS").ok().and_then(|n| n.parse().ok());
    let seed = std::env::var("SEED").ok().and_then(|n| n.parse().ok());
    let folder = scratch();
    let path = match wanted {
        None => folder.path().join("model.gguf"),
        Some(_) => concat!(env!("CARGO_MANIFEST_DIR"), "/target/mutated.gguf").into(),
    };
    let n: usize = wanted.unwrap_or(500);
    let mut random = Random(seed.unwrap_or(0x9e37_79b9_7f4a_7c15));
    let (mut n_good, mut n_bad) = (0, 0);
    for (i, arch) in ARCHS.iter().enumerate() {
        let def = library().get(arch).expect("it is built in");
        let _ = std::fs::remove_file(&path);
        synth(&def, &SynthRequest::default(), &path).expect("it is made");
        let file = std::fs::read(&path).expect("it is there");
        let n_header = header(&path, &file);
        let sound = weights::open(&path).expect("it is sound");
        for _ in 0..n / ARCHS.len() + usize::from(i < n % ARCHS.len()) {
            // Another file: the one before may be mapped still.
            let _ = std::fs::remove_file(&path);
            if random.below(3) == 0 {
                let mut changed = file.clone();
                mutate(&mut changed, n_header, &mut random);
                std::fs::write(&path, &changed).expect("written");
            } else {
                alter(&sound, &path, &mut random);
            }
            match computed(&def, &path) {
                Ok(()) => n_good += 1,
                Err(_) => n_bad += 1,
            }
        }
    }
    println!("{n_good} compute, {n_bad} do not");
    assert!(
        n_good * 20 >= n && n_bad * 20 >= n,
        "{n_good} compute, {n_bad} do not"
    );
}

/// Bytes in front of the data.
fn header(path: &Path, file: &[u8]) -> usize {
    let weights = weights::open(path).expect("it is sound");
    let data: u64 = weights.tensors().iter().map(|tensor| tensor.bytes).sum();
    file.len() - data as usize
}

#[test]
fn a_model_made_up_from_any_definition_alone_computes() {
    let folder = scratch();
    for (name, _) in library().sources() {
        let def = library().get(name).expect("it is built in");
        let path = folder.path().join(format!("{name}.gguf"));
        synth(&def, &SynthRequest::default(), &path).expect("it is made");
        if let Err(error) = computed(&def, &path) {
            panic!("{name}: {error}");
        }
        std::fs::remove_file(&path).expect("it was there");
    }
}

/// Logits of some tokens.
fn computed(def: &ArchDef, path: &Path) -> Result<(), String> {
    let weights = weights::open(path).map_err(|error| error.to_string())?;
    let found = weights.metadata().str("general.architecture");
    if found != Some(&def.name) {
        return Err("another architecture".into());
    }
    let tokens = [1, 2, 3, 4, 5];
    let source: &[u32] = if def.reads_source() { &tokens } else { &[] };
    let text = InputTokens {
        tokens: &tokens,
        source,
        media: None,
    };
    let all = logits(def, &weights, text, &PATHS[0]).expect("any cache type")?;
    match all.iter().all(|v| v.is_finite()) {
        true => Ok(()),
        // What the engine reports as an error.
        false => Err("not finite".into()),
    }
}
