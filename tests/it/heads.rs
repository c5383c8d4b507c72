//! The prediction heads of models equal llama.cpp, along several paths; deliberate faults do not.
//!
//! `tests/drafters/heads/` holds the logits of heads that llama.cpp computed for models that `synth` makes from a seed
//! (`scripts/make_head_goldens.py`). The models are made anew here; their hash is checked first.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lab_base::weights::TensorType;
use lab_core::arch::Library;
use lab_core::blocks::REGISTRY;
use lab_core::model::{Batch, DraftRequest, Model, Options};
use lab_core::models::synth::synth;
use lab_core::models::{self, Definitions, ModelSource};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::goldens::{EXACT, library, request};
use crate::support::command::{definitions, scratch};
use crate::support::{nmse, parse_npy};

/// Definitions that name a drafter and have no golden, each with the reason.
const WITHOUT: &[(&str, &str)] = &[
    ("bailingmoe2", "llama.cpp has no graph of its head"),
    ("exaone-moe", "llama.cpp has no graph of its head"),
    ("qwen2", "llama.cpp has no graph of its head"),
];

/// A head that llama.cpp computes otherwise than those who trained it: its golden, its definition, and texts of this with those of what
/// llama.cpp computes in their places. vLLM and TensorRT-LLM have an RMS norm where it has a layer norm.
type Otherwise = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

