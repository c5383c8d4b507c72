//! Every architecture along every path equals llama.cpp, or transformers if llama.cpp does not have it.
//!
//! `tests/goldens/` holds logits that llama.cpp computed for models that `synth` makes from a seed
//! (`scripts/make_goldens.py`). The models are made anew here; their hash is checked first. Goldens of
//! other architectures are the folders of `tests/hf`, as files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};

use lab_base::weights;
use lab_base::weights::{TensorType, Weights};
use lab_core::arch::expr::Expr;
use lab_core::arch::{ArchDef, Library, Mode};
use lab_core::blocks::REGISTRY;
use lab_core::model::{Batch, Model, Options};
use lab_core::models;
use lab_core::models::convert::to_gguf;
use lab_core::models::synth::{SynthRequest, synth};
use lab_core::models::{ModelSource, OpenedModel};
use lab_core::plan::Plan;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::command::{definitions, scratch};
use crate::support::hf;
use crate::support::{
    ExecutionPath, InputTokens, Output, PATHS, TextMedia, flips, logits, nmse, parse_npy,
};

/// The bound of a path that computes what the reference computes.
pub(crate) const EXACT: f64 = 1e-6;
/// What rounding a cache to half precision may cost at most, whatever the reference's own noise.
pub(crate) const HALF: f64 = 1e-4;
/// What an 8-bit and a 4-bit cache may cost.
pub(crate) const Q8: f64 = 1e-3;
const Q4: f64 = 1e-1;

pub(crate) struct Golden {
    pub name: String,
    pub arch: String,
    pub def: ArchDef,
    pub plan: Plan,
    pub tokens: Vec<u32>,
    /// Those of its source, where the model reads one.
    pub source: Vec<u32>,
    /// Those of its text, where it has some.
    pub media: Option<TextMedia>,
    pub weights: Weights,
    /// The bytes of its file.
    file: Vec<u8>,
    pub expected: Vec<f64>,
    /// NMSE between llama.cpp and llama.cpp with a half-precision cache; infinite if it is not known.
    noise: f64,
    quantized: bool,
}

impl Golden {
    /// Writes its model into a folder.
    pub(crate) fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join(format!("{}.gguf", self.name));
        std::fs::write(&path, &self.file).expect("the model can be written");
        path
    }

    pub(crate) fn text(&self) -> InputTokens<'_> {
        InputTokens {
            tokens: &self.tokens,
            source: &self.source,
            media: self.media.as_ref(),
        }
    }

    /// The reference's own sensitivity, where one rounding of a quantised activation may fall the other
    /// way; else 0.
    pub(crate) fn noise_of_quantised(&self) -> f64 {
        match self.quantized {
            true => self.noise,
            false => 0.0,
        }
    }
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens"))
}

pub(crate) fn library() -> Library {
    static ALL: LazyLock<Library> = LazyLock::new(|| {
        Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable")
    });
    ALL.clone()
}

pub(crate) fn towers() -> Library {
    static ALL: LazyLock<Library> = LazyLock::new(|| {
        Library::towers(&REGISTRY, &[]).expect("the built-in definitions are readable")
    });
    ALL.clone()
}

/// The architecture of a golden, and what its model is made of.
pub(crate) fn request(name: &str, entry: &Value) -> (String, SynthRequest) {
    let arguments: Vec<&str> = entry["synth"]
        .as_array()
        .expect("arguments")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let mut request = SynthRequest::default();
    for pair in arguments[1..].chunks(2) {
        match pair[0] {
            "--seed" => request.seed = pair[1].parse().expect("a seed"),
            "--type" => request.ty = pair[1].parse().expect("a type"),
            "--with" => request.with = pair[1].split(',').map(str::to_owned).collect(),
            "--set" => {
                let (key, value) = pair[1].split_once('=').expect("key=value");
                request.set.push((key.to_owned(), value.to_owned()));
            }
            "--meta" => {
                let (key, value) = pair[1].split_once('=').expect("key=value");
                request.meta.push((key.to_owned(), value.to_owned()));
            }
            other => panic!("{name}: unknown argument {other}"),
        }
    }
    (arguments[0].to_owned(), request)
}

