//! Backends of ggml that are loaded from libraries while the program runs.
//!
//! A library has no copy of ggml's core: its `ggml_*` functions are the program's, so there is one registry, one log
//! and one set of structures. A library that was built from other sources is not initialised, since it would misread
//! these structures. Libraries are never unloaded.

use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use ggml_sys as sys;
use libloading::Library;

use super::c_text::text;
use crate::util::lock::lock;

/// Environment variable with a folder that is searched in addition to that of the program.
pub const FOLDER_VARIABLE: &str = "BENCH_BACKEND_DIR";

/// The reason why a library was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error("{path}: {problem}")]
    File { path: String, problem: String },
    #[error("{path}: cannot be loaded: {problem}")]
    Needs { path: String, problem: String },
    #[error("{path}: a backend of {found}; this program has {expected}")]
    OtherSources {
        path: String,
        found: String,
        expected: String,
    },
    #[error("{path}: finds no device here")]
    NoDevice { path: String },
    #[error("{path}: there is a backend {name} already")]
    Again { path: String, name: String },
}

impl LibraryError {
    /// Whether the machine has no such device, or the backend is loaded already: then the library is not faulty.
    pub fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::Needs { .. } | Self::NoDevice { .. } | Self::Again { .. }
        )
    }
}

static LOADED: LazyLock<Mutex<Vec<PathBuf>>> = LazyLock::new(Mutex::default);

/// The names of loaded backends, and whether each has attention by block tables.
static READS_TABLES: LazyLock<Mutex<Vec<(String, bool)>>> = LazyLock::new(Mutex::default);

/// Whether a backend has this project's attention by block tables: a library says so, and CUDA as a part of the program
/// has it.
pub(super) fn reads_tables(backend: &str) -> bool {
    let loaded = lock(&READS_TABLES);
    let found = loaded.iter().find(|(name, _)| name == backend);
    found.map_or(backend == "CUDA", |(_, reads)| *reads)
}

/// Adds the devices of a backend library, and returns the name of the backend. A file that was loaded before is not
/// registered again.
///
/// # Errors
/// The file is not a library, needs something that is missing, was built from other sources, finds no device, or has
/// the name of a backend that exists already.
pub fn load_library(path: &Path) -> Result<String, LibraryError> {
    super::log::install();
    let shown = path.display().to_string();
    let fault = |problem: String| LibraryError::File {
        path: shown.clone(),
        problem,
    };
    let whole = path
        .canonicalize()
        .map_err(|error| fault(error.to_string()))?;
    check_file(&whole).map_err(fault)?;
    let mut loaded = lock(&LOADED);
    // SAFETY: the file runs its initialisers, as any library that a user names does.
    let library = unsafe { open(&whole) }.map_err(|error| LibraryError::Needs {
        path: shown.clone(),
        problem: error.to_string(),
    })?;
    let found = identity(&library).unwrap_or_else(|| "unknown sources".to_owned());
    if found != sys::IDENTITY {
        return Err(LibraryError::OtherSources {
            path: shown,
            found,
            expected: sys::IDENTITY.to_owned(),
        });
    }
    let no_device = || LibraryError::NoDevice {
        path: shown.clone(),
    };
    let reg = initialised(&library).ok_or_else(no_device)?;
    // SAFETY: the registry entry lives as long as the library, which is not unloaded from here on.
    let (name, api, expected) = unsafe {
        let name = text(sys::ggml_backend_reg_name(reg));
        let api = sys::shim_backend_api_version(reg);
        (name, api, sys::shim_core_api_version())
    };
    // SAFETY: only the presence of the symbol is asked for.
    let reads = unsafe { library.get::<*const c_int>(b"bench_backend_reads_tables\0") }.is_ok();
    std::mem::forget(library);
    if api != expected {
        return Err(LibraryError::OtherSources {
            path: shown,
            found: format!("ggml's interface {api}"),
            expected: format!("interface {expected}"),
        });
    }
    if loaded.contains(&whole) {
        return Ok(name);
    }
    if is_registered(&name) {
        return Err(LibraryError::Again { path: shown, name });
    }
    // SAFETY: as above; a backend of this interface has all functions that the registry calls.
    unsafe { super::device::register(reg) };
    loaded.push(whole);
    lock(&READS_TABLES).push((name.clone(), reads));
    Ok(name)
}

