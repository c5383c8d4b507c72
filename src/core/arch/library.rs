//! The library of definitions: those built into the program and those of the user's folders.
//!
//! A definition is read and checked when it is requested, so a broken file does not affect other definitions. A file of
//! a folder replaces a built-in definition of the same name, and later folders take precedence over earlier ones.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use lab_base::util::limited_read;
use lab_base::util::limited_read::MAX_DEFINITION;
use lab_base::util::lock::lock;

use super::contract::Registry;
use super::definition::{ArchDef, CommonDefinitions};
use super::diagnostic::{Diagnostics, nearest};

include!(concat!(env!("OUT_DIR"), "/embedded_archs.rs"));

/// Ending of a definition's file name.
pub const ENDING: &str = ".arch.toml";

/// Ending of the file name of a tower's definition.
pub const TOWER_ENDING: &str = ".tower.toml";

/// Ending of the file name of a drafter's definition.
pub const DRAFTER_ENDING: &str = ".drafter.toml";

/// The text of one definition.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The origin of the text, for messages.
    pub path: String,
    /// The TOML.
    pub text: String,
    /// Whether the definition is built into the program.
    pub is_embedded: bool,
}

impl SourceFile {
    /// Reads a text of bounded length.
    fn read(path: &Path) -> Result<Self, LibraryError> {
        let text = limited_read::text(path, MAX_DEFINITION);
        let text = text.map_err(|source| LibraryError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.display().to_string(),
            text,
            is_embedded: false,
        })
    }

    pub(crate) fn embedded(path: impl Into<String>, text: &str) -> Self {
        Self {
            path: path.into(),
            text: text.to_owned(),
            is_embedded: true,
        }
    }
}

/// All available definitions, by name.
#[derive(Clone, Debug)]
pub struct Library {
    registry: &'static Registry,
    common: CommonDefinitions,
    sources: BTreeMap<String, SourceFile>,
    /// Ending of the file names.
    ending: &'static str,
    /// The definition that is used for every architecture, if one is chosen.
    chosen: Option<SourceFile>,
}

/// The reason why a definition is not available.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// There is no definition of that name.
    #[error("unknown architecture `{name}`{}", hint(.near.as_deref()))]
    Unknown { name: String, near: Option<String> },
    /// The definition has problems.
    #[error(transparent)]
    Broken(#[from] Diagnostics),
    /// A folder or file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
}

fn hint(near: Option<&str>) -> String {
    match near {
        Some(near) => format!("; did you mean `{near}`? (`bench arch list` names all)"),
        None => "; `bench arch list` names all, and `--archs DIR` adds more".into(),
    }
}

impl Library {
    /// The built-in definitions and those in `folders`.
    ///
    /// # Errors
    /// The folder cannot be read, or the common parameters have problems.
    pub fn open(registry: &'static Registry, folders: &[PathBuf]) -> Result<Self, LibraryError> {
        Self::of_files(registry, folders, (EMBEDDED_ARCHS, ENDING))
    }

    /// The built-in definitions of towers and those in `folders`.
    ///
    /// # Errors
    /// The folder cannot be read, or the common parameters have problems.
    pub fn towers(registry: &'static Registry, folders: &[PathBuf]) -> Result<Self, LibraryError> {
        Self::of_files(registry, folders, (EMBEDDED_TOWERS, TOWER_ENDING))
    }

    /// The built-in definitions of drafters and those in `folders`.
    ///
    /// # Errors
    /// The folder cannot be read, or the common parameters have problems.
    pub fn drafters(
        registry: &'static Registry,
        folders: &[PathBuf],
    ) -> Result<Self, LibraryError> {
        Self::of_files(registry, folders, (EMBEDDED_DRAFTERS, DRAFTER_ENDING))
    }

    fn of_files(
        registry: &'static Registry,
        folders: &[PathBuf],
        (embedded, ending): (&[(&str, &str)], &'static str),
    ) -> Result<Self, LibraryError> {
        let common = super::parse_common("archs/common.toml", EMBEDDED_COMMON, registry)?;
        let mut sources = BTreeMap::new();
        for (name, text) in embedded {
            let source = SourceFile::embedded(format!("archs/{name}{ending}"), text);
            sources.insert((*name).to_owned(), source);
        }
        sources.extend(sources_in(folders, ending)?);
        let further: Vec<(String, SourceFile)> = sources
            .values()
            .flat_map(|source| {
                further_names(&source.text)
                    .into_iter()
                    .map(|name| (name, source.clone()))
            })
            .collect();
        for (name, source) in further {
            sources.entry(name).or_insert(source);
        }
        Ok(Self {
            registry,
            common,
            sources,
            ending,
            chosen: None,
        })
    }

    /// The same library with one definition for all architectures: the one of this name, or the file at this path.
    ///
    /// # Errors
    /// There is no definition of this name, or the file cannot be read.
    pub fn only(self, name_or_path: &str) -> Result<Self, LibraryError> {
        let is_path = name_or_path.ends_with(ENDING);
        let chosen = match is_path {
            false => self.source(name_or_path)?.clone(),
            true => SourceFile::read(name_or_path.as_ref())?,
        };
        Ok(Self {
            chosen: Some(chosen),
            ..self
        })
    }

    /// Names and texts of the definitions, in the order of the names.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &SourceFile)> {
        self.sources
            .iter()
            .map(|(name, source)| (name.as_str(), source))
    }

