//! Drafters: what they compute, and that it does not depend on how the sequence was read.

use std::path::{Path, PathBuf};

use lab_core::model::{Batch, Draft, DraftRequest, Model, Options};
use lab_core::models::synth::{SynthRequest, synth};
use lab_core::models::{self, ModelSource};

use crate::support::command::{definitions, scratch};

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
    let opened = models::open(&ModelSource::File(path.to_owned()), &definitions());
    let opened = opened.unwrap_or_else(|error| panic!("{error}"));
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

fn read(model: &mut Model, sequence: u32, from: usize, to: usize) {
    let mut batch = Batch::default();
    for at in from..to {
        batch.push(TOKENS[at], sequence, at as u32, at + 1 == to);
    }
    model
        .forward(&batch)
        .unwrap_or_else(|error| panic!("{error}"));
}

fn draft(model: &mut Model, sequence: u32, n: usize, most: usize) -> Draft {
    let request = DraftRequest {
        sequence,
        tokens: &TOKENS[..n],
        most,
    };
    let drafts = model.draft(&[request]);
    drafts.unwrap_or_else(|error| panic!("{error}")).remove(0)
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