/// Adds the devices of the backend libraries next to the program and in the folder that [`FOLDER_VARIABLE`] names.
/// Returns the errors of those that were not loaded.
pub fn load_found() -> Vec<LibraryError> {
    let own = std::env::current_exe().ok();
    let own = own.and_then(|program| Some(program.parent()?.to_owned()));
    let named = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
    let mut errors = Vec::new();
    let mut files = Vec::new();
    for folder in own.iter().chain(named.map(PathBuf::from).iter()) {
        match libraries_of(folder) {
            Ok(found) => files.extend(found),
            Err(error) => errors.push(LibraryError::File {
                path: folder.display().to_string(),
                problem: error.to_string(),
            }),
        }
    }
    for file in files {
        errors.extend(load_library(&file).err());
    }
    errors
}

fn libraries_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy());
        let is_library = name.is_some_and(|name| {
            let stem = name.strip_suffix(".so").or(name.strip_suffix(".dll"));
            stem.is_some_and(|stem| stem.starts_with("libggml-") || stem.starts_with("ggml-"))
        });
        if is_library {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Refuses a file that would crash the system's loader: it maps a file by the table at the start, and a file that is
/// shorter than the table states ends the process.
fn check_file(path: &Path) -> Result<(), String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("not a file".to_owned());
    }
    if !cfg!(all(unix, not(target_os = "macos"))) {
        return Ok(());
    }
    // The header of a 64-bit ELF file; the table of sections is at the end of the file.
    let mut header = [0; 64];
    let is_elf = file.read_exact(&mut header).is_ok() && header.starts_with(b"\x7fELF\x02");
    if !is_elf {
        return Err("not a library".to_owned());
    }
    let number = |at: usize, len: usize| {
        let bytes = header[at..at + len].iter().rev();
        bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let table = number(58, 2).saturating_mul(number(60, 2));
    let end = number(40, 8).saturating_add(table);
    match end > metadata.len() {
        true => Err(format!(
            "an incomplete library: {} of {end} bytes",
            metadata.len()
        )),
        false => Ok(()),
    }
}

/// Opens a library and resolves all its functions at once, so that missing ones are noticed now.
///
/// # Safety
/// The initialisers of the library run.
unsafe fn open(path: &Path) -> Result<Library, libloading::Error> {
    #[cfg(unix)]
    {
        use libloading::os::unix;
        // SAFETY: the caller vouches for the file.
        let library = unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_LOCAL) };
        library.map(Library::from)
    }
    #[cfg(not(unix))]
    // SAFETY: the caller vouches for the file.
    unsafe {
        Library::new(path)
    }
}

fn identity(library: &Library) -> Option<String> {
    // SAFETY: libraries that `scripts/backend.sh` builds have a string of this name.
    unsafe {
        let string = library.get::<*const c_char>(b"bench_backend_identity\0");
        Some(CStr::from_ptr(*string.ok()?).to_string_lossy().into_owned())
    }
}

/// The registry entry of a library of the same sources; none if the library finds no device.
fn initialised(library: &Library) -> Option<sys::ggml_backend_reg_t> {
    type Score = unsafe extern "C" fn() -> c_int;
    type Init = unsafe extern "C" fn() -> sys::ggml_backend_reg_t;
    // SAFETY: ggml's backends of these sources define these functions with these types, the first of them
    // not always.
    unsafe {
        if let Ok(score) = library.get::<Score>(b"ggml_backend_score\0")
            && score() == 0
        {
            return None;
        }
        let init = library.get::<Init>(b"ggml_backend_init\0").ok()?;
        Some(init()).filter(|reg| !reg.is_null())
    }
}

fn is_registered(name: &str) -> bool {
    super::devices()
        .into_iter()
        .any(|device| device.backend_name() == name)
}
