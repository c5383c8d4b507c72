//! Errors of the files of a folder; every error names the file.

use std::path::{Path, PathBuf};

use super::super::Error as Inner;

/// The reason why the vocabulary of a folder was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: there is no such file, and without it the folder has no vocabulary", path.display())]
    Missing { path: PathBuf },
    #[error("{}: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error(
        "{}: the file does not say how texts are cut and tokens are numbered, and {class}; a `tokenizer.json` says it all: \
         `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of transformers writes one",
        path.display()
    )]
    UnknownClass { path: PathBuf, class: String },
    #[error("{}: not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("{}: {bytes} bytes, at most {limit} are read", path.display())]
    TooLarge {
        path: PathBuf,
        bytes: u64,
        limit: u64,
    },
    #[error("{}: {source}", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{}: not UTF-8: {source}", path.display())]
    Utf8 {
        path: PathBuf,
        source: std::str::Utf8Error,
    },
    #[error("{}: {message}", path.display())]
    Refused { path: PathBuf, message: String },
    #[error("{}: `{key}` is {found}, expected {expected}", path.display())]
    WrongType {
        path: PathBuf,
        key: String,
        found: &'static str,
        expected: &'static str,
    },
    #[error("{}: `{key}` is {found}, at most {limit} is possible", path.display())]
    TooMany {
        path: PathBuf,
        key: String,
        found: u64,
        limit: usize,
    },
    #[error("{}: `{key}` is {id}, but the vocabulary has {tokens} tokens", path.display())]
    IdOutOfRange {
        path: PathBuf,
        key: String,
        id: u64,
        tokens: usize,
    },
    #[error("{}: token `{token}` has id {id}, but {limit} is the highest number of tokens ({by})", path.display())]
    TokenOutOfRange {
        path: PathBuf,
        token: String,
        id: u32,
        limit: usize,
        by: &'static str,
    },
    #[error("{}: tokens `{first}` and `{second}` both have id {id}", path.display())]
    DoubledId {
        path: PathBuf,
        id: u32,
        first: String,
        second: String,
    },
    #[error(
        "{}: token `{token}` is declared with id {declared}, but added tokens follow one another \
         after the vocabulary, so it has id {found}",
        path.display()
    )]
    MovedId {
        path: PathBuf,
        token: String,
        declared: u32,
        found: u32,
    },
    #[error(
        "{}: no GGUF file can say how this text is tokenized: {why}; the folder itself runs",
        path.display()
    )]
    NotExpressible { path: PathBuf, why: String },
    #[error("{}: {source}", path.display())]
    Vocabulary { path: PathBuf, source: Inner },
}

impl Error {
    /// The error of the operating system over a file.
    pub(super) fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + Copy {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}
