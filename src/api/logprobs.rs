//! Log-probabilities of tokens as JSON: the model's own, before temperature, biases and every other
//! stage; natural logarithms, at least -9999.

use serde_json::{Value, json};

use crate::engine::{AnswerToken, TokenLogprob};
use crate::text::tokenizer::Tokenizer;

fn entry(bytes: &[u8], token: &TokenLogprob) -> Value {
    json!({
        "token": String::from_utf8_lossy(bytes), "logprob": token.logprob, "bytes": bytes,
        "id": token.id,
    })
}

/// One entry for each token whose bytes are in the text, with its list of most probable tokens.
pub(super) fn entries(tokens: &[AnswerToken], tokenizer: &Tokenizer) -> Vec<Value> {
    let of_token = |token: &AnswerToken| {
        let mut value = entry(&token.bytes, token.chosen.as_ref()?);
        let top = token.top.iter();
        value["top_logprobs"] = top.map(|top| entry(tokenizer.piece(top.id), top)).collect();
        Some(value)
    };
    tokens.iter().filter_map(of_token).collect()
}
