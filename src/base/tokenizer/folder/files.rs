//! The files of a folder that describe its vocabulary, read with limits.
//!
//! Only the file with the vocabulary is required. Nothing here knows the meaning of a key; a value of the wrong type is
//! an error with file and key, and `null` counts as absent.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::util::wording::json_kind;
use crate::weights::safetensors::is_named;

use super::Error;

/// Maximum size of a file that holds a vocabulary, in bytes: ten times the largest known one.
const LARGEST_VOCABULARY: u64 = 512 << 20;
/// Maximum size of any other file, in bytes.
const LARGEST_OTHER: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct FolderFiles {
    pub(super) folder: PathBuf,
    pub(super) vocabulary: VocabularyFile,
    pub(super) config: JsonObject,
    /// `generation_config.json`.
    pub(super) generation: JsonObject,
    pub(super) tokenizer_config: JsonObject,
    /// `special_tokens_map.json`.
    pub(super) special_tokens: JsonObject,
    /// `added_tokens.json`: text to id.
    pub(super) added_tokens: JsonObject,
    pub(super) chat_template: JsonObject,
}

#[derive(Debug)]
pub(super) struct VocabularyFile {
    path: PathBuf,
    pub(super) kind: VocabularyFormat,
    pub(super) bytes: Vec<u8>,
}

/// The kind of a vocabulary file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VocabularyFormat {
    /// `tokenizer.json`.
    Library,
    /// `tekken.json`, with or without a date in its name.
    Tekken,
    /// A SentencePiece model or tiktoken ranks; the content tells which.
    Model,
    /// A SentencePiece model whose ids differ from the model's; the class tells how.
    Renumbered,
    /// `vocab.json`, next to `merges.txt`.
    Merges,
    /// `vocab.txt`.
    Words,
}

/// The files that hold a vocabulary, in order of precedence. `*` matches any text; of several matching names the last
/// one counts, which is the latest version.
const VOCABULARIES: &[(&str, VocabularyFormat)] = &[
    ("tokenizer.json", VocabularyFormat::Library),
    ("tekken.json", VocabularyFormat::Tekken),
    ("tekken*.json", VocabularyFormat::Tekken),
    ("tokenizer.model", VocabularyFormat::Model),
    ("tokenizer.model.v*", VocabularyFormat::Model),
    ("spiece.model", VocabularyFormat::Model),
    ("sentencepiece.bpe.model", VocabularyFormat::Renumbered),
    ("tiktoken.model", VocabularyFormat::Model),
    ("*.tiktoken", VocabularyFormat::Model),
    ("vocab.json", VocabularyFormat::Merges),
    ("vocab.txt", VocabularyFormat::Words),
];

pub(super) const MERGES_FILE: &str = "merges.txt";

/// The file of a folder that holds its vocabulary: `tokenizer.json` before all others.
pub(super) fn vocabulary_of(folder: &Path) -> Option<(PathBuf, VocabularyFormat)> {
    VOCABULARIES.iter().find_map(|(name, kind)| {
        let path = match name.split_once('*') {
            None => folder.join(name),
            Some(ends) => folder.join(names_in(folder, ends).ok()?.last()?),
        };
        let is_whole = *kind != VocabularyFormat::Merges || is_named(&folder.join(MERGES_FILE));
        (is_named(&path) && is_whole).then_some((path, *kind))
    })
}

/// A JSON object of a file; empty if there is no file.
#[derive(Clone, Debug)]
pub(super) struct JsonObject {
    path: PathBuf,
    /// The path of keys to this object, with a trailing dot.
    inside: String,
    entries: Map<String, Value>,
}

impl FolderFiles {
    pub(super) fn read(folder: &Path) -> Result<Self, Error> {
        let found = vocabulary_of(folder);
        let (path, kind) = found.ok_or_else(|| Error::Missing {
            path: folder.join("tokenizer.json"),
        })?;
        let bytes = read(&path, LARGEST_VOCABULARY)?;
        let bytes = bytes.ok_or_else(|| Error::Missing { path: path.clone() })?;
        if bytes.starts_with(b"version https://git-lfs") {
            return Err(Error::Damaged {
                path,
                what: "a pointer of Git LFS instead of the file: `git lfs pull` fetches it"
                    .to_owned(),
            });
        }
        let object = |name: &str| JsonObject::read(folder.join(name));
        Ok(Self {
            folder: folder.to_owned(),
            vocabulary: VocabularyFile { path, kind, bytes },
            config: object("config.json")?,
            generation: object("generation_config.json")?,
            tokenizer_config: object("tokenizer_config.json")?,
            special_tokens: object("special_tokens_map.json")?,
            added_tokens: object("added_tokens.json")?,
            chat_template: object("chat_template.json")?,
        })
    }

