//! What the targets share: folders in memory, what is built in, and the built-in model.
//!
//! A target gives bytes to a part of the library that reads what strangers wrote. A panic, a signal, a leak or too much time
//! or memory is a finding; errors are what is expected.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use lab_base::tokenizer::Tokenizer;
use lab_core::models::{self, Definitions, ModelSource, OpenedModel};

/// A folder of this process, in memory where there is one.
pub fn folder() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let memory = Path::new("/dev/shm");
        let parent = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        let folder = parent.join(format!("bench-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a writable folder");
        folder
    });
    &FOLDER
}

/// Writes a file of the folder anew: the one before may be mapped still.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder().join(name);
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, bytes).expect("a writable folder");
    path
}

/// The repository, whose small folders some targets read.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// What is built in.
pub fn definitions() -> &'static Definitions {
    static ALL: LazyLock<Definitions> =
        LazyLock::new(|| Definitions::open(&[]).expect("the built-in definitions are readable"));
    &ALL
}

/// The built-in model.
pub fn model() -> OpenedModel {
    models::open(&ModelSource::of(None), definitions()).expect("the built-in model")
}

/// Its vocabulary.
pub fn tokenizer() -> Arc<Tokenizer> {
    static ONE: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
        let contents = models::read(&ModelSource::of(None), definitions()).expect("the built-in model");
        Arc::new(contents.tokenizer().expect("it has a vocabulary"))
    });
    Arc::clone(&ONE)
}