fn name(entry: &Value) -> &str {
    entry["name"].as_str().expect("a name")
}

fn ids(of: &Value) -> Option<Vec<u32>> {
    let ids = of.as_array()?.iter();
    Some(ids.map(|t| t.as_u64().expect("an id") as u32).collect())
}

/// The golden of an entry: makes its model again and checks that it is the one the reference ran.
fn of_entry(entry: &Value, scratch: &Path) -> Golden {
    let name = name(entry);
    let (arch, request) = request(name, entry);
    let def = library().get(&arch).expect("the architecture is built in");
    let path = scratch.join("model.gguf");
    synth(&def, &request, &path).expect("the model can be made");
    let file = std::fs::read(&path).expect("the model was written");
    let hash = Sha256::digest(&file);
    let hash: String = hash.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hash,
        entry["gguf_sha256"].as_str().expect("a hash"),
        "{name}: synth makes another file than the reference ran; if that is meant, run scripts/make_goldens.py"
    );
    let npy = std::fs::read(folder().join(entry["logits"].as_str().expect("a file")))
        .expect("the golden is there");
    let weights = weights::open(&path).expect("synth writes what we read");
    Golden {
        name: name.to_owned(),
        arch,
        plan: Plan::new(&def, weights.metadata(), &weights).expect("it fits"),
        def,
        tokens: ids(&entry["tokens"]).expect("tokens"),
        source: ids(&entry["source"]).unwrap_or_default(),
        media: None,
        weights,
        file,
        expected: parse_npy(&npy).values,
        noise: entry["noise"]["kv_f16"].as_f64().expect("noise"),
        quantized: request.ty != TensorType::F32 && request.ty != TensorType::F16,
    }
}

/// The index of the goldens.
pub(crate) fn index() -> &'static [Value] {
    static INDEX: LazyLock<Vec<Value>> = LazyLock::new(|| {
        let text =
            std::fs::read_to_string(folder().join("goldens.json")).expect("the index is there");
        let mut index: Value = serde_json::from_str(&text).expect("the index is JSON");
        match index["goldens"].take() {
            Value::Array(goldens) if !goldens.is_empty() => goldens,
            _ => panic!("a gate that compares nothing fails"),
        }
    });
    &INDEX
}

/// The folders of `tests/hf` whose architecture the index does not have.
static FOLDERS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let known = index().iter().map(|entry| request(name(entry), entry).0);
    let known: BTreeSet<String> = known.collect();
    let names = folders_of(|arch| !known.contains(arch)).into_iter();
    names.filter(|name| has_rows(name)).collect()
});

/// Whether a golden has what a pass gives for each token: neither scores, nor the states before a tied head.
fn has_rows(name: &str) -> bool {
    match hf::open(name).output {
        Output::Logits => true,
        Output::Hidden => name != "clip-text",
        Output::Pooled => false,
    }
}

/// The architectures that folders of a map may have; none if another map is for the text model in them.
pub(crate) fn archs_of(map: &toml::Table) -> Vec<String> {
    let text = |key: &str| map.get(key).and_then(toml::Value::as_str);
    let Some(arch) = text("arch") else {
        // A map that extends another may have its architecture.
        let base = text("extends").map(|base| {
            let path = format!("stmaps/{base}.arch.stmap.toml");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
            let text = std::fs::read_to_string(path).expect("a map");
            archs_of(&text.parse().expect("TOML"))
        });
        return base.unwrap_or_default();
    };
    let mut names = Vec::new();
    if let (true, Ok(choice)) = (arch.contains('\''), Expr::parse(arch, 0)) {
        choice.for_each_text_result(&mut |name| names.push(name.to_owned()));
    } else {
        names.push(arch.to_owned());
    }
    names
}

