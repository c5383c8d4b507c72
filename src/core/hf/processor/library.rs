//! The processor files: those built into the program and those of the user's folders, and which one is for a folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lab_media::picture::PictureRules;
use lab_media::sound::SoundRules;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use toml::{Table, Value as Toml};

use super::super::config_file::read_config;
use super::super::{CONFIG, Error};
use super::evaluate::{Evaluated, Item};
use super::scope::{FolderFiles, ProcessorScope};
use crate::arch::expr::Value;
use crate::arch::{LibraryError, SourceFile, sources_in};

include!(concat!(env!("OUT_DIR"), "/embedded_processors.rs"));

/// Ending of a processor file's name.
pub const ENDING: &str = ".processor.toml";

/// The file whose entries all files have, unless they have their own.
const COMMON: &str = "common";

/// Files of a folder.
const PROCESSOR: &str = "processor_config.json";
const PREPROCESSOR: &str = "preprocessor_config.json";
const TOKENIZER: &str = "tokenizer_config.json";

/// The reason why a folder's media cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum ProcessorError {
    /// A file of the folder is malformed.
    #[error(transparent)]
    Folder(#[from] Box<Error>),
    /// No file is for the processor of the folder.
    #[error("{}: no processor file is for {name} yet (--archs DIR adds files of your own)", folder.display())]
    Unknown { folder: PathBuf, name: String },
    /// A processor file is malformed.
    #[error("{file}: {message}")]
    File { file: String, message: String },
    /// A processor file does not fit the folder.
    #[error("{}: {file}: {message}", folder.display())]
    Unfit {
        folder: PathBuf,
        file: String,
        message: String,
    },
}

/// A kind of media, as folders and processor files name it.
struct MediaKind {
    /// The table of a processor file with its rules.
    table: &'static str,
    /// The objects of `processor_config.json` that may have its keys, which older folders have in a file of their own.
    objects: &'static [&'static str],
    /// The key of its type.
    type_key: &'static str,
    /// The list of a processor file with the types that it is for.
    types: &'static str,
}

const PICTURES: MediaKind = MediaKind {
    table: "picture",
    objects: &["image_processor"],
    type_key: "image_processor_type",
    types: "types",
};

const SOUNDS: MediaKind = MediaKind {
    table: "sound",
    objects: &["feature_extractor", "audio_processor"],
    type_key: "feature_extractor_type",
    types: "feature_extractors",
};

/// All known processor files, by name.
#[derive(Clone, Debug)]
pub struct Processors {
    files: BTreeMap<String, (String, Table)>,
}

impl Processors {
    /// The built-in files and those in `folders`, which replace files of the same name.
    ///
    /// # Errors
    /// A folder or a file cannot be read, or a file is no TOML.
    pub fn open(folders: &[PathBuf]) -> Result<Self, ProcessorError> {
        let of_library = |error: LibraryError| Box::new(Error::from(error));
        let built_in = EMBEDDED_PROCESSORS.iter().map(|(name, text)| {
            let source = SourceFile::embedded(format!("stmaps/{name}{ENDING}"), text);
            ((*name).to_owned(), source)
        });
        let mut sources: BTreeMap<String, SourceFile> = built_in.collect();
        sources.extend(sources_in(folders, ENDING).map_err(of_library)?);
        let mut files = BTreeMap::new();
        for (name, source) in sources {
            let table =
                source
                    .text
                    .parse()
                    .map_err(|error: toml::de::Error| ProcessorError::File {
                        file: source.path.clone(),
                        message: error.to_string(),
                    })?;
            files.insert(name, (source.path, table));
        }
        if let Some((_, common)) = files.remove(COMMON) {
            for (_, table) in files.values_mut() {
                complete(table, &common);
            }
        }
        Ok(Self { files })
    }

    /// The names of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// How a folder prepares pictures; none if it has no image processor.
    ///
    /// # Errors
    /// A file of the folder is malformed, no processor file is for it, or that one does not fit.
    pub fn pictures(&self, folder: &Path) -> Result<Option<PictureRules>, ProcessorError> {
        self.rules(folder, &read(folder, &PICTURES)?, &PICTURES)
    }

    /// How a folder prepares sounds; none if it has no feature extractor.
    ///
    /// # Errors
    /// The errors of [`Self::pictures`].
    pub fn sounds(&self, folder: &Path) -> Result<Option<SoundRules>, ProcessorError> {
        self.rules(folder, &read(folder, &SOUNDS)?, &SOUNDS)
    }

