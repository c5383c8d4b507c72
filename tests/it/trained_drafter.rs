//! The drafter that was trained for the built-in model: how many of its draft tokens are right for prompts that it was not trained on.

use std::path::{Path, PathBuf};

use lab_base::tokenizer::Tokenizer;
use lab_core::model::{Batch, DraftRequest, Model, Options};
use lab_core::models::{self, Definitions, DrafterChoice, ModelSource};
use serde_json::Value;

use crate::support::command::definitions;

/// Tokens of a draft.
const DRAFTED: usize = 4;
/// Tokens of an answer, at most.
const MOST: usize = 64;

fn models_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models")
}

/// The built-in model with its drafter, and its vocabulary.
fn load() -> (Model, Tokenizer) {
    let drafter = models_folder().join("tiny-chat.eagle3.gguf");
    let with = Definitions {
        drafter: DrafterChoice::Named(ModelSource::File(drafter)),
        ..definitions()
    };
    let opened = models::open(&ModelSource::of(None), &with).expect("both are shipped");
    let drafter = opened.drafter.expect("a drafter");
    let options = Options {
        for_drafter: drafter.plan.target.clone(),
        deterministic: true,
        ..Options::plain(256, 128)
    };
    let tokenizer = Tokenizer::from_metadata(opened.weights.metadata()).expect("a vocabulary");
    let loaded = Model::load(opened.plan, &opened.weights, options, &mut |_, _| {});
    let mut model = loaded.expect("it loads");
    model.load_drafter(drafter).expect("it fits");
    (model, tokenizer)
}

/// Prompts that are not in the training data: reserved pairs of numbers, made-up words, other phrasings.
fn prompts() -> Vec<String> {
    let held_out = std::fs::read_to_string(models_folder().join("held_out.json"));
    let held_out: Value = serde_json::from_str(&held_out.expect("it is shipped")).expect("JSON");
    let of = |name: &str| {
        let all = held_out[name].as_array().expect("a list");
        let texts = all[..40].iter().map(|of| of["prompt"].as_str());
        let texts: Option<Vec<&str>> = texts.collect();
        texts.expect("prompts")
    };
    let others = [
        "Spell the word blornak.",
        "Reverse the word fimtol.",
        "Who invented the zubrek?",
        "Could you tell a child this? What is the capital of Norway?",
        "Could you tell a child this? Why is the sky blue?",
        "Please count from 37 to 44.",
        "Tell me about the history of glorbo.",
        "Who are you, my friend?",
    ];
    let all = [of("sums"), of("differences"), others.to_vec()].concat();
    let chat = |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
    all.into_iter().map(chat).collect()
}

/// What became of drafts.
#[derive(Debug, Default)]
struct Counts {
    /// By position, draft tokens after right ones, and those of them that were right.
    drafted: [usize; DRAFTED],
    right: [usize; DRAFTED],
    tokens: usize,
    passes: usize,
}

fn likeliest(row: &[f32]) -> u32 {
    let best = (0..).zip(row).max_by(|a: &(u32, _), b| a.1.total_cmp(b.1));
    best.expect("a row").0
}

/// The greedy answer to a prompt, with drafts of `most` tokens.
fn answer(
    (model, tokenizer): (&mut Model, &Tokenizer),
    prompt: &[u32],
    most: usize,
    counts: &mut Counts,
) -> Vec<u32> {
    model.discard(0);
    let width = model.row_width();
    let mut tokens = prompt.to_vec();
    loop {
        let known = model.next(0) as usize;
        let mut drafted = Vec::new();
        if most > 0 && known >= prompt.len() {
            let request = DraftRequest {
                sequence: 0,
                tokens: &tokens,
                most,
            };
            let mut drafts = model.draft(&[request]).expect("it drafts");
            drafted = drafts.remove(0).tokens;
        }
        let mut batch = Batch::default();
        for (at, token) in (known..).zip(tokens[known..].iter().chain(&drafted)) {
            batch.push(*token, 0, at as u32, at + 1 >= tokens.len());
        }
        let logits = model.forward(&batch).expect("it runs");
        let chosen: Vec<u32> = logits.chunks(width).map(likeliest).collect();
        let right = chosen.iter().zip(&drafted);
        let right = right.take_while(|(a, b)| a == b).count();
        let end = tokens.len() + right;
        let is_end = |token: &u32| tokenizer.is_end_of_generation(*token);
        let ended = chosen[..=right].iter().position(is_end);
        if !drafted.is_empty() {
            counts.passes += 1;
            // What lies behind the end of the answer is neither right nor wrong.
            let n = ended.map_or(right + 1, |at| at + 1);
            counts.tokens += n;
            for at in 0..drafted.len().min(n) {
                counts.drafted[at] += 1;
                counts.right[at] += usize::from(at < right);
            }
        }
        tokens.extend(&chosen[..=right]);
        if ended.is_some() || tokens.len() >= prompt.len() + MOST {
            let n = ended.map_or(MOST, |at| end - right - prompt.len() + at + 1);
            return tokens[prompt.len()..].iter().take(n).copied().collect();
        }
        model.forget(0, end as u32);
    }
}

#[test]
fn draft_tokens_for_held_out_prompts_are_mostly_right() {
    let (mut model, tokenizer) = load();
    let mut counts = Counts::default();
    for prompt in prompts() {
        let prompt = tokenizer.encode_prompt(&prompt).expect("tokens");
        let with = (&mut model, &tokenizer);
        let plain = answer(with, &prompt, 0, &mut Counts::default());
        let with = (&mut model, &tokenizer);
        let drafted = answer(with, &prompt, DRAFTED, &mut counts);
        assert_eq!(drafted, plain, "drafts change no text");
    }
    let all = counts.drafted.iter().zip(counts.right);
    let shares: Vec<f64> = all.map(|(n, right)| right as f64 / *n as f64).collect();
    let per_pass = counts.tokens as f64 / counts.passes as f64;
    println!("{shares:.3?} of those after right ones, {per_pass:.2} tokens in a pass");
    let expected = [0.6, 0.7, 0.85, 0.85];
    let all = shares.iter().zip(expected);
    assert!(
        all.into_iter().all(|(found, least)| *found >= least),
        "{shares:.3?}"
    );
    assert!(per_pass >= 2.2, "{per_pass}");
}
