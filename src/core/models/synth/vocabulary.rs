//! The vocabulary of a random model: numbers without text, or a padded copy of another file's.

use lab_base::weights::{Array, Metadata, Value as Meta};

use super::Error;

/// Number of the token type of plain tokens in a file.
const PLAIN: i32 = 1;
/// Score of a padding token, below the scores for which merging looks.
const LAST_SCORE: f32 = -1e6;

/// The number of tokens of another file's vocabulary; `given` is the requested number.
pub(super) fn size(vocabulary: &Metadata, given: Option<i64>) -> Result<u32, Error> {
    let found = vocabulary
        .array("tokenizer.ggml.tokens")
        .map_or(0, Array::len);
    let fault = |message: String| Error::Vocabulary { message };
    let n = u32::try_from(found)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| fault("has no tokens (`tokenizer.ggml.tokens`)".into()))?;
    match given {
        None => Ok(n),
        Some(given) => u32::try_from(given)
            .ok()
            .filter(|given| *given >= n)
            .ok_or_else(|| fault(format!("has {n} tokens, and `vocab_size` is {given}"))),
    }
}

/// A vocabulary without text: tokens are numbers, which every engine accepts.
pub(super) fn numbers(n_vocab: i64, out: &mut Metadata) {
    out.insert("tokenizer.ggml.model", Meta::Str("test".into()));
    let tokens = (0..n_vocab).map(|i| format!("tok_{i}")).collect();
    out.insert("tokenizer.ggml.tokens", Meta::Array(Array::Str(tokens)));
}

/// Another file's vocabulary and chat template, padded with plain tokens to `n_vocab`.
pub(super) fn copy(vocabulary: &Metadata, n_vocab: i64, out: &mut Metadata) {
    let n_vocab = usize::try_from(n_vocab).unwrap_or(0);
    for (key, value) in vocabulary.iter() {
        if !key.starts_with("tokenizer.") {
            continue;
        }
        let mut value = value.clone();
        match (key, &mut value) {
            ("tokenizer.ggml.tokens", Meta::Array(Array::Str(tokens))) => {
                for i in tokens.len()..n_vocab {
                    tokens.push(format!("unused_{i}").as_bytes());
                }
            }
            ("tokenizer.ggml.token_type", Meta::Array(Array::I32(kinds))) => {
                kinds.resize(n_vocab, PLAIN);
            }
            ("tokenizer.ggml.token_type", Meta::Array(Array::U32(kinds))) => {
                kinds.resize(n_vocab, PLAIN as u32);
            }
            ("tokenizer.ggml.scores", Meta::Array(Array::F32(scores))) => {
                scores.resize(n_vocab, LAST_SCORE);
            }
            _ => {}
        }
        out.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(n: usize) -> Metadata {
        let mut metadata = Metadata::default();
        metadata.insert("general.name", Meta::Str("other".into()));
        metadata.insert("tokenizer.ggml.model", Meta::Str("gpt2".into()));
        let tokens = (0..n).map(|i| format!("t{i}")).collect();
        metadata.insert("tokenizer.ggml.tokens", Meta::Array(Array::Str(tokens)));
        let kinds = Meta::Array(Array::I32(vec![3; n]));
        metadata.insert("tokenizer.ggml.token_type", kinds);
        metadata
    }

    #[test]
    fn a_vocabulary_is_copied_and_filled_up() {
        let mut out = Metadata::default();
        copy(&vocabulary(3), 5, &mut out);
        assert_eq!(out.str("general.name"), None);
        assert_eq!(out.str("tokenizer.ggml.model"), Some("gpt2"));
        let tokens = out.array("tokenizer.ggml.tokens").expect("tokens");
        let tokens = tokens.as_strings().expect("texts");
        let texts: Vec<&[u8]> = tokens.iter().collect();
        assert_eq!(texts, [&b"t0"[..], b"t1", b"t2", b"unused_3", b"unused_4"]);
        let kinds = out.get("tokenizer.ggml.token_type").expect("kinds");
        assert_eq!(*kinds, Meta::Array(Array::I32(vec![3, 3, 3, 1, 1])));
    }

    #[test]
    fn sizes_that_do_not_go_together_are_refused() {
        assert_eq!(size(&vocabulary(3), None).expect("a size"), 3);
        assert_eq!(size(&vocabulary(3), Some(8)).expect("a size"), 8);
        let message = |n, given| {
            size(&vocabulary(n), given)
                .expect_err("refused")
                .to_string()
        };
        assert!(message(3, Some(2)).contains("3 tokens"));
        assert!(message(3, Some(-1)).contains("-1"));
        assert!(message(0, None).contains("no tokens"));
    }
}