    /// How pictures are prepared by what the map of a projector file, `path`, says of its processor; none if it says nothing.
    ///
    /// # Errors
    /// The errors of [`Self::pictures`].
    pub fn pictures_of(
        &self,
        path: &Path,
        stated: &Json,
    ) -> Result<Option<PictureRules>, ProcessorError> {
        self.rules(
            path,
            &FolderFiles::stated(stated, PICTURES.type_key),
            &PICTURES,
        )
    }

    /// How sounds are prepared by what the map of a projector file, `path`, says of its processor; none if it says nothing.
    ///
    /// # Errors
    /// The errors of [`Self::pictures`].
    pub fn sounds_of(
        &self,
        path: &Path,
        stated: &Json,
    ) -> Result<Option<SoundRules>, ProcessorError> {
        self.rules(path, &FolderFiles::stated(stated, SOUNDS.type_key), &SOUNDS)
    }

    fn rules<R: DeserializeOwned>(
        &self,
        folder: &Path,
        files: &FolderFiles,
        kind: &MediaKind,
    ) -> Result<Option<R>, ProcessorError> {
        if files.kind.is_empty() {
            return Ok(None);
        }
        let Some((path, file, rules)) = self.file_of(files, kind) else {
            return Err(ProcessorError::Unknown {
                folder: folder.to_owned(),
                name: format!("`{}` of `{}`", files.kind, files.class),
            });
        };
        let unfit = |message: String| ProcessorError::Unfit {
            folder: folder.to_owned(),
            file: path.to_owned(),
            message,
        };
        let scope = ProcessorScope::new(files, file);
        for condition in file
            .get("require")
            .and_then(Toml::as_array)
            .into_iter()
            .flatten()
        {
            match scope.value(condition).map_err(unfit)? {
                Value::Bool(true) => {}
                _ => {
                    return Err(unfit(format!(
                        "the folder breaks the condition {condition}"
                    )));
                }
            }
        }
        let rules = R::deserialize(Evaluated {
            item: Item::Written(rules),
            scope: &scope,
        });
        rules
            .map(Some)
            .map_err(|error| unfit(format!("{}: {error}", kind.table)))
    }

    /// The file for a folder, with its path and its rules: one that lists its type and, if the folder names one, its class. The same type
    /// has other texts in the prompt under another class.
    fn file_of(&self, files: &FolderFiles, kind: &MediaKind) -> Option<(&str, &Table, &Toml)> {
        let all = self
            .files
            .values()
            .filter_map(|(path, file)| Some((path.as_str(), file, file.get(kind.table)?)));
        let has = |file: &Table, list: &str, name: &str| {
            let names = file
                .get(list)
                .and_then(Toml::as_array)
                .into_iter()
                .flatten();
            names.filter_map(Toml::as_str).any(|other| other == name)
        };
        let mut all = all.filter(|(_, file, _)| {
            has(file, kind.types, &files.kind)
                && (files.class.is_empty() || has(file, "classes", &files.class))
        });
        all.next()
    }
}

/// Adds what a table lacks, tables within it included.
fn complete(table: &mut Table, from: &Table) {
    for (key, value) in from {
        match (table.get_mut(key), value) {
            (Some(Toml::Table(own)), Toml::Table(inner)) => complete(own, inner),
            (Some(_), _) => {}
            (None, _) => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

/// The configurations of a folder, of which any may be absent.
fn read(folder: &Path, kind: &MediaKind) -> Result<FolderFiles, ProcessorError> {
    let file = |name: &str| match folder.join(name) {
        path if path.is_file() => read_config(&path).map_err(Box::new),
        _ => Ok(Json::Null),
    };
    let (processor, preprocessor) = (file(PROCESSOR)?, file(PREPROCESSOR)?);
    let tokenizer = file(TOKENIZER)?;
    let mut objects = kind.objects.iter().filter_map(|name| processor.get(name));
    let own = match objects.find(|own| own.is_object()) {
        Some(own) => own.clone(),
        None => preprocessor.clone(),
    };
    let text = |object: &Json, key: &str| object.get(key).and_then(Json::as_str).map(str::to_owned);
    let class = [&processor, &preprocessor, &tokenizer].into_iter();
    let class = class
        .filter_map(|object| text(object, "processor_class"))
        .next();
    let name = text(&own, kind.type_key).unwrap_or_default();
    Ok(FolderFiles {
        kind: name.strip_suffix("Fast").unwrap_or(&name).to_owned(),
        class: class.unwrap_or_default(),
        own,
        processor,
        tokenizer,
        config: file(CONFIG)?,
    })
}