#[rustfmt::skip]
const OTHERWISE: &[Otherwise] = &[
    ("nemotron_h_moe", "nextn-hybrid", &[
        ("[embed]", "[norm.last]\nkind = \"layer\"\neps = \"layer_eps\"\nweights = { weight = \"nextn.shared_head_norm.weight\", bias = false }\n\n[embed]"),
        (r#"pre    = "nextn.shared_head_norm""#, r#"pre    = "last""#),
    ]),
];

/// A fault: what is wrong, and texts of the definition `nextn` with those in their places.
type Fault = (&'static str, &'static [(&'static str, &'static str)]);

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    ("the target's hidden state is not normed", &[("normed = true", "normed = false")]),
    ("the hidden state of one layer earlier", &[(r#"["n_layer"]"#, r#"["n_layer - 1"]"#)]),
    ("embedding and hidden state swapped", &[
        ("join   = \"set\"\npre    = \"nextn.enorm\"", "join   = \"set\"\nfrom   = \"target\"\npre    = \"nextn.hnorm\""),
        ("join   = \"append\"\nfrom   = \"target\"\npre    = \"nextn.hnorm\"", "join   = \"append\"\nfrom   = \"layer_in\"\npre    = \"nextn.enorm\""),
    ]),
    ("the norm of the hidden state for that of the embedding", &[(r#""nextn.enorm""#, r#""nextn.hnorm""#)]),
    ("the embedding not normed", &[("pre    = \"nextn.enorm\"\n", "")]),
    ("the head's own state before its last norm", &[
        (r#""nextn.eh_proj.weight" } }]"#, r#""nextn.eh_proj.weight" }, save = "next" }]"#),
        (r#"branch = [{ block = "identity", save = "next" }]"#, r#"branch = [{ block = "identity" }]"#),
    ]),
    ("the norm of the model for that of the head", &[("'nextn.shared_head_norm', if(", "'/output_norm', if(")]),
];

struct DrafterGolden {
    name: String,
    arch: String,
    path: PathBuf,
    tokens: Vec<u32>,
    /// Number of tokens of a draft.
    steps: usize,
    expected: Vec<f64>,
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/drafters/heads"))
}

fn goldens(scratch: &Path) -> Vec<DrafterGolden> {
    let text = std::fs::read_to_string(folder().join("goldens.json")).expect("the index is there");
    let index: Value = serde_json::from_str(&text).expect("the index is JSON");
    let entries = index["goldens"].as_array().expect("a list");
    assert!(!entries.is_empty(), "a gate that compares nothing fails");
    entries
        .iter()
        .map(|entry| of_entry(entry, scratch))
        .collect()
}

/// Makes the model of an entry and checks that it is the one the reference ran.
fn of_entry(entry: &Value, scratch: &Path) -> DrafterGolden {
    let name = entry["name"].as_str().expect("a name");
    let (arch, mut request) = request(name, entry);
    let with = definitions();
    let def = with.archs.get(&arch).expect("it is built in");
    let drafter = &def.drafter.as_ref().expect("it names a drafter").value;
    request.drafter = Some(
        with.drafters
            .of_target(drafter, &def)
            .expect("it is built in"),
    );
    let path = scratch.join(format!("{name}.gguf"));
    synth(&def, &request, &path).expect("the model can be made");
    let hash = Sha256::digest(std::fs::read(&path).expect("the model was written"));
    let hash: String = hash.iter().map(|b| format!("{b:02x}")).collect();
    let expected = entry["gguf_sha256"].as_str().expect("a hash");
    assert_eq!(
        hash, expected,
        "{name}: synth makes another file than the reference ran; if that is meant, run scripts/make_head_goldens.py"
    );
    let npy = std::fs::read(folder().join(format!("{name}.npy"))).expect("the golden is there");
    let tokens = entry["tokens"].as_array().expect("tokens").iter();
    DrafterGolden {
        name: name.to_owned(),
        arch,
        path,
        tokens: tokens.map(|t| t.as_u64().expect("an id") as u32).collect(),
        steps: entry["steps"].as_u64().expect("a number") as usize,
        expected: parse_npy(&npy).values,
    }
}

/// With a cache of f32, as the reference has it.
pub(crate) fn plain() -> Options {
    Options {
        k_type: TensorType::F32,
        v_type: TensorType::F32,
        ..Options::plain(256, 64)
    }
}

fn load(golden: &DrafterGolden, with: &Definitions, options: &Options) -> Model {
    let opened = models::open(&ModelSource::File(golden.path.clone()), with);
    let opened = opened.unwrap_or_else(|error| panic!("{}: {error}", golden.name));
    let drafter = opened.drafter.expect("a drafter in the file");
    let options = Options {
        for_drafter: drafter.plan.target.clone(),
        ..options.clone()
    };
    let model = Model::load(opened.plan, &opened.weights, options, &mut |_, _| {});
    let mut model = model.unwrap_or_else(|error| panic!("{error}"));
    let loaded = model.load_drafter(drafter);
    loaded.unwrap_or_else(|error| panic!("{error}"));
    model
}

/// The logits of the head, the model reading the tokens in parts that end at these places.
fn logits(golden: &DrafterGolden, model: &mut Model, ends: &[usize]) -> Vec<f32> {
    let (mut all, mut start) = (Vec::new(), 0);
    for &end in ends {
        let mut batch = Batch::default();
        for at in start..end {
            batch.push(golden.tokens[at], 0, at as u32, at + 1 == end);
        }
        model
            .forward(&batch)
            .unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        let request = DraftRequest {
            sequence: 0,
            tokens: &golden.tokens[..end],
            most: golden.steps,
        };
        let found = model.draft_logits(&request);
        let (found, width) = found.unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        // The tokens of a draft are of the last part alone.
        let n_drafted = (golden.steps - 1) * width;
        let n = match end == golden.tokens.len() {
            true => found.len(),
            false => found.len() - n_drafted,
        };
        all.extend_from_slice(&found[..n]);
        start = end;
    }
    all
}

fn error_of(golden: &DrafterGolden, found: &[f32]) -> f64 {
    assert_eq!(found.len(), golden.expected.len(), "{}", golden.name);
    nmse(found, &golden.expected)
}

#[test]
fn heads_compute_what_llama_cpp_computes_along_every_path() {
    let scratch = scratch();
    let plain = plain();
    let paths = [
        ("row by row", plain.clone(), &[12][..]),
        (
            "at once",
            Options {
                n_seqs: 12,
                ..plain.clone()
            },
            &[12],
        ),
        ("drafted again and again", plain.clone(), &[2, 3, 4, 8, 12]),
        (
            "two threads",
            Options {
                n_threads: 2,
                ..plain.clone()
            },
            &[12],
        ),
        (
            "flash attention",
            Options {
                flash_attn: true,
                ..plain.clone()
            },
            &[5, 12],
        ),
    ];
    let mut wrong = Vec::new();
    for golden in goldens(scratch.path()) {
        let folder = scratch.path().join(&golden.name);
        let otherwise = OTHERWISE.iter().find(|(name, ..)| *name == golden.name);
        let with = match otherwise {
            Some((_, drafter, edits)) => edited(drafter, edits, &folder),
            None => definitions(),
        };
        for (path, options, ends) in &paths {
            assert_eq!(ends.last(), Some(&golden.tokens.len()));
            let mut model = load(&golden, &with, options);
            let error = error_of(&golden, &logits(&golden, &mut model, ends));
            if error.is_nan() || error > EXACT {
                wrong.push(format!("{}, {path}: NMSE {error:.1e}", golden.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The definitions with texts of a built-in drafter replaced.
fn edited(name: &str, edits: &[(&str, &str)], folder: &Path) -> Definitions {
    let file = format!("{name}.drafter.toml");
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("archs")
        .join(&file);
    let mut text = std::fs::read_to_string(built_in).expect("a definition");
    for (from, to) in edits {
        assert!(text.contains(from), "the definition lacks `{from}`");
        text = text.replacen(from, to, 1);
    }
    std::fs::create_dir(folder).expect("a folder");
    std::fs::write(folder.join(file), text).expect("a file");
    Definitions {
        drafters: Library::drafters(&REGISTRY, &[folder.to_owned()]).expect("it can be read"),
        ..definitions()
    }
}

/// The NMSE of a golden with texts of a built-in drafter replaced.
fn error_with(golden: &DrafterGolden, name: &str, edits: &[(&str, &str)], folder: &Path) -> f64 {
    let mut model = load(golden, &edited(name, edits, folder), &plain());
    error_of(golden, &logits(golden, &mut model, &[golden.tokens.len()]))
}

#[test]
fn every_deliberate_fault_of_a_head_shows() {
    let scratch = scratch();
    let goldens = goldens(scratch.path());
    let of = |name: &str| goldens.iter().find(|golden| golden.name == name);
    let golden = of("glm4moe").expect("a golden");
    for (at, (fault, edits)) in FAULTS.iter().enumerate() {
        let folder = scratch.path().join(at.to_string());
        let error = error_with(golden, "nextn", edits, &folder);
        assert!(error > 1e3 * EXACT, "{fault}: NMSE {error:.1e}");
    }
    for (name, ..) in OTHERWISE {
        let golden = of(name).expect("a golden");
        let mut model = load(golden, &definitions(), &plain());
        let error = error_of(golden, &logits(golden, &mut model, &[golden.tokens.len()]));
        assert!(
            error > 1e3 * EXACT,
            "{name} as llama.cpp has it: NMSE {error:.1e}"
        );
    }
    // The first of three heads, again and again.
    let edits = [("heads = \"n_nextn\"\n", "")];
    let folder = scratch.path().join("one");
    let three = of("step35-three").expect("a golden");
    let error = error_with(three, "nextn-raw", &edits, &folder);
    assert!(error > 1e3 * EXACT, "one head: NMSE {error:.1e}");
}

#[test]
fn every_definition_with_a_drafter_has_a_golden_or_a_reason() {
    let scratch = scratch();
    let known: BTreeSet<String> = goldens(scratch.path())
        .into_iter()
        .map(|g| g.arch)
        .collect();
    let library = library();
    for (name, _) in library.sources() {
        let def = library.get(name).expect("it is sound");
        let excused = WITHOUT.iter().any(|(arch, _)| *arch == name);
        let has = def.names.iter().any(|name| known.contains(name));
        assert_eq!(def.drafter.is_some(), has || excused, "{name}");
        assert!(!(has && excused), "{name} has a golden");
    }
}
