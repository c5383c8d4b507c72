//! Drafters: what they compute, and that it does not depend on how the sequence was read.

use std::path::{Path, PathBuf};

use lab_base::weights::gguf::NewTensor;
use lab_base::weights::{self, TensorType, gguf};
use lab_core::model::{Batch, Draft, DraftRequest, Model, Options};
use lab_core::models::synth::{SynthRequest, synth};
use lab_core::models::{self, Definitions, DrafterChoice, ModelSource};
use serde_json::Value;

use crate::goldens::{EXACT, HALF, request};
use crate::support::command::{bench, definitions, scratch, text};
use crate::support::hf::hex;
use crate::support::{nmse, parse_npy};

const TOKENS: [u32; 12] = [3, 17, 5, 99, 64, 2, 41, 8, 77, 23, 50, 11];

/// A model with a head that predicts the token after the next one.
fn with_head(folder: &Path, arch: &str) -> PathBuf {
    let with = definitions();
    let def = with.archs.get(arch).expect("it is built in");
    let name = &def.drafter.as_ref().expect("it may have a drafter").value;
    let drafter = with.drafters.of_target(name, &def).expect("it is built in");
    let request = SynthRequest {
        seed: 7,
        set: vec![
            ("n_nextn".into(), "1".into()),
            ("block_count".into(), "3".into()),
        ],
        drafter: Some(drafter),
        ..SynthRequest::default()
    };
    let path = folder.join(format!("{arch}.gguf"));
    synth(&def, &request, &path).expect("the model can be made");
    path
}

fn load(path: &Path, options: &Options) -> Model {
    load_with(path, options, DrafterChoice::Found)
}

/// The drafter at a path.
pub(crate) fn named(path: &Path) -> DrafterChoice {
    DrafterChoice::Named(ModelSource::File(path.to_owned()))
}

/// A model with its drafter, if it has one.
pub(crate) fn load_with(path: &Path, options: &Options, drafter: DrafterChoice) -> Model {
    let is_there = drafter != DrafterChoice::None;
    let with = Definitions {
        drafter,
        ..definitions()
    };
    let opened = models::open(&ModelSource::File(path.to_owned()), &with);
    let opened = opened.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(opened.drafter.is_some(), is_there, "a drafter in the file");
    let target = opened.drafter.as_ref().map(|of| of.plan.target.clone());
    let options = Options {
        for_drafter: target.flatten(),
        ..options.clone()
    };
    let model = Model::load(opened.plan, &opened.weights, options, &mut |_, _| {});
    let mut model = model.unwrap_or_else(|error| panic!("{error}"));
    if let Some(drafter) = opened.drafter {
        let loaded = model.load_drafter(drafter);
        loaded.unwrap_or_else(|error| panic!("{error}"));
    }
    model
}

pub(crate) fn read(model: &mut Model, sequence: u32, from: usize, to: usize) {
    let mut batch = Batch::default();
    for (at, token) in TOKENS.iter().enumerate().take(to).skip(from) {
        batch.push(*token, sequence, at as u32, at + 1 == to);
    }
    model
        .forward(&batch)
        .unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) fn draft(model: &mut Model, sequence: u32, n: usize, most: usize) -> Draft {
    draft_of(model, sequence, &TOKENS[..n], most)
}

fn draft_of(model: &mut Model, sequence: u32, tokens: &[u32], most: usize) -> Draft {
    let request = DraftRequest {
        sequence,
        tokens,
        most,
    };
    let drafts = model.draft(&[request]);
    drafts.unwrap_or_else(|error| panic!("{error}")).remove(0)
}

#[test]
fn the_log_says_why_the_heads_of_a_file_are_not_used() {
    let folder = scratch();
    let with = definitions();
    let def = with.archs.get("glm4moe").expect("it is built in");
    // The file says that it has a head, and has no weights of it.
    for (n_heads, is_said) in [("0", false), ("1", true)] {
        let set = [("n_nextn", n_heads), ("block_count", "3")];
        let request = SynthRequest {
            set: set.map(|(key, value)| (key.into(), value.into())).into(),
            ..SynthRequest::default()
        };
        let path = folder.path().join(format!("{n_heads}.gguf"));
        synth(&def, &request, &path).expect("the model can be made");
        let ran = bench(&["plan", "-m", text(&path), "--log-level", "info"]);
        assert!(ran.is_fine(), "{}", ran.err);
        let said = ran
            .err
            .split_once("the prediction heads of the model are not used");
        assert_eq!(said.is_some(), is_said, "{}", ran.err);
        // The reason follows, over several lines.
        let has_reason = said.is_none_or(|(_, reason)| reason.contains("nextn."));
        assert!(has_reason, "{}", ran.err);
    }
}

