//! Errors of the files of a folder; every error names the file.

use std::path::PathBuf;

use super::super::Error as Inner;

/// Why the vocabulary of a folder was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's message.
        source: std::io::Error,
    },
    /// A file that has to be there is not.
    #[error("{}: there is no such file, and without it the folder has no vocabulary", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file breaks its own format.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// The file says what the tokens are, and nothing says how texts are cut into them.
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
        /// What is read at most.
        limit: u64,
    },
    /// The file is not JSON, or not of the form it should have.
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
        /// Where.
        source: std::str::Utf8Error,
    },
    /// The library that defines the format does not take the file.
    #[error("{}: {message}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The library's message.
        message: String,
    },
    /// A key holds a value of another type.
    #[error("{}: `{key}` is {found}, expected {expected}", path.display())]
    WrongType {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Type of its value.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A number that no vocabulary can have.
    #[error("{}: `{key}` is {found}, at most {limit} is possible", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        found: u64,
        /// The highest value.
        limit: usize,
    },
    /// An id that is not in the vocabulary.
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
    /// A token whose id is beyond the model's vocabulary.
    #[error("{}: token `{token}` has id {id}, but {limit} is the highest number of tokens ({by})", path.display())]
    TokenOutOfRange {
        /// The file.
        path: PathBuf,
        /// The token.
        token: String,
        /// Its id.
        id: u32,
        /// The number of tokens that ids must be below.
        limit: usize,
        /// What says so.
        by: &'static str,
    },
    /// Two tokens with one id.
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
    /// A token that does not get the id it is declared with.
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
        /// The id it has.
        found: u32,
    },
    /// The vocabulary is none that the keys of a GGUF file can describe.
    #[error(
        "{}: no GGUF file can say how this text is tokenized: {why}; the folder itself runs",
        path.display()
    )]
    NotExpressible {
        /// The file.
        path: PathBuf,
        /// What no key can state.
        why: String,
    },
    /// The vocabulary cannot be used.
    #[error("{}: {source}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Inner,
    },
}
