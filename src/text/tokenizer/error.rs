//! Errors of a vocabulary, or of a text for it.
//!
//! Errors of a vocabulary name the key; the caller, who knows the file, adds its path.

/// What is wrong with a vocabulary, or with a text for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key the tokenizer needs is missing.
    #[error("missing key `{0}`")]
    MissingKey(&'static str),
    /// A key holds a value of another type.
    #[error("`{key}` is of type {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// Type of its value.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// An array has fewer entries than there are tokens.
    #[error("`{key}` has {found} entries, expected {expected}, one per token")]
    ShortArray {
        /// The key.
        key: &'static str,
        /// Entries it has.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// The vocabulary has no tokens.
    #[error("`tokenizer.ggml.tokens` is empty")]
    EmptyVocabulary,
    /// The vocabulary has more tokens than ids.
    #[error("`tokenizer.ggml.tokens` has {0} entries, more than there are ids")]
    TooManyTokens(usize),
    /// A tokenizer model that is unknown or not supported.
    #[error("tokenizer model `{0}` is not supported")]
    UnsupportedModel(String),
    /// An unknown pre-tokenizer.
    #[error("unknown pre-tokenizer `{0}` (`tokenizer.ggml.pre`)")]
    UnknownPreTokenizer(String),
    /// An unknown Unicode normal form.
    #[error("unknown normal form `{0}` (`tokenizer.ggml.normalizer.form`)")]
    UnknownForm(String),
    /// A pattern of the pre-tokenizer does not compile.
    #[error("pre-tokenizer pattern `{pattern}`")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        source: Box<regex_automata::meta::BuildError>,
    },
    /// The model comes without a tokenizer, so texts cannot be encoded.
    #[error(
        "the model has no tokenizer (`tokenizer.ggml.model` is `{0}`): it takes token ids only"
    )]
    NoTokenizer(&'static str),
    /// A byte of the text has no token, and there is no token for the unknown.
    #[error("the vocabulary has no token for byte {0:#04x}")]
    NoTokenForByte(u8),
    /// The vocabulary has no token for unknown characters.
    #[error("the vocabulary has no token for the unknown (`tokenizer.ggml.unknown_token_id`)")]
    NoUnknownToken,
    /// A table of the file does not hold together.
    #[error("`{0}` is damaged")]
    BrokenTable(&'static str),
    /// The library that encodes the text fails.
    #[error("the text cannot be tokenized: {0}")]
    External(String),
    /// The text is longer than positions in it can be.
    #[error("the text is too long: {0} bytes")]
    TextTooLong(usize),
}