#[test]
fn a_draft_does_not_depend_on_how_the_sequence_was_read() {
    let folder = scratch();
    let path = with_head(folder.path(), "glm4moe");
    let options = Options {
        n_seqs: 3,
        deterministic: true,
        ..Options::plain(256, 64)
    };
    let mut at_once = load(&path, &options);
    read(&mut at_once, 0, 0, 11);
    let expected = draft(&mut at_once, 0, 12, 4);
    assert_eq!(expected.tokens.len(), 4);
    assert!(expected.probabilities.iter().all(|p| *p > 0.0 && *p <= 1.0));
    // Drafted for again and again, beside another sequence, and after tokens that were not kept.
    let mut in_parts = load(&path, &options);
    read(&mut in_parts, 1, 0, 4);
    for (from, to) in [(0, 3), (3, 4), (4, 9)] {
        read(&mut in_parts, 0, from, to);
        draft(&mut in_parts, 0, to + 1, 3);
        draft(&mut in_parts, 1, 5, 2);
    }
    in_parts.forget(0, 6);
    read(&mut in_parts, 0, 6, 11);
    assert_eq!(draft(&mut in_parts, 0, 12, 4), expected);
    // Nothing new was read, so nothing is known.
    assert_eq!(draft(&mut in_parts, 0, 12, 4), Draft::default());
}

/// The logits of the last of some tokens of sequence 0.
fn after(model: &mut Model, from: usize, tokens: &[u32]) -> Vec<f32> {
    let mut batch = Batch::default();
    for (at, token) in tokens.iter().enumerate() {
        batch.push(*token, 0, (from + at) as u32, at + 1 == tokens.len());
    }
    let logits = model.forward(&batch);
    logits.unwrap_or_else(|error| panic!("{error}")).to_vec()
}

#[test]
fn a_pass_over_draft_tokens_is_taken_back_with_the_states_before_it() {
    let folder = scratch();
    let tokens: Vec<u32> = (0..40).map(|n| n * 7 % 61).collect();
    for arch in ["mamba2", "qwen35", "falcon-h1"] {
        let path = folder.path().join(format!("{arch}.gguf"));
        let with = definitions();
        let def = with.archs.get(arch).expect("it is built in");
        synth(&def, &SynthRequest::default(), &path).expect("the model can be made");
        let opened = models::open(&ModelSource::File(path), &with).expect("it opens");
        let options = Options {
            n_seqs: 2,
            n_checkpoints: 2,
            ..Options::plain(256, 64)
        };
        let load = || {
            let (plan, options) = (opened.plan.clone(), options.clone());
            let model = Model::load(plan, &opened.weights, options, &mut |_, _| {});
            model.unwrap_or_else(|error| panic!("{error}"))
        };
        let (mut model, mut plain) = (load(), load());
        after(&mut model, 0, &tokens[..20]);
        after(&mut plain, 0, &tokens[..20]);
        for wrong in [[1, 2, 3, 4, 5, 6], [9; 6]] {
            model.hold(0);
            after(&mut model, 20, &wrong);
            // Two tokens were right, and the states go back to before all of them.
            assert_eq!(model.forget(0, 22), 20, "{arch}");
        }
        let expected = after(&mut plain, 20, &tokens[20..23]);
        assert_eq!(after(&mut model, 20, &tokens[20..23]), expected, "{arch}");
        // Where all were right, the sequence goes on; later the pass cannot be taken back.
        model.hold(0);
        let [found, expected] =
            [&mut model, &mut plain].map(|model| after(model, 23, &tokens[23..26]));
        assert_eq!(found, expected, "{arch}");
        assert_eq!(model.forget(0, 26), 26);
        after(&mut model, 26, &tokens[26..27]);
        assert!(model.forget(0, 25) < 23, "{arch}");
    }
}

fn argmax(row: &[f32]) -> u32 {
    let (at, _) = (0..)
        .zip(row)
        .max_by(|a: &(u32, &f32), b| a.1.total_cmp(b.1))
        .expect("a row");
    at
}

