//! Errors of the files of a folder; every error names the file.

use std::path::PathBuf;

use super::super::Error as Inner;

/// The reason why the vocabulary of a folder was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system reported an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's message.
        source: std::io::Error,
    },
    /// A required file is missing.
    #[error("{}: there is no such file, and without it the folder has no vocabulary", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file violates its own format.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// The file lists the tokens but not how texts are split into them.
    #[error(
        "{}: the file does not say how texts are cut and tokens are numbered, and {class}; a `tokenizer.json` says it all: \
         `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of transformers writes one",
        path.display()
    )]
    UnknownClass {
        /// The file.
        path: PathBuf,
        /// The class, as part of a sentence.
        class: String,
    },
    /// The path leads to a folder or a device.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is larger than any of its kind.
    #[error("{}: {bytes} bytes, at most {limit} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size limit.
        limit: u64,
    },
    /// The file is not JSON, or not of the expected form.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// The file is not UTF-8.
    #[error("{}: not UTF-8: {source}", path.display())]
    Utf8 {
        /// The file.
        path: PathBuf,
        /// The position of the error.
        source: std::str::Utf8Error,
    },
    /// The library that defines the format refuses the file.
    #[error("{}: {message}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The library's message.
        message: String,
    },
    /// The value of a key has another type.
    #[error("{}: `{key}` is {found}, expected {expected}", path.display())]
    WrongType {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The type of its value.
        found: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// A number exceeds the limit for vocabularies.
    #[error("{}: `{key}` is {found}, at most {limit} is possible", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        found: u64,
        /// The maximum value.
        limit: usize,
    },
    /// An id is outside the vocabulary.
    #[error("{}: `{key}` is {id}, but the vocabulary has {tokens} tokens", path.display())]
    IdOutOfRange {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The id.
        id: u64,
        /// Number of tokens.
        tokens: usize,
    },
    /// The id of a token is beyond the model's vocabulary.
    #[error("{}: token `{token}` has id {id}, but {limit} is the highest number of tokens ({by})", path.display())]
    TokenOutOfRange {
        /// The file.
        path: PathBuf,
        /// The token.
        token: String,
        /// Its id.
        id: u32,
        /// Ids must be below this number.
        limit: usize,
        /// The source of the limit.
        by: &'static str,
    },
    /// Two tokens have the same id.
    #[error("{}: tokens `{first}` and `{second}` both have id {id}", path.display())]
    DoubledId {
        /// The file.
        path: PathBuf,
        /// The id.
        id: u32,
        /// One token.
        first: String,
        /// The other.
        second: String,
    },
    /// A token does not get the id with which it is declared.
    #[error(
        "{}: token `{token}` is declared with id {declared}, but added tokens follow one another \
         after the vocabulary, so it has id {found}",
        path.display()
    )]
    MovedId {
        /// The file.
        path: PathBuf,
        /// The token.
        token: String,
        /// The id in the file.
        declared: u32,
        /// The actual id.
        found: u32,
    },
    /// The keys of a GGUF file cannot describe the vocabulary.
    #[error(
        "{}: no GGUF file can say how this text is tokenized: {why}; the folder itself runs",
        path.display()
    )]
    NotExpressible {
        /// The file.
        path: PathBuf,
        /// The property that no key can express.
        why: String,
    },
    /// The vocabulary cannot be used.
    #[error("{}: {source}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Inner,
    },
}
