//! Errors of a vocabulary, or of a text for it.
//!
//! Errors of a vocabulary name the key. The caller, who knows the file, adds its path.

/// What is wrong with a vocabulary, or with a text for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("missing key `{0}`")]
    MissingKey(&'static str),
    #[error(
        "there is no `tokenizer.json` in the folder (nor `tokenizer.model`, `vocab.json` with `merges.txt`, \
         `vocab.txt`); download it as well"
    )]
    NoVocabulary,
    #[error("`{key}` is of type {found}, expected {expected}")]
    WrongType {
        key: &'static str,
        found: &'static str,
        expected: &'static str,
    },
    #[error("`{key}` has {found} entries, expected {expected}, one per token")]
    ShortArray {
        key: &'static str,
        found: usize,
        expected: usize,
    },
    #[error("`tokenizer.ggml.tokens` is empty")]
    EmptyVocabulary,
    #[error("`tokenizer.ggml.tokens` has {0} entries, more than there are ids")]
    TooManyTokens(usize),
    #[error("tokenizer model `{0}` is not supported")]
    UnsupportedModel(String),
    #[error("unknown pre-tokenizer `{0}` (`tokenizer.ggml.pre`)")]
    UnknownPreTokenizer(String),
    #[error("unknown normal form `{0}` (`tokenizer.ggml.normalizer.form`)")]
    UnknownForm(String),
    #[error("pre-tokenizer pattern `{pattern}`")]
    Pattern {
        pattern: String,
        source: Box<regex_automata::meta::BuildError>,
    },
    #[error(
        "the model has no tokenizer (`tokenizer.ggml.model` is `{0}`): it takes token ids only"
    )]
    NoTokenizer(&'static str),
    #[error("the vocabulary has no token for byte {0:#04x}")]
    NoTokenForByte(u8),
    #[error("the vocabulary has no token for the unknown (`tokenizer.ggml.unknown_token_id`)")]
    NoUnknownToken,
    #[error("`{0}` is damaged")]
    BrokenTable(&'static str),
    #[error("the text cannot be tokenized: {0}")]
    External(String),
    #[error("the text is too long: {0} bytes")]
    TextTooLong(usize),
}
