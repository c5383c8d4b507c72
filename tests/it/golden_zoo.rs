//! Models that llama.cpp wrote, in `../shared`: every one whose architecture has a definition must
//! come out equal along every path.

use std::path::Path;

use lab_base::weights;
use lab_base::weights::TensorType;
use lab_core::arch::Library;
use lab_core::blocks::REGISTRY;

use crate::support::{
    InputTokens, Output, PATHS, flips, middle_nmse, nmse, parse_npy, read_npz, results, shared,
};

/// Models that have a definition, and their results along all paths. There may be more, and never fewer.
const MODELS: usize = 183;
const RESULTS: usize = 1384;

#[test]
fn models_of_the_zoo_equal_their_references() {
    let Some(folder) = shared("zoo/dev") else {
        return;
    };
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the zoo is readable")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "gguf"))
        .collect();
    files.sort();
    // A name, or a part of one, of the only models to compare.
    let only = std::env::var("ZOO").ok();
    if let Some(only) = &only {
        files.retain(|file| file.to_string_lossy().contains(only));
    }
    let (mut failures, mut missing, mut models, mut n_results) = (Vec::new(), Vec::new(), 0, 0);
    for file in files {
        let weights = weights::open(&file).expect("the zoo's files are sound");
        let arch = weights
            .metadata()
            .str("general.architecture")
            .unwrap_or_default()
            .to_owned();
        let reference = file.with_extension("ref.npz");
        if library.sources().all(|(name, _)| *name != arch) {
            missing.push(file.file_stem().unwrap_or_default().to_owned());
            continue;
        }
        let def = library.get(&arch).unwrap_or_else(|e| panic!("{arch}: {e}"));
        // Vectors of the tokens where the reference is one for texts rather than for tokens.
        let vectors = read_npz(&reference, "token_embeddings");
        let (kind, output) = match vectors {
            Some(_) => ("token_embeddings", Output::Hidden),
            None => ("logits", Output::Logits),
        };
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        // Where the program of the references makes a choice that no definition states: `scripts/make_zoo_blocks.py`.
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/zoo/{stem}.npy"));
        let expected = match std::fs::read(own) {
            Ok(bytes) => parse_npy(&bytes),
            Err(_) => read_npz(&reference, kind).expect("every reference has a result"),
        };
        models += 1;
        let exact = read_npz(&reference, &format!("{kind}_exact"));
        let tokens_of = |name: &str| -> Option<Vec<u32>> {
            let tokens = read_npz(&reference, name)?;
            Some(tokens.values.iter().map(|t| *t as u32).collect())
        };
        let tokens = tokens_of("tokens").expect("every reference has its tokens");
        let source = tokens_of("enc_tokens").unwrap_or_default();
        let name = file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let mut row = format!("{name:24}");
        let experts = weights.metadata().i64(&format!("{arch}.expert_count"));
        let is_routed = experts.is_some_and(|n| n > 0);
        for path in &PATHS {
            let text = InputTokens {
                tokens: &tokens,
                source: &source,
                media: None,
            };
            let result = results(&def, &weights, text, path, output);
            let Some(result) = result else {
                row.push_str("        -");
                continue;
            };
            n_results += 1;
            let found = result.unwrap_or_else(|e| panic!("{name} along {}: {e}", path.name));
            let width = found.len() / tokens.len();
            let is_rounded = path.kv_type != TensorType::F32;
            let measure = |reference: &[f64]| match is_routed && is_rounded {
                true => middle_nmse(&found, reference, width),
                false => nmse(&found, reference),
            };
            let (error, nearest) = [Some(&expected), exact.as_ref()]
                .into_iter()
                .flatten()
                .map(|reference| (measure(&reference.values), reference))
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .expect("there is a reference");
            row.push_str(&format!("  {error:7.0e}"));
            // Quantised caches have no bound of their own here: the goldens measure them.
            let bound = match path.kv_type {
                TensorType::F32 => 1e-6,
                TensorType::F16 => 1e-4,
                _ => 1e-1,
            };
            if error > bound {
                failures.push(format!("{name} along {}: NMSE {error:.2e}", path.name));
            }
            let n_flips = flips(&found, &nearest.values, width, bound);
            let is_fine = matches!(path.kv_type, TensorType::F32 | TensorType::F16);
            if vectors.is_none() && n_flips > 0 && is_fine {
                failures.push(format!(
                    "{name} along {}: {n_flips} other best tokens",
                    path.name
                ));
            }
        }
        println!("{row}");
    }
    let missing: Vec<_> = missing.iter().map(|name| name.to_string_lossy()).collect();
    println!("without a definition: {}", missing.join(" "));
    println!(
        "{models} models compared with {n_results} results, {} without a definition; paths: {}",
        missing.len(),
        PATHS.map(|p| p.name).join(", ")
    );
    assert!(
        only.is_some() || models >= MODELS && n_results >= RESULTS,
        "{models} models with {n_results} results, of {MODELS} and {RESULTS}"
    );
    assert!(failures.is_empty(), "{failures:#?}");
}
