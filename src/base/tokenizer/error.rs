//! Errors of a vocabulary, or of a text for it.
//!
//! Errors of a vocabulary name the key. The caller, who knows the file, adds its path.

/// What is wrong with a vocabulary, or with a text for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key that the tokenizer needs is missing.
    #[error("missing key `{0}`")]
    MissingKey(&'static str),
    /// The folder has no file with a vocabulary.
    #[error(
        "there is no `tokenizer.json` in the folder (nor `tokenizer.model`, `vocab.json` with `merges.txt`, \
         `vocab.txt`); download it as well"
    )]
    NoVocabulary,
    /// A key holds a value of another type.
    #[error("`{key}` is of type {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// The type of its value.
        found: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// An array has fewer entries than there are tokens.
    #[error("`{key}` has {found} entries, expected {expected}, one per token")]
    ShortArray {
        /// The key.
        key: &'static str,
        /// The number of its entries.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// The vocabulary has no tokens.
    #[error("`tokenizer.ggml.tokens` is empty")]
    EmptyVocabulary,
    /// The vocabulary has more tokens than there are ids.
    #[error("`tokenizer.ggml.tokens` has {0} entries, more than there are ids")]
    TooManyTokens(usize),
    /// The tokenizer model is unknown or not supported.
    #[error("tokenizer model `{0}` is not supported")]
    UnsupportedModel(String),
    /// The pre-tokenizer is unknown.
    #[error("unknown pre-tokenizer `{0}` (`tokenizer.ggml.pre`)")]
    UnknownPreTokenizer(String),
    /// The Unicode normal form is unknown.
    #[error("unknown normal form `{0}` (`tokenizer.ggml.normalizer.form`)")]
    UnknownForm(String),
    /// A pattern of the pre-tokenizer does not compile.
    #[error("pre-tokenizer pattern `{pattern}`")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The compiler's error.
        source: Box<regex_automata::meta::BuildError>,
    },
    /// The model has no tokenizer, so texts cannot be encoded.
    #[error(
        "the model has no tokenizer (`tokenizer.ggml.model` is `{0}`): it takes token ids only"
    )]
    NoTokenizer(&'static str),
    /// A byte of the text has no token, and the vocabulary has no unknown token.
    #[error("the vocabulary has no token for byte {0:#04x}")]
    NoTokenForByte(u8),
    /// The vocabulary has no unknown token.
    #[error("the vocabulary has no token for the unknown (`tokenizer.ggml.unknown_token_id`)")]
    NoUnknownToken,
    /// A table of the file is inconsistent.
    #[error("`{0}` is damaged")]
    BrokenTable(&'static str),
    /// The library that encodes the text fails.
    #[error("the text cannot be tokenized: {0}")]
    External(String),
    /// The text is too long for the type of positions.
    #[error("the text is too long: {0} bytes")]
    TextTooLong(usize),
}