/// Goes on with a prompt greedily. Returns the tokens, and of how many draft tokens how many were right.
pub(crate) fn goes_on(
    model: &mut Model,
    prompt: &[u32],
    n: usize,
    most: usize,
) -> (Vec<u32>, [usize; 2]) {
    let width = model.row_width();
    let mut tokens = prompt.to_vec();
    let mut counts = [0; 2];
    let mut known = 0;
    while tokens.len() < prompt.len() + n {
        let mut drafted = Vec::new();
        // What was taken back is read again without a draft, so that the states after it can be kept.
        if most > 0 && known + 1 == tokens.len() {
            let request = DraftRequest {
                sequence: 0,
                tokens: &tokens,
                most,
            };
            let drafts = model.draft(&[request]);
            drafted = drafts
                .unwrap_or_else(|error| panic!("{error}"))
                .remove(0)
                .tokens;
            model.hold(0);
        }
        let mut batch = Batch::default();
        let read = tokens[known..].iter().chain(&drafted);
        for (at, token) in read.enumerate() {
            batch.push(
                *token,
                0,
                (known + at) as u32,
                known + at + 1 >= tokens.len(),
            );
        }
        let logits = model
            .forward(&batch)
            .unwrap_or_else(|error| panic!("{error}"));
        let chosen: Vec<u32> = logits.chunks(width).map(argmax).collect();
        let right = chosen
            .iter()
            .zip(&drafted)
            .take_while(|(a, b)| a == b)
            .count();
        counts[0] += drafted.len();
        counts[1] += right;
        let end = tokens.len() + right;
        tokens.extend(&chosen[..=right]);
        known = model.next(0) as usize;
        if known > end {
            known = model.forget(0, end as u32) as usize;
        }
    }
    tokens.truncate(prompt.len() + n);
    (tokens, counts)
}

#[test]
fn a_text_is_the_same_with_and_without_a_drafter() {
    let folder = scratch();
    let options = Options {
        n_seqs: 2,
        n_checkpoints: 2,
        deterministic: true,
        ..Options::plain(512, 64)
    };
    for arch in ["glm4moe", "qwen35"] {
        let path = with_head(folder.path(), arch);
        let (expected, _) = goes_on(&mut load(&path, &options), &TOKENS, 60, 0);
        for most in [1, 3, 7] {
            let (found, [drafted, _]) = goes_on(&mut load(&path, &options), &TOKENS, 60, most);
            assert_eq!(found, expected, "{arch}");
            assert!(drafted >= 20 * most, "{arch}: {drafted}");
        }
    }
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    let folder = scratch();
    let path = with_head(folder.path(), "glm4moe");
    let options = Options {
        deterministic: true,
        ..Options::plain(512, 64)
    };
    let load = |choice| load_with(&path, &options, choice);
    let (expected, _) = goes_on(&mut load(DrafterChoice::None), &TOKENS, 60, 0);
    let mut model = load(named(&path));
    let (found, [drafted, right]) = goes_on(&mut model, &TOKENS, 60, 4);
    assert_eq!(found, expected);
    assert!(drafted >= 44 && right == drafted, "{right} of {drafted}");
}

/// The files of a target and of its drafter, and the logits of the drafter by its formula.
pub(crate) struct FormulaGolden {
    pub(crate) target: PathBuf,
    pub(crate) drafter: PathBuf,
    tokens: Vec<u32>,
    expected: Vec<f64>,
}

impl FormulaGolden {
    pub(crate) fn new(name: &str, folder: &Path) -> Self {
        let tests = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/drafters"));
        let entry = std::fs::read(tests.join(format!("{name}.json"))).expect("the golden");
        let entry: Value = serde_json::from_slice(&entry).expect("JSON");
        let with = definitions();
        let [target, drafter] = ["target", "drafter"].map(|part| {
            let (arch, request) = request(part, &entry[part]);
            let def = with.archs.get(&arch).or_else(|_| with.drafters.get(&arch));
            let path = folder.join(format!("{name}.{part}.gguf"));
            synth(&def.expect("it is built in"), &request, &path).expect("the model can be made");
            let bytes = std::fs::read(&path).expect("it is written");
            assert_eq!(hex(&bytes), entry[part]["sha256"], "{part}");
            path
        });
        let expected = std::fs::read(tests.join(format!("{name}.npy"))).expect("the golden");
        Self {
            target,
            drafter,
            tokens: serde_json::from_value(entry["tokens"].clone()).expect("tokens"),
            expected: parse_npy(&expected).values,
        }
    }

