//! Where a model comes from.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Name of the default model.
pub const DEFAULT_MODEL: &str = "tiny-chat";

/// Bytes with the alignment of tensor data, so that the built-in model is used without a copy.
#[repr(align(64))]
pub(super) struct Aligned<T: ?Sized>(pub(super) T);

/// The models that are built into the program.
pub(super) static BUILT_IN: [(&str, &Aligned<[u8]>); 2] = [
    (
        DEFAULT_MODEL,
        &Aligned(*include_bytes!("../../../models/tiny-chat.gguf")),
    ),
    (
        "tiny-diffusion",
        &Aligned(*include_bytes!("../../../models/tiny-diffusion.gguf")),
    ),
];

/// A model that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A model that is built into the program.
    BuiltIn(&'static str),
    /// A file, or a folder of tensors.
    File(PathBuf),
    /// A file or folder with a name of its own, such as `owner/repo` for a model of the Hub's cache.
    Named { name: String, path: PathBuf },
}

/// Names, sizes and times of the last change of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStamp(Vec<(PathBuf, u64, std::time::SystemTime)>);

impl FileStamp {
    /// A hash of the files' names, without their folders, of their sizes and times of change.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for (path, bytes, time) in &self.0 {
            let name = path.file_name().unwrap_or_default();
            let since = time.duration_since(std::time::UNIX_EPOCH);
            let nanos = since.map_or(0, |since| since.as_nanos());
            hash.update(format!("{name:?} {bytes} {nanos}\n"));
        }
        hash.finalize().into()
    }

    /// The time of the last change.
    pub fn modified(&self) -> Option<std::time::SystemTime> {
        self.0.iter().map(|(.., time)| *time).max()
    }
}

impl ModelSource {
    /// The source of an optional path: without a path the default model; a built-in model if the path is its name and
    /// no such file exists.
    pub fn of(path: Option<&Path>) -> Self {
        let Some(path) = path else {
            return Self::BuiltIn(DEFAULT_MODEL);
        };
        let shipped = BUILT_IN.iter().find(|(name, _)| path == Path::new(name));
        match shipped.filter(|_| !path.exists()) {
            Some((name, _)) => Self::BuiltIn(name),
            None => Self::File(path.to_owned()),
        }
    }

    /// The file or folder; none for a built-in model.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::BuiltIn(_) => None,
            Self::File(path) | Self::Named { path, .. } => Some(path),
        }
    }

    /// The path of the file or folder; the name of a built-in model.
    pub fn path(&self) -> String {
        match self {
            Self::BuiltIn(name) => (*name).into(),
            Self::File(path) | Self::Named { path, .. } => path.display().to_string(),
        }
    }

    /// The current stamp of the model's file, or of the folder and its files; none for a built-in model.
    pub fn stamp(&self) -> Option<FileStamp> {
        let path = self.file()?;
        let about = |path: &Path| {
            let about = path.metadata().ok()?;
            Some((path.to_owned(), about.len(), about.modified().ok()?))
        };
        let entries = path.read_dir().into_iter().flatten().flatten();
        let mut all: Vec<_> = entries.filter_map(|entry| about(&entry.path())).collect();
        all.extend(about(path));
        all.sort();
        Some(FileStamp(all))
    }

    /// Name under which the model is served.
    pub fn name(&self) -> String {
        match self {
            Self::BuiltIn(name) => (*name).into(),
            Self::Named { name, .. } => name.clone(),
            Self::File(path) => {
                // `.` and `..` have no name.
                let whole = match path.file_name() {
                    Some(_) => None,
                    None => path.canonicalize().ok(),
                };
                let path = whole.as_deref().unwrap_or(path);
                let name = match path.is_dir() {
                    true => path.file_name(),
                    false => path.file_stem(),
                };
                name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
            }
        }
    }
}