/// The stored folders whose maps may be of such architectures. Those with hidden states are of encoders: other models have
/// logits.
fn folders_of(is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let maps = Path::new(env!("CARGO_MANIFEST_DIR")).join("stmaps");
    let is_encoder = |arch: &String| {
        library()
            .get(arch)
            .is_ok_and(|def| def.mode == Mode::Encoder)
    };
    let mut classes = BTreeMap::new();
    for entry in std::fs::read_dir(maps).expect("stmaps is readable") {
        let path = entry.expect("readable").path();
        if !path.to_string_lossy().ends_with(".arch.stmap.toml") {
            continue;
        }
        let text = std::fs::read_to_string(path).expect("a text");
        let map: toml::Table = text.parse().expect("TOML");
        let archs = archs_of(&map);
        if archs.iter().any(|arch| is_wanted(arch)) {
            let list = map["classes"].as_array().expect("a list").iter();
            let names = list.filter_map(toml::Value::as_str).map(str::to_owned);
            let mut wanted = archs.iter().filter(|arch| is_wanted(arch));
            let are_encoders = wanted.any(is_encoder);
            classes.extend(names.map(|class| (class, are_encoders)));
        }
    }
    let fits = |name: &String| {
        let folder = hf::open(name);
        let of = classes.get(&folder.class);
        of.is_some_and(|are_encoders| match folder.output_name() {
            "logits" => true,
            "hidden" => *are_encoders,
            _ => false,
        })
    };
    hf::names().into_iter().filter(fits).collect()
}

/// All folders of an architecture whose results are of each token, as goldens.
pub(crate) fn of_folders(arch: &str, scratch: &Path) -> Vec<Golden> {
    let names = folders_of(|of| of == arch).into_iter();
    let names = names.filter(|name| has_rows(name));
    let goldens = names.map(|name| of_folder(hf::open(&name), scratch).0);
    // A class may be of several architectures.
    goldens.filter(|golden| golden.arch == arch).collect()
}

/// A folder as a golden: the file that it is converted to, in another folder. And the folder, opened.
pub(crate) fn of_folder(folder: hf::Folder, scratch: &Path) -> (Golden, OpenedModel) {
    let name = &folder.name;
    let into = scratch.join(name);
    std::fs::create_dir_all(&into).expect("the folder can be made");
    folder.write(&into);
    let opened = models::open(&ModelSource::File(into), &definitions()).expect("a map opens it");
    let path = scratch.join(format!("{name}.gguf"));
    to_gguf(&opened, None, &path, false, &mut |_, _| {}).expect("it can be converted");
    let weights = weights::open(&path).expect("the converter writes what we read");
    let golden = Golden {
        name: name.to_owned(),
        arch: opened.def.name.clone(),
        plan: Plan::new(&opened.def, weights.metadata(), &weights).expect("it fits"),
        def: opened.def.clone(),
        tokens: folder.tokens,
        source: folder.source,
        media: None,
        file: std::fs::read(&path).expect("the converter wrote it"),
        weights,
        expected: folder.expected,
        noise: f64::INFINITY,
        quantized: false,
    };
    (golden, opened)
}

/// The goldens by their names, each made at its first use: in the order of the index, then those that are folders. The
/// files of their models are removed; the weights stay mapped.
static GOLDENS: LazyLock<Vec<(String, OnceLock<Golden>)>> = LazyLock::new(|| {
    let files = index().iter().map(|entry| name(entry).to_owned());
    let names = files.chain(FOLDERS.iter().cloned());
    names.map(|name| (name, OnceLock::new())).collect()
});

/// The goldens of which `wanted` is true.
pub(crate) fn goldens(wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = &'static Golden> {
    let all = GOLDENS.iter().filter(move |(name, _)| wanted(name));
    all.map(|(own, golden)| {
        golden.get_or_init(|| {
            let scratch = scratch();
            match index().iter().find(|entry| name(entry) == own) {
                Some(entry) => of_entry(entry, scratch.path()),
                None => of_folder(hf::open(own), scratch.path()).0,
            }
        })
    })
}

/// The golden of a name.
pub(crate) fn golden(name: &str) -> &'static Golden {
    let mut found = goldens(|own| own == name);
    found
        .next()
        .unwrap_or_else(|| panic!("there is no golden `{name}`"))
}

/// Every golden.
pub(crate) fn all_goldens() -> impl Iterator<Item = &'static Golden> {
    goldens(|_| true)
}

/// Which of `n` variants of a test a golden has: one in turn, and those that have not yet seen one of its kinds of
/// blocks. What the variants change depends on the blocks, not on which golden brings them.
pub(crate) struct Turns {
    n_goldens: usize,
    /// Kinds of blocks that each variant has seen.
    seen: Vec<BTreeSet<&'static str>>,
}