    /// The NMSE of a drafter against the formula.
    pub(crate) fn error_of(&self, drafter: &Path, options: &Options) -> f64 {
        let mut model = load_with(&self.target, options, named(drafter));
        let mut batch = Batch::default();
        for (at, token) in (0..).zip(&self.tokens) {
            batch.push(*token, 0, at, false);
        }
        model.forward(&batch).expect("it runs");
        let request = DraftRequest {
            sequence: 0,
            tokens: &self.tokens,
            most: 4,
        };
        let (found, _) = model.draft_logits(&request).expect("it drafts");
        nmse(&found, &self.expected)
    }
}

/// With keys and values as in the formula.
pub(crate) fn exact() -> Options {
    Options {
        k_type: TensorType::F32,
        v_type: TensorType::F32,
        flash_attn: false,
        ..Options::plain(256, 64)
    }
}

/// Compares what the drafter of a golden computes with its formula, along several paths.
fn check_formula(name: &str) {
    let folder = scratch();
    let golden = FormulaGolden::new(name, folder.path());
    let exact = exact();
    let paths = [
        (exact.clone(), EXACT),
        (
            Options {
                n_threads: 3,
                ..exact.clone()
            },
            EXACT,
        ),
        (
            Options {
                n_outputs: 3,
                ..exact
            },
            EXACT,
        ),
        (Options::plain(256, 64), HALF),
    ];
    for (options, bound) in paths {
        let error = golden.error_of(&golden.drafter, &options);
        assert!(error <= bound, "{name}: {error:e} with {options:?}");
    }
    let FormulaGolden {
        target, drafter, ..
    } = golden;
    // Beside another sequence, and drafted for again and again.
    let options = Options {
        n_seqs: 2,
        deterministic: true,
        ..Options::plain(512, 64)
    };
    let mut model = load_with(&target, &options, named(&drafter));
    read(&mut model, 1, 0, 7);
    draft(&mut model, 1, 8, 3);
    let (found, [drafted, _]) = goes_on(&mut model, &TOKENS, 60, 4);
    assert_eq!(
        found,
        goes_on(
            &mut load_with(&target, &options, named(&drafter)),
            &TOKENS,
            60,
            0
        )
        .0
    );
    assert!(drafted > 100, "{name}: {drafted}");
    let whole = |path: &Path, from: usize| {
        let mut model = load_with(&target, &options, named(path));
        read(&mut model, 0, 0, from);
        if from < 11 {
            draft(&mut model, 0, from + 1, 2);
            read(&mut model, 0, from, 11);
        }
        draft(&mut model, 0, 12, 4)
    };
    assert_eq!(whole(&drafter, 11), whole(&drafter, 5), "{name}");
}

#[test]
fn heads_and_blocks_over_hidden_states_equal_their_formulas() {
    [
        "eagle3",
        "eagle3-norms",
        "dflash",
        "dflash-windows",
        "dflash-first",
        "dspark",
    ]
    .into_iter()
    .for_each(check_formula);
}

/// A copy of a drafter's file whose head has these tokens alone.
pub(crate) fn with_tokens(path: &Path, tokens: &[u32], copy: &Path) {
    let weights = weights::open(path).expect("it is readable");
    let data = |name: &str| {
        let tensor = weights.tensor(name).expect("a tensor");
        let n = tensor.shape.iter().product::<u64>() as usize * 4;
        let mut bytes = vec![0; n];
        weights.rows(tensor, 0, &mut bytes).expect("its rows");
        (tensor.clone(), bytes)
    };
    let mut all: Vec<(NewTensor, Vec<u8>)> = Vec::new();
    for tensor in weights.tensors() {
        let (mut shape, mut bytes) = (tensor.shape.clone(), data(&tensor.name).1);
        if tensor.name == "output.weight" {
            let row = shape[0] as usize * 4;
            shape[1] = tokens.len() as u64;
            let rows = tokens.iter().map(|token| *token as usize * row);
            bytes = rows.flat_map(|at| bytes[at..at + row].to_vec()).collect();
        }
        let (name, ty) = (tensor.name.clone(), tensor.ty);
        all.push((NewTensor { name, ty, shape }, bytes));
    }
    let ids = tokens
        .iter()
        .flat_map(|token| i64::from(*token).to_le_bytes());
    let map = NewTensor {
        name: "d2t".into(),
        ty: TensorType::I64,
        shape: vec![tokens.len() as u64],
    };
    all.push((map, ids.collect()));
    let (tensors, data): (Vec<NewTensor>, Vec<Vec<u8>>) = all.into_iter().unzip();
    gguf::write(copy, weights.metadata(), &tensors, |i| Ok(data[i].clone()))
        .expect("it is written");
}

