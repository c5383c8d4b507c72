//! Draft models with another vocabulary than their target: texts stay the same, and drafts are right where both say the same.

use std::path::{Path, PathBuf};

use lab_base::tokenizer::Tokenizer;
use lab_base::weights::gguf::NewTensor;
use lab_base::weights::{self, Array, TensorInfo, TensorType, Value, Weights, gguf};
use lab_core::model::{Model, Options};
use lab_core::models::synth::{SynthRequest, synth};

use crate::drafters::{goes_on, load_with, named};
use crate::support::command::{definitions, scratch};

const TOKENS: &str = "tokenizer.ggml.tokens";

fn tiny_chat() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-chat.gguf")
}

/// A tensor of one plain type, with its rows in this order.
fn in_order(weights: &Weights, tensor: &TensorInfo, order: Option<&[usize]>) -> Vec<u8> {
    let rows: u64 = tensor.shape[1..].iter().product();
    let n = tensor.shape[0] / tensor.ty.block_len() * tensor.ty.block_bytes();
    let mut bytes = vec![0; (rows * n) as usize];
    weights.rows(tensor, 0, &mut bytes).expect("its rows");
    let n = n as usize;
    match order {
        None => bytes,
        Some(order) => order
            .iter()
            .flat_map(|row| bytes[row * n..(row + 1) * n].to_vec())
            .collect(),
    }
}

/// The built-in model with other ids of the tokens that are plain texts.
fn with_other_ids(copy: &Path) {
    let weights = weights::open(&tiny_chat()).expect("it is shipped");
    let tokenizer = Tokenizer::from_metadata(weights.metadata()).expect("a vocabulary");
    let tokens = weights.metadata().array(TOKENS).and_then(Array::as_strings);
    let tokens: Vec<Vec<u8>> = tokens.expect("texts").iter().map(<[u8]>::to_vec).collect();
    let plain: Vec<usize> = (0..tokens.len())
        .filter(|id| tokenizer.is_text(*id as u32))
        .collect();
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    for (at, other) in plain.iter().zip(plain.iter().rev()) {
        order[*at] = *other;
    }
    let mut metadata = weights.metadata().clone();
    let reordered = |value: &Value| {
        Some(Value::Array(match value {
            Value::Array(Array::I32(all)) => Array::I32(order.iter().map(|i| all[*i]).collect()),
            Value::Array(Array::F32(all)) => Array::F32(order.iter().map(|i| all[*i]).collect()),
            Value::Array(Array::Str(_)) => {
                let text = |i: &usize| String::from_utf8(tokens[*i].clone());
                let texts: Result<_, _> = order.iter().map(text).collect();
                Array::Str(texts.expect("texts"))
            }
            _ => return None,
        }))
    };
    let values = weights.metadata().iter().filter(|(key, _)| {
        [TOKENS, "tokenizer.ggml.token_type", "tokenizer.ggml.scores"].contains(key)
    });
    for (key, value) in values {
        metadata.insert(key, reordered(value).expect("a list"));
    }
    let tensors = weights.tensors().iter();
    let made = tensors.map(|tensor| {
        let is_of_tokens = ["token_embd.weight", "output.weight"].contains(&&*tensor.name);
        let rows = in_order(&weights, tensor, is_of_tokens.then_some(&order[..]));
        let new = NewTensor {
            name: tensor.name.clone(),
            ty: tensor.ty,
            shape: tensor.shape.clone(),
        };
        (new, rows)
    });
    let (tensors, data): (Vec<NewTensor>, Vec<Vec<u8>>) = made.unzip();
    gguf::write(copy, &metadata, &tensors, |i| Ok(data[i].clone())).expect("it is written");
}

fn options() -> Options {
    Options {
        n_seqs: 2,
        deterministic: true,
        ..Options::plain(512, 64)
    }
}

fn prompt() -> Vec<u32> {
    let weights = weights::open(&tiny_chat()).expect("it is shipped");
    let tokenizer = Tokenizer::from_metadata(weights.metadata()).expect("a vocabulary");
    let text =
        "<|im_start|>user\nWhat is the capital of Norway?<|im_end|>\n<|im_start|>assistant\n";
    tokenizer.encode(text, true, true).expect("a text")
}

fn load(drafter: &Path) -> Model {
    load_with(&tiny_chat(), &options(), named(drafter))
}

#[test]
fn a_drafter_that_says_the_same_with_other_tokens_is_right() {
    let folder = scratch();
    let copy = folder.path().join("other.gguf");
    with_other_ids(&copy);
    let (prompt, most) = (prompt(), 4);
    let (expected, _) = goes_on(&mut load(&copy), &prompt, 48, 0);
    let (found, [drafted, right]) = goes_on(&mut load(&copy), &prompt, 48, most);
    assert_eq!(found, expected);
    assert!(
        drafted >= 30 && right * 10 >= drafted * 9,
        "{right} of {drafted}"
    );
}

#[test]
fn a_drafter_whose_vocabulary_says_nothing_costs_drafts_alone() {
    let folder = scratch();
    let with = definitions();
    let def = with.archs.get("llama").expect("it is built in");
    let path = folder.path().join("numbers.gguf");
    let request = SynthRequest {
        ty: TensorType::F32,
        set: vec![("vocab_size".into(), "64".into())],
        ..SynthRequest::default()
    };
    synth(&def, &request, &path).expect("the model can be made");
    let prompt = prompt();
    let (expected, _) = goes_on(&mut load(&path), &prompt, 24, 0);
    let (found, [drafted, _]) = goes_on(&mut load(&path), &prompt, 24, 4);
    assert_eq!((found, drafted), (expected, 0));
    // One with further tokens, whose drafts are wrong.
    let shipped = weights::open(&tiny_chat()).expect("it is shipped");
    let tokens = shipped.metadata().array(TOKENS).map_or(0, Array::len);
    let request = SynthRequest {
        vocabulary: Some(shipped.metadata().clone()),
        set: vec![("vocab_size".into(), (tokens + 16).to_string())],
        ..request
    };
    let wrong = folder.path().join("wrong.gguf");
    synth(&def, &request, &wrong).expect("the model can be made");
    let (found, _) = goes_on(&mut load(&wrong), &prompt, 24, 4);
    assert_eq!(found, goes_on(&mut load(&wrong), &prompt, 24, 0).0);
}
