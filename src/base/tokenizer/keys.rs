//! The metadata keys of a vocabulary, except those of roles.
//!
//! The keys are those of the GGUF specification, of llama.cpp, and some of this project for properties that neither can
//! express. Readers that do not know the latter lose only these properties.

use crate::weights::{Array, Metadata, Value};

macro_rules! keys {
    ($( $(#[$doc:meta])* $name:ident = $key:literal; )*) => {
        $( $(#[$doc])* pub(super) const $name: &str = $key; )*
        const READ: &[&str] = &[super::roles::ENDS, $( $key ),*];
    };
}

keys! {
    MODEL = "tokenizer.ggml.model";
    PRE = "tokenizer.ggml.pre";
    TOKENS = "tokenizer.ggml.tokens";
    TOKEN_TYPE = "tokenizer.ggml.token_type";
    SCORES = "tokenizer.ggml.scores";
    MERGES = "tokenizer.ggml.merges";
    ADD_BOS = "tokenizer.ggml.add_bos_token";
    ADD_EOS = "tokenizer.ggml.add_eos_token";
    /// Whether, between the texts of a pair, the separator follows the end of the first.
    ADD_SEP = "tokenizer.ggml.add_sep_token";
    ADD_SPACE_PREFIX = "tokenizer.ggml.add_space_prefix";
    REMOVE_EXTRA_SPACES = "tokenizer.ggml.remove_extra_whitespaces";
    CHARSMAP = "tokenizer.ggml.precompiled_charsmap";
    LOWERCASE = "tokenizer.ggml.normalizer.lowercase";
    STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents";

    /// This project's key: the Unicode normal form of texts, `nfc`, `nfd`, `nfkc` or `nfkd`.
    NORMAL_FORM = "tokenizer.ggml.normalizer.form";
    /// This project's key: ids of the special tokens that include the white space before them.
    STRIPS_LEFT = "tokenizer.ggml.lstrip_token_ids";
    /// This project's key: ids of the special tokens that include the white space after them.
    STRIPS_RIGHT = "tokenizer.ggml.rstrip_token_ids";
    /// This project's key: ids of the user-defined symbols that SentencePiece matches within a text; other user-defined
    /// tokens split the text. A file with the key, even an empty one, is tokenized as SentencePiece does.
    SYMBOLS = "tokenizer.ggml.sentencepiece_symbol_ids";
    /// This project's key: the space is added after a text instead of before it.
    SPACE_IS_LAST = "tokenizer.ggml.space_is_last";
    /// This project's key: a space is added before a text, but not after a special token.
    SPACE_AT_START_ONLY = "tokenizer.ggml.space_at_start_only";
}

const ALL: &str = "tokenizer.";
/// The prefix of the keys of chat templates, which are read when a template is chosen.
const TEMPLATES: &str = "tokenizer.chat_template";
/// The suffix of the keys of roles.
const ROLE: &str = "_token_id";

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