#[test]
fn a_drafter_may_know_some_tokens_alone() {
    let folder = scratch();
    let with = definitions();
    let [target, drafter] = ["llama", "eagle3"].map(|arch| {
        let def = with.archs.get(arch).or_else(|_| with.drafters.get(arch));
        let request = SynthRequest {
            set: vec![(
                "block_count".into(),
                if arch == "llama" { "4" } else { "1" }.into(),
            )],
            with: vec!["output".into()],
            ..SynthRequest::default()
        };
        let path = folder.path().join(format!("{arch}.gguf"));
        synth(&def.expect("it is built in"), &request, &path).expect("the model can be made");
        path
    });
    let options = Options::plain(512, 64);
    let tokens: Vec<u32> = (0..100).step_by(3).collect();
    let copy = folder.path().join("some.gguf");
    with_tokens(&drafter, &tokens, &copy);
    let logits = |path: &PathBuf| {
        let mut model = load_with(&target, &options, named(path));
        read(&mut model, 0, 0, 11);
        let request = DraftRequest {
            sequence: 0,
            tokens: &TOKENS,
            most: 1,
        };
        model.draft_logits(&request).expect("it drafts").0
    };
    let (all, some) = (logits(&drafter), logits(&copy));
    let expected = all
        .chunks(128)
        .flat_map(|row| tokens.iter().map(|token| row[*token as usize]));
    let expected: Vec<f64> = expected.map(f64::from).collect();
    assert!(nmse(&some, &expected) < EXACT);
    // Drafts are the target's tokens, and the drafter goes on with these.
    let path = named(&copy);
    let mut model = load_with(&target, &options, path.clone());
    let (found, [drafted, _]) = goes_on(&mut model, &TOKENS, 40, 5);
    assert_eq!(
        found,
        goes_on(&mut load_with(&target, &options, path), &TOKENS, 40, 0).0
    );
    assert!(drafted > 100, "{drafted}");
    read(&mut model, 1, 0, 11);
    let drafted = draft(&mut model, 1, 12, 5).tokens;
    assert!(
        drafted.iter().all(|token| tokens.contains(token)),
        "{drafted:?}"
    );
    // A token that the target does not have is refused.
    let wrong = folder.path().join("wrong.gguf");
    with_tokens(&drafter, &[5, 6], &wrong);
    let mut bytes = std::fs::read(&wrong).expect("it is written");
    let at = bytes.len() - bytes.len() % 32 - 32;
    let at = bytes[at..]
        .windows(8)
        .position(|of| of == 5i64.to_le_bytes())
        .map_or(at, |n| at + n);
    bytes[at..at + 8].copy_from_slice(&999i64.to_le_bytes());
    std::fs::write(&wrong, bytes).expect("a writable folder");
    let choice = named(&wrong);
    let opened = models::open(
        &ModelSource::File(target),
        &Definitions {
            drafter: choice,
            ..with
        },
    );
    let opened = opened.expect("it opens");
    let mut model =
        Model::load(opened.plan, &opened.weights, options, &mut |_, _| {}).expect("it loads");
    let refused = model.load_drafter(opened.drafter.expect("a drafter"));
    let error = refused.expect_err("there is no such token").to_string();
    assert!(error.contains("the token 999"), "{error}");
}

#[test]
fn rows_of_media_are_left_out_and_other_sequences_are_drafted_for() {
    let folder = scratch();
    let path = with_head(folder.path(), "glm4moe");
    let options = Options {
        n_seqs: 2,
        ..Options::plain(256, 64)
    };
    let mut model = load(&path, &options);
    read(&mut model, 0, 0, 11);
    read(&mut model, 1, 0, 11);
    // The tokens of a medium have ids above the vocabulary.
    let mut tokens = TOKENS;
    tokens[3..7].fill(1 << 24);
    let request = |sequence, tokens| DraftRequest {
        sequence,
        tokens,
        most: 3,
    };
    let drafts = model.draft(&[request(0, &tokens), request(1, &TOKENS)]);
    let drafts = drafts.unwrap_or_else(|error| panic!("{error}"));
    assert!(
        drafts.iter().all(|draft| draft.tokens.len() == 3),
        "{drafts:?}"
    );
    // The last token is one.
    tokens[11] = 1 << 24;
    read(&mut model, 0, 11, 12);
    let longer = [&tokens[..], &[5]].concat();
    assert_eq!(draft_of(&mut model, 0, &longer, 3).tokens.len(), 0);
}