    /// The text of a definition.
    pub fn source(&self, name: &str) -> Result<&SourceFile, LibraryError> {
        self.sources.get(name).ok_or_else(|| LibraryError::Unknown {
            name: name.to_owned(),
            near: nearest(name, self.sources.keys().map(String::as_str)).map(str::to_owned),
        })
    }

    /// The checked definition of this name.
    ///
    /// # Errors
    /// The name is unknown, or the text has problems; all are returned together.
    pub fn get(&self, name: &str) -> Result<ArchDef, LibraryError> {
        let source = match &self.chosen {
            Some(chosen) => chosen,
            None => self.source(name)?,
        };
        let def = match source.is_embedded {
            true => self.embedded(source)?,
            false => self.check(&source.path, &source.text)?,
        };
        if self.chosen.is_none() && !def.names.iter().any(|known| known == name) {
            let at = source.text.find(&def.name).unwrap_or(0);
            let problem = super::Diagnostic::new(
                at..at + def.name.len(),
                format!(
                    "the file is named `{name}{}` and the definition `{}`",
                    self.ending, def.name
                ),
            );
            return Err(Diagnostics::new(&source.path, &source.text, vec![problem]).into());
        }
        let name = name.to_owned();
        Ok(ArchDef { name, ..def })
    }

    /// The checked definition of the drafter of this name for a target, whose parameters, resources and slots it may use.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub fn of_target(&self, name: &str, target: &ArchDef) -> Result<ArchDef, LibraryError> {
        let source = self.source(name)?;
        let common = CommonDefinitions::of_target(target);
        let def = super::parse(&source.path, &source.text, self.registry, &common)?;
        // Metadata keys are those of the target's architecture.
        let name = target.name.clone();
        Ok(ArchDef { name, ..def })
    }

    /// A built-in definition, read once per process.
    fn embedded(&self, source: &SourceFile) -> Result<ArchDef, Diagnostics> {
        /// Definitions by the address of the registry and the path of the definition.
        type Known = HashMap<(usize, String), ArchDef>;
        static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
        // A panic elsewhere leaves the table valid.
        let known = || lock(&KNOWN);
        let key = (
            std::ptr::from_ref(self.registry).addr(),
            source.path.clone(),
        );
        if let Some(def) = known().get(&key) {
            return Ok(def.clone());
        }
        let def = self.check(&source.path, &source.text)?;
        known().insert(key, def.clone());
        Ok(def)
    }

    /// The reference of blocks, stages and resources as Markdown, with the names of the valid definitions that use each
    /// block: those of this library, then those of towers.
    pub fn reference(&self, towers: &Self) -> String {
        let all = |of: &Self| -> Vec<ArchDef> {
            of.sources()
                .filter_map(|(name, _)| of.get(name).ok())
                .collect()
        };
        let defs = [all(self), all(towers)].concat();
        let uses = |def: &ArchDef, block: &str| {
            let slots = def.stacks.iter().flat_map(|stack| &stack.slots);
            let mut branches = slots.flat_map(|slot| &slot.branches);
            branches.any(|branch| branch.block.contract.name == block)
        };
        let blocks = self.registry.to_markdown(&|block| {
            let users = defs.iter().filter(|def| uses(def, block));
            users.map(|def| def.name.clone()).collect()
        });
        blocks + &super::reference::parameters(self.registry, &self.common.params)
    }

    /// Reads and checks a text as a definition of this library.
    ///
    /// # Errors
    /// The text has problems; all are returned.
    pub fn check(&self, path: &str, text: &str) -> Result<ArchDef, Diagnostics> {
        super::parse(path, text, self.registry, &self.common)
    }
}

/// The further names of a definition; empty if the text is not a definition.
fn further_names(text: &str) -> Vec<String> {
    // Few definitions have several names, and parsing all definitions is slow: texts without a list are skipped.
    let is_list = |line: &str| {
        let value = line.strip_prefix("name").map(str::trim_start);
        value.is_some_and(|value| value.strip_prefix('=').is_some_and(|v| v.contains('[')))
    };
    if !text.lines().any(is_list) {
        return Vec::new();
    }
    let names = text.parse::<toml::Table>().ok();
    let names = names.and_then(|mut table| table.remove("name"));
    let names = names.and_then(|names| names.try_into::<Vec<String>>().ok());
    names.into_iter().flatten().skip(1).collect()
}

/// The files in `folders` with this ending, by their stems; files of later folders replace earlier ones.
pub(crate) fn sources_in(
    folders: &[PathBuf],
    ending: &str,
) -> Result<BTreeMap<String, SourceFile>, LibraryError> {
    let mut sources = BTreeMap::new();
    for folder in folders {
        let io = |source| LibraryError::Io {
            path: folder.clone(),
            source,
        };
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let name = path.file_name().and_then(|n| n.to_str());
            let Some(name) = name.and_then(|n| n.strip_suffix(ending)).map(str::to_owned) else {
                continue;
            };
            sources.insert(name, SourceFile::read(&path)?);
        }
    }
    Ok(sources)
}
