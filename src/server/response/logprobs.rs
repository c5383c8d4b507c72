//! Log-probabilities of tokens as JSON. They are the model's own, before every stage of sampling, unless the request
//! asks for those after all stages; natural logarithms, at least -9999.
//!
//! Three shapes: chat completions, legacy completions (OpenAI), and prompts (vLLM).

use serde::Serialize;
use serde_json::{Map, Value, json};

use lab_base::tokenizer::Tokenizer;
use lab_core::engine::{AnswerToken, TokenLogprob};

use crate::http::json::{self, JsonText};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TokenNames {
    #[default]
    Texts,
    /// Tokens are named by their ids, for tokens whose bytes are not text (vLLM).
    Ids,
}

impl TokenNames {
    pub(crate) fn of(are_ids: Option<bool>) -> Self {
        match are_ids {
            Some(true) => Self::Ids,
            _ => Self::Texts,
        }
    }

    fn name(self, id: u32, text: impl FnOnce() -> String) -> String {
        match self {
            Self::Texts => text(),
            Self::Ids => format!("token_id:{id}"),
        }
    }
}

fn entry(bytes: &[u8], token: &TokenLogprob, names: TokenNames) -> Value {
    let text = || String::from_utf8_lossy(bytes).into_owned();
    json!({
        "token": names.name(token.id, text), "logprob": token.logprob, "bytes": bytes,
        "id": token.id,
    })
}

/// The shape of chat completions: one entry for each token whose bytes are in the text, with its list of most probable
/// tokens.
pub(crate) fn entries(
    tokens: &[AnswerToken],
    names: TokenNames,
    tokenizer: &Tokenizer,
) -> impl Iterator<Item = Value> {
    tokens.iter().filter_map(move |token| {
        let mut value = entry(&token.bytes, token.chosen.as_ref()?, names);
        value["rank"] = token.rank.into();
        let top = token.top.iter();
        let top = top.map(|top| entry(tokenizer.piece(top.id), top, names));
        value["top_logprobs"] = top.collect();
        Some(value)
    })
}

/// The shape of prompts: for each token a map from token ids to log-probabilities; null for the first token.
pub(crate) fn of_prompt(tokens: &[AnswerToken], tokenizer: &Tokenizer) -> JsonText {
    let of_token = |token: &AnswerToken| {
        let chosen = token.chosen.as_ref()?;
        let entry = |rank: usize, token: &TokenLogprob| {
            let text = String::from_utf8_lossy(tokenizer.piece(token.id));
            let value = json!({ "logprob": token.logprob, "rank": rank, "decoded_token": text });
            (token.id.to_string(), value)
        };
        let top = (1..).zip(&token.top);
        let mut out: Map<String, Value> = top.map(|(rank, token)| entry(rank, token)).collect();
        out.extend([entry(token.rank, chosen)]);
        Some(out)
    };
    let of_tokens = tokens.iter().map(|token| json::json_text(&of_token(token)));
    json::json_text(&of_tokens.collect::<Vec<JsonText>>())
}

/// The shape of legacy completions: four parallel arrays.
#[derive(Debug, Default, Serialize)]
pub(crate) struct LegacyLogprobs {
    #[serde(skip)]
    names: TokenNames,
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<JsonText>>,
    text_offset: Vec<usize>,
}

impl LegacyLogprobs {
    pub(crate) fn new(names: TokenNames) -> Self {
        Self {
            names,
            ..Self::default()
        }
    }

    /// Adds tokens whose text starts at character `offset`, and returns the offset of its end. A prompt with tokens
    /// that are not in the text, such as BOS, starts at a negative offset; it is written as 0.
    pub(crate) fn push(
        &mut self,
        tokens: &[AnswerToken],
        mut offset: isize,
        tokenizer: &Tokenizer,
    ) -> isize {
        for token in tokens {
            let own = self.names.name(token.id, || name(&token.bytes));
            self.tokens.push(own);
            self.text_offset.push(offset.max(0) as usize);
            let chosen = token.chosen.as_ref();
            self.token_logprobs.push(chosen.map(|c| c.logprob));
            let top = chosen.map(|c| json::json_text(&top(token, c, self.names, tokenizer)));
            self.top_logprobs.push(top);
            offset += n_characters(&token.bytes) as isize;
        }
        offset
    }

    pub(crate) fn json(&self) -> JsonText {
        json::json_text(self)
    }
}

/// Log-probabilities by token text, including the token itself. If two tokens have the same text, the more probable one
/// is kept.
fn top(
    token: &AnswerToken,
    chosen: &TokenLogprob,
    names: TokenNames,
    tokenizer: &Tokenizer,
) -> Map<String, Value> {
    let mut out = Map::new();
    let others = token.top.iter().map(|t| (tokenizer.piece(t.id), t));
    for (bytes, of) in others.chain([(token.bytes.as_slice(), chosen)]) {
        let (own, logprob) = (names.name(of.id, || name(bytes)), of.logprob);
        let value = out.entry(own).or_insert_with(|| logprob.into());
        if value.as_f64().is_some_and(|known| known < logprob) {
            *value = logprob.into();
        }
    }
    out
}

/// The text of a token; its bytes in hexadecimal if they are not valid text.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", bytes.collect::<String>())
        }
    }
}

/// Number of characters that start in these bytes of UTF-8.
pub(crate) fn n_characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_base::weights;

    #[test]
    fn of_tokens_with_the_same_text_the_more_probable_one_stays() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-chat.gguf");
        let model = weights::open(model.as_ref()).expect("it is there");
        let tokenizer = Tokenizer::from_metadata(model.metadata()).expect("a vocabulary");
        let [a, b] = ["a", "b"].map(|text| tokenizer.id_of(text).expect("a token"));
        let of = |id, logprob| TokenLogprob { id, logprob };
        // A stop sequence shortens the token to the text of another token.
        for (own, expected) in [(-0.5, -0.5), (-3.0, -1.0)] {
            let chosen = of(300, own);
            let token = AnswerToken {
                id: 300,
                bytes: b"a".to_vec(),
                chosen: Some(chosen),
                rank: 1,
                top: vec![of(a, -1.0), of(b, -2.0)],
            };
            let found = Value::Object(top(&token, &chosen, TokenNames::Texts, &tokenizer));
            assert_eq!(found, json!({ "a": expected, "b": -2.0 }));
        }
    }
}
