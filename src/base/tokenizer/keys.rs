//! The metadata keys of a vocabulary, except those of roles.
//!
//! The keys are those of the GGUF specification, of llama.cpp, and some of this project for properties that neither can
//! express. Readers that do not know the latter lose only these properties.

use crate::weights::{Array, Metadata, Value};

pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(super) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
/// Whether, between the texts of a pair, the separator follows the end of the first.
pub(super) const ADD_SEP: &str = "tokenizer.ggml.add_sep_token";
pub(super) const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
pub(super) const REMOVE_EXTRA_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
pub(super) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
pub(super) const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
pub(super) const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";

/// This project's key: the Unicode normal form of texts, `nfc`, `nfd`, `nfkc` or `nfkd`.
pub(super) const NORMAL_FORM: &str = "tokenizer.ggml.normalizer.form";
/// This project's key: ids of the special tokens that include the white space before them.
pub(super) const STRIPS_LEFT: &str = "tokenizer.ggml.lstrip_token_ids";
/// This project's key: ids of the special tokens that include the white space after them.
pub(super) const STRIPS_RIGHT: &str = "tokenizer.ggml.rstrip_token_ids";
/// This project's key: ids of the user-defined symbols that SentencePiece matches within a text; other user-defined
/// tokens split the text. A file with the key, even an empty one, is tokenized as SentencePiece does.
pub(super) const SYMBOLS: &str = "tokenizer.ggml.sentencepiece_symbol_ids";
/// This project's key: the space is added after a text instead of before it.
pub(super) const SPACE_IS_LAST: &str = "tokenizer.ggml.space_is_last";
/// This project's key: a space is added before a text, but not after a special token.
pub(super) const SPACE_AT_START_ONLY: &str = "tokenizer.ggml.space_at_start_only";

const ALL: &str = "tokenizer.";
/// The prefix of the keys of chat templates, which are read when a template is chosen.
const TEMPLATES: &str = "tokenizer.chat_template";
/// The suffix of the keys of roles.
const ROLE: &str = "_token_id";

const READ: [&str; 21] = [
    MODEL,
    PRE,
    TOKENS,
    TOKEN_TYPE,
    SCORES,
    MERGES,
    ADD_BOS,
    ADD_EOS,
    ADD_SEP,
    ADD_SPACE_PREFIX,
    REMOVE_EXTRA_SPACES,
    CHARSMAP,
    LOWERCASE,
    STRIP_ACCENTS,
    NORMAL_FORM,
    STRIPS_LEFT,
    STRIPS_RIGHT,
    SYMBOLS,
    SPACE_IS_LAST,
    SPACE_AT_START_ONLY,
    super::roles::ENDS,
];

/// Keys that do not affect the tokens of any text, with the reason.
const INERT: [(&str, &str); 3] = [
    (
        "tokenizer.huggingface.json",
        "the same vocabulary in another format",
    ),
    (
        "tokenizer.rwkv.world",
        "the same vocabulary in another format",
    ),
    (
        "tokenizer.ggml.token_type_count",
        "the rows of a table of the model",
    ),
];

/// The keys of the vocabulary that nothing reads, without those that are off or have no effect. Roles that are not read
/// have no effect: llama.cpp uses them only as names.
pub fn unread(metadata: &Metadata) -> impl Iterator<Item = String> {
    let keys = metadata.iter().filter(|(key, value)| {
        key.starts_with(ALL)
            && !key.starts_with(TEMPLATES)
            && !key.ends_with(ROLE)
            && !READ.contains(key)
            && !INERT.iter().any(|(inert, _)| inert == key)
            && !is_off(key, value)
    });
    keys.map(|(key, _)| key.to_owned())
}

/// Whether a value means the same as an absent key.
fn is_off(key: &str, value: &Value) -> bool {
    match value {
        // The only flag that is on if it is absent.
        Value::Bool(flag) => *flag == (key == "tokenizer.ggml.escape_whitespaces"),
        Value::Str(text) => text.is_empty(),
        Value::Array(items) => Array::len(items) == 0,
        _ => false,
    }
}
