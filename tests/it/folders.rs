//! Hugging Face folders run as they are: what transformers computes of them, we compute.
//!
//! The folders are made anew from `tests/hf`; the maps are those of `stmaps/`.

use std::path::{Path, PathBuf};

use lab_bench::convert::to_gguf;
use lab_bench::model::Model;
use lab_bench::models::{self, Definitions, Source};
use lab_bench::weights;

use crate::command::{self, scratch};
use crate::goldens::{EXACT, HALF, Q8, options};
use crate::hf;
use crate::support::{PATHS, nmse, results};

/// The maps as they lie in the source tree, or in the folder that MAPS names.
fn definitions() -> Definitions {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("stmaps");
    let maps = std::env::var_os("MAPS").map_or(here, PathBuf::from);
    Definitions::open(&[maps]).expect("maps and definitions")
}

/// NMSE of a folder's logits, or why it does not run. The file that it is converted to gives the
/// same bits.
fn error_of(name: &str, with: &Definitions, scratch: &Path) -> Result<f64, String> {
    let folder = hf::open(name);
    let into: PathBuf = scratch.join(name);
    std::fs::create_dir_all(&into).expect("the scratch folder can be written");
    folder.write(&into);
    let opened =
        models::open(&Source::File(into.clone()), with).map_err(|error| error.to_string())?;
    let path = PATHS.iter().find(|path| path.stateless).expect("a path");
    let (def, weights) = (&opened.def, &opened.weights);
    let found = results(def, weights, &folder.tokens, path, folder.hidden).ok_or("no path")??;
    let file = scratch.join(format!("{name}.gguf"));
    to_gguf(&opened, None, &file, false, &mut |_, _| {}).map_err(|error| error.to_string())?;
    let file = weights::open(&file).map_err(|error| error.to_string())?;
    let again = results(def, &file, &folder.tokens, path, folder.hidden).ok_or("no path")??;
    let is_same = found
        .iter()
        .zip(&again)
        .all(|(a, b)| a.to_bits() == b.to_bits());
    if !is_same || found.len() != again.len() {
        return Err("the file it is converted to gives other logits".into());
    }
    if found.len() != folder.expected.len() {
        return Err(format!(
            "{} values, expected {}",
            found.len(),
            folder.expected.len()
        ));
    }
    Ok(nmse(&found, &folder.expected))
}

#[test]
fn folders_give_what_transformers_gives() {
    let with = definitions();
    let (classes, broken) = with.maps.classes();
    assert!(broken.is_empty(), "{}", broken[0].render(false));
    let scratch = scratch();
    let only = std::env::var("FOLDERS").unwrap_or_default();
    let (mut n_good, mut without, mut faults) = (0, Vec::new(), Vec::new());
    for name in hf::names().iter().filter(|name| name.starts_with(&only)) {
        let class = hf::open(name).class;
        if !classes.iter().any(|(known, _)| *known == class) {
            without.push(format!("{name} ({class})"));
            continue;
        }
        match error_of(name, &with, scratch.path()) {
            Ok(error) => {
                println!("{name:24} NMSE {error:.1e}");
                // Products of half-precision and of 4-bit weights round their columns.
                let golden = hf::open(name);
                let bound = match (golden.has(&["U8"]), golden.has(&["F16", "BF16"])) {
                    (true, _) => Q8,
                    (_, true) => HALF,
                    _ => EXACT,
                };
                match error <= bound {
                    true => n_good += 1,
                    false => faults.push(format!("{name}: NMSE {error:.1e}")),
                }
            }
            Err(message) => faults.push(format!("{name}: {message}")),
        }
    }
    println!("{n_good} folders; without a map: {}", without.join(", "));
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn tensors_that_are_stored_as_they_are_needed_stay_in_the_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-chat");
    let definitions = command::definitions();
    let opened = models::open(&Source::File(folder), &definitions).expect("the shipped folder");
    let all = opened.plan.weight_bytes();
    let tensors = &opened.plan.tensors;
    // Rows of queries and keys change places, gains become f32.
    let is_made =
        |name: &str| name.contains("attn_q.") || name.contains("attn_k.") || name.contains("norm");
    let made = tensors.iter().filter(|t| is_made(&t.name)).map(|t| t.bytes);
    let made: u64 = made.sum();
    let loaded = Model::load(opened.plan, &opened.weights, options(), &mut |_, _| {});
    let memory = loaded.expect("it loads").memory();
    assert!(
        made > 0 && memory.mapped == all - made,
        "{memory:?}, {made} of {all} made"
    );
}