    pub(super) fn tokenizer_path(&self) -> PathBuf {
        self.vocabulary.path.clone()
    }

    pub(super) fn damaged(&self, what: impl Into<String>) -> Error {
        Error::Damaged {
            path: self.tokenizer_path(),
            what: what.into(),
        }
    }

    /// The text of a file of the folder; `None` if it does not exist.
    pub(super) fn text(&self, name: impl AsRef<Path>) -> Result<Option<String>, Error> {
        let path = self.folder.join(name);
        let Some(bytes) = read(&path, LARGEST_OTHER)? else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes).map_err(|error| Error::Utf8 {
            path,
            source: error.utf8_error(),
        })?;
        Ok(Some(text))
    }

    /// The names of the files in a subfolder with this ending, sorted.
    pub(super) fn names_in(&self, folder: &str, ending: &str) -> Result<Vec<String>, Error> {
        names_in(&self.folder.join(folder), ("", ending))
    }
}

impl JsonObject {
    fn read(path: PathBuf) -> Result<Self, Error> {
        let entries = match read(&path, LARGEST_OTHER)? {
            None => Map::new(),
            Some(bytes) => match serde_json::from_slice(&bytes) {
                Err(source) => return Err(Error::Json { path, source }),
                Ok(entries) => entries,
            },
        };
        Ok(Self {
            path,
            inside: String::new(),
            entries,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A key with the path of keys to it.
    pub(super) fn full(&self, key: &str) -> String {
        format!("{}{key}", self.inside)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.entries.iter()
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key).filter(|value| !value.is_null())
    }

    /// A value converted by a function, or an error with the type that was found.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || self.wrong_type(key, value, expected);
        read(value).map(Some).ok_or_else(wrong)
    }

    /// The error with the type that was found and the one that was expected.
    pub(super) fn wrong_type(&self, key: &str, value: &Value, expected: &'static str) -> Error {
        Error::WrongType {
            path: self.path.clone(),
            key: self.full(key),
            found: json_kind(value),
            expected,
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, Error> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    /// A nested object; empty if there is none.
    pub(super) fn object(&self, key: &str) -> Result<Self, Error> {
        let entries = self.typed(key, "an object", Value::as_object)?;
        Ok(Self {
            path: self.path.clone(),
            inside: format!("{}{key}.", self.inside),
            entries: entries.cloned().unwrap_or_default(),
        })
    }

    /// The text of a token: a string, or an object with its `content`.
    pub(super) fn token(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(
            key,
            "a token: a string, or an object with `content`",
            |value| value.as_str().or_else(|| value.get("content")?.as_str()),
        )
    }

    /// The ids of a key: one id or a list. A negative id counts as none.
    pub(super) fn ids(&self, key: &str) -> Result<Vec<u64>, Error> {
        let ids = self.typed(key, "an id or a list of ids", |value| {
            let several = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            let is_id = |v: &Value| v.is_u64() || v.is_i64();
            several
                .iter()
                .all(is_id)
                .then(|| several.iter().filter_map(Value::as_u64).collect())
        })?;
        Ok(ids.unwrap_or_default())
    }
}

/// The names of the files in a folder with this start and ending, sorted.
fn names_in(path: &Path, (start, end): (&str, &str)) -> Result<Vec<String>, Error> {
    let io = Error::io(path);
    let entries = match fs::read_dir(path) {
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        entries => entries.map_err(io)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(io)?.file_name();
        let is_one = |name: &&str| {
            let rest = name.strip_prefix(start);
            rest.is_some_and(|rest| rest.ends_with(end))
        };
        names.extend(name.to_str().filter(is_one).map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// The bytes of a file; `None` if it does not exist.
fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    let io = Error::io(path);
    // Checked before opening, because opening a pipe may block forever.
    let about = match fs::metadata(path) {
        Err(error) if is_absent(&error) => return Ok(None),
        about => about.map_err(io)?,
    };
    if !about.is_file() {
        return Err(Error::NotAFile {
            path: path.to_owned(),
        });
    }
    if about.len() > limit {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            bytes: about.len(),
            limit,
        });
    }
    let mut bytes = Vec::with_capacity(about.len() as usize);
    let file = File::open(path).map_err(io)?;
    file.take(limit).read_to_end(&mut bytes).map_err(io)?;
    Ok(Some(bytes))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