impl Turns {
    pub(crate) fn new(n: usize) -> Self {
        Self {
            n_goldens: 0,
            seen: vec![BTreeSet::new(); n],
        }
    }

    /// The variants of the next golden.
    pub(crate) fn of(&mut self, golden: &Golden) -> Vec<usize> {
        let units = golden.plan.units();
        let blocks: BTreeSet<_> = units.map(|unit| unit.contract.0.name).collect();
        let turn = self.n_goldens % self.seen.len();
        self.n_goldens += 1;
        let is_wanted = |at: &usize| *at == turn || !blocks.is_subset(&self.seen[*at]);
        let chosen: Vec<usize> = (0..self.seen.len()).filter(is_wanted).collect();
        chosen.iter().for_each(|at| self.seen[*at].extend(&blocks));
        chosen
    }
}

pub(crate) fn bound(golden: &Golden, path: &ExecutionPath) -> f64 {
    let of_path = match path.kv_type {
        TensorType::F16 => HALF.min(20.0 * golden.noise).max(EXACT),
        TensorType::Q8_0 => Q8,
        TensorType::Q4_0 => Q4,
        _ => EXACT,
    };
    // One rounding of a quantised activation that falls the other way costs more than `EXACT`; the
    // reference's own sensitivity to a half-precision cache says how much.
    if golden.quantized {
        of_path.max(3.0 * golden.noise)
    } else {
        of_path
    }
}

#[test]
fn every_architecture_equals_the_reference_along_every_path() {
    let (mut failures, mut compared) = (Vec::new(), 0);
    let mut covered = BTreeSet::new();
    for golden in all_goldens() {
        let (def, plan) = (&golden.def, &golden.plan);
        assert!(plan.unread.is_empty(), "{}: {:?}", golden.name, plan.unread);
        let mut row = format!("{:18}", golden.name);
        for path in &PATHS {
            let Some(result) = logits(def, &golden.weights, golden.text(), path) else {
                row.push_str("        -");
                continue;
            };
            let found =
                result.unwrap_or_else(|e| panic!("{} along {}: {e}", golden.name, path.name));
            let error = nmse(&found, &golden.expected);
            row.push_str(&format!("  {error:7.0e}"));
            compared += 1;
            let width = found.len() / golden.tokens.len();
            let n_flips = flips(&found, &golden.expected, width, bound(golden, path));
            let is_fine = matches!(path.kv_type, TensorType::F32 | TensorType::F16);
            if n_flips > 0 && is_fine {
                failures.push(format!(
                    "{} along {}: {n_flips} other best tokens",
                    golden.name, path.name
                ));
            }
            if error > bound(golden, path) {
                failures.push(format!(
                    "{} along {}: NMSE {error:.2e}",
                    golden.name, path.name
                ));
            }
        }
        println!("{row}");
        covered.insert(golden.arch.clone());
    }
    println!("paths: {}", PATHS.map(|p| p.name).join(", "));
    let all: BTreeSet<String> = library()
        .sources()
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(
        all, covered,
        "an architecture without goldens is not proven"
    );
    assert!(compared > 0);
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn rows_that_are_asked_for_alone_are_those_of_all() {
    for golden in all_goldens() {
        let n = golden.tokens.len();
        let width = golden.expected.len() / n;
        for flash_attn in [false, true] {
            let mut model = model(
                golden,
                Options {
                    flash_attn,
                    ..options()
                },
            );
            let wanted = [1, n / 2, n - 1];
            let mut batch = Batch::default();
            for (position, token) in golden.tokens.iter().enumerate() {
                batch.push(*token, 0, position as u32, wanted.contains(&position));
            }
            let found = model.forward(&batch).expect("the pass runs");
            let rows = wanted.map(|at| &golden.expected[at * width..(at + 1) * width]);
            let error = nmse(found, &rows.concat());
            let bound = match golden.quantized {
                true => EXACT.max(3.0 * golden.noise),
                false => EXACT,
            };
            assert!(error <= bound, "{}: NMSE {error:.2e}", golden.name);
        }
    }
}

pub(crate) fn options() -> Options {
    Options {
        n_seqs: 2,
        k_type: TensorType::F32,
        v_type: TensorType::F32,
        flash_attn: false,
        ..Options::plain(512, 256)
    }
}

/// The model of a golden.
pub(crate) fn model(golden: &Golden, options: Options) -> Model {
    let plan = golden.plan.clone();
    let model = Model::load(plan, &golden.weights, options, &mut |_, _| {}).expect("it loads");
    sourced(model, golden)
}

/// A model of a golden whose sequences have the golden's source, where it reads one; the first one has the golden's media.
pub(crate) fn sourced(mut model: Model, golden: &Golden) -> Model {
    if let Some(media) = &golden.media {
        model.set_media(0, Arc::clone(&media.set));
    }
    if model.reads_source() {
        let set = model.set_default_source(&golden.source);
        set.expect("the source is sound");
    }
    model
}

pub(crate) fn run(model: &mut Model, tokens: &[u32], sequence: u32, first: u32) -> Vec<f32> {
    let mut batch = Batch::default();
    for (position, token) in (first..).zip(tokens) {
        batch.push(*token, sequence, position, true);
    }
    model.forward(&batch).expect("the pass runs").to_vec()
}

#[test]
fn a_step_of_the_same_shape_replays_the_graph() {
    let golden = golden("llama");
    let mut model = model(golden, options());
    for (i, token) in golden.tokens.iter().enumerate() {
        run(&mut model, &[*token], 0, i as u32);
    }
    assert_eq!(model.n_graphs(), 1);
}

#[test]
fn prefill_and_decode_in_turn_build_a_graph_for_each_shape_once() {
    let golden = golden("llama");
    // Of blocks: a graph over runs is built for the place where they lie.
    let blocks = Options {
        flash_attn: true,
        ..options()
    };
    let mut model = model(golden, blocks);
    let tokens = &golden.tokens[..12];
    let all = run(&mut model, tokens, 0, 0);
    let width = all.len() / tokens.len();
    for round in 1..4 {
        let first = run(&mut model, &tokens[..5], round, 0);
        assert_eq!(first[..], run(&mut model, &tokens[..5], 10 + round, 0)[..]);
        for at in 5..12 {
            let row = run(&mut model, &tokens[at..=at], round, at as u32);
            let expected = &all[at * width..(at + 1) * width];
            let near = row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-3);
            assert!(near, "token {at} of round {round}");
        }
    }
    assert_eq!(model.n_graphs(), 3, "12 tokens, 5 tokens and 1 token");
}

#[test]
fn a_batch_that_does_not_fit_is_refused_and_leaves_no_trace() {
    let golden = golden("llama");
    let options = Options {
        n_ctx: 16,
        n_ctx_seq: 0,
        n_seqs: 2,
        n_checkpoints: 0,
        ..options()
    };
    let mut model = model(golden, options);
    let refused =
        |model: &mut Model, batch: &Batch| model.forward(batch).expect_err("refused").to_string();

    assert_eq!(
        refused(&mut model, &Batch::default()),
        "a pass: found 0 tokens, expected 1 to 256 tokens"
    );
    let mut batch = Batch::default();
    batch.push(96, 0, 0, true);
    assert_eq!(
        refused(&mut model, &batch),
        "a pass: found the token 96, which is not in the vocabulary, expected ids below 96"
    );
    batch.clear();
    (0..17).for_each(|i| batch.push(1, 0, i, true));
    assert_eq!(
        refused(&mut model, &batch),
        "the cache is full: 17 positions needed, 16 of 16 free"
    );
    assert_eq!(model.free_slots(), 16);
    batch.clear();
    (0..2).for_each(|_| batch.push(1, 0, 3, true));
    assert_eq!(
        refused(&mut model, &batch),
        "a pass: found position 3 of sequence 0 twice, expected each position once"
    );
    run(&mut model, &[1, 2, 3], 0, 0);
    for (sequence, position, expected) in [(0, 0, 3), (0, 4, 3), (1, 3, 0)] {
        batch.clear();
        batch.push(1, sequence, position, true);
        assert_eq!(
            refused(&mut model, &batch),
            format!(
                "a pass: found position {position} of sequence {sequence}, expected position \
                 {expected}"
            )
        );
    }
}
